// Package quota divides the Calls outstanding in many pools, each of which has one client, among hosts.
package quota

import (
	"cmp"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/loop"
)

// A Quota bounds the Calls outstanding in many pools together, each of which has one client, and
// divides them among hosts. Pinned connections need it: each has credits of its own, and without a
// Quota a host with a hundred connections could have most of the server's time.
//
// While one host alone has Calls, it may have any number of them, unless the limit always holds.
// While several have, they share the limit by weight, and the others may use what one host leaves of
// its share. A host that begins never waits until others have fewer Calls: it may have its share at
// once, and the others get no further Calls until they are down to theirs. The old Calls of a host
// (after one to two seconds) count twice, and it always may have one that is not old.
//
// A Call costs two additions to counters that only the client's loop uses. The shares are computed
// when a host begins, and ten times a second while there are several.
//
// It is safe for concurrent use.
type Quota struct {
	loops  int         // constant
	beside atomic.Bool // a pool that is only a witness (pool.Options.Witness) has had Calls lately

	mu      sync.Mutex // guards the rest; a leaf, which may be locked while Pool.mu is held
	limit   int
	always  bool // the limit also holds for a host that is alone
	active  []*Host
	witness int  // ticks since a witness had Calls
	ticking bool // the timer of tick runs
}

// A Host is what a Quota knows of one host: the pools of its connections.
type Host struct {
	quota  *Quota
	parts  []Part      // by loop
	active atomic.Bool // it is in quota.active

	// Guarded by quota.mu.
	weight int
	quiet  int // ticks since the host had Calls
	wants  int // demand of the host; used by divide
	share  int // Calls that the host may have; used by divide
}

// A Part is what a Quota knows of one host's pools on one loop.
type Part struct {
	host *Host        // constant
	held atomic.Int64 // Calls outstanding
	old  atomic.Int64 // about how many of them are old
	most atomic.Int64 // how many Calls there may be, with old Calls counted twice

	waiting atomic.Int64 // pools in line
	mu      sync.Mutex   // guards line and Place.inLine; a leaf
	line    []*Place     // of pools with Calls that wait for room, in order
	_       [64]byte     // loops do not share a cache line
}

// A Place is a pool as its Part sees it.
type Place struct {
	Kick func(here int) // dispatches a queued Call, and joins again if more wait; constant

	Called   bool // Calls may go although other pools are in line: it is this pool's turn; guarded by the pool's lock
	oldNoted int  // old Calls that the part counts; guarded by the pool's lock
	inLine   bool // in the line of the part; guarded by its mu
}

// Aged notes how many Calls of p are old. The caller holds the pool's lock.
func (t *Part) Aged(p *Place, old int) {
	if t != nil && old != p.oldNoted {
		t.old.Add(int64(old - p.oldNoted))
		p.oldNoted = old
		t.host.quota.arm()
	}
}

const (
	// tickEvery is the time between two looks at the hosts that have Calls.
	tickEvery = 100 * time.Millisecond
	// quietTicks is for how many ticks a host counts as one that has Calls after its last one.
	quietTicks = 100
	// unbound is the share of a host that is alone.
	unbound = math.MaxInt64 / 4
)

// New returns a Quota for pools on so many loops. Its owner calls Set.
func New(loops int) *Quota { return &Quota{loops: loops} }

// Set sets the limit, and whether it also holds for a host that is alone.
func (q *Quota) Set(limit int, always bool) {
	q.mu.Lock()
	q.limit, q.always = limit, always
	q.divide()
	q.mu.Unlock()
	q.arm()
}

// Host returns a new host of weight 1. It stays in q only while it has Calls.
func (q *Quota) Host() *Host {
	h := &Host{quota: q, parts: make([]Part, q.loops), weight: 1}
	for i := range h.parts {
		h.parts[i].host = h
	}
	h.set(unbound)
	return h
}

// SetWeight makes w the weight of h.
func (h *Host) SetWeight(w int) {
	h.quota.mu.Lock()
	h.weight = max(1, w)
	h.quota.mu.Unlock()
}

// Part returns the part of h on a loop. h may be nil.
func (h *Host) Part(loop int) *Part {
	if h == nil {
		return nil
	}
	return &h.parts[max(loop, 0)%len(h.parts)]
}

// room reports whether another Call may go.
func (t *Part) room() bool {
	held := t.held.Load()
	old := min(t.old.Load(), held)
	return held+old < t.most.Load() || held == old
}

// Admits reports whether a Call of p may go now. If not, it puts p in line. Place.Called says that
// it is the turn of p. The caller holds the pool's lock.
func (t *Part) Admits(p *Place) bool {
	if t == nil || p.Called && t.room() || t.waiting.Load() == 0 && t.room() {
		return true
	}
	t.Join(p)
	return false
}

// Take counts a Call.
func (t *Part) Take() {
	t.held.Add(1)
	if !t.host.active.Load() {
		t.host.quota.activate(t.host)
	}
}

// Give ends the count of n Calls. The caller must call Wake, without holding a Pool.mu.
func (t *Part) Give(n int) { t.held.Add(int64(-n)) }

