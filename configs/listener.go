package configs

import (
	"fmt"
	"slices"
)

// A Listener is an address where clients arrive.
type Listener struct {
	Name      string    `mapstructure:"name"`
	Address   string    `mapstructure:"address"`   // host:port
	Transport Transport `mapstructure:"transport"` // default tcp
	Upstream  string    `mapstructure:"upstream"`  // where Calls without a route go; "" refuses them
	Routes    []Route   `mapstructure:"routes"`
	Allow     []Prefix  `mapstructure:"allow"` // empty: everybody

	Limits   ListenerLimits   `mapstructure:"limits"`
	Weights  []Weight         `mapstructure:"weights"` // the first that fits counts; others have 1
	Rates    Rates            `mapstructure:"rates"`
	Timeouts ListenerTimeouts `mapstructure:"timeouts"`

	// For transport rdma.
	Provider string `mapstructure:"provider"` // default iwarp
	Credits  int    `mapstructure:"credits"`  // most granted to each connection; default 64
	Inline   Inline `mapstructure:"inline"`
	IWARP    IWARP  `mapstructure:"iwarp"`
}

// RDMA reports whether the listener's clients speak RPC-over-RDMA.
func (l *Listener) RDMA() bool { return l.Transport == TransportRDMA }

// A Route sends the Calls of one RPC program to an upstream of its own.
type Route struct {
	Program  Program  `mapstructure:"program"`
	Versions []uint32 `mapstructure:"versions"` // empty: all
	Upstream string   `mapstructure:"upstream"`
}

// ListenerLimits bound what clients of one listener can take.
type ListenerLimits struct {
	Connections int  `mapstructure:"connections"` // default 4096
	Calls       int  `mapstructure:"calls"`       // Calls of one client in the bridge; default 256
	Outbound    Size `mapstructure:"outbound"`    // Replies owed to one client; default 32 MiB
	Record      Size `mapstructure:"record"`      // longest Call; default 4 MiB + 64 KiB
	PerAddress  int  `mapstructure:"per_address"` // connections of one client address; default Connections

	// For transport tcp.
	Fragments int `mapstructure:"fragments"` // of one record, RFC 5531 Section 11; default 1024

	// For transport rdma: connections being set up at once, and of one address.
	Starting           int `mapstructure:"starting"`             // default 128
	StartingPerAddress int `mapstructure:"starting_per_address"` // default 16, at most Starting
}

// A Weight is the share of some clients, by address, while others wait as well.
type Weight struct {
	Clients []Prefix `mapstructure:"clients"`
	Weight  int      `mapstructure:"weight"` // 1 to 100
}

// Rates are how much clients may send and get.
type Rates struct {
	Listener Rate `mapstructure:"listener"` // all of them together
	Client   Rate `mapstructure:"client"`   // those of one address
}

// A Rate bounds a second; default no limit.
type Rate struct {
	Calls int  `mapstructure:"calls"`
	Bytes Size `mapstructure:"bytes"` // of Calls and Replies together
}

// ListenerTimeouts end connections that do not move.
type ListenerTimeouts struct {
	Stall Duration `mapstructure:"stall"` // what was begun must go on: a record, or an FPDU; default 30s
	Idle  Duration `mapstructure:"idle"`  // no traffic and no Call under way; default none
	Start Duration `mapstructure:"start"` // for transport rdma: to set a connection up; default 5s
}

