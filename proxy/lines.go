package proxy

import (
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/internal/loglimit"
)

// clientLines bound the lines that the clients of one listener can cause.
type clientLines struct {
	unanswered loglimit.Limit // a Call cannot be answered
	malformed  loglimit.Limit // a message is no Call
	refused    loglimit.Limit // the header of a Call is not valid
	denied     loglimit.Limit // a rule denies a Call
	strays     loglimit.Limit // too many Replies answer no reverse Call
	plain      loglimit.Limit // a Call came without TLS, which the listener requires
}

// upstreamLines write the lines that the servers of one upstream can cause, and bound them.
type upstreamLines struct {
	log      *zerolog.Logger
	draining *atomic.Bool    // the bridge drains; nil in tests
	failures loglimit.Seldom // no connection can be made, or one has ended
	idle     loglimit.Seldom // the server closes idle connections
	hang     loglimit.Seldom // Calls that hang hold the credits
	refused  loglimit.Limit  // a Call cannot be carried
	replies  loglimit.Limit  // a Reply is refused
	plain    loglimit.Seldom // the server does not offer TLS, and need not

	mu        sync.Mutex // guards endpoints; a leaf
	endpoints map[string]*endpointLines
}

// endpointLines are the lines about one endpoint.
type endpointLines struct {
	up       atomic.Bool   // a connection was made after the latest failure
	connect  loglimit.Flap // lines about connections
	ejection loglimit.Flap
}

func (e *endpointLines) stop() {
	e.connect.Stop()
	e.ejection.Stop()
}

// endpoint returns the lines about an endpoint.
func (l *upstreamLines) endpoint(addr string) *endpointLines {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.endpoints[addr]
	if e == nil {
		if l.endpoints == nil {
			l.endpoints = make(map[string]*endpointLines)
		}
		e = new(endpointLines)
		l.endpoints[addr] = e
	}
	return e
}

// keep forgets all endpoints but addrs. Lines that wait are not written.
func (l *upstreamLines) keep(addrs ...string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for a, e := range l.endpoints {
		if !slices.Contains(addrs, a) {
			e.stop()
			delete(l.endpoints, a)
		}
	}
}

// connected logs the first connection to an endpoint after a failure, and lets the next failure be
// logged at once. A server that accepts and ends connections all the time has a few such lines, and
// then one in each loglimit.Again.
func (l *upstreamLines) connected(endpoint string) {
	e := l.endpoint(endpoint)
	if e.up.Swap(true) {
		return
	}
	e.connect.Change(func(suppressed uint64) {
		if !e.up.Load() {
			return // the line is late, and the connection has ended
		}
		l.failures.Reset()
		loglimit.Line(l.log, zerolog.InfoLevel, "upstream_connected", suppressed).Str("endpoint", endpoint).Msg("connected to upstream")
	})
}

// failed logs that a connection could not be made or has ended.
func (l *upstreamLines) failed(endpoint string, err error, retryIn time.Duration) {
	if errors.Is(err, errIdleClosed) {
		l.idle.Line(l.log, zerolog.InfoLevel, "upstream_idle_closed").Str("endpoint", endpoint).Msg("upstream closed an idle connection")
		return
	}
	l.endpoint(endpoint).up.Store(false)
	level := zerolog.WarnLevel
	if l.draining != nil && l.draining.Load() {
		level = zerolog.InfoLevel // no new Call will need it; with demo, the bridge itself has closed it
	}
	l.failures.Line(l.log, level, "upstream_lost").Err(err).Str("endpoint", endpoint).Dur("retry_in_ms", retryIn).
		Msg("no connection to upstream")
}

// ejected logs that an endpoint is not used for a while.
func (l *upstreamLines) ejected(endpoint string, wait time.Duration, err error) {
	l.endpoint(endpoint).ejection.Change(func(suppressed uint64) {
		loglimit.Line(l.log, zerolog.WarnLevel, "endpoint_ejected", suppressed).Err(err).Str("endpoint", endpoint).Dur("wait_ms", wait).Msg("endpoint ejected")
	})
}

// returned logs that an endpoint is used again.
func (l *upstreamLines) returned(endpoint string) {
	l.endpoint(endpoint).ejection.Change(func(suppressed uint64) {
		loglimit.Line(l.log, zerolog.InfoLevel, "endpoint_returned", suppressed).Str("endpoint", endpoint).Msg("endpoint is back")
	})
}

// scarce logs that Calls which hang hold the credits that clients with many Calls could have.
func (l *upstreamLines) scarce(held int) {
	l.hang.Line(l.log, zerolog.WarnLevel, "calls_stuck").Int("calls", held).
		Msg("calls that the upstream does not answer hold the credits; their clients get no more of them")
}
