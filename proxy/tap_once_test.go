package proxy_test

import (
	"bytes"
	"sync"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/status"
	"github.com/rdmabridge/rdmabridge/internal/testkit/proxytest"
	"github.com/rdmabridge/rdmabridge/proxy"
	"github.com/rdmabridge/rdmabridge/proxy/observe"
	"github.com/rdmabridge/rdmabridge/proxy/settings"
)

// An endsTap keeps the ends of the MKDIRs.
type endsTap struct {
	mu   sync.Mutex
	ends []observe.TapOver
}

func (e *endsTap) Wants(c *observe.TapCall) uint32 {
	if c.Procedure == 9 {
		return 1
	}
	return 0
}
func (e *endsTap) Message(*observe.TapMessage)                {}
func (e *endsTap) Ended(*observe.TapConn, int, uint32, error) {}
func (e *endsTap) Over(o *observe.TapOver) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.ends = append(e.ends, *o)
}

func (e *endsTap) all(test func(o *observe.TapOver) bool) (n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for i := range e.ends {
		if test(&e.ends[i]) {
			n++
		}
	}
	return n
}

// oneHeldCall returns a proxy whose upstream has one credit, at a server that answers after release, or when the test ends.
func oneHeldCall(t *testing.T) (h *proxytest.Harness, tcp *proxytest.TCPServer, p *proxy.Proxy, release func()) {
	t.Helper()
	h = proxytest.NewHarness(t, budget)
	released := make(chan struct{})
	release = sync.OnceFunc(func() { close(released) })
	tcp = h.TCPServer(proxytest.Behaviour{Intercept: func(*oncrpc.Call) ([]byte, bool) {
		<-released
		return nil, false
	}})
	t.Cleanup(release) // before the server's
	p = h.Proxy([]settings.ListenerOptions{{Name: "nfs", Address: "0.0.0.0:0", Upstream: "tcp"}},
		[]settings.UpstreamOptions{{Name: "tcp", Endpoints: []string{tcp.Addr()}, Connections: 1, Credits: 1}})
	return h, tcp, p, release
}

// TestTapOnce: of a Call and those that repeat it, a Tap is told of one alone that it is no repetition: the first one, or if
// that has ended without a Reply, the one that was sent in its place.
func TestTapOnce(t *testing.T) {
	t.Parallel()
	for _, replaced := range []bool{false, true} {
		h, tcp, p, release := oneHeldCall(t)
		tap := new(endsTap)
		p.SetTap(tap)
		send := func(c *proxytest.Client, m []byte) <-chan []byte {
			t.Helper()
			r, err := c.Go(m)
			if err != nil {
				t.Fatal(err)
			}
			return r
		}
		if replaced { // another Call has the only credit, so the first one waits
			send(h.KeptPort().Client(p.Addr("nfs")), proxytest.GetattrCall(1))
			h.Eventually("the credit is used", func() bool { return tcp.Calls.Load() == 1 })
		}
		m := proxytest.MkdirCall(77, "once")
		port := h.KeptPort()
		a, b := port.Client(p.Addr("nfs")), port.Client(p.Addr("nfs"))
		send(a, m)
		if !replaced {
			h.Eventually("the Call is at the server", func() bool { return tcp.Calls.Load() == 1 })
		} else {
			h.Eventually("the Call waits", func() bool { return p.Status(status.Query{}).Upstreams[0].InFlight == 2 })
		}
		second := send(b, m)
		h.Eventually("it is taken for the one under way", func() bool { return metric(h, `listener_calls_total{listener="nfs",result="absorbed"}`) == 1 })
		if replaced {
			a.Reset()
			h.Eventually("the first one is over", func() bool { return tap.all(func(*observe.TapOver) bool { return true }) == 1 })
		}
		release()
		if r := <-second; !bytes.Equal(r, proxytest.Expected(m)) {
			t.Error("the repetition was not answered")
		}
		h.Eventually("both are over", func() bool { return tap.all(func(*observe.TapOver) bool { return true }) == 2 })
		alone := tap.all(func(o *observe.TapOver) bool { return !o.Repeated })
		right := tap.all(func(o *observe.TapOver) bool { return !o.Repeated && o.Sent && o.Result == "replied" })
		if alone != 1 || right != 1 {
			t.Errorf("replaced %v: the Tap was told of %+v", replaced, tap.ends)
		}
	}
}
