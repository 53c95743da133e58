package configs

import (
	"fmt"
	"slices"
)

// A Listener is an address where clients connect.
type Listener struct {
	Name      string    `mapstructure:"name"`
	Address   string    `mapstructure:"address"` // host:port
	Transport Transport `mapstructure:"transport"`
	Upstream  string    `mapstructure:"upstream"` // for Calls that no route matches; "" refuses them
	Routes    []Route   `mapstructure:"routes"`
	Rules     []Rule    `mapstructure:"rules"` // the first match counts; Calls that no rule matches are allowed
	Squash    Squash    `mapstructure:"squash"`
	Allow     []Prefix  `mapstructure:"allow"` // clients that may connect; empty: all

	// Privileged says which ports clients may connect from: PrivilegedAny or PrivilegedRequired.
	Privileged string `mapstructure:"privileged"`

	// ProxyProtocol is for transport tcp.
	ProxyProtocol ProxyProtocol `mapstructure:"proxy_protocol"`
	TLS           ListenerTLS   `mapstructure:"tls"` // the same

	Limits   ListenerLimits   `mapstructure:"limits"`
	Weights  []Weight         `mapstructure:"weights"` // the first match counts; without one the weight is 1
	Rates    Rates            `mapstructure:"rates"`
	Timeouts ListenerTimeouts `mapstructure:"timeouts"`

	// For transport rdma.
	Provider string  `mapstructure:"provider"`
	Credits  int     `mapstructure:"credits"` // most credits granted to a connection
	Inline   Inline  `mapstructure:"inline"`
	IWARP    IWARP   `mapstructure:"iwarp"`
	IBVerbs  IBVerbs `mapstructure:"ibverbs"`
}

// RDMA reports whether the listener's clients use RPC-over-RDMA.
func (l *Listener) RDMA() bool { return l.Transport == TransportRDMA }

// A ProxyProtocol says which peers are proxies. Each of their connections begins with a PROXY header of
// version 2, which says who the client is.
type ProxyProtocol struct {
	From    []Prefix `mapstructure:"from"`    // the proxies; empty: there are none
	Timeout Duration `mapstructure:"timeout"` // for the header
}

// A Route sends the Calls of one RPC program to an upstream of its own.
type Route struct {
	Program  Program  `mapstructure:"program"`
	Versions []uint32 `mapstructure:"versions"` // empty: all
	Upstream string   `mapstructure:"upstream"`
}

// ListenerLimits bounds what the clients of one listener may use.
type ListenerLimits struct {
	Connections int  `mapstructure:"connections"`
	Calls       int  `mapstructure:"calls"`       // Calls of one client in the bridge
	Outbound    Size `mapstructure:"outbound"`    // octets of Replies owed to one client
	Record      Size `mapstructure:"record"`      // longest Call
	Pace        Size `mapstructure:"pace"`        // least octets a second of a Call that holds much memory and is incomplete
	PerAddress  int  `mapstructure:"per_address"` // connections of one client address
	// MakeRoom says what happens when a client connects beyond Connections. With on, the bridge
	// closes a connection of the address that has the most. With off, it refuses the client.
	MakeRoom Switch `mapstructure:"make_room"`

	// For transport rdma.
	Starting           int `mapstructure:"starting"`             // connections being set up at once
	StartingPerAddress int `mapstructure:"starting_per_address"` // connections of one address being set up at once
}

// A Weight is the share of the clients at some addresses while other clients wait too.
type Weight struct {
	Clients []Prefix `mapstructure:"clients"`
	Weight  int      `mapstructure:"weight"` // 1 to 100
}

// Rates has the rate limits of a listener.
type Rates struct {
	Listener Rate `mapstructure:"listener"` // for all clients together
	Client   Rate `mapstructure:"client"`   // for the connections of one address together
}

// A Rate is a limit per second. Zero means no limit.
type Rate struct {
	Calls int  `mapstructure:"calls"`
	Bytes Size `mapstructure:"bytes"` // of Calls and Replies together

	Connections int `mapstructure:"connections"` // new ones
}

