package proxy_test

import (
	"bytes"
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/internal/testkit/proxytest"
	"github.com/rdmabridge/rdmabridge/proxy/settings"
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
// connection, one of which is answered again and again, while the server holds the other.
func TestDrainOfBusyRDMAClient(t *testing.T) {
	h := proxytest.NewHarness(t, budget)
	var holds atomic.Bool
	held, release := make(chan struct{}), make(chan struct{})
	tcp := h.TCPServer(proxytest.Behaviour{Delay: 10 * time.Millisecond, InterceptTCP: func(c *oncrpc.Call, from *proxytest.TCPConn) ([]byte, bool) {
		if !bytes.Contains(c.Message, testkit.Pattern(44, 2)) || !holds.CompareAndSwap(true, false) {
			return nil, false
		}
		reply := proxytest.Expected(c.Message)
		close(held)
		go func() {
			<-release
			from.Send(reply)
		}()
		return nil, true
	}})
	rp := fabrictest.NewLoopback()
	p := h.Proxy([]settings.ListenerOptions{{Name: "rdma", Address: "front", RDMA: true, Provider: rp, Upstream: "tcp"}},
		[]settings.UpstreamOptions{{Name: "tcp", Endpoints: []string{tcp.Addr()}}})
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
		c := rdmaCall(t, h, acct, proxytest.EchoCall(uint32(i+1), 40+4*i, 40, 0), a)
		h.Eventually("there is a credit", func() (free bool) { loop.Do(func() { free = r.Free() > 0 }); return free })
		loop.Do(func() {
			if err := r.Send(c); err != nil {
				t.Error(err)
			}
		})
		h.Eventually("the client is busy", func() bool { return a.answered.Load() > 0 })
	}
	holds.Store(true)
	<-held
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
	defer cancel()
	drained := make(chan error, 1)
	go func() { drained <- p.Drain(ctx) }()
	h.Eventually("a Call has come during the drain", func() bool {
		return metric(h, `listener_pauses_total{listener="rdma",reason="draining"}`) > 0
	})
	close(release)
	if err := <-drained; err != nil {
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
