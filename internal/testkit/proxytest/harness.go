package proxytest

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/internal/regmem"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb/nfs"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/metrics"
	"github.com/rdmabridge/rdmabridge/proxy"
	"github.com/rdmabridge/rdmabridge/proxy/settings"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
	"github.com/rdmabridge/rdmabridge/tcpframe"
)

// A Harness is the engine, the memory and the metrics that the proxies and servers of a
// test share.
type Harness struct {
	T        testing.TB
	Engine   *tcpframe.Engine
	Arena    *regmem.Arena // the proxy's
	Registry *ulb.Registry
	Metrics  *metrics.Registry
	Log      zerolog.Logger
	Names    map[string][]netip.Addr // the addresses of hosts that only the test knows

	servers *regmem.Arena
}

// NewHarness starts an engine of two loops, with budget octets for the proxy. Each of change may
// change the engine's options.
func NewHarness(t testing.TB, budget int64, change ...func(*tcpframe.EngineOptions)) *Harness {
	t.Helper()
	h := &Harness{T: t, Metrics: metrics.New(), Log: zerolog.New(zerolog.NewTestWriter(t)).Level(zerolog.WarnLevel), Names: make(map[string][]netip.Addr)}
	h.Registry = ulb.NewRegistry(ulb.Limits{})
	nfs.Register(h.Registry)
	h.Arena, h.servers = h.arena(budget), h.arena(1<<30)
	t.Cleanup(func() {
		if err := h.Arena.Close(); err != nil {
			t.Error(err)
		}
		_ = h.servers.Close() // stays mapped if a server has not answered a Call
	})
	o := tcpframe.EngineOptions{Loops: 2, Log: h.Log, Metrics: h.Metrics}
	for _, f := range change {
		f(&o)
	}
	var err error
	if h.Engine, err = tcpframe.Start(o); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.Engine.Stop)
	return h
}

func (h *Harness) arena(budget int64) *regmem.Arena {
	h.T.Helper()
	a, err := regmem.New(regmem.Options{Budget: budget})
	if err != nil {
		h.T.Fatal(err)
	}
	return a
}

// RDMAServer starts an RDMA server with loops of its own.
func (h *Harness) RDMAServer(p fabric.Provider, loops []loop.Loop, addr string, credits int, b Behaviour) *RDMAServer {
	h.T.Helper()
	s, err := ListenRDMA(p, loops, addr, credits, h.servers, h.Registry, b)
	if err != nil {
		h.T.Fatal(err)
	}
	h.T.Cleanup(s.Close)
	return s
}

// TCPServer starts a TCP server.
func (h *Harness) TCPServer(b Behaviour) *TCPServer {
	h.T.Helper()
	s, err := ListenTCP("127.0.0.1:0", b)
	if err != nil {
		h.T.Fatal(err)
	}
	h.T.Cleanup(s.Close)
	return s
}

// Proxy starts a proxy and waits until it is ready.
func (h *Harness) Proxy(ls []settings.ListenerOptions, us []settings.UpstreamOptions) *proxy.Proxy {
	h.T.Helper()
	p := h.Start(ls, us)
	h.Eventually("the proxy is ready", func() bool { return p.Ready() == nil })
	return p
}

// Start starts a proxy, which may never get ready.
func (h *Harness) Start(ls []settings.ListenerOptions, us []settings.UpstreamOptions) *proxy.Proxy {
	h.T.Helper()
	p, err := proxy.New(proxy.Options{
		Log: h.Log, Metrics: h.Metrics, Engine: h.Engine, Arena: h.Arena, Registry: h.Registry,
		Listeners: Listeners(ls...), Upstreams: Upstreams(us...), LookUp: h.lookUp,
	})
	if err != nil {
		h.T.Fatal(err)
	}
	if err := p.Start(context.Background()); err != nil {
		h.T.Fatal(err)
	}
	h.T.Cleanup(func() { _ = p.Close() })
	return p
}

// lookUp finds the addresses of host. reach.LookUp.
func (h *Harness) lookUp(ctx context.Context, network, host string) ([]netip.Addr, error) {
	if addrs, ok := h.Names[host]; ok {
		return slices.Clone(addrs), nil
	}
	return net.DefaultResolver.LookupNetIP(ctx, network, host)
}

// Client connects to addr.
func (h *Harness) Client(addr string) *Client {
	h.T.Helper()
	c, err := DialClient(addr)
	if err != nil {
		h.T.Fatal(err)
	}
	h.T.Cleanup(func() { _ = c.Close() })
	return c
}

// Eventually waits until f is true, and fails the test after a minute.
func (h *Harness) Eventually(what string, f func() bool) {
	h.T.Helper()
	testkit.Eventually(h.T, what, f)
}
