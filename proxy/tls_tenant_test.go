package proxy_test

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/status"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/internal/testkit/proxytest"
	"github.com/rdmabridge/rdmabridge/proxy"
	"github.com/rdmabridge/rdmabridge/proxy/admit"
	"github.com/rdmabridge/rdmabridge/proxy/admit/gates"
	"github.com/rdmabridge/rdmabridge/proxy/settings"
)

// A namedBench is a listener on which clients may have TLS. The tenant gold has those with the certificate
// gold.example.com, and others has the network of all clients. The server holds READs until release.
type namedBench struct {
	*proxytest.Harness
	*security
	p       *proxy.Proxy
	server  *proxytest.TCPServer
	held    chan struct{}
	release func()
}

func newNamedBench(t *testing.T, others admit.TenantOptions) *namedBench {
	t.Helper()
	x := &namedBench{security: newSecurity(t)}
	x.Harness, _ = logged(t)
	var b proxytest.Behaviour
	b, x.held, x.release = holding(t, func(c *oncrpc.Call) bool { return c.Procedure == procRead })
	s := x.TCPServer(b)
	x.server = s
	x.p = x.Proxy([]settings.ListenerOptions{{Name: "nfs", Address: "127.0.0.1:0", Upstream: "s", TLS: x.listener(false)}},
		[]settings.UpstreamOptions{{Name: "s", Endpoints: []string{s.Addr()}, SlowStart: 1024}})
	x.set(x.gold(), x.others(others))
	return x
}

func (x *namedBench) gold() admit.TenantOptions {
	return admit.TenantOptions{Name: "gold", Names: patterns(x.t, "gold.example.com")}
}

func (x *namedBench) others(o admit.TenantOptions) admit.TenantOptions {
	o.Name, o.Clients = "others", []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
	return o
}

// set puts the tenants in force.
func (x *namedBench) set(all ...admit.TenantOptions) {
	x.t.Helper()
	if err := x.p.SetTenants(all); err != nil {
		x.t.Fatal(err)
	}
}

// tenant returns what the status says of a tenant.
func (x *namedBench) tenant(name string) status.Tenant {
	x.t.Helper()
	for _, t := range x.p.Status(status.Query{}).Tenants {
		if t.Name == name {
			return t
		}
	}
	x.t.Fatalf("no tenant %s", name)
	return status.Tenant{}
}

// secure connects with TLS and the certificate of name, and calls.
func (x *namedBench) secure(name string) (*proxytest.Client, error) {
	nc, err := proxytest.StartTLS(rawClient(x.t, x.p.Addr("nfs")), x.user(x.issue(name)))
	if err != nil {
		return nil, err
	}
	c := proxytest.NewClient(nc)
	_, err = c.Call(proxytest.GetattrCall(1))
	return c, err
}

// TestTLSTenantsApart: a client that belongs to a tenant by its certificate begins TLS and is served, whatever limit the
// tenant of its network has reached. That tenant counts nothing of it.
func TestTLSTenantsApart(t *testing.T) {
	slow, one := gates.Rate{Octets: 100}, admit.TenantLimits{Calls: 1}
	for name, tt := range map[string]struct {
		limits  admit.TenantOptions
		waiting string // the limit for which a client of others waits; "" if it refuses connections
		hold    bool   // it waits because of a READ that the server holds
	}{
		"total rate":              {admit.TenantOptions{Total: admit.TenantLimits{Rate: slow}}, "total_rate", false},
		"address rate":            {admit.TenantOptions{Address: admit.TenantLimits{Rate: slow}}, "address_rate", false},
		"total":                   {admit.TenantOptions{Total: one}, "total", true},
		"address":                 {admit.TenantOptions{Address: one}, "address", true},
		"connections":             {admit.TenantOptions{Total: admit.TenantLimits{Connections: 1}}, "", false},
		"connections per address": {admit.TenantOptions{Address: admit.TenantLimits{Connections: 1}}, "", false},
		"new connections":         {admit.TenantOptions{Total: admit.TenantLimits{ConnectionsRate: 1}}, "", false},
		"new connections per address": {
			admit.TenantOptions{Address: admit.TenantLimits{ConnectionsRate: 1}}, "", false,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			x := newNamedBench(t, tt.limits)
			if !tt.hold {
				x.release()
			}
			c := x.Client(x.p.Addr("nfs"))
			first, err := c.Go(proxytest.ReadCall(2, 0, 64<<10))
			if err != nil {
				t.Fatal(err)
			}
			if <-x.held; !tt.hold {
				<-first
			}
			if tt.waiting != "" {
				if _, err := c.Go(proxytest.ReadCall(3, 0, 100)); err != nil {
					t.Fatal(err)
				}
				x.Eventually("a client waits", func() bool { return x.tenant("others").Waiting[tt.waiting] == 1 })
			}
			before := x.tenant("others")
			if _, err := x.secure("gold"); err != nil {
				t.Fatalf("the client with a certificate: %v", err)
			}
			d := x.tenant("others")
			if d.Clients != 1 || len(d.Refused) != 0 || d.Calls != before.Calls || x.tenant("gold").Clients != 1 {
				t.Errorf("others: %+v, gold: %+v", d, x.tenant("gold"))
			}
		})
	}
}

