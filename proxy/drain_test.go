package proxy_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/internal/testkit/proxytest"
	"github.com/rdmabridge/rdmabridge/proxy"
	"github.com/rdmabridge/rdmabridge/rdmaside"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric/fabrictest"
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

// TestDrainOfBusyRDMAClient is TestDrainOfBusyClients with two Calls on an RDMA
// connection, a short one and one that takes longer.
func TestDrainOfBusyRDMAClient(t *testing.T) {
	h := proxytest.NewHarness(t, budget)
	tcp := h.TCPServer(proxytest.Behaviour{Delay: 10 * time.Millisecond})
	rp := fabrictest.NewLoopback()
	p := h.Proxy([]proxy.ListenerOptions{{Name: "rdma", Address: "front", RDMA: true, Provider: rp, Upstream: "tcp"}},
		[]proxy.UpstreamOptions{{Name: "tcp", Endpoints: []string{tcp.Addr()}}})
	acct := h.Arena.Account("test", 8<<20)
	loop := fabrictest.NewLoop()
	t.Cleanup(loop.Stop)
	r, err := rdmaside.DialRequester(t.Context(), rp, loop, "front", proxytest.RequesterOptions(rdmaside.RequesterOptions{Memory: acct, Registry: h.Registry, Credits: 4, Log: zerolog.Nop()}), nil)
	if err != nil {
		t.Fatal(err)
	}
	clients := make([]*again, 2)
	for i := range clients {
		a := &again{r: r, failed: make(chan struct{})}
		clients[i] = a
		c := rdmaCall(t, h, acct, proxytest.EchoCall(uint32(i+1), 40, 40, 290*i), a)
		h.Eventually("there is a credit", func() bool { return r.Free() > 0 })
		loop.Do(func() {
			if err := r.Send(c); err != nil {
				t.Error(err)
			}
		})
		h.Eventually("the client is busy", func() bool { return a.answered.Load() > 0 })
	}
	// In the middle of the long one.
	long := clients[1].answered.Load()
	h.Eventually("it has begun", func() bool { return clients[1].answered.Load() > long })
	time.Sleep(100 * time.Millisecond)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := p.Drain(ctx); err != nil {
		t.Error(err)
	}
	for _, a := range clients {
		<-a.failed
	}
	// Those that were begun were answered; those that came during the drain were not
	// begun: their client sends them again elsewhere.
	executed := int(tcp.Calls.Load())
	if n := metric(h, "listener_rdma_replies_total"); n != executed {
		t.Errorf("%d Calls were executed and %d answered", executed, n)
	}
	if n := metric(h, "listener_received_calls_total"); n != executed+1 {
		t.Errorf("%d Calls came and %d were executed: want one that came during the drain", n, executed)
	}
}
