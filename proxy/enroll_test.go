package proxy

import (
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/regmem"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
	"github.com/rdmabridge/rdmabridge/metrics"
	"github.com/rdmabridge/rdmabridge/pool/dials"
	"github.com/rdmabridge/rdmabridge/proxy/admit"
	"github.com/rdmabridge/rdmabridge/proxy/identity"
	"github.com/rdmabridge/rdmabridge/proxy/listener"
	"github.com/rdmabridge/rdmabridge/proxy/settings"
	"github.com/rdmabridge/rdmabridge/proxy/upstream"
	"github.com/rdmabridge/rdmabridge/tcpframe"
)

// testUpstream returns an upstream on TCP that is not connected.
func testUpstream(t *testing.T, name string, hosts *admit.Hosts) *upstream.Upstream {
	t.Helper()
	m := metrics.New()
	x := &upstream.Context{
		Metrics: m, Engine: new(tcpframe.Engine), Loops: []upstream.Loop{{Metrics: m}}, Hosts: hosts, Dials: dials.New(1, 1),
		Draining: new(atomic.Bool), XIDs: identity.NewXIDs(), Budget: 1 << 30,
	}
	u, err := upstream.New(x, 0, settings.UpstreamOptions{
		Name: name, Endpoints: []string{"192.0.2.9:2049"}, Mode: settings.ModeShared,
		Connections: 1, Credits: 1, Share: 100, SlowStart: 1, GSSWindow: 1, SilentTimeout: time.Second, ProbeInterval: time.Second,
		CallTimeout: time.Second, ConnectTimeout: time.Second, UnavailableAfter: time.Second, BackoffMin: time.Second, BackoffMax: time.Second,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(u.Close)
	return u
}

// testListener returns a listener on TCP that does not listen.
func testListener(t *testing.T) *listener.Listener {
	t.Helper()
	arena, err := regmem.New(regmem.Options{Budget: 32 << 20})
	if err != nil {
		t.Fatal(err)
	}
	m := metrics.New()
	l := listener.New(&listener.Context{
		Metrics: m, Engine: new(tcpframe.Engine), Registry: ulb.NewRegistry(ulb.Limits{}), All: newInventory(),
		Tenants: new(admit.Tenants), TenantCounts: new(listener.CountsByTenant), Replies: arena.Account("replies", 32<<20),
	}, settings.ListenerOptions{Name: "nfs"})
	s, err := l.NewSettings(settings.ListenerOptions{
		Name: "nfs", Address: "127.0.0.1:0", MaxConnections: 1, MaxRecord: 1 << 20, MaxCalls: 1, MaxOutbound: 1 << 20, StallTimeout: time.Second,
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	l.Open(s)
	return l
}

// TestFollowForgetsQueues: a client forgets its queues at upstreams that have ended, and only those.
func TestFollowForgetsQueues(t *testing.T) {
	hosts := admit.NewHosts()
	stays, goes, gone := testUpstream(t, "a", hosts), testUpstream(t, "b", hosts), testUpstream(t, "a", hosts)
	gone.Close()
	l := testListener(t)
	f := &front{listener: l, peer: netip.MustParseAddrPort("192.0.2.1:1"), ledger: admit.Client{Weight: 1}}
	for _, u := range []*upstream.Upstream{gone, goes, stays, gone} {
		f.queues = append(f.queues, &clientQueue{u: u})
	}
	f.Follow()
	if len(f.queues) != 2 || f.queues[0].u != goes || f.queues[1].u != stays {
		t.Errorf("%d queues are left", len(f.queues))
	}
}
