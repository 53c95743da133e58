package tcpframe

import (
	"cmp"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/tcpframe/eventloop"
	"github.com/rdmabridge/rdmabridge/tcpframe/tlsloop"
)

const (
	// stopTimeout bounds how long Stop waits for a loop whose callback does not return.
	stopTimeout = 5 * time.Second
	// tickInterval is the resolution of timeouts: a timeout is late by it at most.
	tickInterval = 500 * time.Millisecond
)

// An Engine runs event loops. Its methods are safe for concurrent use, but must not be
// called on a loop, except for Loops and Now.
type Engine struct {
	log     zerolog.Logger
	counted *counterSet
	group   *eventloop.Group
	loops   []*Loop // of group

	sockets Sockets
	quit    chan struct{}
	ticking sync.WaitGroup
	servers *tlsloop.Queue // of connections that were accepted
	clients *tlsloop.Queue // of connections that were dialled

	mu        sync.Mutex // guards the rest; a leaf
	stopped   bool
	listeners []*Listener
}

// Start starts the loops.
func Start(o EngineOptions) (*Engine, error) {
	if err := o.validate(); err != nil {
		return nil, err
	}
	g, err := eventloop.Start(eventloop.Options{Loops: o.Loops, BusyPoll: o.BusyPoll, Log: o.Log})
	if err != nil {
		return nil, fmt.Errorf("tcpframe: %w", err)
	}
	e := &Engine{
		log:     o.Log,
		group:   g,
		quit:    make(chan struct{}),
		counted: &counterSet{metrics: o.Metrics, log: o.Log, all: make(map[countersKey]*counters)},
	}
	e.sockets.SetLimit(cmp.Or(o.MaxSockets, mostSockets()))
	if runtime.GOMAXPROCS(0) <= o.Loops {
		runtime.GOMAXPROCS(o.Loops + 1)
	}
	// A handshake computes for up to a millisecond. Loops should find a processor meanwhile.
	procs := runtime.GOMAXPROCS(0)
	compute := max(procs-o.Loops, procs/4)
	e.servers = tlsloop.NewQueue(o.Handshakes, o.HandshakeQueue, compute, e.Now, o.Metrics, "listeners")
	e.clients = tlsloop.NewQueue(o.Handshakes, o.HandshakeQueue, compute, e.Now, o.Metrics, "upstreams")
	for _, g := range g.Loops() {
		l := newLoop(g)
		l.memoryTimeout, l.servers, l.clients = cmp.Or(o.MemoryTimeout, memoryTimeout), e.servers, e.clients
		e.loops = append(e.loops, l)
	}
	e.ticking.Go(func() { e.tick(cmp.Or(o.tick, tickInterval)) })
	return e, nil
}

// Loops returns the loops. The caller must not change the slice. It is safe for concurrent use.
func (e *Engine) Loops() []*Loop { return e.loops }

// Sockets returns the counter of the sockets of all listeners. A listener of another package
// counts its own sockets there, too.
func (e *Engine) Sockets() *Sockets { return &e.sockets }

// place returns the loop for a new connection: preferred, unless that is nil or drives many more sockets than
// another one.
func (e *Engine) place(preferred *Loop) *Loop {
	var p *eventloop.Loop
	if preferred != nil {
		p = preferred.Loop
	}
	return e.loops[e.group.Place(p).Index()]
}

// Now returns the nanoseconds since Start on a monotonic clock. It is never 0. Any
// goroutine; on a loop, Loop.Now is cheaper.
func (e *Engine) Now() int64 { return e.group.Now() }

// tick makes the loops sweep their connections, until the engine stops.
func (e *Engine) tick(every time.Duration) {
	t := time.NewTicker(every)
	defer t.Stop()
	for {
		select {
		case <-e.quit:
			return
		case <-t.C:
			e.servers.Tick()
			for _, l := range e.loops {
				if l.Conns() > 0 {
					l.Post((*sweepTask)(l))
				}
			}
		}
	}
}

// Stop closes the listeners, ends every connection with an error that says so, and stops
// the loops. When it returns, every Detached and Closed was called, unless a callback held
// its loop for more than 5 s. The loops drop tasks that are posted later.
func (e *Engine) Stop() {
	e.mu.Lock()
	if e.stopped {
		e.mu.Unlock()
		return
	}
	e.stopped = true
	listeners := slices.Clone(e.listeners)
	e.mu.Unlock()

	for _, l := range listeners {
		_ = l.Close()
	}
	close(e.quit)
	e.ticking.Wait()

	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := e.group.Stop(func() { e.servers.Wait(); e.clients.Wait() }); err != nil {
			e.log.Error().Str("event", "loops_failed").Err(err).Msg("event loops stopped with an error")
		}
	}()
	select {
	case <-ended:
	case <-time.After(stopTimeout):
		e.log.Error().Str("event", "bug").Dur("timeout_ms", stopTimeout).Msg("event loops did not stop in time: a callback blocks")
	}
}

// LimitHandshakes replaces EngineOptions.Handshakes and HandshakeQueue. Handshakes that are under way or wait stay.
func (e *Engine) LimitHandshakes(most, queued int) {
	e.servers.Limit(most, queued)
	e.clients.Limit(most, queued)
}

// ForgetUpstream drops the counters of an upstream that has ended. The caller has the registry forget
// their series.
func (e *Engine) ForgetUpstream(name string) { e.counted.forget(ofUpstream, name) }

// ForgetListener does for a listener what ForgetUpstream does for an upstream.
func (e *Engine) ForgetListener(name string) { e.counted.forget(ofListener, name) }

// Refused adds to all how many connections of the listener with this name the Engine has refused or closed
// so far, by reason.
func (e *Engine) Refused(listener string, all map[string]uint64) { e.counted.refused(listener, all) }
