package configs

import (
	"fmt"
	"net/netip"
	"slices"
)

// An Upstream is storage: one server, or several that hold the same data.
type Upstream struct {
	Name      string    `mapstructure:"name"`
	Transport Transport `mapstructure:"transport"`
	Endpoints []string  `mapstructure:"endpoints"` // host:port
	Failover  Switch    `mapstructure:"failover"`  // on: a client may use any endpoint; off: each has one
	Balance   string    `mapstructure:"balance"`   // with failover on: spread or priority
	Layouts   string    `mapstructure:"layouts"`   // pNFS layouts: pass or hide
	Pool      Pool      `mapstructure:"pool"`
	Timeouts  Timeouts  `mapstructure:"timeouts"`
	Backoff   Backoff   `mapstructure:"backoff"`
	Source    Source    `mapstructure:"source"`
	Mount     Mount     `mapstructure:"mount"`

	// For transport tcp.

	// ProxyProtocol says whether connections begin with a PROXY header that names the client: off or v2.
	// v2 needs mode pinned.
	ProxyProtocol string      `mapstructure:"proxy_protocol"`
	TLS           UpstreamTLS `mapstructure:"tls"`

	// For transport rdma.
	Provider string  `mapstructure:"provider"`
	Inline   Inline  `mapstructure:"inline"`
	IWARP    IWARP   `mapstructure:"iwarp"`
	IBVerbs  IBVerbs `mapstructure:"ibverbs"`
}

// RDMA reports whether the upstream's servers use RPC-over-RDMA.
func (u *Upstream) RDMA() bool { return u.Transport == TransportRDMA }

// Pool configures the connections to an upstream.
type Pool struct {
	Connections int      `mapstructure:"connections"` // most connections that all clients share
	Idle        Duration `mapstructure:"idle"`        // how long one of them stays without a Call, or none: all are made at the start and stay
	Credits     int      `mapstructure:"credits"`     // requested on each connection; on TCP most Calls outstanding
	Share       int      `mapstructure:"share"`       // most percent of the credits that one client has while others want some
	Mode        string   `mapstructure:"mode"`        // auto, shared, sessions or pinned
	GSSWindow   int      `mapstructure:"gss_window"`  // most Calls of one RPCSEC_GSS context outstanding

	// For mode pinned.
	Pinned      int `mapstructure:"pinned"`       // most pinned connections
	PinnedCalls int `mapstructure:"pinned_calls"` // most Calls outstanding on all of them; 0: no bound for a client that is alone
}

// Timeouts bounds how long an upstream may take.
type Timeouts struct {
	Call        Duration `mapstructure:"call"`        // to answer a Call; then its connection is replaced
	Connect     Duration `mapstructure:"connect"`     // to accept one attempt to connect
	Unavailable Duration `mapstructure:"unavailable"` // to have a connection for a Call that waits
	Silent      Duration `mapstructure:"silent"`      // for its host to acknowledge anything, or none
	Probe       Duration `mapstructure:"probe"`       // to send anything before it is probed, or none
}

// Backoff bounds the pause between attempts to connect, which has jitter.
type Backoff struct {
	Min Duration `mapstructure:"min"`
	Max Duration `mapstructure:"max"`
}

// A Source is where connections to an upstream come from.
type Source struct {
	Address string `mapstructure:"address"` // of this host; "" lets the kernel choose
	Ports   Ports  `mapstructure:"ports"`   // the same after a restart; for transport tcp
}

// Mount is how the bridge asks which exports the storage has, if rules name some.
type Mount struct {
	Server string   `mapstructure:"server"` // name or address of who answers MOUNT; "": the hosts of the endpoints
	Port   int      `mapstructure:"port"`   // of MOUNT over TCP; 0 asks rpcbind
	Paths  []string `mapstructure:"paths"`  // file systems that are mounted below exports
}

// validate checks m, which only rules with exports use.
func (m *Mount) validate(path string, r *report) {
	if m.Server != "" {
		if why := badServer(m.Server, "port", "MOUNT"); why != "" {
			r.addf(path+".server", "%s", why)
		}
	}
	r.atMost(path+".port", m.Port, 65535)
	for i, p := range m.Paths {
		r.exportPath(fmt.Sprintf("%s.paths[%d]", path, i), p)
	}
}

const (
	maxPool        = 64
	maxPinned      = 4096
	maxPinnedCalls = 1 << 20
	maxWindow      = 1024
	minSilent      = 4 * second // TCP of a healthy host may be quiet for two seconds
	minProbe       = 100 * millisecond
	minIdle        = second
)