// TestTLSTenantOfSilence: as long as its certificate may decide, a connection belongs to no tenant. The first octets that
// cannot be the question for TLS make it one of the tenant of its network, which may refuse it then.
func TestTLSTenantOfSilence(t *testing.T) {
	long := proxytest.WriteCall(5, 0, 1<<20)
	long = append(binary.BigEndian.AppendUint32(nil, 1<<31|uint32(len(long))), long...)
	badProbe := probeCall(5)
	badProbe[23] = 1 // its procedure
	for name, octets := range map[string][]byte{
		"a Call":              testkit.Record(proxytest.GetattrCall(5)),
		"NULL":                testkit.Record(proxytest.CallHeader(nil, 5, oncrpc.ProgramNFS, 3, 0)),
		"a long Call's begin": long[:48<<10],
		"a WRITE":             testkit.Record(proxytest.WriteCall(5, 0, 16<<10)),
		"a bad probe":         testkit.Record(badProbe),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			x := newNamedBench(t, admit.TenantOptions{Total: admit.TenantLimits{Connections: 1, Memory: 4 << 20}})
			in, out := rawClient(t, x.p.Addr("nfs")), rawClient(t, x.p.Addr("nfs"))
			x.Eventually("both are connected", func() bool { return x.p.Status(status.Query{}).Listeners[0].Clients == 2 })
			if d := x.tenant("others"); d.Clients != 0 || len(d.Refused) != 0 {
				t.Errorf("before the first octet: %+v", d)
			}
			write(t, in, octets)
			x.Eventually("it belongs to the tenant of its network", func() bool { return x.tenant("others").Clients == 1 })
			if name == "a long Call's begin" {
				x.Eventually("its memory counts", func() bool { return x.tenant("others").Memory > 0 })
			}
			_, _ = out.Write(octets) // as much as it takes
			wantCut(t, out)
			x.Eventually("the other is refused", func() bool {
				return x.tenant("others").Refused["connections"] == 1 && metric(x.Harness, `listener_refused_connections_total{listener="nfs",reason="tenant_connections"}`) == 1
			})
			if n := x.server.Calls.Load(); n > 1 {
				t.Errorf("%d Calls have reached the server, want none of the connection that is refused", n)
			}
			if _, err := x.secure("silver"); err == nil {
				t.Error("a client whose certificate is nobody's has a connection more than its network may")
			}
			if _, err := x.secure("gold"); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestTLSTenantReload: a connection whose tenant is open belongs to that of its network when a reload leaves nothing for
// its certificate to decide.
func TestTLSTenantReload(t *testing.T) {
	t.Parallel()
	x := newNamedBench(t, admit.TenantOptions{})
	nc := rawClient(t, x.p.Addr("nfs"))
	x.Eventually("it is connected", func() bool { return x.p.Status(status.Query{}).Listeners[0].Clients == 1 })
	x.set(x.gold(), x.others(admit.TenantOptions{Total: admit.TenantLimits{Calls: 9}}))
	if d := x.tenant("others"); d.Clients != 0 {
		t.Errorf("after a reload that changes a limit: %+v", d)
	}
	x.set(x.others(admit.TenantOptions{}), x.gold())
	x.Eventually("the network decides", func() bool { return x.tenant("others").Clients == 1 })
	write(t, nc, testkit.Record(probeCall(7)))
	wantSecure(t, nc, 7, x.user(x.issue("gold")))
	if d := x.tenant("others"); d.Clients != 1 || d.Calls != 2 || x.tenant("gold").Clients != 0 {
		t.Errorf("after TLS has begun: %+v", d)
	}
}
