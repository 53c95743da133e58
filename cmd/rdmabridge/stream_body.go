package main

import (
	"io"
	"sync/atomic"
	"time"
)

// endPatience is how long a bridge that was told to end its answer may send nothing before it is left.
const endPatience = 5 * time.Second

// A streamBody is the body of an answer that goes on until the bridge is told to end it. What the bridge has still to
// send then may take any time; a bridge that sends nothing is left after endPatience. One goroutine reads it. Another
// may call end.
type streamBody struct {
	body   io.ReadCloser // nil before answered
	cancel func()        // ends the request
	ending atomic.Bool
	waits  atomic.Uint64 // odd while the reader waits for the bridge
}

// newStreamBody returns a body for a request that cancel ends, and whose answer is being waited for.
func newStreamBody(cancel func()) *streamBody {
	s := &streamBody{cancel: cancel}
	s.waits.Store(1)
	return s
}

// answered sets the body of the answer. Read and Close may be called from now on.
func (s *streamBody) answered(body io.ReadCloser) {
	s.body = body
	s.waits.Add(1)
}

// end says that the bridge has been told to end its answer.
func (s *streamBody) end() {
	s.ending.Store(true)
	if n := s.waits.Load(); n%2 == 1 {
		time.AfterFunc(endPatience, func() {
			if s.waits.Load() == n {
				s.cancel()
			}
		})
	}
}

// Read is part of io.Reader.
func (s *streamBody) Read(b []byte) (int, error) {
	s.waits.Add(1)
	defer s.waits.Add(1)
	if s.ending.Load() {
		defer time.AfterFunc(endPatience, s.cancel).Stop()
	}
	return s.body.Read(b)
}

// Close ends the request.
func (s *streamBody) Close() error {
	err := s.body.Close()
	s.cancel()
	return err
}
