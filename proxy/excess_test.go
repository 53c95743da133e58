package proxy_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/testkit/proxytest"
	"github.com/rdmabridge/rdmabridge/proxy"
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
		if _, err := h.Decode(b[:c.Bytes]); err == nil {
			r.replies <- rawReply{h.XID, h.Credits, h.Proc}
		}
		_ = r.conn.PostReceive(c.ID, b)
	}
}

func (r *rawRequester) Closed(err error) { r.closed <- err }

// send sends n Calls, from XID first on.
func (r *rawRequester) send(first, n uint32) {
	r.on.Post(loop.TaskFunc(func() {
		for xid := first; xid < first+n; xid++ {
			var m []byte
			for _, w := range []uint32{xid, 1, 128, 0, 0, 0, 0} {
				m = binary.BigEndian.AppendUint32(m, w)
			}
			_ = r.conn.PostSend(0, fabric.Send{Parts: [][]byte{m, proxytest.GetattrCall(xid)}})
		}
	}))
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
			x := h.Proxy([]proxy.ListenerOptions{{Name: "rdma", Address: "127.0.0.1:0", RDMA: true, Provider: p, Upstream: "tcp", Credits: 64}},
				[]proxy.UpstreamOptions{{Name: "tcp", Endpoints: []string{s.Addr()}, SlowStart: 1024}})
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
