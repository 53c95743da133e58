package control

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"sync/atomic"
	"time"
)

// endPatience is how long a bridge that was told to end its answer may send nothing before it is left.
const endPatience = 5 * time.Second

// A Stream is an answer that goes on until the bridge is told to end it. What the bridge has still to
// send then may take any time; a bridge that sends nothing is left after endPatience. One goroutine reads it. Another
// may call end.
type Stream struct {
	Trailer http.Header // of the answer, after its end

	body   io.ReadCloser // nil before answered
	cancel func()        // ends the request
	ending atomic.Bool
	waits  atomic.Uint64 // odd while the reader waits for the bridge
}

// Stream asks for target. When ctx is done, the bridge is told to end its answer, and the Stream goes on until it is whole.
func (c *Client) Stream(ctx context.Context, target string) (*Stream, error) {
	var conn atomic.Pointer[net.UnixConn]
	request, cancel := context.WithCancel(context.WithoutCancel(ctx))
	s := newStream(cancel)
	traced := httptrace.WithClientTrace(request, &httptrace.ClientTrace{GotConn: func(i httptrace.GotConnInfo) {
		if u, ok := i.Conn.(*net.UnixConn); ok {
			conn.Store(u)
		}
	}})
	context.AfterFunc(ctx, func() {
		// The bridge reads the end of what this side sends, and ends its answer.
		if u := conn.Load(); u == nil || u.CloseWrite() != nil {
			cancel()
		}
		s.end()
	})
	answer, err := c.Do(traced, http.MethodGet, target, nil)
	if err != nil {
		cancel()
		return nil, err
	}
	s.answered(answer.Body)
	s.Trailer = answer.Trailer
	return s, nil
}

// newStream returns a Stream for a request that cancel ends, and whose answer is being waited for.
func newStream(cancel func()) *Stream {
	s := &Stream{cancel: cancel}
	s.waits.Store(1)
	return s
}

// answered sets the body of the answer. Read and Close may be called from now on.
func (s *Stream) answered(body io.ReadCloser) {
	s.body = body
	s.waits.Add(1)
}

// end says that the bridge has been told to end its answer.
func (s *Stream) end() {
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
func (s *Stream) Read(b []byte) (int, error) {
	s.waits.Add(1)
	defer s.waits.Add(1)
	if s.ending.Load() {
		defer time.AfterFunc(endPatience, s.cancel).Stop()
	}
	return s.body.Read(b)
}

// Close ends the request.
func (s *Stream) Close() error {
	err := s.body.Close()
	s.cancel()
	return err
}
