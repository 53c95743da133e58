package names

import (
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rdmabridge/rdmabridge/proxy/observe"
)

// Operation
//
// A loop copies a Call and its Reply, without the data of READ and WRITE, into a record, and puts the record into its
// queue when the Call is over. A reader, who holds Watch.mu, takes it from there. Neither waits for the other: what has no
// room is missed, and counted.
//
// # Ownership
//
// A slot of a queue has a record that was read already, which the loop gets for the one that it puts there. So the
// records of a loop, and the memory in them, are used again and again.

const (
	queueLen   = 2048
	mostOpen   = 4096     // Calls of a loop that are followed at a time
	mostCopied = 64 << 10 // octets of a message that are copied
	mostHeader = 1 << 10  // the same where there is nothing but a header to read, as the rest is encrypted
	mostKept   = 2 << 10  // octets of memory that a record keeps
	mostFree   = 64       // records that a loop keeps for the next Calls
	mostQueued = 4 << 20  // octets in the queue of a loop
)

// A record is a Call with its Reply.
type record struct {
	client      netip.Addr
	listener    string
	weight      float64 // Calls that it stands for
	began       time.Time
	took        time.Duration
	call, reply []byte
	asker       Asker // it is no Call
}

// A queue brings records from one loop to the readers.
type queue struct {
	slots  []*record
	open   map[uint64]*record // the loop's
	free   []*record          // the loop's
	posted atomic.Uint64
	_      [64]byte // the loop and the readers do not share a cache line
	taken  atomic.Uint64
	queued atomic.Int64 // octets
	missed atomic.Uint64
	sample samplers      // the loop's
	half   chan struct{} // the Watch's

	mu     sync.Mutex // guards closed; the loop has it while it posts a record with an asker
	closed bool
}

// newQueue returns a queue of which sample is the part of the Calls that is looked at, as in Options.
func newQueue(sample float64, half chan struct{}) *queue {
	return &queue{slots: make([]*record, queueLen), open: make(map[uint64]*record), sample: newSamplers(sample), half: half}
}

// message copies what is wanted of m. It runs on the loop.
func (q *queue) message(m *observe.TapMessage) {
	if m.Conn.Leg != observe.TapClients || m.Call == 0 {
		return
	}
	r := q.open[m.Call]
	if m.Reply {
		if r != nil && m.Out {
			r.reply, r.took = copied(r.reply[:0], m), m.At.Sub(r.began)
		}
		return
	}
	if len(q.open) >= mostOpen || r != nil {
		q.missed.Add(1)
		return
	}
	r = q.spare()
	*r = record{client: m.Conn.Peer.Addr().Unmap(), listener: m.Conn.Name, weight: q.sample.weight, began: m.At, call: copied(r.call[:0], m), reply: r.reply[:0]}
	q.open[m.Call] = r
}

// spare returns a record that nothing is in.
func (q *queue) spare() *record {
	n := len(q.free)
	if n == 0 {
		return new(record)
	}
	r := q.free[n-1]
	q.free = q.free[:n-1]
	return r
}

// copied appends m to b, without the data of READ and WRITE, and not more than mostCopied. A READ or WRITE of which the
// proxy does not know where its data are is encrypted, and so is a COMPOUND whose operations it does not know.
func copied(b []byte, m *observe.TapMessage) []byte {
	room := mostCopied
	switch m.Operation {
	case "READ", "WRITE":
		if room = min(room, m.Data); m.DataLength == 0 {
			room = mostHeader
		}
	case "COMPOUND":
		room = mostHeader
	}
	for _, p := range m.Parts {
		n := min(len(p), room)
		b, room = append(b, p[:n]...), room-n
	}
	return b
}

// over puts the record of a Call that is over into the queue. It runs on the loop.
func (q *queue) over(call uint64) {
	r := q.open[call]
	if r == nil {
		return
	}
	delete(q.open, call)
	if n := len(r.call) + len(r.reply); len(r.reply) > 0 {
		q.sample.tells.spend(float64(n>>10), r.weight) // a list of a directory costs more than other Calls
		if !q.post(r) {
			q.missed.Add(1)
			q.keep(r)
		}
		return
	}
	q.keep(r)
}

// post puts r into the queue, and reports whether there was room. It runs on the loop.
func (q *queue) post(r *record) bool {
	next, n := q.posted.Load(), int64(len(r.call)+len(r.reply))
	waiting, octets := next-q.taken.Load(), q.queued.Load()+n
	if waiting >= queueLen || octets > mostQueued {
		return false
	}
	s := &q.slots[next%queueLen]
	old := *s
	*s = r
	q.queued.Add(n)
	q.posted.Store(next + 1)
	if waiting >= queueLen/2 || octets > mostQueued/2 {
		select {
		case q.half <- struct{}{}:
		default: // the goroutine is to read them anyway
		}
	}
	q.keep(old)
	return true
}

// keep keeps r, which may be nil, for another Call. It runs on the loop.
func (q *queue) keep(r *record) {
	if r != nil && len(q.free) < mostFree && cap(r.call)+cap(r.reply) <= mostKept {
		q.free = append(q.free, r)
	}
}

// askFrom posts a question of a at the time at, and reports whether it did. It runs on the loop.
func (q *queue) askFrom(a Asker, at time.Time) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return false
	}
	r := q.spare()
	*r = record{began: at, call: r.call[:0], reply: r.reply[:0], asker: a}
	if !q.post(r) {
		q.keep(r)
		return false
	}
	return true
}

// close has askFrom post nothing any more.
func (q *queue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
}

// peek returns the oldest record, or nil. It is valid until pop.
func (q *queue) peek() *record {
	if n := q.taken.Load(); n != q.posted.Load() {
		return q.slots[n%queueLen]
	}
	return nil
}

// pop gives the record that peek has returned back to the loop.
func (q *queue) pop() {
	n := q.taken.Load()
	r := q.slots[n%queueLen]
	q.queued.Add(-int64(len(r.call) + len(r.reply)))
	r.asker = nil
	if cap(r.call)+cap(r.reply) > mostKept {
		r.call, r.reply = nil, nil
	}
	q.taken.Store(n + 1)
}
