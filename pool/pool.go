// Package pool shares the connections to one upstream between many clients.
//
// # Operation
//
// A [Pool] has a fixed number of seats, each for one connection. A [keeper.Keeper] of
// the seat dials, waits for the connection to end, and dials again after a pause with
// jitter. With [Options.Idle] a seat whose connection is not needed sleeps: it has neither a
// connection nor a goroutine. The pool knows the credits of every connection (RFC 8166 Section 3.3) and
// dispatches a Call to a connection that has a free credit, preferably to one on the
// caller's own loop. While no credit is free, Calls wait in a queue that is fair
// between clients: deficit round robin over the [Flow] of each client, by octets and
// weight. So a small Call does not wait behind another client's megabytes, and every
// client makes progress. In the queue, a small Call does not wait behind the large Calls of
// its own client either, and if the pool has several connections, it does not wait behind
// them on a connection.
//
// # Ownership
//
// A goroutine that holds the mutex of a Pool may lock only the mutexes of the Pool's
// slow start, [endpoints.Health] and [quota.Quota], under which no mutex of a Pool is locked. An [Entry]
// belongs to its owner until Submit, then to the pool until Member.Dispatch, then to the member
// until Done. A loop submits and returns credits through its [Batch], which has the Entry from
// Batch.Submit to Flush. Entries are linked in place, and no Call causes an allocation.
package pool

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/rdmabridge/rdmabridge/pool/endpoints"
	"github.com/rdmabridge/rdmabridge/pool/keeper"
	"github.com/rdmabridge/rdmabridge/pool/quota"
	"github.com/rdmabridge/rdmabridge/pool/slowstart"
)

var (
	// ErrClosed reports a Call to a pool that is closed.
	ErrClosed = keeper.ErrClosed
	// errQueueTimeout reports a Call that waited too long for a credit.
	errQueueTimeout = errors.New("pool: the upstream had no credit for the Call in the time that a Call may wait")
	// errRetired closes a connection that another one has replaced and that has no
	// Calls left. It is an ErrClosed.
	errRetired = fmt.Errorf("%w: another connection has replaced this one", ErrClosed)
	// errQueueFull reports a Call that found the queue at its limit.
	errQueueFull = errors.New("pool: too many Calls wait for a credit of the upstream")
)

// A Member is one connection of a pool.
type Member interface {
	// Dispatch sends the Call of e and those behind it: Entry.Unlink. The pool has taken a
	// credit for each. It is called without the pool's lock and must not block. here is the
	// affinity of the calling loop, or Elsewhere.
	Dispatch(e *Entry, here int)
	// Affinity returns the number of the loop that owns the connection.
	Affinity() int
	// Close ends the connection.
	Close(err error)
}

// A Dialer makes connections. The pool calls Dial on the seat's goroutine, and Dial
// blocks until the connection is usable. The connection reports its credits with
// Seat.Granted and its end with Seat.Ended.
type Dialer interface {
	Dial(ctx context.Context, endpoint string, affinity int, s *Seat) (Member, error)
}

// An Owner learns of Calls that leave the queue without having been dispatched.
type Owner interface {
	// Expired gives e back. It is called without the pool's lock, on any goroutine.
	Expired(e *Entry, err error)
}

// A Pool is the connections to one upstream and the Calls that wait for them.
type Pool struct {
	dialer    Dialer            // constant
	owner     Owner             // constant
	ownHealth bool              // opts.Health belongs to the pool; constant
	slowStart *slowstart.Window // constant
	metrics   *Metrics          // constant
	part      *quota.Part       // of Options.Quota; constant; nil for none
	witness   *quota.Quota      // Options.Witness; constant

	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu         sync.Mutex // guards all below and the fields of seats and flows
	opts       Options
	ctx        context.Context // of Start; nil before
	generation int             // incremented when Dial makes connections differently
	successor  *Seat           // the latest that renewNext put in the place of another
	seats      []*Seat
	retired    []*Seat // other seats whose connections have not ended yet
	queue      queues
	held       bool // the pool dispatches no Call until Resume
	credits    int  // granted on all usable connections
	inUse      int  // Calls outstanding on these
	free       int  // credits that are free on these; one with more Calls than credits takes none from the others
	shared
	closed   bool
	since    time.Time // when the pool lost its last usable connection; zero while it has one, or all seats sleep
	wasDown  time.Time // what since was before firstUp
	firstUp  time.Time // when a connection came up while there was no other
	need     int       // connections that stay although no Call uses them, if Options.Idle is set
	asleep   int       // seats that sleep
	needed   uint32    // age when a Call of a client last needed another connection; a NULL Call needs none for long
	arrivals uint32    // connections that got credits while Options.Idle was set
	tryout   *Seat     // waits for a Call that tries its endpoint, and is not in seats; nil for none

	place  quota.Place      // in part
	slowed slowstart.Waiter // in slowStart
}

// New returns a pool that has not been started. It fails if o is not valid.
func New(o Options, d Dialer, owner Owner) (*Pool, error) {
	if err := o.validate(); err != nil {
		return nil, err
	}
	p := &Pool{
		opts: o, dialer: d, owner: owner, slowStart: o.SlowStart, metrics: o.Metrics,
		part: o.Quota.Part(o.First), witness: o.Witness,
		need:   1,
		shared: shared{age: firstAge},
	}
	p.place.Kick, p.slowed.Kick = p.kickOne, p.kick
	p.queue = newQueues(&p.shared, o.Loops, o.Connections)
	if p.metrics == nil {
		p.metrics = &Metrics{}
	}
	if o.Health == nil {
		p.opts.Health, p.ownHealth = &endpoints.Health{}, true
		p.opts.Health.Set(o.Endpoints, false)
	}
	for i := range o.Connections {
		p.addSeat(i)
	}
	return p, nil
}

// Start begins to make the connections that the pool needs. Close stops it.
func (p *Pool) Start() {
	ctx, cancel := context.WithCancel(context.Background())
	p.metrics.join(p)
	p.mu.Lock()
	p.ctx, p.cancel = ctx, cancel
	p.fill()
	for _, s := range p.seats {
		if !s.asleep {
			p.startSeat(s)
		}
	}
	p.mu.Unlock()
	p.wg.Go(func() { p.sweep(ctx) })
}

// startSeat starts the goroutine of s, if the pool was started and s has none. p.mu is held, and the
// pool is open.
func (p *Pool) startSeat(s *Seat) {
	if p.ctx == nil || s.running {
		return
	}
	s.running = true
	ctx := p.ctx
	p.wg.Go(func() { s.keeper.Keep(ctx) })
}

// Close closes every connection, gives every waiting Call back, and returns when the
// pool's goroutines have ended. It waits for the loops of the connections, so a loop
// must not call it. It may be called more than once.
func (p *Pool) Close() {
	p.mu.Lock()
	p.closed = true
	waiting := p.queue.drain()
	var members []Member
	for _, s := range slices.Concat(p.seats, p.retired) {
		if s.open != nil {
			members = append(members, s.open)
		}
	}
	cancel := p.cancel
	p.mu.Unlock()
	p.expire(waiting, ErrClosed)
	if cancel != nil {
		cancel() // before the connections end, so that no seat counts that as a failure
	}
	for _, m := range members {
		m.Close(ErrClosed)
	}
	p.wg.Wait()
	p.mu.Lock()
	p.part.Aged(&p.place, 0)
	starved := p.queue.waited()
	p.mu.Unlock()
	p.metrics.leave(p, starved)
}

// Closed reports whether Close was called.
func (p *Pool) Closed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.closed
}

// options returns the settings that hold now.
func (p *Pool) options() Options {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.opts
}
