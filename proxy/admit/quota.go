package admit

import (
	"sync"
	"sync/atomic"

	"github.com/rdmabridge/rdmabridge/metrics"
	"github.com/rdmabridge/rdmabridge/proxy/admit/gates"
)

// A quota bounds the Calls of several clients together that are under way, and the memory that these Calls,
// their Replies and incomplete Calls take. A client whose Call finds no room waits at the gate of the quota,
// and the bridge does not read from it meanwhile.
//
// A quota reserves nothing. A client that the gate admits looks again whether there is room, and newcomers
// wait while others do. So the Calls under way exceed the bound by one for each event loop at most. Memory
// exceeds its bound by one Call with its Reply: they are known only when the Call has begun.
//
// Progress: whenever a Call ends, or a client that was admitted does not use its turn, the quota admits
// others. While no Call is under way, one may begin however much memory incomplete Calls hold.
//
// It is safe for concurrent use.
type quota struct {
	kind  gates.Reason     // constant, as the next two
	most  *quotaLimits     // shared by the addresses of a tenant
	waits *metrics.Counter // times that a client began to wait

	under   atomic.Uint64            // Calls under way, from bit callShift on, and the octets of memory that they take
	partial [blockKinds]atomic.Int64 // octets that incomplete Calls hold, in mid and bulk blocks
	waiting atomic.Int32             // clients at the gate, or that were there and have ended

	mu   sync.Mutex // guards the gate; a leaf
	gate gates.Gate
}

// quotaLimits are the bounds of a quota. 0 is no bound. A reload changes them.
type quotaLimits struct{ calls, memory atomic.Int64 }

const (
	callShift   = 44 // a tenant has less than 16 TiB of memory, and less than a million Calls
	underOctets = 1<<callShift - 1

	// mostAdmitted is how many clients a quota admits at once, because each of them may use up the memory.
	mostAdmitted = 8
)

// add counts calls and octets as under way, which may be negative.
func (q *quota) add(calls int, octets int64) { q.under.Add(uint64(int64(calls)<<callShift + octets)) }

// load returns the Calls under way, and the octets of all memory that counts.
func (q *quota) load() (calls, octets int64) {
	u := q.under.Load()
	return int64(u >> callShift), int64(u&underOctets) + q.partial[midBlock].Load() + q.partial[bulkBlock].Load()
}

// room returns how many Calls may begin now, mostAdmitted at most.
func (q *quota) room() int {
	calls, octets := q.load()
	n := int64(mostAdmitted)
	if most := q.most.calls.Load(); most > 0 {
		n = min(n, most-calls)
	}
	if most := q.most.memory.Load(); most > 0 && octets >= most {
		n = 0
	}
	if calls == 0 {
		n = max(1, n)
	}
	return int(max(0, n))
}

// admits reports whether a Call of w may begin. Otherwise w waits at the gate. On the client's loop.
func (q *quota) admits(w *gates.Waiter) bool {
	if (w.HasTurn(q.kind) || q.waiting.Load() == 0) && q.room() > 0 {
		return true
	}
	q.mu.Lock()
	var next *gates.Ticket
	if t := w.WaitAt(q.kind, &q.gate); t != nil {
		t.Turn = q
		q.waits.Inc()
		next = q.next() // a Call may have ended since
	}
	q.mu.Unlock()
	gates.RunAll(next)
	return false
}

// Serve admits clients if there is room. Any goroutine.
func (q *quota) Serve() {
	if q.waiting.Load() == 0 {
		return
	}
	q.mu.Lock()
	next := q.next()
	q.mu.Unlock()
	gates.RunAll(next)
}

// next removes the clients that may go on now from the gate. q.mu is held.
func (q *quota) next() *gates.Ticket {
	q.waiting.Store(int32(q.gate.Waiting())) // before room: whoever makes room later sees that clients wait
	next := q.gate.Remove(q.room())
	q.waiting.Store(int32(q.gate.Waiting()))
	return next
}

// fits reports whether an incomplete Call may have a block of size octets. One block of each kind is always
// possible, so that Calls arrive one after the other at least. Those of at most 68 KiB, with which all
// Calls begin, leave half of the memory to longer ones.
func (q *quota) fits(size int64) bool {
	most := q.most.memory.Load()
	if most == 0 {
		return true
	}
	k := partialKind(size)
	had := q.partial[k].Load()
	if had == 0 {
		return true
	}
	_, octets := q.load()
	return octets+size <= most && (k == bulkBlock || had+size <= most/2)
}

// partialKind returns in which element of quota.partial a block of size octets counts.
func partialKind(size int64) blockKind { return max(midBlock, kindOf(size)) }