// ListenerTimeouts closes connections that make no progress.
type ListenerTimeouts struct {
	Stall Duration `mapstructure:"stall"` // for a record or an FPDU that has begun
	Idle  Duration `mapstructure:"idle"`  // for a connection without traffic and without a Call under way
	// Request is for transport tcp: for a record from its first octet to its last, whatever progress it makes.
	Request Duration `mapstructure:"request"`
	Start   Duration `mapstructure:"start"` // for transport rdma: for the set-up of a connection
}

const (
	maxConnections = 1 << 20
	maxStarting    = 1 << 16
	maxCalls       = 1 << 16
	maxCredits     = 1024 // of listeners and upstreams
	minOutbound    = 64 * KiB
	maxOutbound    = 1 * GiB
	minRecord      = 4 * KiB
	maxWeight      = 100
	minPace        = 1 * KiB    // per second
	maxPace        = 1 * MiB    // per second
	maxRate        = 10_000_000 // Calls per second
	minRateBytes   = 64 * KiB   // per second
	maxRateBytes   = 1024 * GiB // per second

	minRequest = 1 * second // the bridge looks twice a second

	maxConnectionRate = 1_000_000 // new connections per second
)

func (l *Listener) validate(path string, k Known, c *Config, r *report) {
	r.required(path+".name", l.Name, "nfs")
	if r.required(path+".address", l.Address, "0.0.0.0:2049") {
		r.listenAddress(path+".address", l.Address, UsualPort(l.Transport))
	}
	r.oneOf(path+".transport", string(l.Transport), string(TransportTCP), string(TransportRDMA))
	r.oneOf(path+".privileged", l.Privileged, PrivilegedAny, PrivilegedRequired)
	if l.Upstream == "" && len(l.Routes) == 0 && !r.spoiled(path+".upstream") && !r.spoiled(path+".routes") {
		r.addf(path+".upstream", "the listener has no destination for its Calls; write an upstream, or at least one route")
	}
	if l.Upstream != "" {
		c.checkUpstream(path+".upstream", l.Upstream, r)
	}
	l.validateRoutes(path, k, c, r)
	l.validateRules(path+".rules", k, c, r)
	l.Squash.validate(path+".squash", l, r)
	l.Limits.validate(path+".limits", r)
	l.validateWeights(path, r)
	l.Rates.Listener.validate(path+".rates.listener", r)
	l.Rates.Client.validate(path+".rates.client", r)
	r.finite(path+".timeouts.stall", l.Timeouts.Stall)
	if l.RDMA() {
		l.validateRDMA(path, k, r)
	} else {
		l.validateTCP(path, k, r)
	}
}

func (l *Listener) validateTCP(path string, k Known, r *report) {
	l.ProxyProtocol.validate(path+".proxy_protocol", r)
	l.TLS.validate(path+".tls", k, r)
	r.atLeastOrNone(path+".timeouts.request", l.Timeouts.Request, minRequest)
	r.needs(path, "transport rdma", "provider", "credits", "inline", "iwarp", "ibverbs", "limits.starting", "limits.starting_per_address", "timeouts.start")
}

func (l *Listener) validateRDMA(path string, k Known, r *report) {
	checkProvider(path, l.Provider, l.IWARP, l.IBVerbs, l.Address, k, r)
	r.atMost(path+".limits.starting", l.Limits.Starting, maxStarting)
	r.notAbove(path+".limits.starting_per_address", l.Limits.StartingPerAddress, "limits.starting", l.Limits.Starting)
	r.finite(path+".timeouts.start", l.Timeouts.Start)
	r.atMost(path+".credits", l.Credits, maxCredits)
	l.Inline.validate(path+".inline", r)
	r.needs(path, "transport tcp", "proxy_protocol", "timeouts.request")
	noTLS(path+".tls", r)
	if r.source.given(path + ".ibverbs.exposure") {
		r.addf(path+".ibverbs.exposure", "only upstreams have this setting, because clients do not access the memory of a listener; remove it")
	}
	if r.source.given(path + ".iwarp.revision1") {
		r.addf(path+".iwarp.revision1", "only upstreams have this setting, because a listener answers both revisions; remove it")
	}
}

