package iwarp

import (
	"errors"
	"fmt"
	"io"
	"net"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
)

// pair connects two users, a the Initiator, over loopback.
func pair(t testing.TB, o Options, co fabric.ConnOptions) (a, b *user) {
	on := newLoop(t)
	a, b = newUser(t, on), newUser(t, on)
	a.receives(16, 4096)
	b.receives(16, 4096)
	connect(t, newProvider(o), a, b, co, co)
	return a, b
}

// TestVerbs moves octets each way with every verb, at lengths around FPDU
// boundaries, with and without CRC.
func TestVerbs(t *testing.T) {
	for _, o := range []Options{{}, {CRCOff: true}, {FPDU: FPDUMax}} {
		for _, n := range []int{0, 1, 2, 3, 4, 1423, 1424, 1425, 4095, 4096, 4097, 64752, 64753, 300000, 1 << 20} {
			t.Run(fmt.Sprintf("%v-%v/%d", o.CRCOff, o.FPDU, n), func(t *testing.T) { verbs(t, o, n) })
		}
	}
}

// TestInPlace: short messages of a connection whose ULP allows it stay where they came, and its buffers are not
// written to. Longer ones are in the buffers.
func TestInPlace(t *testing.T) {
	on := newLoop(t)
	a, b := newUser(t, on), newUser(t, on)
	bInto := b.receives(4, 64<<10)
	connect(t, newProvider(Options{}), a, b, fabric.ConnOptions{}, fabric.ConnOptions{InPlace: true})
	for i, n := range []int{8, 100, 3000, 40000} { // the first FPDU of a connection takes another way
		id := uint64(101 + i)
		a.do(func(c fabric.Conn) {
			if err := c.PostSend(id, fabric.Send{Parts: [][]byte{testkit.Pattern(n, 1)}}); err != nil {
				t.Error(err)
			}
		})
		a.good(id)
		c := b.good(uint64(i + 1))
		if int(c.Bytes) != n || i > 0 && (c.Data != nil) != (n < wholeBelow) {
			t.Errorf("a message of %d octets: %d, and in place: %v", n, c.Bytes, c.Data != nil)
		}
		if written := bInto[i][0] != 0 || bInto[i][n-1] != 0; written == (c.Data != nil) {
			t.Errorf("a message of %d octets: in place: %v, and the buffer was written to: %v", n, c.Data != nil, written)
		}
	}
	closeOrderly(t, a, b)
}

func verbs(t *testing.T, o Options, n int) {
	on := newLoop(t)
	a, b := newUser(t, on), newUser(t, on)
	into := a.receives(2, n+8)
	bInto := b.receives(2, n+8)
	connect(t, newProvider(o), a, b, fabric.ConnOptions{ORD: 4}, fabric.ConnOptions{ORD: 4})
	data := testkit.Pattern(n, 1)

	// a sends first. Only then may b, the MPA responder, send.
	a.do(func(c fabric.Conn) {
		if err := c.PostSend(101, fabric.Send{Parts: [][]byte{data[:n/3], data[n/3 : n/2], nil, data[n/2:]}}); err != nil {
			t.Error(err)
		}
	})
	a.good(101)
	if c := b.good(1); int(c.Bytes) != n || c.Op != fabric.OpReceive || c.Invalidated != 0 {
		t.Errorf("completion %+v, want %d octets", c, n)
	}
	wantBytes(t, "Send", bInto[0][:n], data)

	target, source := guard(n), testkit.Pattern(n, 3)
	w := a.register(target.buf, fabric.RemoteWrite)
	r := a.register(source, fabric.RemoteRead)
	sink := guard(n)
	b.do(func(c fabric.Conn) {
		if err := c.PostRead(202, fabric.Read{Into: sink.buf, From: r}); err != nil {
			t.Error(err)
		}
		if err := c.PostWrite(201, fabric.Write{Parts: [][]byte{data}, To: w}); err != nil {
			t.Error(err)
		}
		if err := c.PostSend(203, fabric.Send{Parts: [][]byte{data}, Invalidate: w.Handle}); err != nil {
			t.Error(err)
		}
		c.Flush()
	})
	b.good(201)
	b.good(203)
	if c := a.good(1); int(c.Bytes) != n || c.Invalidated != w.Handle {
		t.Errorf("completion %+v, want %d octets and handle %#x", c, n, w.Handle)
	}
	wantBytes(t, "Send with Invalidate", into[0][:n], data)
	wantBytes(t, "Write", target.buf, data)
	target.guards(t)
	b.good(202)
	wantBytes(t, "Read", sink.buf, source)
	sink.guards(t)

	closeOrderly(t, a, b)
	for _, u := range []*user{a, b} {
		if c := u.completion(2); !errors.Is(c.Err, fabric.ErrFlushed) {
			t.Errorf("the unused Receive: %+v", c)
		}
	}
}

