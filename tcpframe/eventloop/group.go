package eventloop

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/internal/loop"
)

// Options configure a group.
type Options struct {
	// Loops is the number of event loops, at least 1.
	Loops int
	// BusyPoll is for how long a loop that has just done something looks for more before it sleeps; 0 is not at all.
	BusyPoll time.Duration
	Log      zerolog.Logger
}

// A Group is a number of event loops with one clock. Its methods are safe for concurrent use.
type Group struct {
	loops    []*Loop  // constant, as the next three
	watcher  *watcher // of all sockets
	busyPoll int64    // nanoseconds; 0 for none
	epoch    time.Time

	mu          sync.Mutex // guards the rest; a leaf
	stopped     bool
	attachments sync.WaitGroup // calls of Attach that have not returned; Add with mu held
}

// ErrClosed is the error of an act that needs a socket which has ended, or loops which have stopped.
var ErrClosed = errors.New("tcpframe: closed")

// Start starts the loops.
func Start(o Options) (*Group, error) {
	w, err := newWatcher()
	if err != nil {
		return nil, err
	}
	g := &Group{watcher: w, busyPoll: int64(o.BusyPoll), epoch: time.Now()}
	for i := range o.Loops {
		l := newLoop(g, i)
		if l.driver, err = startDriver(l, o.Log); err != nil {
			_ = g.end()
			return nil, fmt.Errorf("start loop %d: %w", i, err)
		}
		g.loops = append(g.loops, l)
	}
	return g, nil
}

// Loops returns the loops. The caller must not change the slice.
func (g *Group) Loops() []*Loop { return g.loops }

// Now returns the nanoseconds since the start on a monotonic clock. It is never 0. On a loop, Loop.Now is cheaper.
func (g *Group) Now() int64 { return int64(time.Since(g.epoch)) + 1 }

// preferredMore is how many more sockets a loop may have than the one with the fewest, and a quarter of these, so
// that a connection is still placed on it because it is the preferred one. Crossing to another loop for each Call
// costs a few percent, and an idle processor beside a busy one costs half.
const preferredMore = 4

// Place returns the loop for a new connection: preferred, unless that is nil or drives many more sockets than
// another one.
func (g *Group) Place(preferred *Loop) *Loop {
	least := slices.MinFunc(g.loops, func(a, b *Loop) int { return int(a.conns.Load() - b.conns.Load()) })
	if preferred != nil {
		if n := least.conns.Load(); preferred.conns.Load() <= n+n/4+preferredMore {
			return preferred
		}
	}
	return least
}

// attaching reports whether an Attach may begin: the group has not stopped. The caller then calls attachments.Done.
func (g *Group) attaching() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.stopped {
		return false
	}
	g.attachments.Add(1)
	return true
}

// Stop makes each later Attach fail, and closes every socket with loop.ErrStopped. When each Detached was called it calls
// detached, and then runs the tasks that were posted. The loops drop those that are posted later.
func (g *Group) Stop(detached func()) error {
	g.mu.Lock()
	g.stopped = true
	g.mu.Unlock()
	g.attachments.Wait() // gnet never answers an Enroll if the client is stopped meanwhile
	g.each((*Loop).stop)
	detached()
	g.each(func(*Loop) {})
	for _, l := range g.loops {
		l.mu.Lock()
		l.stopped, l.in = true, nil
		l.mu.Unlock()
	}
	return g.end()
}

// end ends the goroutines of the loops, whose sockets must have been closed.
func (g *Group) end() error {
	var failed error
	for _, l := range g.loops {
		failed = errors.Join(failed, l.driver.stop())
	}
	g.watcher.stop()
	return failed
}

// each runs f on every loop and waits until all have returned.
func (g *Group) each(f func(*Loop)) {
	var wg sync.WaitGroup
	wg.Add(len(g.loops))
	for _, l := range g.loops {
		l.Post(loop.TaskFunc(func() { defer wg.Done(); f(l) }))
	}
	wg.Wait()
}
