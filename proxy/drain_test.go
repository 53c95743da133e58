package proxy_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/proxy"
	"github.com/rdmabridge/rdmabridge/proxy/proxytest"
	"github.com/rdmabridge/rdmabridge/rdmaside"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric/fabrictest"
	"github.com/rdmabridge/rdmabridge/rdmaside/oncrpc"
)

// again sends its Call again whenever it is answered, until it is not.
type again struct {
	r        *rdmaside.Requester
	answered atomic.Int64
	failed   chan struct{} // closed at the end
}

func (a *again) CallDone(c *rdmaside.Call, err *rdmaside.CallError) {
	if err != nil {
		close(a.failed)
		return
	}
	c.Reply.Release()
	a.answered.Add(1)
	if err := a.r.Send(c); err != nil && !errors.Is(err, rdmaside.ErrClosed) {
		panic(err)
	} else if err != nil {
		close(a.failed)
	}
}

// TestDrainOfBusyRDMAClient is TestDrainOfBusyClients with two Calls in turn on
// an RDMA connection.
func TestDrainOfBusyRDMAClient(t *testing.T) {
	h := proxytest.NewHarness(t, budget)
	tcp := h.TCPServer(proxytest.Behaviour{Delay: 10 * time.Millisecond})
	rp := fabrictest.NewLoopback()
	p := h.Proxy([]proxy.ListenerOptions{{Name: "rdma", Address: "front", RDMA: true, Provider: rp, Upstream: "tcp"}},
		[]proxy.UpstreamOptions{{Name: "tcp", Endpoints: []string{tcp.Addr()}}})
	acct := h.Arena.Account("test", 8<<20)
	loop := fabrictest.NewLoop()
	t.Cleanup(loop.Stop)
	r, err := rdmaside.DialRequester(t.Context(), rp, loop, "front", rdmaside.RequesterOptions{Memory: acct, Registry: h.Registry, Credits: 4, Log: zerolog.Nop()}, nil)
	if err != nil {
		t.Fatal(err)
	}
	clients := make([]*again, 2)
	for i := range clients {
		a := &again{r: r, failed: make(chan struct{})}
		clients[i] = a
		m := proxytest.GetattrCall(uint32(i + 1))
		b, err := acct.Lease(len(m))
		if err != nil {
			t.Fatal(err)
		}
		defer b.Release()
		copy(b.Bytes(), m)
		c := &rdmaside.Call{XID: uint32(i + 1), Message: b.Bytes(), Owner: a}
		var hd oncrpc.Call
		if err := oncrpc.ParseCall(c.Message, &hd); err != nil {
			t.Fatal(err)
		}
		c.Binding = h.Registry.Analyse(&hd, &c.Analysis)
		h.Eventually("there is a credit", func() bool { return r.Free() > 0 })
		loop.Do(func() {
			if err := r.Send(c); err != nil {
				t.Error(err)
			}
		})
		h.Eventually("the client is busy", func() bool { return a.answered.Load() > 3 })
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := p.Drain(ctx); err != nil {
		t.Error(err)
	}
	for _, a := range clients {
		<-a.failed
	}
}
