package pool

import (
	"time"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/pool/drr"
)

// Elsewhere is the affinity of a goroutine that is not a loop.
const Elsewhere = loop.Elsewhere

// largeCost is the least cost of a large Call. A large Call is worth a connection of
// its own; other Calls are small.
const largeCost = 32 << 10

// leastCost is the charge for the smallest Call, in octets.
const leastCost = 4 << 10

// An Entry is one Call's place in the pool. It is embedded in the Call. Owner, Flow, Cost, Aside and
// Repeatable are set before Submit.
type Entry struct {
	Owner any   // for Member and Owner to find the Call; the pool does not read it
	Flow  *Flow // flow of the client that sent the Call
	Cost  int   // approximate octets of the Call and its Reply
	Aside bool  // a client's NULL Call, which does not count as use of the connection for Options.Idle

	Repeatable bool // the Call may be sent again after its connection has ended

	next     *Entry    // next Entry in a fifo or a list
	credit   credit    // that e holds while it is dispatched
	queuedAt time.Time // when e was first queued since Sent; zero if it was not queued
	refused  uint64    // set of the seats that Steer has moved e from since Sent
}

// A credit is what a Call holds while it is dispatched, and what returns when it is done.
type credit struct {
	seat      *Seat  // that gave it; nil for no credit
	age       uint32 // Pool.age when the Call was dispatched
	slowStart uint32 // the age in which the slow start counted the Call; 0 if it did not
	asLarge   bool   // counted in seat.large
	client    bool   // of a Call of a client that is not NULL
	answered  bool   // the upstream has answered
}

// Sent tells the pool that the Call has been sent. If the Call is queued again, its waiting
// time begins anew.
func (e *Entry) Sent() { e.queuedAt, e.refused = time.Time{}, 0 }

// Answered tells the pool, before Seat.Done, that the upstream has answered the Call.
func (e *Entry) Answered() { e.credit.answered = true }

// Seat returns the seat that the Call was dispatched to, or nil.
func (e *Entry) Seat() *Seat { return e.credit.seat }

// Unlink takes e out of the list that Member.Dispatch has got, and returns the Entry behind it; nil for none.
func (e *Entry) Unlink() (next *Entry) {
	next, e.next = e.next, nil
	return next
}

// yield moves the credit of e, which s has given, to c. e belongs to the caller.
func (e *Entry) yield(s *Seat, c *credit) {
	if e.credit.seat != s {
		panic("BUG: pool: a Call returns the credit of a seat that did not give it")
	}
	*c = e.credit
	e.credit = credit{}
}

// host returns the host of e, or nil if e has no Flow. e has been dispatched.
func (e *Entry) host() *Host {
	if e.Flow == nil {
		return nil
	}
	return e.Flow.Host
}

// cost returns the charge for e, in octets.
func (e *Entry) cost() int { return max(e.Cost, leastCost) }

// large reports whether e is a large Call.
func (e *Entry) large() bool { return e.Cost >= largeCost }

// follows reports whether e, of the same flow as the small Call o, is counted as o is.
func (e *Entry) follows(o *Entry) bool { return !e.large() && e.Aside == o.Aside }

// A Flow is one connection's share of what the queue gives to the connection's host. The zero
// value is ready to use.
type Flow struct {
	// Host is the host that the flow belongs to. It is set before the first Submit. A flow
	// without one gets a host of its own.
	Host *Host
	// Weight is the flow's share of the dispatched octets, relative to the share of a flow of
	// weight 1 while both wait; 0 counts as 1. The flows of one host share what the flow with
	// the largest weight would get alone. Weight is set before the first Submit, and later by
	// Pool.Reweigh.
	Weight int
	// Sticky keeps the Calls of the flow on one seat, which Hash chooses: bound.go. It
	// is set before the first Submit.
	Sticky bool
	// Hash is a number that depends on the client alone. It is set before the first
	// Submit.
	Hash uint32
	// Ordered says that the owner submits the next Call of the flow when the one before has been
	// sent. Such a flow goes on with its turn when it has a Call again. It is set before the first
	// Submit.
	Ordered bool

	// only keeps the Calls of the flow on one seat: bound.go. Follow sets it while no Call of the
	// flow waits, and Pool.Unbind at any time.
	only *Seat

	// Guarded by Pool.mu.
	waiting    [2]fifo        // small Calls, and large ones
	turn       drr.Turn[Flow] // in place.flows while Calls wait
	place      *place         // where the flow waits, or waited last
	emptied    int64          // queue.served when the flow's last Call left the queue
	seat       *Seat          // seat of the flow's last small Call
	arrivals   uint32         // Pool.arrivals when the pool chose seat
	smallInRow int32          // small Calls since the last large one, while one waits
	loopQueue  int32          // 1 + index of the loop in whose queue the flow waits; 0: not known yet
	seatQueue  int32          // 1 + index of the seat in whose queue the flow waits instead; 0: none
}

// weight returns Weight, or 1 if Weight is not set.
func (f *Flow) weight() int { return max(1, f.Weight) }

// host returns Host, which it makes if there is none.
func (f *Flow) host() *Host {
	if f.Host == nil {
		f.Host = &Host{}
	}
	return f.Host
}

// active reports whether a Call of f waits.
func (f *Flow) active() bool { return f.turn.In() }

// resumes reports whether f, which has a Call again, goes on with the turn in which the Call before
// left q: f is ordered, and the others have not had a round since.
func (f *Flow) resumes(q *queue) bool { return f.Ordered && q.served-f.emptied < quantum }

// price is the cost of the flow's next Call. There is one.
func (f *Flow) price() int { return f.nextFIFO().head.cost() }

// gain is what the flow may spend in one round.
func (f *Flow) gain() int { return quantum * f.weight() }

// fifoOf returns the fifo for e.
func (f *Flow) fifoOf(e *Entry) *fifo {
	if e.large() {
		return &f.waiting[1]
	}
	return &f.waiting[0]
}

// maxSmallInRow is how many small Calls of a flow may overtake a large Call of the same flow.
const maxSmallInRow = 16

// nextFIFO returns the fifo whose first Call goes next. The small Calls of a client overtake
// its large ones, but after maxSmallInRow small Calls a large one goes.
func (f *Flow) nextFIFO() *fifo {
	if f.waiting[0].head == nil || f.waiting[1].head != nil && f.smallInRow >= maxSmallInRow {
		return &f.waiting[1]
	}
	return &f.waiting[0]
}

// empty reports whether no Call waits.
func (f *Flow) empty() bool { return f.waiting[0].head == nil && f.waiting[1].head == nil }
