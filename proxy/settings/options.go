package settings

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb/nfs"
	"github.com/rdmabridge/rdmabridge/internal/rules"
	"github.com/rdmabridge/rdmabridge/internal/tlsconf"
	"github.com/rdmabridge/rdmabridge/proxy/admit"
	"github.com/rdmabridge/rdmabridge/proxy/admit/gates"
	"github.com/rdmabridge/rdmabridge/proxy/authorise"
	"github.com/rdmabridge/rdmabridge/proxy/reach"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
)

// A Route sends the Calls of one program to an upstream of its own.
type Route struct {
	Program  uint32
	Versions []uint32 // empty: every version
	Upstream string
}

// ListenerOptions describe where clients come in. There are no defaults: package configs has
// them. Settings without a comment on zero must be positive.
type ListenerOptions struct {
	Name, Address string
	RDMA          bool
	Provider      fabric.Provider // RDMA only

	Upstream string // for every program without a Route; "" refuses these programs
	Routes   []Route
	Rules    []rules.Rule // the first that matches a Call decides about it; without one it is allowed
	Exports  *nfs.Exports // that Rules ask for, by their bits; nil: none does

	Squash authorise.Squash // which users of AUTH_SYS are mapped, unless a rule says otherwise

	Allow      []netip.Prefix // addresses that may connect; empty: every address
	Privileged bool           // only clients with ports from 1 to 1023 may connect
	// Whose connections begin with a PROXY header that says who the client is; TCP only.
	Proxies                  []netip.Prefix
	ProxyTimeout             time.Duration // for that header; only Proxies need it
	MaxConnections           int
	MaxConnectionsPerAddress int // 0: only MaxConnections counts
	// Beyond MaxConnections, a connection of the address with the most is closed for a newcomer.
	MakeRoom  bool
	MaxRecord int // octets of a Call
	MaxCalls  int // outstanding Calls of one client connection
	// Octets of Replies that one client may be owed; at most an eighth of the memory for Replies.
	MaxOutbound    int64
	StallTimeout   time.Duration // for an incomplete Call without progress
	Pace           int64         // octets a second at which a Call that holds much memory has to arrive; 0: none
	RequestTimeout time.Duration // for an incomplete Call, whatever progress it makes; 0: none; TCP only
	IdleTimeout    time.Duration // for a connection without traffic and without a Call under way; 0: none

	MaxStarting           int // connections being set up; RDMA only
	MaxStartingPerAddress int // connections being set up from one address; RDMA only

	TLS *ListenerTLS // how clients use TLS; nil: they cannot; TCP only

	Weights    []admit.Weight // the first with a client's address is the client's; a client without one has weight 1
	Rate       gates.Rate     // of all clients together
	ClientRate gates.Rate     // of each client address

	// New connections a second; TCP clients wait until they are accepted, and RDMA clients are refused; 0: no limit.
	ConnectionsRate       int
	ClientConnectionsRate int // new connections of each address a second; others are refused; 0: no limit

	Credits                 int // the most that one client is granted; RDMA only
	CallInline, ReplyInline int // inline thresholds in octets; RDMA only
}

// A ListenerTLS is how a listener's clients use TLS.
type ListenerTLS struct {
	Required bool // Calls without TLS are refused
	Server   *tlsconf.Server
}

func (t *ListenerTLS) Requires() bool { return t != nil && t.Required }

// Check reports every setting that cannot work.
func (o *ListenerOptions) Check() error {
	c := checker{what: fmt.Sprintf("proxy: listener %q: ", o.Name)}
	c.positive("MaxConnections", int64(o.MaxConnections))
	c.positive("MaxRecord", int64(o.MaxRecord))
	c.positive("MaxCalls", int64(o.MaxCalls))
	c.positive("MaxOutbound", o.MaxOutbound)
	c.positive("StallTimeout", int64(o.StallTimeout))
	if !o.RDMA {
		return c.err
	}
	c.that(o.Provider != nil, "has no provider")
	c.that(o.TLS == nil, "has TLS, which is for TCP")
	c.that(o.RequestTimeout == 0, "has a RequestTimeout, which is for TCP")
	c.positive("MaxStarting", int64(o.MaxStarting))
	c.positive("MaxStartingPerAddress", int64(o.MaxStartingPerAddress))
	c.positive("Credits", int64(o.Credits))
	c.positive("CallInline", int64(o.CallInline))
	c.positive("ReplyInline", int64(o.ReplyInline))
	return c.err
}

