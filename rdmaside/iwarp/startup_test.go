package iwarp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
	"github.com/rdmabridge/rdmabridge/rdmaside/iwarp/iwarptest"
	"github.com/rdmabridge/rdmabridge/rdmaside/iwarp/wire"
)

const (
	fC = wire.FlagCRC
	fM = wire.FlagMarkers
	fR = wire.FlagReject
	fS = wire.FlagEnhanced
)

// A requestTest is a Request to our Responder.
type requestTest struct {
	name   string
	crcOff bool
	flags  wire.FrameFlags
	rev    uint8
	req    wire.Enhanced
	want   *wire.Frame // the Reply; nil if the connection is closed without one
	ird    int         // of Info
	ord    int         // of Info
}

// TestRequests sends each kind of Request to our Responder.
func TestRequests(t *testing.T) {
	type e = wire.Enhanced
	for _, v := range []requestTest{
		{"S C", false, fS | fC, 2, e{IRD: 16, ORD: 16}, &wire.Frame{Flags: fS | fC, Enhanced: e{IRD: 16, ORD: 8}}, 16, 8},
		{"S, C from us", false, fS, 2, e{IRD: 16, ORD: 16}, &wire.Frame{Flags: fS | fC, Enhanced: e{IRD: 16, ORD: 8}}, 16, 8},
		{"S, no C", true, fS, 2, e{IRD: 16, ORD: 16}, &wire.Frame{Flags: fS, Enhanced: e{IRD: 16, ORD: 8}}, 16, 8},
		{"S C, C from the peer", true, fS | fC, 2, e{IRD: 16, ORD: 16}, &wire.Frame{Flags: fS | fC, Enhanced: e{IRD: 16, ORD: 8}}, 16, 8},
		{"Linux NFS client", false, fS | fC, 2, e{IRD: 128, ORD: 0}, &wire.Frame{Flags: fS | fC, Enhanced: e{IRD: 0, ORD: 8}}, 0, 8},
		{"small IRD", false, fS | fC, 2, e{IRD: 2, ORD: 200}, &wire.Frame{Flags: fS | fC, Enhanced: e{IRD: 20, ORD: 2}}, 20, 2},
		{"no negotiation", false, fS | fC, 2, e{IRD: 0x3fff, ORD: 0x3fff}, &wire.Frame{Flags: fS | fC, Enhanced: e{IRD: 0x3fff, ORD: 0x3fff}}, 20, 8},
		{"M", false, fS | fC | fM, 2, e{IRD: 16, ORD: 16}, &wire.Frame{Flags: fS | fC, Enhanced: e{IRD: 16, ORD: 8}}, 16, 8},
		{"R and Res are ignored", false, fS | fC | fR | 0x0f, 2, e{IRD: 16, ORD: 16}, &wire.Frame{Flags: fS | fC, Enhanced: e{IRD: 16, ORD: 8}}, 16, 8},
		{"A C", false, fS | fC, 2, e{PeerToPeer: true, RTRWrite: true, IRD: 16, ORD: 16}, &wire.Frame{Flags: fS | fC, Enhanced: e{PeerToPeer: true, RTRWrite: true, IRD: 16, ORD: 8}}, 16, 8},
		{"A C D", false, fS | fC, 2, e{PeerToPeer: true, RTRWrite: true, RTRRead: true, IRD: 16, ORD: 16}, &wire.Frame{Flags: fS | fC, Enhanced: e{PeerToPeer: true, RTRWrite: true, IRD: 16, ORD: 8}}, 16, 8},
		{"A D, ORD 0", false, fS | fC, 2, e{PeerToPeer: true, RTRRead: true, IRD: 16}, &wire.Frame{Flags: fS | fC, Enhanced: e{PeerToPeer: true, RTRRead: true, IRD: 1, ORD: 8}}, 1, 8},
		{"A B", false, fS | fC, 2, e{PeerToPeer: true, RTRSend: true, IRD: 16, ORD: 16}, &wire.Frame{Flags: fS | fC, Enhanced: e{PeerToPeer: true, RTRSend: true, IRD: 16, ORD: 8}}, 16, 8},
		{"A alone", false, fS | fC, 2, e{PeerToPeer: true, IRD: 16, ORD: 16}, &wire.Frame{Flags: fS | fC, Enhanced: e{PeerToPeer: true, RTRWrite: true, IRD: 16, ORD: 8}}, 16, 8},
		{"revision 2 without S", false, fC, 2, e{}, &wire.Frame{Flags: fC}, 20, 8},
		{"revision 1", false, fC, 1, e{}, &wire.Frame{Flags: fC}, 20, 8},
		{"revision 1 with S", false, fC | fS, 1, e{}, nil, 0, 0},
		{"revision 0", false, fC, 0, e{}, nil, 0, 0},
		{"revision 3", false, fC | fS, 3, e{IRD: 1, ORD: 1}, nil, 0, 0},
	} {
		t.Run(v.name, v.run)
	}
}