func (l *Listener) validate(path string, k Known, c *Config, r *report) {
	required(l.Name, path+".name", r)
	if required(l.Address, path+".address", r) {
		checkAddress(l.Address, true, path+".address", r)
	}
	oneOf(string(l.Transport), path+".transport", r, string(TransportTCP), string(TransportRDMA))
	if l.Upstream == "" && len(l.Routes) == 0 && !r.spoiled(path+".upstream") && !r.spoiled(path+".routes") {
		r.addf(path+".upstream", "want an upstream, or at least one route")
	}
	if l.Upstream != "" {
		c.checkUpstream(l.Upstream, path+".upstream", r)
	}
	l.validateRoutes(path, k, c, r)
	atMost(l.Limits.Connections, maxConnections, path+".limits.connections", r)
	atMost(l.Limits.Calls, 1<<16, path+".limits.calls", r)
	between(l.Limits.Outbound, 64*KiB, GiB, path+".limits.outbound", r)
	between(l.Limits.Record, minRecord, MaxRecord, path+".limits.record", r)
	l.validateShares(path, r)
	if l.Limits.PerAddress > l.Limits.Connections {
		r.addf(path+".limits.per_address", "%d is more than limits.connections, %d", l.Limits.PerAddress, l.Limits.Connections)
	}
	finite(l.Timeouts.Stall, path+".timeouts.stall", r)
	if l.RDMA() {
		checkProvider(l.Provider, l.IWARP, path, k, r)
		atMost(l.Limits.Starting, 1<<16, path+".limits.starting", r)
		if l.Limits.StartingPerAddress > l.Limits.Starting {
			r.addf(path+".limits.starting_per_address", "%d is more than limits.starting, %d", l.Limits.StartingPerAddress, l.Limits.Starting)
		}
		finite(l.Timeouts.Start, path+".timeouts.start", r)
		atMost(l.Credits, maxCredits, path+".credits", r)
		l.Inline.validate(path+".inline", r)
		only(path, "tcp", r, "limits.fragments")
		if r.source.given(path + ".iwarp.revision1") {
			r.addf(path+".iwarp.revision1", "only for upstreams; a listener answers both revisions")
		}
		return
	}
	atMost(l.Limits.Fragments, 1<<20, path+".limits.fragments", r)
	only(path, "rdma", r, "provider", "credits", "inline", "iwarp", "limits.starting", "limits.starting_per_address", "timeouts.start")
}

// validateShares checks weights, of which an earlier one must not take all that a
// later one would, and rates.
func (l *Listener) validateShares(path string, r *report) {
	var taken []Prefix
	for i, w := range l.Weights {
		p := fmt.Sprintf("%s.weights[%d]", path, i)
		if len(w.Clients) == 0 && !r.spoiled(p+".clients") {
			r.addf(p+".clients", "want at least one address")
		}
		switch {
		case w.Weight == 0 && !r.has(p+".weight"):
			r.addf(p+".weight", "required")
		case w.Weight > maxWeight:
			r.addf(p+".weight", "%d: want at most %d", w.Weight, maxWeight)
		}
		for j, c := range w.Clients {
			if slices.ContainsFunc(taken, func(t Prefix) bool { return t.Bits() <= c.Bits() && t.Contains(c.Addr()) }) {
				r.addf(fmt.Sprintf("%s.clients[%d]", p, j), "never taken: an address before it takes %s", c)
			}
		}
		taken = append(taken, w.Clients...)
	}
	l.Rates.Listener.validate(path+".rates.listener", r)
	l.Rates.Client.validate(path+".rates.client", r)
}

func (t *Rate) validate(path string, r *report) {
	atMost(t.Calls, maxRate, path+".calls", r)
	between(t.Bytes, 64*KiB, maxRateBytes, path+".bytes", r)
}

// validateRoutes checks that every route leads somewhere and can be taken: an
// earlier one must not take all it would.
func (l *Listener) validateRoutes(path string, k Known, c *Config, r *report) {
	type taken struct {
		index int
		all   bool
		some  []uint32
	}
	programs := make(map[uint32]*taken)
	for i, route := range l.Routes {
		p := fmt.Sprintf("%s.routes[%d]", path, i)
		if required(route.Upstream, p+".upstream", r) {
			c.checkUpstream(route.Upstream, p+".upstream", r)
		}
		if !required(string(route.Program), p+".program", r) {
			continue
		}
		n, err := k.ResolveProgram(route.Program)
		if err != nil {
			r.addf(p+".program", "%v", err)
			continue
		}
		t := programs[n]
		if t == nil {
			t = &taken{index: i}
			programs[n] = t
		}
		free := func(v uint32) bool { return !t.all && !slices.Contains(t.some, v) }
		if t.all || len(route.Versions) > 0 && !slices.ContainsFunc(route.Versions, free) {
			r.addf(p, "never taken: routes[%d] takes program %s first", t.index, route.Program)
		}
		t.all = t.all || len(route.Versions) == 0
		t.some = append(t.some, route.Versions...)
	}
}
