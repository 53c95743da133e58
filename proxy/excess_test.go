package proxy_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/testkit/proxytest"
	"github.com/rdmabridge/rdmabridge/proxy/settings"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric/fabrictest"
	"github.com/rdmabridge/rdmabridge/rdmaside/iwarp"
	"github.com/rdmabridge/rdmabridge/rdmaside/rpcrdma"
)

// A rawRequester is an RDMA client that sends what the test says and counts no credits.
type rawRequester struct {
	on      loop.Loop
	conn    fabric.Conn
	bufs    [256][4096]byte
	replies chan rawReply
	closed  chan error
}

// A rawReply is what a test looks at in a Reply.
type rawReply struct {
	xid, credits uint32
	proc         rpcrdma.Proc
	message      []byte // came inline
}

func dialRaw(t *testing.T, p fabric.Provider, on loop.Loop, addr string) *rawRequester {
	t.Helper()
	r := &rawRequester{on: on, replies: make(chan rawReply, 4096), closed: make(chan error, 1)}
	o := fabric.ConnOptions{Receives: len(r.bufs), PrivateData: rpcrdma.AppendPrivateData(nil, rpcrdma.PrivateData{SendSize: 4096, RecvSize: 4096})}
	conn, err := p.Dial(context.Background(), on, addr, o, r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { on.Post(loop.TaskFunc(func() { conn.Close(nil) })) })
	return r
}

func (r *rawRequester) Setup(c fabric.Conn) error {
	r.conn = c
	for i := range r.bufs {
		if err := c.PostReceive(uint64(i)+1, r.bufs[i][:]); err != nil {
			return err
		}
	}
	return nil
}

func (r *rawRequester) Completed(cs []fabric.Completion) {
	for _, c := range cs {
		if c.Op != fabric.OpReceive || c.Err != nil {
			continue
		}
		b := r.bufs[c.ID-1][:]
		var h rpcrdma.Header
		if n, err := h.Decode(b[:c.Bytes]); err == nil {
			r.replies <- rawReply{h.XID, h.Credits, h.Proc, bytes.Clone(b[n:c.Bytes])}
		}
		_ = r.conn.PostReceive(c.ID, b)
	}
}

func (r *rawRequester) Closed(err error) { r.closed <- err }

// send sends n Calls, from XID first on.
func (r *rawRequester) send(first, n uint32) {
	for xid := first; xid < first+n; xid++ {
		r.post(proxytest.GetattrCall(xid))
	}
}

// post sends the Call m inline.
func (r *rawRequester) post(m []byte) {
	header := rpcrdma.Header{}
	header.Reset(binary.BigEndian.Uint32(m), 128, rpcrdma.Msg)
	r.on.Post(loop.TaskFunc(func() { _ = r.conn.PostSend(0, fabric.Send{Parts: [][]byte{header.Append(nil), m}}) }))
}

// take receives n Replies, which answer the Calls from XID first on in any order, and returns the
// last grant.
func (r *rawRequester) take(t *testing.T, first, n uint32) (granted uint32) {
	t.Helper()
	seen := make(map[uint32]bool)
	for range n {
		select {
		case h := <-r.replies:
			if h.xid < first || h.xid >= first+n || seen[h.xid] || h.proc != rpcrdma.Msg {
				t.Fatalf("a Reply to %d, %v; want one to each of the %d Calls from %d on", h.xid, h.proc, n, first)
			}
			seen[h.xid] = true
			granted = h.credits
		case err := <-r.closed:
			t.Fatalf("the connection ended after %d of %d Replies: %v", len(seen), n, err)
		case <-time.After(proxytest.CallTimeout):
			t.Fatalf("%d of %d Replies came", len(seen), n)
		}
	}
	return granted
}

