package proxy_test

import (
	"bytes"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/status"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/internal/testkit/proxytest"
	"github.com/rdmabridge/rdmabridge/proxy"
	"github.com/rdmabridge/rdmabridge/proxy/settings"
)

// A gssWindow is what a server does with the sequence numbers of one GSS context: RFC 2203
// Section 5.3.3.1. It does not discard, but counts.
type gssWindow struct {
	mu      sync.Mutex
	highest uint32
	latest  uint32 // the most by which a Call was below the highest
	calls   int
	from    map[string]int // Calls by connection
}

func (w *gssWindow) see(c *oncrpc.Call, from string) {
	if c.Flavor != oncrpc.FlavorGSS {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.calls++
	if w.from == nil {
		w.from = make(map[string]int)
	}
	w.from[from]++
	if n := c.GSS.Sequence; n > w.highest {
		w.highest = n
	} else {
		w.latest = max(w.latest, w.highest-n)
	}
}

// behaviour is that of a server which answers after a moment, so that Calls wait for credits.
func (w *gssWindow) behaviour() proxytest.Behaviour {
	return proxytest.Behaviour{
		Delay: time.Millisecond,
		Intercept: func(c *oncrpc.Call) ([]byte, bool) {
			w.see(c, "")
			return nil, false
		},
	}
}

// wantInside fails if a Call was outside a window of n.
func (w *gssWindow) wantInside(t *testing.T, calls int, n uint32) {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	t.Logf("%d Calls, the latest by %d sequence numbers; connections %v", w.calls, w.latest, w.from)
	if w.calls != calls {
		t.Errorf("the server saw %d Calls, want %d", w.calls, calls)
	}
	if w.latest >= n {
		t.Errorf("a Call came %d sequence numbers late, which is outside a window of %d", w.latest, n)
	}
}

// mixed is Call i of a client that writes 128 KiB once in sixteen Calls, and reads attributes.
func mixed(i uint32) []byte {
	if i%16 == 3 {
		return proxytest.GSSCall(proxytest.WriteCall(i, uint64(i), 128<<10), i, 1)
	}
	return proxytest.GSSCall(proxytest.GetattrCall(i), i, 1)
}

// flood sends n Calls at once and waits for all Replies.
func flood(t *testing.T, c *proxytest.Client, n uint32) {
	t.Helper()
	var all []<-chan []byte
	for i := uint32(1); i <= n; i++ {
		ch, err := c.Go(mixed(i))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, ch)
	}
	for i, ch := range all {
		select {
		case r, ok := <-ch:
			if !ok || !bytes.Equal(r, proxytest.Expected(mixed(uint32(i+1)))) {
				t.Fatalf("Call %d: %d octets, answered is %v", i+1, len(r), ok)
			}
		case <-time.After(testkit.Patience):
			t.Fatalf("Call %d has no Reply", i+1)
		}
	}
}

// TestGSSWindow: the Calls of a GSS context, large ones among small ones, arrive within the windows
// of Linux and of libtirpc, whatever the transport of the upstream and however many connections
// it has, while other clients keep the connections busy.
func TestGSSWindow(t *testing.T) {
	const calls = 600
	for _, transport := range []string{"tcp", "rdma"} {
		for _, connections := range []int{1, 4} {
			t.Run(fmt.Sprint(transport, " ", connections), func(t *testing.T) {
				t.Parallel()
				h := proxytest.NewHarness(t, 256<<20)
				var w gssWindow
				u := settings.UpstreamOptions{Name: "storage", Connections: connections, Credits: 32}
				var p *proxy.Proxy
				if transport == "tcp" {
					b := w.behaviour()
					b.Intercept = nil
					b.InterceptTCP = func(c *oncrpc.Call, from *proxytest.TCPConn) ([]byte, bool) {
						w.see(c, from.RemoteAddr().String())
						return nil, false
					}
					u.Endpoints = []string{h.TCPServer(b).Addr()}
					p = h.Proxy([]settings.ListenerOptions{{Name: "nfs", Address: "127.0.0.1:0", Upstream: "storage"}}, []settings.UpstreamOptions{u})
				} else {
					p, _ = forward(t, h, 32, w.behaviour(), func(_ *settings.ListenerOptions, o *settings.UpstreamOptions) {
						o.Connections = connections
					})
				}
				stop := make(chan struct{})
				var others sync.WaitGroup
				for i := range 2 {
					c := h.Client(p.Addr("nfs"))
					others.Go(func() {
						for j := uint32(1); ; j++ {
							select {
							case <-stop:
								return
							default:
								check(t, c, proxytest.WriteCall(uint32(i)<<24|j, uint64(j), 64<<10))
							}
						}
					})
				}
				flood(t, h.Client(p.Addr("nfs")), calls)
				close(stop)
				others.Wait()
				w.wantInside(t, calls, 32)
				if transport == "tcp" && len(w.from) > 1 {
					t.Errorf("the Calls came on %d connections", len(w.from))
				}
			})
		}
	}
}