// closeOrderly closes a, and checks the end of both.
func closeOrderly(t *testing.T, a, b *user) {
	t.Helper()
	a.do(func(c fabric.Conn) { c.Close(nil) })
	if err := a.ended(); err != nil {
		t.Errorf("Closed(%v) on the side that closed", err)
	}
	if err := b.ended(); !errors.Is(err, io.EOF) {
		t.Errorf("Closed(%v) on the other side, want EOF", err)
	}
}

// TestInfo checks the parameters that start-up agreed on.
func TestInfo(t *testing.T) {
	on := newLoop(t)
	a, b := newUser(t, on), newUser(t, on)
	connect(t, newProvider(Options{}), a, b,
		fabric.ConnOptions{PrivateData: []byte("from a"), IRD: 5, ORD: 9},
		fabric.ConnOptions{PrivateData: []byte("from b"), IRD: 7, ORD: 6})
	ai, bi := a.c.Info(), b.c.Info()
	if string(ai.PrivateData) != "from b" || string(bi.PrivateData) != "from a" {
		t.Errorf("private data %q and %q", ai.PrivateData, bi.PrivateData)
	}
	if ai.IRD != 5 || ai.ORD != 7 || bi.IRD != 7 || bi.ORD != 5 {
		t.Errorf("IRD and ORD: a %d %d, b %d %d; want 5 7, 7 5", ai.IRD, ai.ORD, bi.IRD, bi.ORD)
	}
	if ai.Provider != "iwarp" || ai.Local != bi.Peer || ai.Peer != bi.Local || !ai.Peer.IsValid() {
		t.Errorf("%+v and %+v", ai, bi)
	}
}

// TestQueueFull checks that posting beyond the depths asked for fails.
func TestQueueFull(t *testing.T) {
	on := newLoop(t)
	a, b := newUser(t, on), newUser(t, on)
	connect(t, newProvider(Options{}), a, b, fabric.ConnOptions{Receives: 2, Sends: 3, Handles: 1}, fabric.ConnOptions{})
	a.do(func(c fabric.Conn) {
		buf := make([]byte, 8)
		for i := range 3 {
			err := c.PostReceive(uint64(i+1), buf)
			if want := i == 2; errors.Is(err, fabric.ErrQueueFull) != want {
				t.Errorf("PostReceive %d: %v", i, err)
			}
		}
		for i := range 4 {
			err := c.PostWrite(uint64(i+1), fabric.Write{})
			if want := i == 3; errors.Is(err, fabric.ErrQueueFull) != want {
				t.Errorf("PostWrite %d: %v", i, err)
			}
		}
		if err := c.PostRead(9, fabric.Read{}); !errors.Is(err, fabric.ErrQueueFull) {
			t.Errorf("PostRead: %v", err)
		}
		if _, err := c.Register(buf, fabric.RemoteRead); err != nil {
			t.Error(err)
		}
		if _, err := c.Register(buf, fabric.RemoteRead); !errors.Is(err, fabric.ErrLimit) {
			t.Errorf("Register: %v", err)
		}
	})
	for i := range 3 {
		a.good(uint64(i + 1))
	}
	a.do(func(c fabric.Conn) {
		if err := c.PostRead(9, fabric.Read{}); !errors.Is(err, errNoReads) {
			t.Errorf("PostRead with ORD 0: %v", err)
		}
	})
}