// TestRefusedWithoutMemory: an RDMA client is refused a Call although there is no memory for Replies, and keeps its
// connection.
func TestRefusedWithoutMemory(t *testing.T) {
	h := proxytest.NewHarness(t, 64<<20)
	s := h.TCPServer(proxytest.Behaviour{})
	p, l := fabrictest.NewLoopback(), fabrictest.NewLoop()
	t.Cleanup(l.Stop)
	x := h.Proxy([]settings.ListenerOptions{{Name: "rdma", Address: "front", RDMA: true, Provider: p, Routes: []settings.Route{
		{Program: oncrpc.ProgramNFS, Versions: []uint32{3}, Upstream: "tcp"},
	}}}, []settings.UpstreamOptions{{Name: "tcp", Endpoints: []string{s.Addr()}}})
	r := dialRaw(t, p, l, "front")
	r.send(1, 1)
	r.take(t, 1, 1)
	giveBack := x.TakeReplies()
	defer giveBack()
	for xid, want := range map[uint32][]byte{
		2: oncrpc.AppendAccepted(nil, 2, oncrpc.ProgramUnavailable),
		3: oncrpc.AppendProgramMismatch(nil, 3, 3, 3),
		4: oncrpc.AppendAuthError(nil, 4, oncrpc.AuthBadCredential),
	} {
		m := proxytest.CallHeader(nil, xid, oncrpc.ProgramMount, 3, 1)
		switch xid {
		case 3:
			m = proxytest.CallHeader(nil, xid, oncrpc.ProgramNFS, 4, 1)
		case 4:
			binary.BigEndian.PutUint32(m[24:], oncrpc.FlavorTLS)
		}
		r.post(m)
		select {
		case got := <-r.replies:
			if !bytes.Equal(got.message, want) {
				t.Errorf("XID %d: %v %x, want %x", xid, got.proc, got.message, want)
			}
		case err := <-r.closed:
			t.Fatalf("XID %d: the connection ended: %v", xid, err)
		case <-time.After(proxytest.CallTimeout):
			t.Fatalf("XID %d: no Reply", xid)
		}
	}
}

// TestRepeatedOnItsConnection: an RDMA client sends a Call again, and again, on the connection where the first is under
// way. Each is answered, from one execution if the Call does harm, and the connection's other Call is, too.
func TestRepeatedOnItsConnection(t *testing.T) {
	for _, p := range []fabric.Provider{proxytest.IWARP(iwarp.Options{}), fabrictest.NewLoopback()} {
		t.Run(fmt.Sprintf("%T", p), func(t *testing.T) {
			h := proxytest.NewHarness(t, budget)
			var gate proxytest.Gate
			var mkdirs atomic.Int64
			s := h.TCPServer(proxytest.Behaviour{Gate: &gate, Intercept: func(c *oncrpc.Call) ([]byte, bool) {
				if c.Procedure == 9 {
					mkdirs.Add(1)
				}
				return nil, false
			}})
			x := h.Proxy([]settings.ListenerOptions{{Name: "rdma", Address: "127.0.0.1:0", RDMA: true, Provider: p, Upstream: "tcp", Credits: 64}},
				[]settings.UpstreamOptions{{Name: "tcp", Endpoints: []string{s.Addr()}, SlowStart: 1024}})
			r := dialRaw(t, p, h.Engine.Loops()[1], x.Addr("rdma"))
			xid, granted := uint32(1), uint32(1)
			for granted < 64 {
				r.send(xid, granted)
				n := granted
				granted = r.take(t, xid, n)
				xid += n
			}
			const repeats = 30
			mkdir, getattr, other := proxytest.MkdirCall(5000, "d"), proxytest.GetattrCall(6000), proxytest.GetattrCall(7000)
			gate.Shut()
			before := s.Calls.Load()
			r.post(other)
			for range 1 + repeats {
				r.post(mkdir)
			}
			r.post(getattr)
			r.post(getattr)
			h.Eventually("the repeats are held", func() bool {
				return metric(h, `listener_calls_total{listener="rdma",result="absorbed"}`) == repeats
			})
			h.Eventually("all others are at the server", func() bool { return s.Calls.Load() == before+4 })
			gate.Open()
			want := map[uint32]int{5000: 1 + repeats, 6000: 2, 7000: 1}
			for range 1 + repeats + 2 + 1 {
				select {
				case got := <-r.replies:
					want[got.xid]--
					for _, m := range [][]byte{mkdir, getattr, other} {
						if binary.BigEndian.Uint32(m) == got.xid && !bytes.Equal(got.message, proxytest.Expected(m)) {
							t.Errorf("XID %d is answered with %x", got.xid, got.message)
						}
					}
				case err := <-r.closed:
					t.Fatalf("the connection ended: %v; unanswered: %v", err, want)
				case <-time.After(proxytest.CallTimeout):
					t.Fatalf("unanswered: %v", want)
				}
			}
			if fmt.Sprint(want) != "map[5000:0 6000:0 7000:0]" || mkdirs.Load() != 1 {
				t.Errorf("unanswered: %v; the server had MKDIR %d times", want, mkdirs.Load())
			}
			r.send(8000, 64)
			r.take(t, 8000, 64)
			if n := metric(h, "listener_rdma_outstanding_calls"); n != 0 {
				t.Errorf("%d Calls hold a credit at the end", n)
			}
		})
	}
}

