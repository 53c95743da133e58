package proxy_test

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/internal/status"
	"github.com/rdmabridge/rdmabridge/internal/testkit/proxytest"
	"github.com/rdmabridge/rdmabridge/proxy"
	"github.com/rdmabridge/rdmabridge/proxy/settings"
	"github.com/rdmabridge/rdmabridge/rdmaside"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric/fabrictest"
)

// A reverse is a proxy from RDMA to a TCP server, in memory.
type reverse struct {
	*proxytest.Harness
	p        *proxy.Proxy
	server   *proxytest.TCPServer
	provider *fabrictest.Loopback
	loop     loop.Loop // the clients'
}

func newReverse(t *testing.T, budget int64, b proxytest.Behaviour, change func(*settings.ListenerOptions)) *reverse {
	t.Helper()
	h := proxytest.NewHarness(t, budget)
	x := &reverse{Harness: h, server: h.TCPServer(b), provider: fabrictest.NewLoopback()}
	loop := fabrictest.NewLoop()
	t.Cleanup(loop.Stop)
	x.loop = loop
	lo := settings.ListenerOptions{Name: "rdma", Address: "front", RDMA: true, Provider: x.provider, Upstream: "tcp"}
	if change != nil {
		change(&lo)
	}
	x.p = h.Proxy([]settings.ListenerOptions{lo}, []settings.UpstreamOptions{{Name: "tcp", Endpoints: []string{x.server.Addr()}}})
	return x
}

func (x *reverse) dial() (*proxytest.RDMAClient, error) {
	c, err := x.DialRDMA(x.provider, x.loop, "front", rdmaside.RequesterOptions{IdleReceives: 4})
	if err == nil {
		x.T.Cleanup(func() { _ = c.Close() })
	}
	return c, err
}

func (x *reverse) refused(reason string) int {
	return metric(x.Harness, fmt.Sprintf("listener_refused_connections_total{listener=\"rdma\",reason=%q}", reason))
}