// Wake lets the pools in line dispatch a Call each, in turn, while there is room. here is the
// affinity of the calling loop. The caller holds no Pool.mu.
func (t *Part) Wake(here int) {
	if t == nil {
		return
	}
	for t.waiting.Load() > 0 && t.room() {
		p := t.pop()
		if p == nil {
			return
		}
		p.Kick(here)
	}
}

// pop removes and returns the first pool in line, or nil.
func (t *Part) pop() *Place {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.line) == 0 {
		return nil
	}
	p := t.line[0]
	t.line = slices.Delete(t.line, 0, 1)
	p.inLine = false
	t.waiting.Add(-1)
	return p
}

// Join puts p at the end of the line. The caller holds the pool's lock.
func (t *Part) Join(p *Place) {
	t.mu.Lock()
	joins := !p.inLine
	if joins {
		p.inLine = true
		t.line = append(t.line, p)
	}
	t.mu.Unlock()
	if joins && t.waiting.Add(1) == 1 {
		t.host.quota.arm()
	}
}

// Holds reports whether p is in line, so that the Quota lets it dispatch when there is room. The caller
// holds the pool's lock.
func (t *Part) Holds(p *Place) bool {
	if t == nil {
		return false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return p.inLine
}

// activate counts h among the hosts that have Calls.
func (q *Quota) activate(h *Host) {
	q.mu.Lock()
	defer q.mu.Unlock()
	h.quiet = 0
	if h.active.Load() {
		return
	}
	h.active.Store(true)
	q.active = append(q.active, h)
	q.divide()
	q.armLocked()
}

// Witnessed notes that a pool whose Calls q does not bound has one. q may be nil.
func (q *Quota) Witnessed() {
	if q != nil && !q.beside.Load() {
		q.witnessed()
	}
}

// witnessed does what Witnessed does, for the first Call in a while.
func (q *Quota) witnessed() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.beside.Store(true)
	q.witness = 0
	q.divide()
	q.armLocked()
}

// arm starts the timer of tick, unless it runs.
func (q *Quota) arm() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.armLocked()
}

// armLocked does what arm does. q.mu is held.
func (q *Quota) armLocked() {
	if !q.ticking {
		q.ticking = true
		time.AfterFunc(tickEvery, q.tick)
	}
}

// tick divides the limit again, and goes on while that may change anything.
func (q *Quota) tick() {
	q.mu.Lock()
	q.ticking = false
	if q.witness++; q.witness > quietTicks {
		q.beside.Store(false) // the next Call sets it again
	}
	q.active = slices.DeleteFunc(q.active, (*Host).left)
	q.divide()
	var wake []*Part
	again := len(q.active) > 1 || len(q.active) > 0 && q.beside.Load()
	for _, h := range q.active {
		for i := range h.parts {
			t := &h.parts[i]
			if t.waiting.Load() > 0 {
				wake = append(wake, t)
			}
			again = again || t.waiting.Load() > 0 || t.old.Load() > 0
		}
	}
	if again {
		q.armLocked()
	}
	q.mu.Unlock()
	for _, t := range wake {
		t.Wake(loop.Elsewhere)
	}
}

// left reports whether h has had no Call for some time. If so, it lifts the bounds of h. quota.mu
// is held.
func (h *Host) left() bool {
	for i := range h.parts {
		if t := &h.parts[i]; t.held.Load() > 0 || t.waiting.Load() > 0 {
			h.quiet = 0
			return false
		}
	}
	if h.quiet++; h.quiet <= quietTicks {
		return false
	}
	h.active.Store(false)
	h.set(unbound)
	return true
}

// divide divides the limit among the hosts that have Calls: each gets what it wants, but no more
// than its weight of what those that want less have left. q.mu is held.
func (q *Quota) divide() {
	if len(q.active) == 1 && !q.beside.Load() && !q.always {
		h := q.active[0]
		old := 0
		for i := range h.parts {
			old += int(h.parts[i].old.Load())
		}
		if 2*old < q.limit {
			h.set(unbound)
			return
		}
	}
	weights := 0
	for _, h := range q.active {
		h.wants = h.demand(q.limit)
		weights += h.weight
	}
	slices.SortFunc(q.active, func(a, b *Host) int { return cmp.Compare(a.wants*b.weight, b.wants*a.weight) })
	left, among := q.limit, weights
	for _, h := range q.active {
		h.share = min(h.wants, left*h.weight/among)
		left -= h.share
		among -= h.weight
	}
	for _, h := range q.active {
		h.set(max(1, q.limit*h.weight/weights, h.share+left))
	}
}

// demand is how many Calls h could have, at most limit. quota.mu is held.
func (h *Host) demand(limit int) int {
	n := 0
	for i := range h.parts {
		if h.parts[i].waiting.Load() > 0 {
			return limit
		}
		n += int(h.parts[i].held.Load())
	}
	return min(n, limit)
}

// set lets h have n Calls, and divides them among its loops by what they want.
func (h *Host) set(n int) {
	if len(h.parts) == 1 || n == unbound {
		for i := range h.parts {
			h.parts[i].most.Store(int64(n))
		}
		return
	}
	want := func(t *Part) int { return 1 + int(t.held.Load()+t.waiting.Load()) }
	all := 0
	for i := range h.parts {
		all += want(&h.parts[i])
	}
	for i := range h.parts {
		t := &h.parts[i]
		t.most.Store(int64(max(1, n*want(t)/all)))
	}
}