func (y *ProxyProtocol) validate(path string, r *report) {
	if len(y.From) == 0 && !r.spoiled(path+".from") {
		r.needs(path, "from", "timeout")
	}
	for i, p := range y.From {
		if p.Bits() == 0 {
			r.addf(fmt.Sprintf("%s.from[%d]", path, i), "every host could name any client; write the addresses of the proxies")
		}
	}
	r.finite(path+".timeout", y.Timeout)
}

func (m *ListenerLimits) validate(path string, r *report) {
	r.atMost(path+".connections", m.Connections, maxConnections)
	r.notAbove(path+".per_address", m.PerAddress, "limits.connections", m.Connections)
	r.atMost(path+".calls", m.Calls, maxCalls)
	r.between(path+".outbound", m.Outbound, minOutbound, maxOutbound)
	r.between(path+".record", m.Record, minRecord, MaxRecord)
	r.between(path+".pace", m.Pace, minPace, maxPace)
}

// validateWeights rejects an entry that no client can reach, because an earlier one
// matches all its addresses.
func (l *Listener) validateWeights(path string, r *report) {
	var earlier []Prefix
	for i, w := range l.Weights {
		p := fmt.Sprintf("%s.weights[%d]", path, i)
		if len(w.Clients) == 0 && !r.spoiled(p+".clients") {
			r.addf(p+".clients", "the list is empty; write at least one address")
		}
		if w.Weight == 0 && !r.has(p+".weight") {
			r.missing(p+".weight", "2")
		}
		r.atMost(p+".weight", w.Weight, maxWeight)
		for j, c := range w.Clients {
			if slices.ContainsFunc(earlier, func(e Prefix) bool { return e.Bits() <= c.Bits() && e.Contains(c.Addr()) }) {
				r.addf(fmt.Sprintf("%s.clients[%d]", p, j), "an earlier address matches all of %s; remove one of the two", c)
			}
		}
		earlier = append(earlier, w.Clients...)
	}
}

func (t *Rate) validate(path string, r *report) {
	r.atMost(path+".calls", t.Calls, maxRate)
	r.between(path+".bytes", t.Bytes, minRateBytes, maxRateBytes)
	r.atMost(path+".connections", t.Connections, maxConnectionRate)
}

// validateRoutes checks that each route names an upstream, and that Calls can reach
// it: an earlier route must not match all of them.
func (l *Listener) validateRoutes(path string, k Known, c *Config, r *report) {
	programs := make(map[uint32]*routed)
	for i, route := range l.Routes {
		p := fmt.Sprintf("%s.routes[%d]", path, i)
		if r.required(p+".upstream", route.Upstream, "storage") {
			c.checkUpstream(p+".upstream", route.Upstream, r)
		}
		if !r.required(p+".program", string(route.Program), "mount") {
			continue
		}
		n, err := k.ResolveProgram(route.Program)
		if err != nil {
			r.addf(p+".program", "%v", err)
			continue
		}
		if programs[n] == nil {
			programs[n] = &routed{first: i}
		}
		if !programs[n].add(route.Versions) {
			r.addf(p, "no Call reaches this route, because routes[%d] matches program %s first; remove one of the two", programs[n].first, route.Program)
		}
	}
}

// A routed has the versions of one program that earlier routes match.
type routed struct {
	first    int // index of the first route for the program
	all      bool
	versions []uint32
}

// add adds the versions of a route and reports whether any of them is new. An empty list stands
// for all versions.
func (t *routed) add(versions []uint32) bool {
	isNew := !t.all
	if isNew && len(versions) > 0 {
		isNew = slices.ContainsFunc(versions, func(v uint32) bool { return !slices.Contains(t.versions, v) })
	}
	t.all = t.all || len(versions) == 0
	t.versions = append(t.versions, versions...)
	return isNew
}