// TestGSSWindowIsBounded: no more Calls of a context are outstanding than its window has, and
// other contexts go on.
func TestGSSWindowIsBounded(t *testing.T) {
	t.Parallel()
	h := proxytest.NewHarness(t, budget)
	var gate proxytest.Gate
	p, s := forward(t, h, 64, proxytest.Behaviour{Gate: &gate}, func(_ *settings.ListenerOptions, u *settings.UpstreamOptions) {
		u.GSSWindow, u.SlowStart, u.Connections = 8, 2000, 1
	})
	check(t, h.Client(p.Addr("nfs")), proxytest.GetattrCall(1)) // the grant rises
	gate.Shut()
	defer gate.Open()
	before := s.Calls.Load()
	c := h.Client(p.Addr("nfs"))
	var all []<-chan []byte
	for i := range uint32(40) {
		ch, err := c.Go(proxytest.GSSCall(proxytest.GetattrCall(i+1), i+1, 1))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, ch)
	}
	h.Eventually("Calls wait for the window", func() bool { return metric(h, `upstream_gss_held_calls_total{upstream="storage"}`) > 0 })
	h.Eventually("the window is full", func() bool { return s.Calls.Load() == before+8 })
	other, err := h.Client(p.Addr("nfs")).Go(proxytest.GSSCallOf("another context", proxytest.GetattrCall(1), 1, 1))
	if err != nil {
		t.Fatal(err)
	}
	h.Eventually("another context's Call is at the server", func() bool { return s.Calls.Load() == before+9 })
	gate.Open()
	if _, ok := <-other; !ok {
		t.Error("another context's Call has no Reply")
	}
	for i, ch := range all {
		if _, ok := <-ch; !ok {
			t.Fatalf("Call %d has no Reply", i+1)
		}
	}
}

// TestGSSClientGone: the Calls of a client that goes while they wait for their turn give their
// memory back at once, and the Calls of another connection with the same context go on.
func TestGSSClientGone(t *testing.T) {
	t.Parallel()
	h := proxytest.NewHarness(t, budget)
	var gate proxytest.Gate
	gate.Shut()
	s := h.TCPServer(proxytest.Behaviour{Gate: &gate})
	p := h.Proxy([]settings.ListenerOptions{{Name: "nfs", Address: "127.0.0.1:0", Upstream: "storage"}},
		[]settings.UpstreamOptions{{Name: "storage", Endpoints: []string{s.Addr()}, GSSWindow: 4, SlowStart: 2000}})
	leases := func() (n int) {
		for _, a := range p.Status(status.Query{}).Memory.Accounts {
			if a.Name == "calls" {
				n += a.Leases
			}
		}
		return n
	}
	before := leases()
	a, b := h.Client(p.Addr("nfs")), h.Client(p.Addr("nfs"))
	for i := range uint32(100) {
		if _, err := a.Go(proxytest.GSSCall(proxytest.GetattrCall(i+1), i+1, 1)); err != nil {
			t.Fatal(err)
		}
	}
	h.Eventually("all are read", func() bool { return metric(h, `listener_received_calls_total{listener="nfs"}`) == 100 })
	last, err := b.Go(proxytest.GSSCall(proxytest.GetattrCall(200), 200, 1))
	if err != nil {
		t.Fatal(err)
	}
	h.Eventually("the other connection's is read", func() bool { return metric(h, `listener_received_calls_total{listener="nfs"}`) == 101 })
	a.Close()
	h.Eventually("the Calls that wait have ended", func() bool { return leases() <= before+8 })
	gate.Open()
	if r, ok := <-last; !ok || len(r) == 0 {
		t.Error("the other connection has no Reply")
	}
	h.Eventually("all memory is back", func() bool { return leases() == before })
}
