package reach

import (
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/internal/loglimit"
)

// ErrIdleClosed reports that the server closed a connection that had worked and on which no
// Call was outstanding. Servers close connections that were idle for some minutes.
var ErrIdleClosed = errors.New("proxy/reach: the server closed an idle connection")

// Lines write the lines that the servers of one upstream can cause, and bound them. They are safe for concurrent use.
type Lines struct {
	log      *zerolog.Logger
	draining *atomic.Bool    // the bridge drains
	failures loglimit.Seldom // no connection can be made, or one has ended
	idle     loglimit.Seldom // the server closes idle connections
	hang     loglimit.Seldom // Calls that hang hold the credits
	plain    loglimit.Seldom // the server does not offer TLS, and need not

	mu        sync.Mutex // guards endpoints; a leaf
	endpoints map[string]*endpointLines
}

// NewLines makes the lines of an upstream, for log. draining says that the bridge drains.
func NewLines(log *zerolog.Logger, draining *atomic.Bool) *Lines {
	return &Lines{log: log, draining: draining, endpoints: make(map[string]*endpointLines)}
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
func (l *Lines) endpoint(addr string) *endpointLines {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.endpoints[addr]
	if e == nil {
		e = new(endpointLines)
		l.endpoints[addr] = e
	}
	return e
}

// Keep forgets all endpoints but addrs. Lines that wait are not written.
func (l *Lines) Keep(addrs ...string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for a, e := range l.endpoints {
		if !slices.Contains(addrs, a) {
			e.stop()
			delete(l.endpoints, a)
		}
	}
}

// Connected logs the first connection to an endpoint after a failure, and lets the next failure be
// logged at once. A server that accepts and ends connections all the time has a few such lines, and
// then one in each loglimit.Again.
func (l *Lines) Connected(endpoint string) {
	e := l.endpoint(endpoint)
	if e.up.Swap(true) {
		return
	}
	e.connect.Change(func(suppressed uint64) {
		if !e.up.Load() {
			return // the line is late, and the connection has ended
		}
		l.failures.Reset()
		loglimit.Line(l.log, zerolog.InfoLevel, "upstream_connected", suppressed).
			Str("endpoint", endpoint).Msg("connected to upstream")
	})
}

// Failed logs that a connection could not be made or has ended.
func (l *Lines) Failed(endpoint string, err error, retryIn time.Duration) {
	if errors.Is(err, ErrIdleClosed) {
		l.idle.Line(l.log, zerolog.InfoLevel, "upstream_idle_closed").
			Str("endpoint", endpoint).Msg("upstream closed an idle connection")
		return
	}
	l.endpoint(endpoint).up.Store(false)
	level := zerolog.WarnLevel
	if l.draining.Load() {
		level = zerolog.InfoLevel // no new Call will need it; with demo, the bridge itself has closed it
	}
	l.failures.Line(l.log, level, "upstream_lost").Err(err).Str("endpoint", endpoint).Dur("retry_in_ms", retryIn).
		Msg("no connection to upstream")
}

// ejected logs that an endpoint is not used for a while.
func (l *Lines) ejected(endpoint string, wait time.Duration, err error) {
	l.endpoint(endpoint).ejection.Change(func(suppressed uint64) {
		loglimit.Line(l.log, zerolog.WarnLevel, "endpoint_ejected", suppressed).
			Err(err).Str("endpoint", endpoint).Dur("wait_ms", wait).Msg("endpoint ejected")
	})
}

// returned logs that an endpoint is used again.
func (l *Lines) returned(endpoint string) {
	l.endpoint(endpoint).ejection.Change(func(suppressed uint64) {
		loglimit.Line(l.log, zerolog.InfoLevel, "endpoint_returned", suppressed).
			Str("endpoint", endpoint).Msg("endpoint is back")
	})
}

// Scarce logs that Calls which hang hold the credits that clients with many Calls could have.
func (l *Lines) Scarce(held int) {
	l.hang.Line(l.log, zerolog.WarnLevel, "calls_stuck").Int("calls", held).
		Msg("calls that the upstream does not answer hold the credits; their clients get no more of them")
}

// WithoutTLS logs that a server does not offer TLS, and need not.
func (l *Lines) WithoutTLS(endpoint string) {
	l.plain.Line(l.log, zerolog.WarnLevel, "upstream_without_tls").Str("endpoint", endpoint).
		Msg("the server does not offer TLS; the connection goes on without, because tls.mode is optional")
}
