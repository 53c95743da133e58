package tcpframe

import (
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/metrics"
)

// stopTimeout is how long Stop waits for a loop that does not come round.
const stopTimeout = 5 * time.Second

// An Engine runs event loops. Its methods are safe for concurrent use, but not
// on a loop.
type Engine struct {
	log      zerolog.Logger
	metrics  *metrics.Registry
	driver   *driver
	loops    []*Loop
	maxConns int64

	epoch    time.Time
	accepted atomic.Int64 // connections of all listeners
	quit     chan struct{}
	ticking  sync.WaitGroup

	mu          sync.Mutex // guards what follows; a leaf
	stopped     bool
	listeners   []*Listener
	counted     map[string]*counters
	attachments sync.WaitGroup // Attach calls under way; Add with mu held
}

// Start starts the loops. It proves first that gnet behaves as this package
// needs, a few milliseconds for each loop, and fails if it does not.
func Start(o EngineOptions) (*Engine, error) {
	procs := runtime.GOMAXPROCS(0)
	if o.Loops <= 0 {
		o.Loops = procs
		if procs > 2 {
			o.Loops = procs - 1
		}
	}
	if o.MaxConns <= 0 {
		o.MaxConns = defaultMaxConns()
	}
	if o.Tick <= 0 {
		o.Tick = 500 * time.Millisecond
	}
	d, err := startDriver(o.Loops, o.Log)
	if err != nil {
		return nil, err
	}
	e := &Engine{
		log:      o.Log,
		metrics:  o.Metrics,
		driver:   d,
		maxConns: int64(o.MaxConns),
		epoch:    time.Now(),
		quit:     make(chan struct{}),
		counted:  make(map[string]*counters),
	}
	for i := range o.Loops {
		if err := e.startLoop(i); err != nil {
			_ = d.stop()
			for _, l := range e.loops {
				l.gate.release()
			}
			return nil, fmt.Errorf("tcpframe: start loop %d: %w", i, err)
		}
	}
	if procs <= o.Loops {
		runtime.GOMAXPROCS(o.Loops + 1)
	}
	e.ticking.Go(func() { e.tick(o.Tick) })
	return e, nil
}

func (e *Engine) startLoop(i int) error {
	g, err := e.driver.newGate()
	if err != nil {
		return err
	}
	l := newLoop(e, i, g)
	if slices.ContainsFunc(e.loops, func(o *Loop) bool { return o.gate.el == g.el }) {
		err = fmt.Errorf("gnet gave one event loop twice")
	} else {
		err = g.open(l)
	}
	if err != nil {
		g.release()
		return err
	}
	e.loops = append(e.loops, l)
	return nil
}

// Loops returns the loops; not to be changed.
func (e *Engine) Loops() []*Loop { return e.loops }

// leastLoaded is the loop with the fewest sockets.
func (e *Engine) leastLoaded() *Loop {
	return slices.MinFunc(e.loops, func(a, b *Loop) int { return int(a.conns.Load() - b.conns.Load()) })
}

// Now is time that wall clocks cannot move, in nanoseconds since Start, never 0.
// Any goroutine; Loop.Now is cheaper on a loop.
func (e *Engine) Now() int64 { return int64(time.Since(e.epoch)) + 1 }

func (e *Engine) tick(every time.Duration) {
	t := time.NewTicker(every)
	defer t.Stop()
	for {
		select {
		case <-e.quit:
			return
		case <-t.C:
			for _, l := range e.loops {
				if l.conns.Load() > 0 {
					l.Post((*sweepTask)(l))
				}
			}
		}
	}
}

// attaching lets one Attach begin, unless the engine stops.
func (e *Engine) attaching() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.stopped {
		return false
	}
	e.attachments.Add(1)
	return true
}

// Stop closes the listeners, ends every connection with errStopped, and stops
// the loops. When it returns every Detached and Closed was called, unless a
// callback held its loop for more than 5 s. Tasks posted later are dropped.
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
	e.attachments.Wait() // gnet never answers an Enroll that its end overtook

	ended := make(chan struct{})
	go func() {
		defer close(ended)
		e.everyLoop(func(l *Loop) { l.stop() })
		// One more pass: what Detached and Closed posted.
		e.everyLoop(func(*Loop) {})
		for _, l := range e.loops {
			l.mu.Lock()
			l.stopped, l.in = true, nil
			l.mu.Unlock()
		}
		if err := e.driver.stop(); err != nil {
			e.log.Error().Err(err).Msg("event loops ended with an error")
		}
		for _, l := range e.loops {
			l.gate.release()
		}
	}()
	select {
	case <-ended:
	case <-time.After(stopTimeout):
		e.log.Error().Dur("timeout", stopTimeout).Msg("event loops did not stop")
	}
}

// everyLoop runs f on every loop and waits.
func (e *Engine) everyLoop(f func(*Loop)) {
	var wg sync.WaitGroup
	wg.Add(len(e.loops))
	for _, l := range e.loops {
		l.Post(loop.TaskFunc(func() { defer wg.Done(); f(l) }))
	}
	wg.Wait()
}

// defaultMaxConns leaves descriptors for everything else.
func defaultMaxConns() int {
	var r unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &r); err != nil {
		return 768
	}
	return int(min(r.Cur, 1<<20) / 4 * 3)
}
