package translate

import (
	"net/netip"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/configs"
	"github.com/rdmabridge/rdmabridge/proxy/admit"
	"github.com/rdmabridge/rdmabridge/proxy/admit/gates"
	"github.com/rdmabridge/rdmabridge/proxy/settings"
)

// TestOptionsAreExplicit translates a configuration of defaults for package proxy. Every
// option has a value, because package proxy has no defaults. The exceptions are options
// whose zero value means none, and options of the other transport.
func TestOptionsAreExplicit(t *testing.T) {
	c, err := configs.Load([]byte(`
listeners:
  - {name: tcp, address: ":1", upstream: tcp}
  - {name: rdma, address: ":2", transport: rdma, upstream: rdma}
upstreams:
  - {name: tcp, transport: tcp, endpoints: ["h:1"]}
  - {name: rdma, transport: rdma, endpoints: ["h:2"]}
`), Known)
	if err != nil {
		t.Fatal(err)
	}
	none := []string{"Routes", "Rules", "Exports", "Allow", "Weights", "Rate", "ClientRate", "ConnectionsRate", "ClientConnectionsRate", "IdleTimeout", "RequestTimeout", "Privileged", "Proxies", "ProxyTimeout", "TLS"}
	only := map[bool][]string{
		true: {"RDMA", "Provider", "MaxStarting", "MaxStartingPerAddress", "Credits", "CallInline", "ReplyInline"},
	}
	for i := range c.Listeners {
		l := &c.Listeners[i]
		o, err := Listener(l, nil, zerolog.Nop())
		if err != nil {
			t.Fatal(err)
		}
		checkExplicit(t, "listener "+l.Name, o, slices.Concat(none, only[!l.RDMA()]))
	}
	none = []string{"Failover", "Priority", "Mode", "Source", "NamesClients", "TLS", "Pinned", "PinnedCalls", "HideLayouts"} // the zero Mode is ModeAuto
	only[true] = []string{"RDMA", "Provider", "CallInline", "ReplyInline"}
	only[false] = nil
	for i := range c.Upstreams {
		u := &c.Upstreams[i]
		checkExplicit(t, "upstream "+u.Name, upstream(t, u), slices.Concat(none, only[!u.RDMA()]))
	}
}

// checkExplicit reports the fields of options that are zero and not in zero.
func checkExplicit(t *testing.T, what string, options any, zero []string) {
	t.Helper()
	v := reflect.ValueOf(options)
	for i := range v.NumField() {
		if name := v.Type().Field(i).Name; v.Field(i).IsZero() && !slices.Contains(zero, name) {
			t.Errorf("%s: %s is not passed to package proxy", what, name)
		}
	}
}

// upstream returns the options of u.
func upstream(t *testing.T, u *configs.Upstream) settings.UpstreamOptions {
	t.Helper()
	o, err := Upstream(u, nil, zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// TestTenantOptions passes the settings of tenants on, and the rates of new connections.
func TestTenantOptions(t *testing.T) {
	k := Known
	k.ListenerTLS, k.UpstreamTLS = nil, nil // there are no such files
	c, err := configs.LoadFile("../../../../configs/rdmabridge.yaml", k)
	if err != nil {
		t.Fatal(err)
	}
	want := []admit.TenantOptions{{
		Name: "analytics", Clients: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("2001:db8:1::/48")}, Names: patterns([]string{"*.analytics.example.com"}), Weight: 2,
		Total:   admit.TenantLimits{Connections: 500, ConnectionsRate: 100, Calls: 2000, Memory: 128 << 20, Rate: gates.Rate{Calls: 50_000, Octets: 1 << 30}},
		Address: admit.TenantLimits{Connections: 32, ConnectionsRate: 20, Calls: 512, Memory: 32 << 20, Rate: gates.Rate{Calls: 10_000, Octets: 256 << 20}},
	}}
	if got := Tenants(c); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	o, err := Listener(&c.Listeners[0], nil, zerolog.Nop())
	if err != nil || o.ConnectionsRate != 500 || o.ClientConnectionsRate != 50 {
		t.Errorf("rates of new connections: %d and %d, %v", o.ConnectionsRate, o.ClientConnectionsRate, err)
	}
}

// TestPoolOptions passes the settings of the pool on.
func TestPoolOptions(t *testing.T) {
	c, err := configs.Load([]byte(`
listeners: [{name: nfs, address: ":1", upstream: s}]
upstreams:
  - {name: s, transport: tcp, endpoints: ["h:1"], pool: {mode: sessions, idle: none}, timeouts: {probe: 20s}}
  - {name: p, transport: tcp, endpoints: ["h:1"], pool: {mode: pinned, idle: 7s}, timeouts: {probe: none}}
`), Known)
	if err != nil {
		t.Fatal(err)
	}
	if o := upstream(t, &c.Upstreams[0]); o.Mode != settings.ModeSessions || o.Idle != 0 || o.Pinned != 0 || o.ProbeIdle != 4*time.Minute {
		t.Errorf("mode %d, idle %v, pinned %d, probed after %v", o.Mode, o.Idle, o.Pinned, o.ProbeIdle)
	}
	if o := upstream(t, &c.Upstreams[1]); o.Mode != settings.ModePinned || o.Idle != 7*time.Second || o.Pinned != 256 || o.ProbeInterval > 0 {
		t.Errorf("mode %d, idle %v, pinned %d, probed after %v", o.Mode, o.Idle, o.Pinned, o.ProbeInterval)
	}
}

// TestLayoutsOption passes the setting layouts on.
func TestLayoutsOption(t *testing.T) {
	for text, want := range map[string]bool{"": false, ", layouts: pass": false, ", layouts: hide": true} {
		c, err := configs.Load([]byte(`
listeners: [{name: nfs, address: ":1", upstream: s}]
upstreams: [{name: s, transport: tcp, endpoints: ["h:1"]`+text+`}]
`), Known)
		if err != nil {
			t.Fatal(err)
		}
		if o := upstream(t, &c.Upstreams[0]); o.HideLayouts != want {
			t.Errorf("%q: HideLayouts %v, want %v", text, o.HideLayouts, want)
		}
	}
}
