package proxy

import (
	"net/netip"
	"time"

	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
)

// A Route sends the Calls of one program to an upstream of its own.
type Route struct {
	Program  uint32
	Versions []uint32 // empty: all
	Upstream string
}

// ListenerOptions describe where clients come in. Zero values mean the
// defaults named.
type ListenerOptions struct {
	Name, Address string
	RDMA          bool
	Provider      fabric.Provider // for RDMA

	Upstream string // for every program without a Route; "" refuses these programs
	Routes   []Route

	Allow                    []netip.Prefix // empty: everybody
	MaxConnections           int            // default 4096
	MaxConnectionsPerAddress int            // default no limit of its own
	MaxRecord                int            // octets; default 4 MiB + 64 KiB
	MaxFragments             int            // to a record; default 1024
	MaxCalls                 int            // outstanding for one client; default 256
	MaxOutbound              int64          // octets owed to one client; default 32 MiB, at most a sixteenth of the budget
	StallTimeout             time.Duration  // TCP: for a record begun; default 30 s
	IdleTimeout              time.Duration  // without traffic and without a Call under way; default none

	MaxStarting           int // RDMA: connections being set up; default the provider's
	MaxStartingPerAddress int // RDMA: of those, from one address; default the provider's

	Weights    []Weight // the first that fits counts; others have 1
	Rate       Rate     // of all clients together
	ClientRate Rate     // of each client address

	Credits                 int // RDMA: most granted to one client; default 64
	CallInline, ReplyInline int // RDMA: inline thresholds in octets; default 4096
}

// UpstreamOptions describe where Calls go. Zero values mean the defaults named.
type UpstreamOptions struct {
	Name      string
	RDMA      bool
	Provider  fabric.Provider // for RDMA
	Endpoints []string        // host:port, at least one
	Failover  bool            // clients need not stay with one of several Endpoints
	Priority  bool            // with Failover: each endpoint is for when those before it fail

	Connections             int  // default 4 for RDMA, 1 for TCP
	Mode                    Mode // who has a connection of its own
	Pinned                  int  // most of those; default 256, for RDMA at most what memory for Replies allows
	Credits                 int  // asked for on each connection; default 128
	SlowStart               int  // Calls read from clients and sent until the upstream answers, one more for each Reply; default 16; from 1024 on there is no slow start
	CallInline, ReplyInline int  // octets; default 65536 and 4096

	Source Source // for TCP

	// SilentTimeout is how long the server's host may leave unanswered what its TCP
	// answers by itself, before the connection is replaced; default 4 s, negative
	// none. For RDMA it is the provider's to know.
	SilentTimeout time.Duration
	// ProbeInterval is how long nothing may be heard on a connection before it is asked
	// with a NULL Call; default 5 s, negative never.
	ProbeInterval time.Duration

	CallTimeout      time.Duration // a Call unanswered for so long ends its connection; default 60 s
	ConnectTimeout   time.Duration // default 10 s
	UnavailableAfter time.Duration // longest wait for a credit before the client is closed; default 30 s
	BackoffMin       time.Duration // default 100 ms
	BackoffMax       time.Duration // default 5 s
}

func (o *ListenerOptions) setDefaults() {
	setDefault(&o.MaxConnections, 4096)
	setDefault(&o.MaxRecord, 4<<20+64<<10)
	setDefault(&o.MaxFragments, 1024)
	setDefault(&o.MaxCalls, 256)
	setDefault(&o.MaxOutbound, 32<<20)
	setDefault(&o.StallTimeout, 30*time.Second)
	setDefault(&o.Credits, 64)
	setDefault(&o.CallInline, 4096)
	setDefault(&o.ReplyInline, 4096)
}

func (o *UpstreamOptions) setDefaults() {
	connections := 1
	if o.RDMA {
		connections = 4
	}
	setDefault(&o.Connections, connections)
	setDefault(&o.Pinned, 256)
	setDefault(&o.Credits, 128)
	setDefault(&o.SlowStart, 16)
	setDefault(&o.CallInline, 64<<10)
	setDefault(&o.ReplyInline, 4096)
	setDefaultOrNone(&o.SilentTimeout, 4*time.Second)
	setDefaultOrNone(&o.ProbeInterval, 5*time.Second)
	setDefault(&o.CallTimeout, 60*time.Second)
	setDefault(&o.ConnectTimeout, 10*time.Second)
	setDefault(&o.UnavailableAfter, 30*time.Second)
	setDefault(&o.BackoffMin, 100*time.Millisecond)
	setDefault(&o.BackoffMax, 5*time.Second)
}

func setDefault[T int | int64 | time.Duration](v *T, d T) {
	if *v <= 0 {
		*v = d
	}
}

// setDefaultOrNone is for what a negative value switches off.
func setDefaultOrNone(v *time.Duration, d time.Duration) {
	if *v == 0 {
		*v = d
	}
}
