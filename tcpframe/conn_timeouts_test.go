package tcpframe

import (
	"strings"
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/tcpframe/tlsloop"
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

// A record has to be whole within RecordTimeout, whatever progress it makes. Only time in which this side reads
// counts.
func TestRecordTimeout(t *testing.T) {
	const limit = 10 * time.Second
	long := fragment(true, pattern(1<<20, 0))
	step := func(c *Conn, d time.Duration) {
		l := c.Loop()
		l.SetClock(l.Now() + int64(d))
		c.checkTimeouts(l.Now())
	}
	for _, tt := range []struct {
		name  string
		limit time.Duration
		do    func(c *Conn, mem *testMemory)
		ends  bool
	}{
		{"it takes just as long as it may", limit, func(c *Conn, _ *testMemory) {
			step(c, 0)
			for i := range 10 { // twice as fast as StallTimeout demands
				c.pass(long[i*2*stallOctets : (i+1)*2*stallOctets][4*min(i, 1):])
				step(c, time.Second)
			}
		}, false},
		{"it is a nanosecond too slow", limit, func(c *Conn, _ *testMemory) {
			c.pass(long[:stallOctets])
			step(c, 0)
			for i := 1; i <= 10; i++ {
				c.pass(long[i*2*stallOctets : (i+1)*2*stallOctets])
				step(c, time.Second)
			}
			step(c, 1)
		}, true},
		{"half a mark", limit, func(c *Conn, _ *testMemory) {
			c.pass(long[:2])
			step(c, 0)
			step(c, limit/2)
			c.pass(long[2:3])
			step(c, limit/2+1)
		}, true},
		{"the next one begins each time before it is seen that one has ended", limit, func(c *Conn, _ *testMemory) {
			small := fragment(true, pattern(100, 0))
			c.pass(small[:50])
			for range 30 {
				step(c, limit/2)
				c.pass(small[50:])
				c.pass(small[:50])
			}
			step(c, 0)
		}, false},
		{"the second of two is too slow", limit, func(c *Conn, _ *testMemory) {
			small := fragment(true, pattern(100, 0))
			c.pass(small[:50])
			step(c, limit/2)
			c.pass(small[50:])
			c.pass(small[:50])
			step(c, limit/2)
			step(c, limit+1)
		}, true},
		{"nothing has begun", limit, func(c *Conn, _ *testMemory) {
			for range 3 {
				step(c, time.Hour)
			}
		}, false},
		{"this side has paused", limit, func(c *Conn, _ *testMemory) {
			c.pass(long[:100])
			step(c, 0)
			c.Pause()
			step(c, time.Hour)
			c.Resume()
			step(c, limit)
		}, false},
		{"a pause is no new beginning", limit, func(c *Conn, _ *testMemory) {
			c.pass(long[:100])
			step(c, 0)
			step(c, limit/2)
			c.Pause()
			step(c, time.Hour)
			c.Resume()
			step(c, limit/2+1)
		}, true},
		{"there is no memory", limit, func(c *Conn, mem *testMemory) {
			mem.limit = 1
			c.pass(long[:100])
			step(c, 0)
			for range 12 {
				step(c, time.Second)
			}
		}, false},
		{"no limit", 0, func(c *Conn, _ *testMemory) {
			c.pass(long[:100])
			step(c, 0)
			step(c, time.Hour)
		}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			mem := &testMemory{}
			h := newRecorder()
			h.record = func(_ *Conn, b Buffer) { b.Release() }
			c := offlineConn(ConnOptions{StallTimeout: -1, RecordTimeout: tt.limit, Memory: lend(mem)}, h)
			c.Loop().memoryTimeout = memoryTimeout
			c.Loop().SetClock(1e18)
			tt.do(c, mem)
			if tt.ends {
				wantReason(t, c.err, reasonRecord)
			} else if c.state != open {
				t.Errorf("closed: %v", c.err)
			}
			c.dropInput()
		})
	}
}

// Clients that trickle, in plain text, behind a handshake and inside one TLS record, are closed, and no
// others.
func TestRecordTimeoutTrickle(t *testing.T) {
	t.Parallel()
	y := newTLSTest(t, EngineOptions{}, ListenOptions{Conn: ConnOptions{StallTimeout: -1, RecordTimeout: 300 * time.Millisecond}}, newTLS(t, serverConfig()), nil)
	neighbour, idle, plain := y.secure(clientConfig()), y.secure(clientConfig()), dialPeer(t, y.l)
	serve := func() {
		neighbour.served(40_000)
		plain.send(fragment(true, pattern(300, 1)))
		plain.readRecord()
	}
	long := fragment(true, pattern(1<<20, 0))
	secured := y.craft()
	sealed := y.craft()
	one := sealed.record(contentData, long[:tlsloop.MaxContent], 0)
	trickle := dialPeer(t, y.l)
	for i, tt := range []struct {
		name string
		p    *peer
		next func(i int) []byte
	}{
		{"in plain text", trickle, func(i int) []byte { return long[i*100 : (i+1)*100] }},
		{"in TLS records", &peer{t, secured.tcp}, func(i int) []byte { return secured.record(contentData, long[i*100:(i+1)*100], 0) }},
		{"inside a TLS record", &peer{t, sealed.tcp}, func(i int) []byte { return one[i : i+1] }},
	} {
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			for i := 0; i < 10_000; i++ {
				if _, err := tt.p.Write(tt.next(i)); err != nil {
					return
				}
				time.Sleep(2 * time.Millisecond) // how slowly the peer sends
			}
		}()
		tt.p.wantEnd(tt.name)
		<-ended
		if n := y.l.counters.refused[reasonRecord].Value(); n != uint64(i)+1 {
			t.Errorf("%s: %d connections are counted", tt.name, n)
		}
		serve()
	}
	if s := y.log.String(); !strings.Contains(s, `"reason":"request_timeout"`) {
		t.Errorf("the log has no line with the reason: %s", s)
	}
	idle.served(100)
	for _, p := range []interface{ Close() error }{neighbour, idle, plain} {
		p.Close()
	}
	y.wantNone()
}
