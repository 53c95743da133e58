package fabrictest

import (
	"bytes"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
)

// connectLoopback connects a pair over a Loopback of its own, which is returned.
func connectLoopback(t *testing.T, o pairOptions) (*Loopback, *pair) {
	f := openLoopback(t)
	return f.Dialer.(*Loopback), f.connect(t, o)
}

func TestInjectDrop(t *testing.T) {
	p, pair := connectLoopback(t, pairOptions{})
	p.Inject(func(op Operation) Verdict {
		if op.Op == fabric.OpSend && string(op.Octets) == "lost" {
			if !op.Dialed || op.Conn != pair.dial.conn || op.N != 3 {
				t.Errorf("operation %+v", op)
			}
			return Drop
		}
		return Pass
	})
	pair.dial.send([]byte("one"))
	id := pair.dial.send([]byte("lo"), []byte("st"))
	pair.dial.send([]byte("two"))
	if c := pair.dial.waitDone(id); c.Err != nil {
		t.Errorf("a lost message completed with %v", c.Err)
	}
	got := pair.other.waitMessages(2)
	if string(got[0]) != "one" || string(got[1]) != "two" {
		t.Errorf("got %q", got)
	}
	// The Receive of the last message is posted again behind it.
	testkit.Eventually(t, "16 Receives are posted", func() bool { return p.Counts(pair.other.conn).Receives == 16 })
	if n := p.Counts(pair.other.conn); n.Received != 3 || n.Receives != 16 || n.LowReceives > 16 {
		t.Errorf("%+v", n)
	}
}

func TestInjectFail(t *testing.T) {
	p, pair := connectLoopback(t, pairOptions{})
	p.Inject(func(op Operation) Verdict {
		if op.N == 4 {
			return Fail
		}
		return Pass
	})
	pair.dial.send([]byte("2"))
	pair.dial.send([]byte("3"))
	id := pair.dial.send([]byte("4"))
	if c := pair.dial.waitDone(id); !errors.Is(c.Err, ErrInjected) {
		t.Errorf("completed with %v", c.Err)
	}
	for _, e := range []*endpoint{pair.dial, pair.other} {
		if err := e.waitClosed(); !errors.Is(err, ErrInjected) {
			t.Errorf("%s: Closed(%v)", e.name, err)
		}
	}
	if n := len(pair.other.messages); n != 2 {
		t.Errorf("%d messages arrived", n)
	}
}

func TestInjectCut(t *testing.T) {
	p, pair := connectLoopback(t, pairOptions{})
	buf := make([]byte, 64)
	r := pair.dial.register(buf, fabric.RemoteWrite)
	p.Inject(func(op Operation) Verdict {
		if op.Op == fabric.OpWrite {
			return Cut
		}
		return Pass
	})
	data := testkit.Pattern(64, 1)
	pair.other.write(r, data)
	_ = pair.dial.waitClosed()
	_ = pair.other.waitClosed()
	if !bytes.Equal(buf[:32], data[:32]) || !bytes.Equal(buf[32:], make([]byte, 32)) {
		t.Errorf("%x", buf)
	}
}

func TestInjectCorrupt(t *testing.T) {
	p, pair := connectLoopback(t, pairOptions{})
	p.Inject(func(op Operation) Verdict {
		if len(op.Octets) > 2 {
			op.Octets[2] ^= 0xff
		}
		return Pass
	})
	msg := []byte{1, 2, 3}
	pair.dial.send(msg)
	if got := pair.other.waitMessages(1)[0]; !bytes.Equal(got, []byte{1, 2, 0xfc}) || msg[2] != 3 {
		t.Errorf("sent %x, arrived %x", msg, got)
	}
}

func TestInjectHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, pair := connectLoopback(t, pairOptions{})
		var open atomic.Bool
		p.Inject(func(op Operation) Verdict {
			if open.Load() || op.Op != fabric.OpSend {
				return Pass
			}
			return Hold
		})
		for range 3 {
			pair.dial.send([]byte("held"))
		}
		synctest.Wait()
		if n := p.Counts(pair.dial.conn); n.Posted != 3 || len(pair.other.messages) != 0 {
			t.Errorf("%+v, %d arrived", n, len(pair.other.messages))
		}
		open.Store(true)
		p.Resume(pair.dial.conn)
		synctest.Wait()
		if n := p.Counts(pair.dial.conn); n.Posted != 0 || len(pair.other.messages) != 3 {
			t.Errorf("%+v, %d arrived", n, len(pair.other.messages))
		}
		// The end of the connection flushes work that is held.
		open.Store(false)
		id := pair.dial.send([]byte("late"))
		pair.dial.close(nil)
		if c := pair.dial.waitDone(id); !errors.Is(c.Err, fabric.ErrFlushed) {
			t.Errorf("completed with %v", c.Err)
		}
		pair.end()
	})
}

func TestHoldCompletions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, pair := connectLoopback(t, pairOptions{})
		p.HoldCompletions(pair.other.conn, true)
		pair.dial.send([]byte("waits"))
		pair.other.send([]byte("does not wait"))
		synctest.Wait()
		if len(pair.other.messages) != 0 || len(pair.dial.messages) != 1 {
			t.Errorf("%d and %d messages", len(pair.other.messages), len(pair.dial.messages))
		}
		p.HoldCompletions(pair.other.conn, false)
		synctest.Wait()
		if len(pair.other.messages) != 1 {
			t.Error("the completion did not come")
		}
		// The end of the connection tells all.
		p.HoldCompletions(pair.other.conn, true)
		pair.dial.send([]byte("last"))
		pair.dial.close(nil)
		_ = pair.other.waitClosed()
		if len(pair.other.messages) != 2 {
			t.Error("the completion was lost")
		}
		pair.end()
	})
}

func TestBreak(t *testing.T) {
	p, pair := connectLoopback(t, pairOptions{})
	cable := errors.New("cable cut")
	p.Break(pair.other.conn, cable)
	p.Break(pair.dial.conn, errors.New("cut already"))
	for _, e := range []*endpoint{pair.dial, pair.other} {
		if err := e.waitClosed(); !errors.Is(err, cable) {
			t.Errorf("%s: Closed(%v)", e.name, err)
		}
		for _, c := range e.completions {
			if c.Err != nil && (!errors.Is(c.Err, fabric.ErrFlushed) || !errors.Is(c.Err, cable)) {
				t.Errorf("%s: %+v", e.name, c)
			}
		}
	}
}

func TestCounts(t *testing.T) {
	p, pair := connectLoopback(t, pairOptions{prepare: func(_, other *endpoint) { other.receives, other.repost = 6, false }})
	buf := make([]byte, 8)
	r := pair.dial.register(buf, fabric.RemoteWrite|fabric.RemoteRead)
	pair.other.write(r, buf)
	pair.other.waitDone(pair.other.read(make([]byte, 8), r))
	for i := range 3 {
		pair.other.waitDone(pair.other.send([]byte("up")))
		pair.dial.send([]byte("down"))
		pair.other.waitMessages(i + 1)
	}
	if n, want := p.Counts(pair.other.conn), (Counts{
		Operations: 5, Sends: 3, Writes: 1, Reads: 1, Received: 5, PostedReceives: 6, Receives: 1, LowReceives: 2,
	}); n != want {
		t.Errorf("accepted: %+v, want %+v", n, want)
	}
	if n := p.Counts(pair.dial.conn); n.Registered != 1 || n.Handles != 1 || n.Receives != 16 || n.Received != 3 {
		t.Errorf("dialled: %+v", n)
	}
	pair.dial.invalidate(r.Handle)
	if n := p.Counts(pair.dial.conn); n.Handles != 0 {
		t.Errorf("dialled: %+v", n)
	}
}

