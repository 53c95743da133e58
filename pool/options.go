package pool

import (
	"errors"
	"fmt"
	"time"
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
	QueueLimit  int           // most Calls waiting

	// SlowStart is the slow start of the upstream, which all its pools share. nil is
	// for a pool without one.
	SlowStart *SlowStart
	// Health is the state of Endpoints. The pools of an upstream share it, and its owner
	// has called Set with Endpoints. nil is a Health of the pool's own, without priority.
	Health *Health
	// Dials limits attempts to connect. nil is no limit.
	Dials *Share
	// Metrics are the metrics of the upstream, which all its pools share. nil counts
	// nothing.
	Metrics *Metrics

	// Prefer is the index of the endpoint that the first seat prefers. The next seat
	// prefers the next endpoint.
	Prefer int
	// KeepEndpoint keeps a seat at the endpoint that it was connected to last, as long
	// as that is not ejected. Otherwise a seat returns to the endpoint it prefers.
	KeepEndpoint bool
	// HostGone reports whether err, which ended a connection, means that the host of
	// the endpoint is gone. nil means never.
	HostGone func(err error) bool

	// Failed is called for every attempt to connect that failed and every connection
	// that ended, for the log. Any goroutine may call it. It may be nil.
	Failed func(endpoint string, err error, retryIn time.Duration)
	// Connected is called for every connection that came up. It may be nil.
	Connected func(endpoint string)

	// Improve returns after how long a seat, which has a connection, tries for a better
	// one to the same endpoint; 0 is never. It is called after each connection and each
	// such attempt, on the goroutine that calls Dial. It may be nil.
	Improve func(s *Seat) time.Duration
	// Discarded is called for a seat when Dial will not be called for it again: another
	// seat has replaced it and its connection has ended, or it was made for a better
	// connection that could not be had. It is called on the goroutine that called Dial,
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
	require(o.QueueLimit > 0, "at least one Call must be allowed to wait")
	return errors.Join(errs...)
}

// returns reports whether seats go back to the endpoints that they prefer.
func (o *Options) returns() bool { return len(o.Endpoints) > 1 && !o.KeepEndpoint }