// TestSetupError checks that Dial returns an error of Setup, and that no other method of
// the handler is called.
func TestSetupError(t *testing.T) {
	on := newLoop(t)
	a, b := newUser(t, on), newUser(t, on)
	sorry := errors.New("sorry")
	a.setup = func(c fabric.Conn) error { return sorry }
	addr := listen(t, newProvider(Options{}), fabric.ListenOptions{}, fabric.ConnOptions{}, func(fabric.Incoming) (loop.Loop, fabric.Handler) { return on, b })
	p := newProvider(Options{})
	if _, err := p.Dial(t.Context(), on, addr, fabric.ConnOptions{}, a); !errors.Is(err, sorry) {
		t.Errorf("Dial: %v", err)
	}
	b.ended()
	a.do(func(fabric.Conn) {})
	if a.over || len(a.left()) > 0 {
		t.Error("the handler was called after Setup's error")
	}
	testkit.Eventually(t, "the connection is counted off", func() bool { return p.limits.conns.Load() == 0 })
}

// TestCloseWritesFirst checks that an orderly close writes all posted work, also if that
// is long.
func TestCloseWritesFirst(t *testing.T) {
	a, b := pair(t, Options{}, fabric.ConnOptions{})
	target := make([]byte, 8<<20)
	data := testkit.Pattern(len(target), 9)
	w := b.register(target, fabric.RemoteWrite)
	a.do(func(c fabric.Conn) {
		if err := c.PostWrite(50, fabric.Write{Parts: [][]byte{data}, To: w}); err != nil {
			t.Error(err)
		}
		if err := c.PostSend(51, fabric.Send{Parts: [][]byte{{1}}}); err != nil {
			t.Error(err)
		}
		c.Close(nil)
		if err := c.PostSend(52, fabric.Send{}); !errors.Is(err, fabric.ErrClosed) {
			t.Errorf("PostSend after Close: %v", err)
		}
	})
	a.good(50)
	a.good(51)
	b.good(1)
	wantBytes(t, "Write", target, data)
	if err := a.ended(); err != nil {
		t.Errorf("Closed(%v)", err)
	}
}

// TestCloseError checks that Close(err) flushes, that Closed gets err, and that the peer
// gets a Terminate.
func TestCloseError(t *testing.T) {
	a, b := pair(t, Options{}, fabric.ConnOptions{})
	reason := errors.New("deadline passed")
	inside := true
	a.do(func(c fabric.Conn) {
		c.Close(reason)
		a.mu.Lock()
		inside = len(a.cs) > 0 || a.over
		a.mu.Unlock()
	})
	if inside {
		t.Error("called back from inside Close")
	}
	if err := a.ended(); err != reason {
		t.Errorf("Closed(%v), want %v", err, reason)
	}
	for i := range 16 {
		if c := a.completion(uint64(i + 1)); !errors.Is(c.Err, fabric.ErrFlushed) || !errors.Is(c.Err, reason) {
			t.Errorf("%+v", c)
		}
	}
	var te *terminateError
	if err := b.ended(); !errors.As(err, &te) || !te.Received {
		t.Errorf("peer's Closed(%v), want a Terminate", err)
	}
}

