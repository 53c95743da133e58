package configs

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// An Upstream is storage: one server, or several that hold the same data.
type Upstream struct {
	Name      string    `mapstructure:"name"`
	Transport Transport `mapstructure:"transport"` // required
	Endpoints []string  `mapstructure:"endpoints"` // host:port
	Failover  Switch    `mapstructure:"failover"`  // a client need not stay with one of them; default off
	Balance   string    `mapstructure:"balance"`   // spread or priority, with failover; default spread
	Pool      Pool      `mapstructure:"pool"`
	Timeouts  Timeouts  `mapstructure:"timeouts"`
	Backoff   Backoff   `mapstructure:"backoff"`

	// For transport tcp.
	Source Source `mapstructure:"source"`

	// For transport rdma.
	Provider string `mapstructure:"provider"` // default iwarp
	Inline   Inline `mapstructure:"inline"`
	IWARP    IWARP  `mapstructure:"iwarp"`
}

// RDMA reports whether the upstream is reached by RPC-over-RDMA.
func (u *Upstream) RDMA() bool { return u.Transport == TransportRDMA }

// A Source is where connections to an upstream come from.
type Source struct {
	Address string `mapstructure:"address"` // of this host; "" is the kernel's choice
	Ports   Ports  `mapstructure:"ports"`   // the same after a restart; default any
}

// A Pool is the connections of one upstream.
type Pool struct {
	Connections int    `mapstructure:"connections"` // default 4, for transport tcp 2
	Credits     int    `mapstructure:"credits"`     // asked for on each; on TCP the most Calls outstanding; default 128
	Mode        string `mapstructure:"mode"`        // auto, shared or pinned; default auto
	Pinned      int    `mapstructure:"pinned"`      // most clients with a connection of their own; default 256
}

// Timeouts are the patience with an upstream.
type Timeouts struct {
	Call        Duration `mapstructure:"call"`        // then the connection is replaced; default 60s
	Connect     Duration `mapstructure:"connect"`     // one attempt; default 10s
	Unavailable Duration `mapstructure:"unavailable"` // a Call waits no longer for a connection; default 30s
	Silent      Duration `mapstructure:"silent"`      // the server's host answers nothing, or none; default 4s
	Probe       Duration `mapstructure:"probe"`       // a connection is asked after such a silence, or none; default 5s
}

// Backoff is the pause between attempts to connect, with jitter.
type Backoff struct {
	Min Duration `mapstructure:"min"` // default 100ms
	Max Duration `mapstructure:"max"` // default 5s
}

func (u *Upstream) validate(path string, k Known, r *report) {
	required(u.Name, path+".name", r)
	if required(string(u.Transport), path+".transport", r) {
		oneOf(string(u.Transport), path+".transport", r, string(TransportRDMA), string(TransportTCP))
	}
	if len(u.Endpoints) == 0 && !r.spoiled(path+".endpoints") {
		r.addf(path+".endpoints", "want at least one address")
	}
	for i, e := range u.Endpoints {
		p := fmt.Sprintf("%s.endpoints[%d]", path, i)
		checkAddress(e, false, p, r)
		if first := slices.Index(u.Endpoints, e); first < i {
			r.addf(p, "%s is endpoints[%d] already", e, first)
		}
	}
	oneOf(u.Balance, path+".balance", r, balanceSpread, BalancePriority)
	if u.Failover != On && r.source.given(path+".balance") {
		r.addf(path+".balance", "only with failover on; otherwise a client's address says which endpoint is its own")
	}
	atMost(u.Pool.Connections, maxPool, path+".pool.connections", r)
	atMost(u.Pool.Credits, maxCredits, path+".pool.credits", r)
	atMost(u.Pool.Pinned, maxPinned, path+".pool.pinned", r)
	oneOf(u.Pool.Mode, path+".pool.mode", r, PoolAuto, PoolShared, PoolPinned)
	if u.Pool.Mode == PoolShared && r.source.given(path+".pool.pinned") {
		r.addf(path+".pool.pinned", "nobody has a connection of its own with mode shared")
	}
	finite(u.Timeouts.Call, path+".timeouts.call", r)
	finite(u.Timeouts.Connect, path+".timeouts.connect", r)
	finite(u.Timeouts.Unavailable, path+".timeouts.unavailable", r)
	if d := u.Timeouts.Silent; d > 0 && d < minSilent {
		r.addf(path+".timeouts.silent", "%s: want at least %s; TCP may be quiet for two seconds though nothing is wrong", d, minSilent)
	}
	if d := u.Timeouts.Probe; d > 0 && d < minProbe {
		r.addf(path+".timeouts.probe", "%s: want at least %s", d, minProbe)
	}
	finite(u.Backoff.Min, path+".backoff.min", r)
	finite(u.Backoff.Max, path+".backoff.max", r)
	if u.Backoff.Max > 0 && u.Backoff.Min > u.Backoff.Max {
		r.addf(path+".backoff.min", "%s is more than backoff.max, %s", u.Backoff.Min, u.Backoff.Max)
	}
	if u.RDMA() {
		checkProvider(u.Provider, u.IWARP, path, k, r)
		u.Inline.validate(path+".inline", r)
		only(path, "tcp", r, "source")
		return
	}
	if u.Transport == TransportTCP {
		u.Source.validate(u, path+".source", r)
		only(path, "rdma", r, "provider", "inline", "iwarp")
	}
}

// validate wants one host's address and a port for each connection that is kept.
func (s *Source) validate(u *Upstream, path string, r *report) {
	if s.Address != "" {
		if a, err := netip.ParseAddr(s.Address); err != nil || a.IsUnspecified() || a.IsMulticast() {
			r.addf(path+".address", "%q: want an address of this host, without a port", s.Address)
		}
	}
	if n := s.Ports.count(); n < u.Pool.Connections && !r.has(path+".ports") && !r.has(strings.TrimSuffix(path, ".source")+".pool.connections") {
		r.addf(path+".ports", "%s are %d ports, fewer than pool.connections, %d", s.Ports, n, u.Pool.Connections)
	}
}
