package pool

import (
	"errors"
	"fmt"
	"time"

	"github.com/rdmabridge/rdmabridge/pool/dials"
	"github.com/rdmabridge/rdmabridge/pool/endpoints"
	"github.com/rdmabridge/rdmabridge/pool/quota"
	"github.com/rdmabridge/rdmabridge/pool/slowstart"
)

// Options describe a pool. There are no defaults: New fails if a value is missing.
type Options struct {
	Name        string
	Endpoints   []string      // host:port; at least one
	Connections int           // seats
	Loops       int           // number of affinities over which the seats are spread
	First       int           // the first of these affinities
	BackoffMin  time.Duration // first pause after a failure
	BackoffMax  time.Duration // longest pause
	DialTimeout time.Duration // for one attempt to connect
	QueueWait   time.Duration // longest wait of a Call for a credit
	QueueLimit  int           // most Calls waiting; as many again for hosts that have few of them

	// Idle is how long a connection that no Call uses stays, to the second: sleep.go. The pool then
	// makes connections when it needs them, and keeps as many as Pool.Need says. 0 means that the
	// pool makes all connections at Start and keeps them.
	Idle time.Duration

	// Share is the most percent of the credits that one host may hold, and that all hosts
	// whose Calls hang may hold together, as long as others want some: share.go. The pool keeps
	// the rest for hosts that hold none. 0 and 100 keep nothing back.
	Share int

	// SlowStart is the slow start of the upstream, which all its pools share. nil means no slow
	// start.
	SlowStart *slowstart.Window
	// Quota bounds the Calls of the pool together with those of the host's other pools. Pools with a
	// Quota have one client each, on one loop. nil means no bound.
	Quota *quota.Host
	// Witness learns that the pool has Calls, which it does not bound. It may be nil.
	Witness *quota.Quota
	// Health is the state of Endpoints. The pools of an upstream share it, and its owner has
	// called Set with Endpoints. If it is nil, the pool makes a Health of its own, without
	// priority.
	Health *endpoints.Health
	// Dials limits attempts to connect. nil means no limit.
	Dials *dials.Share
	// Metrics are the metrics of the upstream, which all its pools share. nil counts
	// nothing.
	Metrics *Metrics

	// Prefer is the index of the endpoint that the first seat prefers. The next seat
	// prefers the next endpoint.
	Prefer int
	// KeepEndpoint keeps a seat at the endpoint whose server has granted it a credit last, as long as that
	// endpoint is not ejected. Without KeepEndpoint a seat returns to the endpoint that it
	// prefers.
	KeepEndpoint bool
	// HostGone reports whether err, which ended a connection, means that the host of
	// the endpoint is gone. nil means never.
	HostGone func(err error) bool
	// Local reports whether err, with which an attempt to connect failed, is about this host,
	// such as too few descriptors, and says nothing about the endpoint. It may be nil.
	Local func(err error) bool

	// Failed is called for every attempt to connect that failed and every connection that
	// ended, for the log. It is called on any goroutine. It may be nil.
	Failed func(endpoint string, err error, retryIn time.Duration)
	// Scarce is called when credits have been short for some seconds while Calls hang, for the log.
	// held is how many hang. It may be nil.
	Scarce func(held int)
	// Connected is called for every connection that came up. It may be nil.
	Connected func(endpoint string)

	// Improve returns the time after which a connected seat tries to get a better connection to
	// the same endpoint; 0 means never. It is called after each connection and each such
	// attempt, on the goroutine that calls Dial. It may be nil.
	Improve func(s *Seat) time.Duration
	// Discarded is called for a seat when Dial will not be called for it again: another seat
	// has replaced it and its connection has ended, or the pool made it for a better
	// connection, which could not be dialled. It is called on the goroutine that called Dial,
	// and may be nil.
	Discarded func(s *Seat)
}

// validate reports every value that a pool cannot work with.
func (o *Options) validate() error {
	var errs []error
	require := func(ok bool, problem string) {
		if !ok {
			errs = append(errs, fmt.Errorf("pool %q: %s", o.Name, problem))
		}
	}
	require(len(o.Endpoints) > 0, "there is no endpoint")
	require(o.Connections > 0, "there must be at least one connection")
	require(o.Loops > 0, "there must be at least one loop")
	require(o.BackoffMin > 0, "the first pause between attempts to connect must be positive")
	require(o.BackoffMax >= o.BackoffMin, "the longest pause between attempts to connect must not be shorter than the first")
	require(o.DialTimeout > 0, "the time for an attempt to connect must be positive")
	require(o.QueueWait > 0, "the time that a Call may wait for a credit must be positive")
	require(o.Idle >= 0, "the time after which an idle connection is closed must not be negative")
	require(o.Share >= 0 && o.Share <= 100, "the share of a host must be from 0 to 100 percent")
	require(o.QueueLimit > 0, "at least one Call must be allowed to wait")
	return errors.Join(errs...)
}

// returns reports whether seats go back to the endpoints that they prefer.
func (o *Options) returns() bool { return len(o.Endpoints) > 1 && !o.KeepEndpoint }