// TestSilent checks that Work Requests with id 0 get no Completion, and leave the queue
// when they complete.
func TestSilent(t *testing.T) {
	a, b := pair(t, Options{}, fabric.ConnOptions{Sends: 4})
	for i := range 10 {
		a.do(func(c fabric.Conn) {
			if err := c.PostSend(0, fabric.Send{Parts: [][]byte{{byte(i)}}}); err != nil {
				t.Error(err)
			}
			c.Flush()
		})
		b.good(uint64(i + 1))
	}
	if cs := a.left(); len(cs) != 0 {
		t.Errorf("completions %+v", cs)
	}
}

// TestManyParts sends messages in very many pieces, small and large.
func TestManyParts(t *testing.T) {
	a, b := pair(t, Options{}, fabric.ConnOptions{})
	data := testkit.Pattern(700000, 5)
	for i, size := range []int{1, 7, 100, 511, 512, 513, 3000, 5000, 65000} {
		target := make([]byte, len(data))
		w := b.register(target, fabric.RemoteWrite)
		var parts [][]byte
		for at := 0; at < len(data); at += size {
			parts = append(parts, data[at:min(at+size, len(data))])
			if at%3 == 0 {
				parts = append(parts, nil)
			}
		}
		a.do(func(c fabric.Conn) {
			if err := c.PostWrite(0, fabric.Write{Parts: parts, To: w}); err != nil {
				t.Error(err)
			}
			if err := c.PostSend(0, fabric.Send{}); err != nil {
				t.Error(err)
			}
		})
		b.good(uint64(i + 1))
		wantBytes(t, fmt.Sprintf("in pieces of %d", size), target, data)
	}
}

// TestReadsOverORD checks that Reads beyond ORD wait, and that Sends overtake them.
func TestReadsOverORD(t *testing.T) {
	a, b := pair(t, Options{}, fabric.ConnOptions{ORD: 2, IRD: 2})
	source := testkit.Pattern(1<<20, 7)
	r := b.register(source, fabric.RemoteRead)
	const reads, size = 40, 1 << 18
	into := make([]byte, reads*size)
	a.do(func(c fabric.Conn) {
		for i := range reads {
			from := r
			from.Offset += uint64(i%4) * size
			from.Length = size
			if err := c.PostRead(uint64(100+i), fabric.Read{Into: into[i*size : (i+1)*size], From: from}); err != nil {
				t.Error(err)
			}
		}
		if err := c.PostSend(99, fabric.Send{}); err != nil {
			t.Error(err)
		}
	})
	b.good(1)
	for i := range reads {
		a.good(uint64(100 + i))
		wantBytes(t, "Read", into[i*size:(i+1)*size], source[i%4*size:(i%4+1)*size])
	}
}

// TestOverPipe runs a connection over a net.Pipe.
func TestOverPipe(t *testing.T) {
	l := newLoop(t)
	x, y := net.Pipe()
	p := newProvider(Options{})
	a, b := newUser(t, l), newUser(t, l)
	b.receives(2, 1<<20)
	a.receives(2, 1<<20)
	data := testkit.Pattern(1<<20, 1)
	o, _ := connOptions(fabric.ConnOptions{})
	for i, u := range []*user{a, b} {
		cfg := p.config(agreed{crc: true}, o)
		cfg.hold = i == 1
		nc := []net.Conn{x, y}[i]
		c := p.newConn(nc, l, cfg, agreed{}, u, func() {})
		if err := c.attach(t.Context(), l, nc); err != nil {
			t.Fatal(err)
		}
	}
	for _, u := range []*user{a, b} {
		u.do(func(c fabric.Conn) {
			if err := c.PostSend(9, fabric.Send{Parts: [][]byte{data}}); err != nil {
				t.Error(err)
			}
		})
	}
	for _, u := range []*user{a, b} {
		u.good(9)
		if c := u.good(1); int(c.Bytes) != len(data) {
			t.Errorf("%+v", c)
		}
	}
	a.do(func(c fabric.Conn) { c.Close(nil) })
	if err := a.ended(); err != nil {
		t.Errorf("Closed(%v)", err)
	}
	b.ended()
}