func (v requestTest) run(t *testing.T) {
	var ref refusals
	u := newUser(t, newLoop(t))
	u.receives(4, 1024)
	addr := listen(t, newProvider(Options{CRCOff: v.crcOff}), fabric.ListenOptions{Refused: ref.refused},
		fabric.ConnOptions{PrivateData: []byte("hello"), IRD: 20, ORD: 8},
		func(in fabric.Incoming) (loop.Loop, fabric.Handler) {
			if string(in.PrivateData()) != "private" {
				t.Errorf("private data %q", in.PrivateData())
			}
			return u.loop, u
		})
	r := rawDial(t, addr)
	req := wire.Frame{Flags: v.flags, Revision: v.rev, Enhanced: v.req, Private: []byte("private")}
	got, err := r.request(req)
	if v.want == nil {
		if err == nil {
			t.Fatalf("Reply %+v", got)
		}
		testkit.Eventually(t, "it is counted", func() bool { return ref.request.Load() == 1 })
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	if got.Flags != v.want.Flags || got.Revision != v.rev || got.Enhanced != v.want.Enhanced || string(got.Private) != "hello" {
		t.Errorf("Reply %+v, want %+v", got, v.want)
	}
	u.wait("Setup", func() bool { return u.c != nil })
	info := u.c.Info()
	if info.IRD != v.ird || info.ORD != v.ord || string(info.PrivateData) != "private" {
		t.Errorf("%+v, want IRD %d, ORD %d", info, v.ird, v.ord)
	}
	v.wantSilence(t, u, r)
	v.begin(t, r)
	v.wantDelivery(t, u, r)
}

// wantSilence posts a Send, and checks that our side sends nothing before the peer's
// first FPDU.
func (v requestTest) wantSilence(t *testing.T, u *user, r *rawPeer) {
	u.do(func(c fabric.Conn) {
		if err := c.PostSend(50, fabric.Send{Parts: [][]byte{{1, 2, 3}}}); err != nil {
			t.Error(err)
		}
		c.Flush()
	})
	if u.afterPass(); testkit.Unread(r.nc.(*net.TCPConn)) > 0 {
		t.Error("an FPDU came before the peer's first")
	}
}

// begin sends the peer's first FPDU, and checks that the Send of wantSilence follows.
func (v requestTest) begin(t *testing.T, r *rawPeer) {
	switch {
	case v.want.Enhanced.RTRRead:
		r.read(wire.Read{SinkSTag: 4, SinkTO: 5})
		sent := r.want(wire.OpSend) // own messages have the first turn
		if !bytes.Equal(sent.payload, []byte{1, 2, 3}) {
			t.Errorf("payload %x", sent.payload)
		}
		if h := wire.Tagged(r.want(wire.OpReadResponse).head); h.STag() != 4 || h.TO() != 5 || h.Len() != 0 {
			t.Errorf("Response to the RTR: %x", h)
		}
	case v.want.Enhanced.RTRWrite:
		r.put(1, 0)
	default:
		r.send() // delivered, unless it is the RTR
	}
	if v.flags&fM == 0 && !v.want.Enhanced.RTRRead {
		if f := r.want(wire.OpSend); !bytes.Equal(f.payload, []byte{1, 2, 3}) {
			t.Errorf("payload %x", f.payload)
		}
	}
}

// wantDelivery checks that messages are delivered, except the RTR.
func (v requestTest) wantDelivery(t *testing.T, u *user, r *rawPeer) {
	r.send(9, 9)
	id := uint64(1)
	if v.want.Enhanced == (wire.Enhanced{IRD: v.want.Enhanced.IRD, ORD: v.want.Enhanced.ORD}) {
		if c := u.good(1); c.Bytes != 0 {
			t.Errorf("the first Send: %+v", c)
		}
		id = 2
	}
	if c := u.good(id); c.Bytes != 2 {
		t.Errorf("%+v", c)
	}
}

// TestMalformedRequests end without a Reply.
func TestMalformedRequests(t *testing.T) {
	f := plain()
	good := f.Append(nil)
	edit := func(at int, b byte) []byte { c := bytes.Clone(good); c[at] = b; return c }
	r := f
	r.Reply = true
	for name, b := range map[string][]byte{
		"key":               edit(3, 'x'),
		"a Reply":           r.Append(nil),
		"PD_Length 513":     edit(18, 3),
		"S without block":   append(bytes.Clone(good[:18]), 0, 0),
		"an octet too many": append(bytes.Clone(good), 0),
		"cut off":           good[:22],
	} {
		t.Run(name, func(t *testing.T) {
			var ref refusals
			addr := listen(t, newProvider(Options{}), fabric.ListenOptions{Refused: ref.refused}, fabric.ConnOptions{}, nil)
			r := rawDial(t, addr)
			r.write(b)
			if name == "cut off" {
				_ = r.nc.(*net.TCPConn).CloseWrite()
			}
			if n, err := r.nc.Read(make([]byte, 1)); err == nil || n > 0 {
				t.Error("it was answered")
			}
			testkit.Eventually(t, "it is counted", func() bool { return ref.request.Load() == 1 })
		})
	}
}

// TestReject checks a Reply that rejects, at both ends.
func TestReject(t *testing.T) {
	p := newProvider(Options{})
	l, err := p.Listen("127.0.0.1:0", withLimits(fabric.ListenOptions{}), func(in fabric.Incoming) {
		if !in.Peer().IsValid() {
			t.Error("no peer")
		}
		if err := in.Reject([]byte("go away")); err != nil {
			t.Error(err)
		}
		if err := in.Reject(nil); err == nil {
			t.Error("rejected twice")
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, err = p.Dial(t.Context(), newLoop(t), l.Addr().String(), fabric.ConnOptions{}, newUser(t, nil))
	var re *rejectError
	if !errors.Is(err, fabric.ErrRejected) || !errors.As(err, &re) || string(re.Private) != "go away" {
		t.Errorf("Dial: %v", err)
	}
	testkit.Eventually(t, "all are counted off", func() bool { return p.limits.conns.Load() == 0 })
}

// A rawListener sends the Replies that answer returns. It closes the connection when that
// is nil.
func rawListener(t *testing.T, answer func(n int, r *rawPeer, f wire.Frame) *wire.Frame) (string, <-chan *rawPeer) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	peers := make(chan *rawPeer, 16)
	go func() {
		for n := 1; ; n++ {
			nc, err := ln.Accept()
			if err != nil {
				return
			}
			r := newRaw(t, nc)
			f, err := readFrame(nc, false)
			if err != nil {
				t.Errorf("Request %d: %v", n, err)
				nc.Close()
				continue
			}
			g := answer(n, r, f)
			if g == nil {
				nc.Close()
				continue
			}
			g.Reply = true
			r.crc = (g.Flags|f.Flags)&fC != 0
			r.write(g.Append(nil))
			peers <- r
		}
	}()
	return ln.Addr().String(), peers
}

// mirror returns a correct Reply to f.
func mirror(f wire.Frame) *wire.Frame {
	f.Enhanced.IRD, f.Enhanced.ORD = f.Enhanced.ORD, f.Enhanced.IRD
	f.Private = nil
	return &f
}

// A replyTest is a Reply to our Initiator.
type replyTest struct {
	name  string
	edit  func(f *wire.Frame)
	err   string // of Dial; empty for none
	check func(t *testing.T, u *user, r *rawPeer)
	raw   []byte // sent instead of a frame
}

// TestReplies sends each kind of Reply to our Initiator.
func TestReplies(t *testing.T) {
	for _, v := range []replyTest{
		{name: "plain", edit: func(*wire.Frame) {}},
		{name: "less IRD", edit: func(f *wire.Frame) { f.Enhanced.IRD = 2 }, check: func(t *testing.T, u *user, r *rawPeer) {
			if o := u.c.Info().ORD; o != 2 {
				t.Errorf("ORD %d, want 2", o)
			}
		}},
		{name: "more IRD", edit: func(f *wire.Frame) { f.Enhanced.IRD = 200 }, check: func(t *testing.T, u *user, r *rawPeer) {
			if o := u.c.Info().ORD; o != 8 {
				t.Errorf("ORD %d, want 8", o)
			}
		}},
		{name: "no negotiation", edit: func(f *wire.Frame) { f.Enhanced.IRD, f.Enhanced.ORD = 0x3fff, 0x3fff }},
		{name: "ORD over IRD", edit: func(f *wire.Frame) { f.Enhanced.ORD = 21 }, err: "2/0/06", check: func(t *testing.T, u *user, r *rawPeer) {
			r.wantTerminate(wire.CodeIRD)
		}},
		{name: "rejected", edit: func(f *wire.Frame) { f.Flags |= fR; f.Private = []byte("no") }, err: "rejected [6e 6f]"},
		{name: "revision 1", edit: func(f *wire.Frame) { f.Revision = 1; f.Flags &^= fS }, err: "reply of revision 1"},
		{name: "no S", edit: func(f *wire.Frame) { f.Flags &^= fS }, err: "reply of revision 2"},
		{name: "bad key", raw: append([]byte("MPA ID Rep Frama"), 0x50, 2, 0, 0), err: "bad key"},
		{name: "a Request", raw: append([]byte("MPA ID Req Frame"), 0x50, 2, 0, 0), err: "Request, not a Reply"},
		{name: "too long", raw: append([]byte("MPA ID Rep Frame"), 0x50, 2, 2, 1), err: "PD_Length"},
		{name: "half a Reply", raw: []byte("MPA ID Rep"), err: "unexpected EOF"},
	} {
		t.Run(v.name, v.run)
	}
}

func (v replyTest) run(t *testing.T) {
	addr, peers := rawListener(t, func(n int, r *rawPeer, f wire.Frame) *wire.Frame {
		if n > 1 {
			t.Errorf("a Reply was taken for silence")
		}
		if f.Flags != fS|fC || f.Revision != 2 || f.Enhanced != (wire.Enhanced{IRD: 20, ORD: 8}) || string(f.Private) != "hi" {
			t.Errorf("Request %+v", f)
		}
		if v.raw != nil {
			_, _ = r.nc.Write(v.raw)
			return nil
		}
		g := mirror(f)
		v.edit(g)
		return g
	})
	u := newUser(t, newLoop(t))
	u.receives(4, 1024)
	done := make(chan error, 1)
	go func() {
		_, err := newProvider(Options{}).Dial(context.Background(), u.loop, addr, fabric.ConnOptions{PrivateData: []byte("hi"), IRD: 20, ORD: 8}, u)
		done <- err
	}()
	var r *rawPeer
	if v.raw == nil {
		r = <-peers
		if v.err != "" && v.check != nil {
			v.check(t, u, r)
		}
	}
	err := <-done
	if v.err != "" {
		if err == nil || !strings.Contains(err.Error(), v.err) {
			t.Errorf("Dial: %v, want %s", err, v.err)
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	if v.check != nil {
		v.check(t, u, r)
	}
	u.do(func(c fabric.Conn) { _ = c.PostSend(50, fabric.Send{Parts: [][]byte{{7}}}) })
	r.want(wire.OpSend)
	r.send(8)
	u.good(1)
}

// A ladderTest is a peer that answers only some kinds of Request.
type ladderTest struct {
	name    string
	rev1    bool
	want    func(f wire.Frame) bool // reports whether the peer answers f
	tries   int                     // Requests of the first Dial
	again   int                     // Requests of the second Dial
	rtr     func(e *wire.Enhanced)
	rtrCode wire.Opcode
	err     bool
}

// TestLadder dials peers that close the connection without a Reply. Dial tries the
// peer-to-peer model, and revision 1 if that is allowed. The kind that the peer answered
// comes first the next time.
func TestLadder(t *testing.T) {
	for _, v := range []ladderTest{
		{name: "Intel, Write", want: func(f wire.Frame) bool { return f.Enhanced.PeerToPeer }, tries: 2, again: 1, rtr: func(e *wire.Enhanced) { e.RTRRead = false }, rtrCode: wire.OpWrite},
		{name: "Intel, Read", want: func(f wire.Frame) bool { return f.Enhanced.PeerToPeer }, tries: 2, again: 1, rtr: func(e *wire.Enhanced) { e.RTRWrite = false }, rtrCode: wire.OpReadRequest},
		{name: "revision 1", rev1: true, want: func(f wire.Frame) bool { return f.Revision == 1 }, tries: 3, again: 1},
		{name: "revision 1, not allowed", want: func(f wire.Frame) bool { return f.Revision == 1 }, tries: 2, again: 2, err: true},
		{name: "RTR that was not offered", want: func(f wire.Frame) bool { return f.Enhanced.PeerToPeer }, tries: 2, again: 2, rtr: func(e *wire.Enhanced) { e.RTRRead, e.RTRWrite, e.RTRSend = false, false, true }, err: true},
	} {
		t.Run(v.name, v.run)
	}
}

func (v ladderTest) run(t *testing.T) {
	var tries atomic.Int32
	addr, peers := rawListener(t, func(n int, r *rawPeer, f wire.Frame) *wire.Frame {
		tries.Add(1)
		if !v.want(f) {
			return nil
		}
		g := mirror(f)
		if v.rtr != nil {
			v.rtr(&g.Enhanced)
		}
		return g
	})
	p := newProvider(Options{DialRev1: v.rev1})
	on := newLoop(t)
	for round, want := range []int{v.tries, v.again} {
		tries.Store(0)
		u := newUser(t, on)
		u.receives(4, 1024)
		done := make(chan error, 1)
		go func() {
			_, err := p.Dial(context.Background(), on, addr, fabric.ConnOptions{}, u)
			done <- err
		}()
		if v.err {
			if v.rtr != nil {
				(<-peers).wantTerminate(wire.CodeRTR)
			}
			if err := <-done; err == nil {
				t.Error("Dial did not fail")
			}
		} else {
			v.wantConnection(t, u, <-peers, done)
		}
		if n := tries.Load(); int(n) != want {
			t.Errorf("round %d: %d Requests, want %d", round, n, want)
		}
	}
}

// wantConnection checks that Dial sends the RTR and succeeds, and that messages pass.
func (v ladderTest) wantConnection(t *testing.T, u *user, r *rawPeer, done <-chan error) {
	if v.rtr != nil {
		f, err := r.next()
		if err != nil || f.op() != v.rtrCode || len(f.payload) != 0 {
			t.Fatalf("RTR %v, %v", f, err)
		}
		if v.rtrCode == wire.OpReadRequest {
			h := wire.ReadRequest(f.head)
			if h.Size() != 0 || h.Untagged().MSN() != 1 {
				t.Errorf("RTR %x", f.head)
			}
			r.write(r.tagged(wire.OpReadResponse, true, h.SinkSTag(), h.SinkTO()))
		}
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	u.do(func(c fabric.Conn) { _ = c.PostSend(50, fabric.Send{Parts: [][]byte{{7}}}) })
	r.want(wire.OpSend)
	r.send(8)
	u.good(1)
	if cs := u.left(); len(cs) > 1 {
		t.Errorf("completions %+v", cs)
	}
}

// TestDialErrors checks that Dial sends one Request only, unless the peer closes the
// connection without a Reply.
func TestDialErrors(t *testing.T) {
	on := newLoop(t)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close() // never accepts: the kernel does

	t.Run("timeout", func(t *testing.T) {
		p := newProvider(Options{DialTimeout: 100 * time.Millisecond})
		start := time.Now()
		_, err := p.Dial(t.Context(), on, ln.Addr().String(), fabric.ConnOptions{}, newUser(t, on))
		var ne net.Error
		if !errors.As(err, &ne) || !ne.Timeout() {
			t.Errorf("Dial: %v", err)
		}
		if d := time.Since(start); d < 100*time.Millisecond {
			t.Errorf("after %v", d)
		}
	})
	t.Run("cancel", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(50*time.Millisecond, cancel)
		_, err := newProvider(Options{}).Dial(ctx, on, ln.Addr().String(), fabric.ConnOptions{}, newUser(t, on))
		if !errors.Is(err, context.Canceled) {
			t.Errorf("Dial: %v", err)
		}
	})
	t.Run("nobody", func(t *testing.T) {
		addr := ln.Addr().String()
		ln.Close()
		_, err := newProvider(Options{}).Dial(t.Context(), on, addr, fabric.ConnOptions{}, newUser(t, on))
		if !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("Dial: %v", err)
		}
	})
	t.Run("private data", func(t *testing.T) {
		_, err := newProvider(Options{}).Dial(t.Context(), on, "127.0.0.1:1", fabric.ConnOptions{PrivateData: make([]byte, 249)}, newUser(t, on))
		if err == nil || !strings.Contains(err.Error(), "249 octets") {
			t.Errorf("Dial: %v", err)
		}
	})
	t.Run("stopped loop", func(t *testing.T) {
		stopped := iwarptest.NewLoop()
		stopped.Stop()
		p := newProvider(Options{})
		addr, _ := rawListener(t, func(_ int, _ *rawPeer, f wire.Frame) *wire.Frame { return mirror(f) })
		_, err := p.Dial(t.Context(), stopped, addr, fabric.ConnOptions{}, newUser(t, stopped))
		if !errors.Is(err, loop.ErrStopped) {
			t.Errorf("Dial: %v", err)
		}
		if n := p.limits.conns.Load(); n != 0 {
			t.Errorf("%d connections counted", n)
		}
	})
}

// afterPass returns when everything that was asked of the loop before has been written.
func (u *user) afterPass() {
	u.t.Helper()
	for range 3 { // what Flush has put off is written at the end of the next pass
		u.do(func(fabric.Conn) {})
	}
}

// kicks returns how many zero-length Writes are still to follow the first FPDU.
func (u *user) kicks() (n int) {
	u.t.Helper()
	u.do(func(c fabric.Conn) {
		if n = c.(*conn).kicks; c.(*conn).qp.tx.kick {
			n++
		}
	})
	u.afterPass()
	return n
}

// TestKicks checks that two zero-length Writes follow a first FPDU, unless the peer sends
// something before. Linux siw can miss the first FPDU.
func TestKicks(t *testing.T) {
	for _, heard := range []bool{false, true} {
		t.Run(fmt.Sprint(heard), func(t *testing.T) {
			addr, peers := rawListener(t, func(_ int, _ *rawPeer, f wire.Frame) *wire.Frame { return mirror(f) })
			u := newUser(t, newLoop(t))
			u.receives(4, 1024)
			if _, err := newProvider(Options{}).Dial(t.Context(), u.loop, addr, fabric.ConnOptions{}, u); err != nil {
				t.Fatal(err)
			}
			r := <-peers
			if u.kicks() != 0 || testkit.Unread(r.nc.(*net.TCPConn)) > 0 {
				t.Fatal("an FPDU before any was posted")
			}
			start := time.Now()
			u.do(func(c fabric.Conn) { _ = c.PostSend(50, fabric.Send{Parts: [][]byte{{7}}}) })
			if f, err := r.next(); err != nil || f.op() != wire.OpSend {
				t.Fatalf("%v, %v", f, err)
			}
			if heard {
				// A slow answer may follow a kick or two. None comes behind the second Send.
				r.send(1)
				u.good(1)
				u.do(func(c fabric.Conn) { _ = c.PostSend(51, fabric.Send{Parts: [][]byte{{8}}}) })
				r.want(wire.OpSend)
			}
			for kick := range 2 {
				if heard {
					break
				}
				f, err := r.next()
				if err != nil || f.op() != wire.OpWrite || len(f.payload) != 0 {
					t.Fatalf("kick %d: %v, %v", kick, f, err)
				}
				if d := time.Since(start); kick == 0 && d < firstKick || kick == 1 && d < firstKick+secondKick {
					t.Errorf("kick %d after %v", kick, d)
				}
			}
			testkit.Eventually(t, "no Write is due any more", func() bool { return u.kicks() == 0 })
			if testkit.Unread(r.nc.(*net.TCPConn)) > 0 {
				f, err := r.next()
				t.Errorf("then came %v, %v", f.op(), err)
			}
		})
	}
}

// TestMarkersSent checks that a peer whose M bit is set gets Markers in every FPDU, and
// that each octet of the stream is right.
func TestMarkersSent(t *testing.T) {
	f := plain()
	f.Flags |= fM
	g := newRig(t, rigOptions{request: &f, conn: fabric.ConnOptions{ORD: 4}})
	stream := &markedReader{r: g.nc}
	data := testkit.Pattern(200000, 3)
	reg := g.u.register(data, fabric.RemoteRead)
	g.read(wire.Read{SinkSTag: 5, SinkTO: 6, Size: uint32(len(data)), SrcSTag: uint32(reg.Handle), SrcTO: reg.Offset})
	g.u.do(func(c fabric.Conn) {
		for _, n := range []int{0, 1, 100, 484, 488, 492, 500, 508, 512, 5000, 100000} {
			if err := c.PostSend(0, fabric.Send{Parts: [][]byte{data[:n/2], data[n/2 : n]}}); err != nil {
				t.Error(err)
			}
		}
	})
	var resp []byte
	var sends [][]byte
	var cur []byte
	for len(sends) < 11 || len(resp) < len(data) {
		fpdu := stream.fpdu(t)
		h := wire.Control(fpdu)
		switch h.Opcode() {
		case wire.OpSend:
			cur = append(cur, fpdu[wire.UntaggedLen:2+h.ULPDULen()]...)
			if h.Last() {
				sends = append(sends, cur)
				cur = nil
			}
		case wire.OpReadResponse:
			resp = append(resp, fpdu[wire.TaggedLen:2+h.ULPDULen()]...)
		default:
			t.Fatalf("%v", h.Opcode())
		}
	}
	wantBytes(t, "Response", resp, data)
	for i, n := range []int{0, 1, 100, 484, 488, 492, 500, 508, 512, 5000, 100000} {
		wantBytes(t, fmt.Sprintf("Send %d", i), sends[i], data[:n])
	}
	// The Terminate stands at the right place of the stream too.
	g.put(1, 2, 3)
	fpdu := stream.fpdu(t)
	if term, err := wire.ParseTerminate(fpdu[wire.UntaggedLen:]); err != nil || term.Code != wire.CodeTaggedSTag {
		t.Errorf("%v, %v", term, err)
	}
}

// A markedReader removes the Markers from a stream and checks them.
type markedReader struct {
	r   io.Reader
	pos int
}

func (m *markedReader) word(t *testing.T) []byte {
	var b [4]byte
	if _, err := io.ReadFull(m.r, b[:]); err != nil {
		t.Fatal(err)
	}
	m.pos += 4
	return b[:]
}

// fpdu reads an FPDU and returns it without Markers and CRC.
func (m *markedReader) fpdu(t *testing.T) []byte {
	t.Helper()
	start := -1
	crc := uint32(0)
	marker := func() {
		if m.pos%wire.MarkerSpacing != 0 {
			return
		}
		at := m.pos
		b := m.word(t)
		crc = wire.Update(crc, b)
		want := 0
		if start >= 0 {
			want = at - start
		}
		if got := int(b[2])<<8 | int(b[3]); got != want || b[0]|b[1] != 0 {
			t.Fatalf("Marker % x at %d, want %d", b, at, want)
		}
	}
	marker()
	start = m.pos
	var out []byte
	for n := wire.ControlLen; len(out) < n; {
		if len(out) > 0 {
			marker()
		}
		w := m.word(t)
		crc = wire.Update(crc, w)
		out = append(out, w...)
		n = wire.FPDULen(wire.Control(out).ULPDULen()) - wire.CRCLen
	}
	marker()
	if got := wire.CRC(m.word(t)); got != crc {
		t.Fatalf("CRC = %08x, want %08x", got, crc)
	}
	return out
}

// TestListenerClose checks that Close closes connections that are starting, and no others.
func TestListenerClose(t *testing.T) {
	p := newProvider(Options{})
	u := newUser(t, newLoop(t))
	u.receives(4, 64)
	l, err := p.Listen("127.0.0.1:0", withLimits(fabric.ListenOptions{}), func(in fabric.Incoming) {
		if _, err := in.Accept(context.Background(), u.loop, fabric.ConnOptions{}, u); err != nil {
			t.Error(err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	r, silent := rawDial(t, l.Addr().String()), rawDial(t, l.Addr().String())
	if _, err := r.request(plain()); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "one is starting", func() bool {
		ll := l.(*listener)
		ll.mu.Lock()
		defer ll.mu.Unlock()
		return len(ll.starting) == 1 && ll.conns == 1
	})
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if _, err := silent.nc.Read(make([]byte, 1)); err == nil {
		t.Error("the silent one was answered")
	}
	r.send(1)
	u.good(1)
}

// TestIgnoredIncoming checks that a callback that neither accepts nor rejects leaks
// nothing.
func TestIgnoredIncoming(t *testing.T) {
	p := newProvider(Options{})
	l, err := p.Listen("127.0.0.1:0", withLimits(fabric.ListenOptions{}), func(fabric.Incoming) {})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	r := rawDial(t, l.Addr().String())
	if f, err := r.request(plain()); err != nil || f.Flags&fR == 0 {
		t.Errorf("Reply %+v, %v", f, err)
	}
	testkit.Eventually(t, "it is counted off", func() bool { return p.limits.conns.Load() == 0 })
}

// TestNewOptions checks that timeouts must be set.
func TestNewOptions(t *testing.T) {
	_, err := New(Options{})
	for _, want := range []string{"DialTimeout", "AcceptTimeout", "ProgressTimeout"} {
		if err == nil || !strings.Contains(err.Error(), "Options."+want+" is 0") {
			t.Errorf("New: %v, want an error that names %s", err, want)
		}
	}
	if _, err := New(Options{DialTimeout: -1, AcceptTimeout: -1, ProgressTimeout: -1}); err != nil {
		t.Errorf("New without timeouts: %v", err)
	}
}
