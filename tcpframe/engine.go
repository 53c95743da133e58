package tcpframe

import (
	"cmp"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/metrics"
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
	log           zerolog.Logger
	metrics       *metrics.Registry
	watcher       *watcher
	loops         []*Loop
	memoryTimeout time.Duration
	busyPoll      int64 // nanoseconds; 0 for none

	epoch   time.Time
	sockets Sockets
	quit    chan struct{}
	ticking sync.WaitGroup
	servers *handshakes // of connections that were accepted
	clients *handshakes // of connections that were dialled

	mu          sync.Mutex // guards the rest; a leaf
	stopped     bool
	listeners   []*Listener
	counted     map[countersKey]*counters
	attachments sync.WaitGroup // calls of Attach that have not returned; Add with mu held
}

// Start starts the loops.
func Start(o EngineOptions) (*Engine, error) {
	if err := o.validate(); err != nil {
		return nil, err
	}
	w, err := newWatcher()
	if err != nil {
		return nil, fmt.Errorf("tcpframe: %w", err)
	}
	e := &Engine{
		log:           o.Log,
		metrics:       o.Metrics,
		watcher:       w,
		memoryTimeout: cmp.Or(o.MemoryTimeout, memoryTimeout),
		busyPoll:      int64(o.BusyPoll),
		epoch:         time.Now(),
		quit:          make(chan struct{}),
		counted:       make(map[countersKey]*counters),
	}
	e.sockets.SetLimit(cmp.Or(o.MaxSockets, mostSockets()))
	for i := range o.Loops {
		l := newLoop(e, i)
		if l.driver, err = startDriver(l, o.Log); err != nil {
			_ = e.stopLoops()
			return nil, fmt.Errorf("tcpframe: start loop %d: %w", i, err)
		}
		e.loops = append(e.loops, l)
	}
	if runtime.GOMAXPROCS(0) <= o.Loops {
		runtime.GOMAXPROCS(o.Loops + 1)
	}
	// A handshake computes for up to a millisecond. Loops should find a processor meanwhile.
	procs := runtime.GOMAXPROCS(0)
	compute := max(procs-o.Loops, procs/4)
	e.servers = newHandshakes(o.Handshakes, o.HandshakeQueue, compute, e.Now, o.Metrics, "listeners")
	e.clients = newHandshakes(o.Handshakes, o.HandshakeQueue, compute, e.Now, o.Metrics, "upstreams")
	e.ticking.Go(func() { e.tick(cmp.Or(o.tick, tickInterval)) })
	return e, nil
}

// stopLoops ends the goroutines of the loops, whose connections must have been closed.
func (e *Engine) stopLoops() error {
	var failed error
	for _, l := range e.loops {
		failed = errors.Join(failed, l.driver.stop())
	}
	e.watcher.stop()
	return failed
}

// Loops returns the loops. The caller must not change the slice. It is safe for concurrent use.
func (e *Engine) Loops() []*Loop { return e.loops }

// Sockets returns the counter of the sockets of all listeners. A listener of another package
// counts its own sockets there, too.
func (e *Engine) Sockets() *Sockets { return &e.sockets }

// leastLoaded returns the loop that drives the fewest sockets.
func (e *Engine) leastLoaded() *Loop {
	return slices.MinFunc(e.loops, func(a, b *Loop) int { return int(a.conns.Load() - b.conns.Load()) })
}

// place returns the loop for a new connection: preferred, unless that is nil or drives many more sockets than
// another one.
func (e *Engine) place(preferred *Loop) *Loop {
	least := e.leastLoaded()
	if preferred != nil {
		if n := least.conns.Load(); preferred.conns.Load() <= n+n/4+preferredMore {
			return preferred
		}
	}
	return least
}

// preferredMore is how many more sockets a loop may have than the one with the fewest, and a quarter of these, so
// that a connection is still placed on it because it is the preferred one. Crossing to another loop for each Call
// costs a few percent, and an idle processor beside a busy one costs half.
const preferredMore = 4

// Now returns the nanoseconds since Start on a monotonic clock. It is never 0. Any
// goroutine; on a loop, Loop.Now is cheaper.
func (e *Engine) Now() int64 { return int64(time.Since(e.epoch)) + 1 }

// tick makes the loops sweep their connections, until the engine stops.
func (e *Engine) tick(every time.Duration) {
	t := time.NewTicker(every)
	defer t.Stop()
	for {
		select {
		case <-e.quit:
			return
		case <-t.C:
			e.servers.tick()
			for _, l := range e.loops {
				if l.conns.Load() > 0 {
					l.Post((*sweepTask)(l))
				}
			}
		}
	}
}

// attaching reports whether an Attach may begin: the engine has not stopped. The caller
// then calls attachments.Done.
func (e *Engine) attaching() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.stopped {
		return false
	}
	e.attachments.Add(1)
	return true
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
	e.attachments.Wait() // gnet never answers an Enroll if the client is stopped meanwhile

	ended := make(chan struct{})
	go func() {
		defer close(ended)
		e.everyLoop(func(l *Loop) { l.stop() })
		e.servers.ended.Wait()
		e.clients.ended.Wait()
		// One more pass runs the tasks that Detached and Closed have posted.
		e.everyLoop(func(*Loop) {})
		for _, l := range e.loops {
			l.mu.Lock()
			l.stopped, l.in = true, nil
			l.mu.Unlock()
		}
		if err := e.stopLoops(); err != nil {
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
	e.servers.limit(most, queued)
	e.clients.limit(most, queued)
}

// handshakesOf returns the handshakes of servers, or of clients.
func (e *Engine) handshakesOf(server bool) *handshakes {
	if server {
		return e.servers
	}
	return e.clients
}

// everyLoop runs f on every loop and waits until all have returned.
func (e *Engine) everyLoop(f func(*Loop)) {
	var wg sync.WaitGroup
	wg.Add(len(e.loops))
	for _, l := range e.loops {
		l.Post(loop.TaskFunc(func() { defer wg.Done(); f(l) }))
	}
	wg.Wait()
}