// TestRepeatedOnItsConnectionEnds: when the server or the client goes while repeats are held, the client's connection
// ends, and all that its Calls held is given back.
func TestRepeatedOnItsConnectionEnds(t *testing.T) {
	for name, end := range map[string]func(x *repetition, r *rawRequester){
		"server gone": func(x *repetition, r *rawRequester) { x.server.DropConnections() },
		"client gone": func(x *repetition, r *rawRequester) {
			x.loop.Do(func() { r.conn.Close(errors.New("closed by the test")) })
		},
	} {
		t.Run(name, func(t *testing.T) {
			x := newRepetition(t)
			before := x.leases()
			r := dialRaw(t, x.provider, x.loop, "middle")
			granted := uint32(1)
			for xid := uint32(1); granted < 4; xid++ {
				r.send(xid, 1)
				granted = r.take(t, xid, 1)
			}
			calls := x.server.Calls.Load()
			for range granted {
				r.post(proxytest.MkdirCall(99, "d"))
			}
			held := func(n int) func() bool {
				return func() bool { return x.server.Calls.Load() == calls+1 && x.absorbed() == n }
			}
			x.Eventually("one is at the server, the others are held", held(int(granted)-1))
			other := x.send(t, "rdma", proxytest.MkdirCall(99, "d")) // it comes last, and is not the one at the server
			x.Eventually("the repeat on another connection is held", held(int(granted)))
			end(x, r)
			<-r.closed
			x.release()
			if err := <-other.done; err != nil {
				t.Errorf("the repeat on another connection: %v", err)
			}
			other.close()
			x.Eventually("all memory of Calls is back", func() bool { return x.leases() == before })
		})
	}
}

// TestInterruptedClient: a client whose processes are killed while a server does not answer sends
// as many Calls again as it was granted, in one go, and goes on to work. A client that goes on
// is disconnected. On both providers.
func TestInterruptedClient(t *testing.T) {
	for _, p := range []fabric.Provider{proxytest.IWARP(iwarp.Options{}), fabrictest.NewLoopback()} {
		t.Run(fmt.Sprintf("%T", p), func(t *testing.T) {
			h := proxytest.NewHarness(t, budget)
			hold := make(chan chan struct{}, 1)
			hold <- nil
			s := h.TCPServer(proxytest.Behaviour{Intercept: func(*oncrpc.Call) ([]byte, bool) {
				gate := <-hold
				hold <- gate
				if gate != nil {
					<-gate
				}
				return nil, false
			}})
			set := func(gate chan struct{}) { <-hold; hold <- gate }
			x := h.Proxy([]settings.ListenerOptions{{Name: "rdma", Address: "127.0.0.1:0", RDMA: true, Provider: p, Upstream: "tcp", Credits: 64}},
				[]settings.UpstreamOptions{{Name: "tcp", Endpoints: []string{s.Addr()}, SlowStart: 1024}})
			r := dialRaw(t, p, h.Engine.Loops()[1], x.Addr("rdma"))
			// All credits, and all of them in use for once.
			xid, granted := uint32(1), uint32(1)
			for range 40 {
				r.send(xid, granted)
				n := granted
				granted = r.take(t, xid, n)
				xid += n
			}
			if granted != 64 {
				t.Fatalf("granted %d", granted)
			}
			for round := range 3 {
				gate := make(chan struct{})
				set(gate)
				r.send(xid, granted)
				r.send(xid+granted, granted) // after a kill
				want := (round + 1) * 64
				h.Eventually("the Calls beyond the grant wait", func() bool { return metric(h, "listener_rdma_excess_calls_total") == want })
				if n := metric(h, "listener_rdma_outstanding_calls"); n != 64 {
					t.Errorf("%d Calls are under way under a grant of 64", n)
				}
				if round == 2 {
					r.send(xid+2*granted, 1)
					if err := <-r.closed; err == nil {
						t.Error("the connection ended in order")
					}
					h.Eventually("the end is counted", func() bool {
						return metric(h, `listener_refused_connections_total{listener="rdma",reason="credits"}`) == 1
					})
					close(gate)
					return
				}
				set(nil)
				close(gate)
				r.take(t, xid, 2*granted)
				xid += 2 * granted
			}
		})
	}
}