// Until the Completion of an Invalidate that was not done at once, the peer may write to
// the memory.
func TestAsyncInvalidate(t *testing.T) {
	p, pair := connectLoopback(t, pairOptions{})
	p.AsyncInvalidate(true)
	buf := make([]byte, 4)
	r := pair.dial.register(buf, fabric.RemoteWrite)
	var id uint64
	pair.dial.do(func() {
		id = pair.dial.begin(fabric.OpInvalidate)
		done, err := pair.dial.conn.Invalidate(id, r.Handle)
		if done || err != nil {
			t.Errorf("Invalidate = %v, %v", done, err)
		}
		// The dialling loop is busy here, so the peer comes first.
		pair.other.waitDone(pair.other.write(r, []byte("late")))
	})
	if c := pair.dial.waitDone(id); c.Err != nil {
		t.Error(c.Err)
	}
	if string(buf) != "late" {
		t.Errorf("memory is %q", buf)
	}
	pair.other.write(r, []byte("dead"))
	if pair.dial.waitClosed() == nil || string(buf) != "late" {
		t.Errorf("memory is %q after the handle died", buf)
	}
}

// A pass in which nothing is to be told must not cost completions of the next.
func TestEmptyPasses(t *testing.T) {
	p, pair := connectLoopback(t, pairOptions{})
	for i := range 100 {
		p.Resume(pair.other.conn)
		pair.dial.send([]byte{byte(i)})
		p.Resume(pair.other.conn)
		p.Resume(pair.dial.conn)
		if msg := pair.other.waitMessages(i + 1)[i]; msg[0] != byte(i) {
			t.Fatalf("message %d is %d", i, msg[0])
		}
	}
}

// pingPong bounces a message for ever without allocating.
type pingPong struct {
	c     fabric.Conn
	buf   [64]byte
	parts [1][]byte
	left  int
	done  chan struct{}
}

func (h *pingPong) Setup(c fabric.Conn) error {
	h.c = c
	h.parts[0] = make([]byte, 32)
	return c.PostReceive(1, h.buf[:])
}

func (h *pingPong) Completed(cs []fabric.Completion) {
	for _, c := range cs {
		if c.Op != fabric.OpReceive || c.Err != nil {
			continue
		}
		_ = h.c.PostReceive(1, h.buf[:])
		if h.done != nil {
			if h.left--; h.left < 0 {
				h.done <- struct{}{}
				continue
			}
		}
		h.send()
	}
}

func (h *pingPong) send()        { _ = h.c.PostSend(0, fabric.Send{Parts: h.parts[:]}) }
func (h *pingPong) Run()         { h.send() }
func (h *pingPong) Closed(error) {}

func newPingPong(tb testing.TB) (bounce func(n int)) {
	p, dialLoop, acceptLoop := NewLoopback(), NewLoop(), NewLoop()
	tb.Cleanup(dialLoop.Stop)
	tb.Cleanup(acceptLoop.Stop)
	f := &Fixture{Dialer: p, DialLoop: dialLoop}
	l, err := p.Listen("pong", NoLimits(), func(in fabric.Incoming) {
		if _, err := in.Accept(tb.Context(), acceptLoop, fabric.ConnOptions{}, &pingPong{}); err != nil {
			tb.Error(err)
		}
	})
	if err != nil {
		tb.Fatal(err)
	}
	ping := &pingPong{done: make(chan struct{})}
	if _, err := f.dial(l, fabric.ConnOptions{}, ping); err != nil {
		tb.Fatal(err)
	}
	return func(n int) {
		ping.left = n - 1
		dialLoop.Post(ping)
		<-ping.done
	}
}

// The loopback provider does not allocate, so that tests of allocations can use it.
func TestLoopbackAllocs(t *testing.T) {
	bounce := newPingPong(t)
	bounce(100)
	if n := testing.AllocsPerRun(10, func() { bounce(100) }); n > 1 {
		t.Errorf("%v allocs for 100 round trips", n)
	}
}

func BenchmarkLoopback(b *testing.B) {
	bounce := newPingPong(b)
	b.ReportAllocs()
	for b.Loop() {
		bounce(1)
	}
}
