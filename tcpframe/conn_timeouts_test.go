package tcpframe

import (
	"testing"
	"time"
)

// TestSweepLooksAtFew: a sweep looks at a connection only while a timeout of it can pass, so that
// thousands of idle connections cost nothing.
func TestSweepLooksAtFew(t *testing.T) {
	long := fragment(true, pattern(10_000, 0))
	for _, tt := range []struct {
		name  string
		opts  ConnOptions
		begin func(c *Conn)
		end   func(c *Conn)
	}{
		{"nothing", ConnOptions{}, nil, nil},
		{"a whole record", ConnOptions{}, func(c *Conn) { c.pass(long); c.Loop().sweep(0) }, nil},
		{"half a mark", ConnOptions{}, func(c *Conn) { c.pass(long[:2]) }, func(c *Conn) { c.pass(long[2:]) }},
		{"half a record", ConnOptions{}, func(c *Conn) { c.pass(long[:2000]) }, func(c *Conn) { c.pass(long[2000:]) }},
		{"the peer does not read", ConnOptions{}, func(c *Conn) {
			c.blocked = true // as after a short write
			c.Send([][]byte{pattern(100, 0)}, nil)
			c.endPass()
		}, func(c *Conn) { c.dropQueue() }},
		{"closing", ConnOptions{}, func(c *Conn) { c.blocked = true; c.Send([][]byte{pattern(100, 0)}, nil); c.Close(nil); c.endPass() }, func(c *Conn) { c.state = closed }},
		{"an idle timeout", ConnOptions{IdleTimeout: time.Hour}, func(c *Conn) { c.watch() }, func(c *Conn) { c.state = closed }},
		{"a silent timeout", ConnOptions{SilentTimeout: time.Hour}, func(c *Conn) { c.watch() }, func(c *Conn) { c.state = closed }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.opts.Memory = lend(&testMemory{})
			h := newRecorder()
			h.record = func(_ *Conn, b Buffer) { b.Release() }
			c := offlineConn(tt.opts, h)
			l := c.Loop()
			watched := func() bool {
				for range 3 {
					l.sweep(1)
				}
				return len(l.timed) == 1 && c.timed
			}
			if tt.begin != nil {
				tt.begin(c)
			}
			if want := tt.end != nil; watched() != want {
				t.Errorf("watched: %v, want %v", !want, want)
			}
			if tt.end != nil {
				tt.end(c)
			}
			if watched() || len(l.timed) != 0 || c.timed {
				t.Error("watched although no timeout can pass")
			}
			c.dropInput()
			c.dropQueue()
		})
	}
}