func (u *Upstream) validate(path string, k Known, r *report) {
	r.required(path+".name", u.Name, "storage")
	if r.required(path+".transport", string(u.Transport), "rdma") {
		r.oneOf(path+".transport", string(u.Transport), string(TransportRDMA), string(TransportTCP))
	}
	u.validateEndpoints(path, r)
	r.oneOf(path+".layouts", u.Layouts, layoutsPass, LayoutsHide)
	u.Pool.validate(path+".pool", r)
	u.Timeouts.validate(path+".timeouts", r)
	u.Backoff.validate(path+".backoff", r)
	u.Source.validate(path+".source", r)
	u.Mount.validate(path+".mount", r)
	r.oneOf(path+".proxy_protocol", u.ProxyProtocol, proxyOff, ProxyV2)
	switch u.Transport {
	case TransportRDMA:
		checkProvider(path, u.Provider, u.IWARP, u.IBVerbs, "", k, r)
		u.Inline.validate(path+".inline", r)
		r.needs(path, "transport tcp", "source.ports", "proxy_protocol")
		noTLS(path+".tls", r)
	case TransportTCP:
		if u.ProxyProtocol == ProxyV2 && u.Pool.Mode != PoolPinned && !r.has(path+".proxy_protocol") {
			r.addf(path+".proxy_protocol", "v2 names one client for each connection; write pool: {mode: pinned}, or off")
		}
		u.TLS.validate(path+".tls", k, r)
		u.checkPorts(path, r)
		r.needs(path, "transport rdma", "provider", "inline", "iwarp", "ibverbs")
	}
}

func (u *Upstream) validateEndpoints(path string, r *report) {
	if len(u.Endpoints) == 0 && !r.spoiled(path+".endpoints") {
		r.addf(path+".endpoints", "the list is empty; write at least one address")
	}
	port := UsualPort(u.Transport)
	for i, e := range u.Endpoints {
		p := fmt.Sprintf("%s.endpoints[%d]", path, i)
		r.address(p, e, port)
		if first := slices.Index(u.Endpoints, e); first < i {
			r.addf(p, "endpoints[%d] is %s too; write each endpoint once", first, e)
		}
	}
	r.oneOf(path+".balance", u.Balance, balanceSpread, BalancePriority)
	if u.Failover != On {
		r.needs(path, "failover on", "balance")
	}
}

func (p *Pool) validate(path string, r *report) {
	r.atMost(path+".connections", p.Connections, maxPool)
	r.atMost(path+".credits", p.Credits, maxCredits)
	r.atMost(path+".share", p.Share, 100)
	r.atMost(path+".pinned", p.Pinned, maxPinned)
	r.atMost(path+".pinned_calls", p.PinnedCalls, maxPinnedCalls)
	r.atMost(path+".gss_window", p.GSSWindow, maxWindow)
	r.atLeastOrNone(path+".idle", p.Idle, minIdle)
	r.oneOf(path+".mode", p.Mode, PoolAuto, PoolShared, PoolSessions, PoolPinned)
	if p.Mode != PoolPinned {
		r.needs(path, "mode pinned", "pinned", "pinned_calls")
	}
}

// Most returns how many connections to one endpoint, or to all of them with failover, there may be: the
// shared ones, and beside them as many that carry sessions, or the pinned ones.
func (p *Pool) Most() int {
	switch p.Mode {
	case PoolShared:
		return p.Connections
	case PoolPinned:
		return p.Connections + p.Pinned
	}
	return 2 * p.Connections
}

func (t *Timeouts) validate(path string, r *report) {
	r.finite(path+".call", t.Call)
	r.finite(path+".connect", t.Connect)
	r.finite(path+".unavailable", t.Unavailable)
	r.atLeastOrNone(path+".silent", t.Silent, minSilent)
	r.atLeastOrNone(path+".probe", t.Probe, minProbe)
}

func (b *Backoff) validate(path string, r *report) {
	r.finite(path+".min", b.Min)
	r.finite(path+".max", b.Max)
	if b.Max > 0 && b.Min > b.Max {
		r.addf(path+".min", "%s is more than backoff.max, which is %s; write at most %s", b.Min, b.Max, b.Max)
	}
}

func (s *Source) validate(path string, r *report) {
	if s.Address == "" {
		return
	}
	if a, err := netip.ParseAddr(s.Address); err != nil || a.IsUnspecified() || a.IsMulticast() {
		r.addf(path+".address", "%q is not an address of this host; write an IP address without a port", s.Address)
	}
}

// checkPorts requires a source port for each connection of the pool.
func (u *Upstream) checkPorts(path string, r *report) {
	have, want := u.Source.Ports.count(), u.Pool.Connections
	if have < want && !r.has(path+".source.ports") && !r.has(path+".pool.connections") {
		r.addf(path+".source.ports", "%s has %d ports, but pool.connections is %d; write a range of at least %d ports", u.Source.Ports, have, want, want)
	}
}
