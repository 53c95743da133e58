package control

import (
	"context"
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"
)

// slowBody is a body of which each octet takes a while. It ends after some octets, or when ctx is done.
type slowBody struct {
	ctx   context.Context
	left  int
	every time.Duration
}

func (s *slowBody) Read(b []byte) (int, error) {
	if s.left == 0 {
		return 0, io.EOF
	}
	s.left--
	select {
	case <-time.After(s.every):
		return copy(b, "x"), nil
	case <-s.ctx.Done():
		return 0, s.ctx.Err()
	}
}

func (s *slowBody) Close() error { return nil }

// TestStreamBody: what a bridge has to send when it is told to end may take any time, but a bridge that sends nothing is
// left.
func TestStreamBody(t *testing.T) {
	for _, tt := range []struct {
		name          string
		every, answer time.Duration // of an octet; of the beginning of the answer
		pause         time.Duration // of the reader, after each octet
		octets        int
		err           error
	}{
		{"quick", time.Millisecond, 0, 0, 10, nil},
		{"slow, but it goes on", 4 * time.Second, 0, 0, 10, nil},
		{"the reader is slow", time.Second, 0, 20 * time.Second, 10, nil},
		{"nothing more comes", time.Hour, 0, 0, 0, context.Canceled},
		{"no answer comes", time.Second, time.Hour, 0, 0, context.Canceled},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				s := newStream(cancel)
				time.AfterFunc(1500*time.Millisecond, s.end)
				select {
				case <-time.After(tt.answer):
				case <-ctx.Done():
				}
				s.answered(&slowBody{ctx, 10, tt.every})
				n := 0
				var err error
				for err == nil {
					if _, err = s.Read(make([]byte, 1)); err == nil {
						n++
						time.Sleep(tt.pause)
					}
				}
				if err == io.EOF {
					err = nil
				}
				if n != tt.octets || !errors.Is(err, tt.err) {
					t.Errorf("%d octets, %v; want %d, %v", n, err, tt.octets, tt.err)
				}
				if err := s.Close(); err != nil || ctx.Err() == nil {
					t.Errorf("Close: %v, and the request goes on: %v", err, ctx.Err() == nil)
				}
			})
		})
	}
}