// OutboundOf is how many octets of Replies a client may be owed before it has to wait.
func (o *ListenerOptions) OutboundOf(replies int64) int64 { return min(o.MaxOutbound, replies/8) }

// UpstreamOptions describe where Calls go. There are no defaults: package configs has them.
// Settings without a comment on zero must be positive.
type UpstreamOptions struct {
	Name      string
	RDMA      bool
	Provider  fabric.Provider // RDMA only
	Endpoints []string        // host:port, at least one
	Failover  bool            // clients need not stay with one of several Endpoints
	Priority  bool            // with Failover: an endpoint is used only while those before it fail

	Connections int  // shared connections
	Mode        Mode // which connections carry the Calls of a client
	// The most pinned connections; with RDMA the memory for Replies is a second bound; only ModePinned needs it.
	Pinned int
	// the most Calls outstanding on all pinned connections; 0: as many as the shared ones have credits, while several
	// hosts have Calls
	PinnedCalls int
	Credits     int // asked for on each connection
	// The most percent of the credits of shared connections that one client has while others want some; 100 for all.
	Share     int
	GSSWindow int // Calls of one RPCSEC_GSS context that may be outstanding
	// Calls in flight before the first Reply, and one more after each Reply; from 1024 on there is no slow start.
	SlowStart               int
	CallInline, ReplyInline int // inline thresholds in octets; RDMA only

	HideLayouts bool // clients of NFSv4.1 and later are to believe that the server has no pNFS layouts

	Source reach.Source // TCP only

	// NamesClients has each connection begin with a PROXY header of version 2, which names the client whose
	// Calls it carries. TCP and ModePinned only.
	NamesClients bool

	TLS *reach.TLS // how connections use TLS; nil: they do not; TCP only

	// Idle is how long a shared connection may carry no Call before it is closed; one to each
	// endpoint that has clients of its own stays. 0: all are made at the start and kept.
	Idle time.Duration

	// SilentTimeout is how long the TCP of the server's host may acknowledge neither octets
	// nor keepalive probes before the connection is replaced; negative: for ever. TCP only:
	// providers of RDMA have a timeout of their own.
	SilentTimeout time.Duration
	// ProbeInterval is how long a connection with Calls may be silent before it is probed with a
	// NULL Call; negative: for ever, with or without Calls.
	ProbeInterval time.Duration
	// ProbeIdle is how long a connection without Calls may be silent before it is probed; 0: as
	// long as one with Calls.
	ProbeIdle time.Duration

	CallTimeout      time.Duration // how long a Call may be unanswered before its connection is replaced
	ConnectTimeout   time.Duration
	UnavailableAfter time.Duration // how long a Call may wait for a credit before its client is closed
	BackoffMin       time.Duration // the first pause between attempts to connect
	BackoffMax       time.Duration // the longest pause between attempts to connect
}

// Check reports every setting that cannot work.
func (o *UpstreamOptions) Check() error {
	c := checker{what: fmt.Sprintf("proxy: upstream %q: ", o.Name)}
	c.that(len(o.Endpoints) > 0, "has no endpoint")
	c.positive("Connections", int64(o.Connections))
	c.positive("Credits", int64(o.Credits))
	c.positive("Share", int64(o.Share))
	c.that(o.Share <= 100, "has a Share above 100 percent")
	c.positive("SlowStart", int64(o.SlowStart))
	c.positive("GSSWindow", int64(o.GSSWindow))
	if o.Mode == ModePinned {
		c.positive("Pinned", int64(o.Pinned))
	}
	c.that(!o.NamesClients || o.Mode == ModePinned && !o.RDMA, "has NamesClients, which needs ModePinned over TCP")
	c.that(o.Idle >= 0, "has a negative Idle")
	c.that(o.ProbeIdle >= 0, "has a negative ProbeIdle")
	c.positive("CallTimeout", int64(o.CallTimeout))
	c.positive("ConnectTimeout", int64(o.ConnectTimeout))
	c.positive("UnavailableAfter", int64(o.UnavailableAfter))
	c.positive("BackoffMin", int64(o.BackoffMin))
	c.positive("BackoffMax", int64(o.BackoffMax))
	c.that(o.BackoffMax >= o.BackoffMin, "has a BackoffMax shorter than its BackoffMin")
	c.that(o.SilentTimeout != 0, "has no SilentTimeout")
	c.that(o.ProbeInterval != 0, "has no ProbeInterval")
	if o.RDMA {
		c.that(o.Provider != nil, "has no provider")
		c.that(o.TLS == nil, "has TLS, which is for TCP")
		c.positive("CallInline", int64(o.CallInline))
		c.positive("ReplyInline", int64(o.ReplyInline))
	}
	return c.err
}