// TestRDMARefusals: the listener refuses clients that it does not want, and counts them.
func TestRDMARefusals(t *testing.T) {
	for _, tt := range []struct {
		reason string
		change func(*settings.ListenerOptions)
		budget int64
		good   int // clients let in, at least; the next ones are not
	}{
		{"address", func(o *settings.ListenerOptions) { o.Allow = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")} }, budget, 0},
		{"connections", func(o *settings.ListenerOptions) { o.MaxConnections = 3 }, budget, 3},
		{"connections_per_address", func(o *settings.ListenerOptions) { o.MaxConnectionsPerAddress = 2 }, budget, 2},
		{"memory", nil, 4 << 20, 20},
	} {
		t.Run(tt.reason, func(t *testing.T) {
			x := newReverse(t, tt.budget, proxytest.Behaviour{}, tt.change)
			var in []*proxytest.RDMAClient
			for len(in) <= 1000 {
				c, err := x.dial()
				if err != nil {
					break
				}
				in = append(in, c)
			}
			if len(in) < tt.good || tt.good < 10 && len(in) != tt.good {
				t.Errorf("%d clients let in, want %d", len(in), tt.good)
			}
			x.Eventually("the refusal is counted", func() bool { return x.refused(tt.reason) == 1 })
			if n := metric(x.Harness, "listener_refused_connections_total"); n != 1 {
				t.Errorf("%d refusals counted", n)
			}
			for i, c := range in {
				m := proxytest.GetattrCall(uint32(i + 1))
				if r, err := c.Call(m); err != nil || !bytes.Equal(r, proxytest.Expected(m)) {
					t.Errorf("client %d of those let in: %v", i, err)
				}
			}
			// A client that leaves makes room.
			if len(in) > 0 {
				_ = in[0].Close()
				if tt.reason == "memory" {
					for _, c := range in {
						_ = c.Close()
					}
				}
				x.Eventually("there is room again", func() bool {
					c, err := x.dial()
					if err != nil {
						return false
					}
					_, err = c.Call(proxytest.GetattrCall(7))
					return err == nil
				})
			}
		})
	}
}

// TestIdlePolicy: a connection without Calls is closed, not sooner than it should
// be, and never one with a Call under way; its client comes back.
func TestIdlePolicy(t *testing.T) {
	t.Parallel()
	const idle = 2 * time.Second
	x := newReverse(t, budget, proxytest.Behaviour{}, func(o *settings.ListenerOptions) { o.IdleTimeout = idle })
	none := newReverse(t, budget, proxytest.Behaviour{}, nil)
	stays, err := none.dial()
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	quiet, err := x.dial()
	if err != nil {
		t.Fatal(err)
	}
	slow, err := x.dial()
	if err != nil {
		t.Fatal(err)
	}
	busy, err := x.dial()
	if err != nil {
		t.Fatal(err)
	}
	called := time.Now()
	long := proxytest.EchoCall(1, 10, 10, int((2 * idle).Milliseconds()))
	answer, err := slow.Go(long)
	if err != nil {
		t.Fatal(err)
	}
	xid := uint32(0)
	x.Eventually("one is closed", func() bool {
		xid++
		m := proxytest.GetattrCall(xid)
		if r, err := busy.Call(m); err != nil || !bytes.Equal(r, proxytest.Expected(m)) {
			t.Fatalf("a client that says something now and then: %v", err)
		}
		return x.refused("idle") > 0
	})
	if d := time.Since(began); d < idle {
		t.Errorf("closed after %v, want %v", d, idle)
	}
	x.Eventually("the two with Calls are left", func() bool { return x.p.Status(status.Query{}).Listeners[0].Clients == 2 })
	if _, err := quiet.Call(proxytest.GetattrCall(1)); err == nil {
		t.Error("the idle client is connected")
	}
	if r := <-answer; !bytes.Equal(r, proxytest.Expected(long)) {
		t.Error("a Call that took longer was not answered")
	}
	x.Eventually("all are closed in the end", func() bool { return x.p.Status(status.Query{}).Listeners[0].Clients == 0 })
	if d := time.Since(called); d < 3*idle {
		t.Errorf("closed %v after a Call that took %v, want %v after its Reply", d, 2*idle, idle)
	}
	if n := none.p.Status(status.Query{}).Listeners[0].Clients; n != 1 {
		t.Errorf("%d clients without an idle timeout, want 1", n)
	}
	_ = stays
}

// TestHoarding: clients that were busy, still have the credits of that time, and are idle
// make room for new clients. Busy clients keep their credits.
func TestHoarding(t *testing.T) {
	t.Parallel()
	x := newReverse(t, 8<<20, proxytest.Behaviour{Delay: 5 * time.Millisecond}, nil)
	busy := func(c *proxytest.RDMAClient, n int) error {
		var chs []<-chan []byte
		for i := range uint32(n) {
			ch, err := c.Go(proxytest.GetattrCall(i + 1))
			if err != nil {
				return err
			}
			chs = append(chs, ch)
		}
		for _, ch := range chs {
			if r, ok := <-ch; !ok || len(r) == 0 {
				return errors.New("not answered")
			}
		}
		return nil
	}
	var all []*proxytest.RDMAClient
	stop, works := make(chan struct{}), make(chan error, 1)
	work := func(c *proxytest.RDMAClient) { // not idle while the rest of the test is slow
		for {
			select {
			case <-stop:
				works <- nil
				return
			default:
			}
			if err := busy(c, 5); err != nil {
				works <- err
				return
			}
		}
	}
	began := time.Now()
	for i := range 3 { // they take half of the memory
		c, err := x.dial()
		if err == nil {
			err = busy(c, 500)
		}
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, c)
		if i == 0 {
			go work(c)
		}
	}
	for {
		c, err := x.dial()
		if err != nil {
			break
		}
		all = append(all, c)
	}
	x.Eventually("the last one is counted", func() bool { return x.refused("memory") == 1 })
	if n, d := x.refused("hoarding"), time.Since(began); n != 0 && d < 5*time.Second {
		t.Fatalf("%d closed after %v, want 5 s at least", n, d)
	}
	before := len(all)
	x.Eventually("the two that hoard are closed", func() bool {
		for range 8 { // the room of the first that is closed is for many
			c, err := x.dial()
			if err != nil {
				break
			}
			all = append(all, c)
		}
		return x.refused("hoarding") > 1
	})
	// As many as the two leave room for, which they do after they are counted.
	for len(all) < before+30 {
		x.Eventually(fmt.Sprintf("after two left there is room for %d clients more", len(all)-before+1), func() bool {
			c, err := x.dial()
			if err == nil {
				all = append(all, c)
			}
			return err == nil
		})
	}
	// The first of those that came later have more than twice their share too.
	if n := x.refused("hoarding"); n > 12 {
		t.Errorf("%d clients were closed, want the two and a few", n)
	}
	close(stop)
	err := <-works
	if err == nil {
		err = busy(all[0], 50)
	}
	if err != nil {
		t.Errorf("the one that works: %v", err)
	}
}