// PinnedLimit returns how many Calls may be outstanding on all pinned connections, and whether that
// holds for a host, too, that is alone.
func (o *UpstreamOptions) PinnedLimit() (limit int, always bool) {
	if o.PinnedCalls > 0 {
		return o.PinnedCalls, true
	}
	return o.Connections * o.Credits, false
}

// Demand is what an upstream with these options needs of the limits on attempts to connect.
func (o *UpstreamOptions) Demand() reach.Demand {
	n := o.Connections
	if o.Partitioned() {
		n += len(o.Endpoints) - 1 // each has as many as the others
	}
	if o.Mode == ModePinned {
		n += o.Pinned
	}
	return reach.Demand{Connections: n + o.LaneCount(), Within: o.UnavailableAfter}
}

// LaneCount is how many lanes an upstream with the settings o has. Where each client belongs to one
// endpoint, each endpoint has as many.
func (o *UpstreamOptions) LaneCount() int {
	switch {
	case o.Mode != ModeAuto && o.Mode != ModeSessions:
		return 0
	case !o.Partitioned():
		return o.Connections
	}
	n := len(o.Endpoints)
	return (o.Connections + n - 1) / n * n
}

// Partitioned reports whether each client belongs to one endpoint.
func (o *UpstreamOptions) Partitioned() bool { return !o.Failover && len(o.Endpoints) > 1 }

// Stays reports whether an upstream with the options o stays when they become next. Otherwise another one replaces it.
func (o *UpstreamOptions) Stays(next *UpstreamOptions) bool {
	return o.RDMA == next.RDMA && o.Source == next.Source && o.NamesClients == next.NamesClients &&
		o.TLS.Same(next.TLS) && o.keepsEndpoints(next)
}

// keepsEndpoints reports whether every client keeps its endpoint when o becomes next.
func (o *UpstreamOptions) keepsEndpoints(next *UpstreamOptions) bool {
	if !o.Partitioned() && !next.Partitioned() {
		return true
	}
	return o.Partitioned() && next.Partitioned() && slices.Equal(o.Endpoints, next.Endpoints)
}

// Renews reports whether connections are made differently when o becomes next.
func (o *UpstreamOptions) Renews(next *UpstreamOptions) bool {
	return o.Provider != next.Provider || o.Credits != next.Credits || o.CallTimeout != next.CallTimeout ||
		o.CallInline != next.CallInline || o.ReplyInline != next.ReplyInline ||
		o.SilentTimeout != next.SilentTimeout || (o.ProbeInterval > 0) != (next.ProbeInterval > 0)
}

// Backoff is how long a Call waits before it is sent again after the n-th connection was lost; n is at least 2.
func (o *UpstreamOptions) Backoff(n uint8) time.Duration {
	return min(o.BackoffMin<<(n-2), o.BackoffMax)
}

// Pins reports whether each client has a connection of its own.
func (o *UpstreamOptions) Pins() bool { return o.Mode == ModePinned }

// SharesAll reports whether all Calls go on shared connections.
func (o *UpstreamOptions) SharesAll() bool { return o.Mode == ModeShared }

// HidesLayouts reports whether clients are to believe that the server has no layouts.
func (o *UpstreamOptions) HidesLayouts() bool { return o.HideLayouts }

// A checker collects what is wrong with options.
type checker struct {
	what string // names the options; the beginning of each problem
	err  error  // the problems
}

func (c *checker) that(ok bool, problem string) {
	if !ok {
		c.err = errors.Join(c.err, errors.New(c.what+problem))
	}
}

func (c *checker) positive(name string, v int64) {
	c.that(v > 0, fmt.Sprintf("%s is %d, want more than 0", name, v))
}

// A Mode says which connections to the upstream carry the Calls of a client connection.
type Mode uint8

const (
	ModeAuto     Mode = iota // as ModeSessions
	ModeShared               // any of the shared connections, for each Call
	ModePinned               // a lane of its own
	ModeSessions             // a lane that clients share if it speaks NFSv4.1 or later, and otherwise as ModeShared
)

var modeNames = [...]string{"sessions", "shared", "pinned", "sessions"}

func (m Mode) String() string { return modeNames[m] }
