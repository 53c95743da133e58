package pool

import (
	"math/rand/v2"
	"time"
)

// Sharing credits
//
// A credit comes back with the Reply, and a Call to a file system that hangs gets no Reply for a minute.
// Nothing tells such a Call from another when it is dispatched. Three rules decide who has the next credit:
//
//	window   Calls of a host are unproven that are old, or more than the Replies that it has got lately. A
//	         host may have another credit while it has fewer unproven Calls than there are spare credits.
//	         When a sixth of the credits is unproven, a host that was not answered has only one of them. While a
//	         quarter is spare, one such host at a time, and in an age, may try another.
//	turn     Among the hosts with room in their windows the turn goes round by octets and weight. A host
//	         that was not answered has one Call in its turn.
//	reserve  The last eighth of the credits is not given in turn. A host that holds none may have one of
//	         them, unless it has had more than its turn. A host that holds none and was not answered
//	         may while unproven Calls have less than seven eighths of it, and one that was, and whose Calls
//	         are all old, while they have less than a quarter. The only host that holds credits may be
//	         another bridge: if few of its Calls wait, and its unproven Calls are all old, they may have
//	         five eighths. The reserve is halved while one host waits at most.
//
// A Call is old that was dispatched before the present age and the last: one to two seconds ago. Lately
// are these two ages, and a host that was not answered had no Reply in the last ten. Spare are the credits
// that are not in the reserve and that no unproven Call has.
//
// The window is Little's law: how many Calls a host may have outstanding follows from how fast they come
// back. A host whose Calls are answered in less than a second may have all credits but the reserve. One
// whose Calls hang ends at a half of them, and n such hosts at n of n + 1 parts together, so that there is
// always a part for the next. One of which some Calls hang goes on with the others until those are its part.
//
// Fewer than four credits have no reserve, and hosts no windows.
//
// With a share of s per cent (Options.Share) a host may have s/(100-s) times as many unproven Calls as there
// are spare credits: the half becomes s per cent.

const (
	// reservePart is the part of the credits that are not given in turn.
	reservePart = 8
	// tryPart is the part of the credits that hosts which were not answered try with more than one Call each.
	tryPart = 6
	// remembered is the number of ages for which a host counts as answered after a Reply.
	remembered = 10
	// frozen is the time without a turn after which nobody is ahead or behind. Few Calls go then, as when the server is
	// slow, and hosts would wait for seconds for turns that make up for a few Calls.
	frozen = 50 * time.Millisecond
)

// room is what a pool has for the next Call.
type room struct {
	credits int // all, or as many as the slow start lets be used
	free    int // of these, those that are free now
	reserve int // of these, those that are not given in turn
	spare   int // free credits, and those of Calls that are not unproven, less the reserve; may be below 0
}

// room returns what there is at present. The caller holds p.mu.
func (p *Pool) room() room {
	r := room{credits: p.credits, free: p.free}
	spare := r.free + p.outstanding - p.unproven
	if !p.slowStart.Over() {
		r.credits, r.free = p.slowStart.Bound(r.credits, r.free)
	}
	if p.shares() {
		r.reserve = (r.credits + reservePart/2) / reservePart
		if p.hosts <= 1 {
			r.reserve = max(min(2, r.reserve), r.reserve/2)
		}
		r.spare = spare - r.reserve
	}
	return r
}

// shares reports whether the pool bounds hosts, and has a reserve.
func (p *Pool) shares() bool { return p.opts.Share > 0 && p.opts.Share < 100 }

// within reports whether h has room in its window. The caller holds p.mu.
func (p *Pool) within(h *Host, r room) bool {
	n := min(int(h.unproven), p.inUse) // as others may be on connections that have been replaced
	switch {
	case r.reserve == 0 || n == 0:
		return true
	case p.fills(n, r.spare):
		return false
	case p.lately(h) || tryPart*p.unproven < p.credits:
		return true
	}
	if p.hosts <= 1 && len(p.holders) <= 1 {
		return true // it is alone, and may be another bridge
	}
	if h.wasAnswered() { // it was silent, or its Calls hang now
		return h.ages.Young(p.age) == 0 && (2*r.spare > p.credits || 4*n <= r.spare)
	}
	// Its first Calls hang: it need not be stuck.
	return p.tried != p.age && 4*r.spare > p.credits
}

// fills reports whether a host with so many unproven Calls has no room in its window while so many credits are spare.
func (p *Pool) fills(unproven, spare int) bool {
	return unproven*(100-p.opts.Share) >= spare*p.opts.Share
}

// admits reports whether a Call of f that has just come may take a credit before all Calls that
// wait. The caller holds p.mu.
func (p *Pool) admits(f *Flow, r room) bool {
	return r.free > r.reserve && p.within(f.host(), r) && !p.queue.blocks(f)
}

// take removes from the queues the Call that seat s dispatches next, and returns it, or nil. It links up to most - 1 Calls
// behind it, n of them, that go to s as well because it is still the turn of their flow. The caller holds p.mu, and s has
// a free credit.
func (p *Pool) take(s *Seat, r room, now time.Time, most int) (e *Entry, n int) {
	if r.free <= 0 {
		return nil, 0
	}
	for r.free > r.reserve {
		q := p.queue.turn(s.affinity, s.index, now)
		if !q.waits() {
			if p.recall(r) {
				continue
			}
			break
		}
		pl := q.front()
		if p.within(pl.host, r) {
			q.turned, p.turned = now, now
			e = p.queue.popOf(pl)
			if most > 1 {
				n = p.queue.popBehind(e, pl, p.mostBehind(s, e, r, most-1))
			}
			return e, n
		}
		p.setAside(pl.host)
	}
	if pl := p.reserved(s, r, now.Sub(p.turned) > frozen); pl != nil {
		e = p.queue.popOf(pl)
	}
	return e, 0
}

// thaw has the pool look again when the reserve may be given. The caller holds p.mu.
func (p *Pool) thaw() {
	if p.thawing {
		return
	}
	p.thawing = true
	time.AfterFunc(frozen+time.Millisecond, func() {
		p.mu.Lock()
		p.thawing = false
		p.mu.Unlock()
		p.kick(Elsewhere)
	})
}

// reserved returns a place with a Call for s that may go from the reserve, or nil. still says that no turn comes, so
// that debts do not count. It looks at the queue of s first, and then at those of the loops, beginning with a random
// one. The caller holds p.mu.
func (p *Pool) reserved(s *Seat, r room, still bool) *place {
	qs := &p.queue
	if pl := p.reservedIn(qs.bySeat[s.index], r, still); pl != nil || qs.anySeat == 0 {
		return pl
	}
	first := rand.IntN(len(qs.byLoop))
	for i := range qs.byLoop {
		if pl := p.reservedIn(qs.byLoop[(first+i)%len(qs.byLoop)], r, still); pl != nil {
			return pl
		}
	}
	return nil
}

// reservedIn does what reserved does, for one queue. New hosts go first, then those that are stuck: both wait when their
// Calls hang. As a host comes to the others through the list known, it goes before none that waits there longer. The caller
// holds p.mu.
func (p *Pool) reservedIn(q *queue, r room, still bool) *place {
	known := p.firstKnown(q, still)
	if pl := q.fresh.Head(); pl != nil && r.spare > -max(1, 7*r.reserve/8) {
		return pl
	}
	if pl := q.stuck.Head(); pl != nil && r.spare > -r.reserve/4 {
		return pl
	}
	if pl := p.lone(q, r); pl != nil && r.spare > -5*r.reserve/8 {
		return pl
	}
	return known
}

// lone returns a place in q of the only host that holds credits if it has no room in its window, no unproven Call that is
// young, and few Calls that wait; otherwise nil. It may be another bridge, some of whose clients are answered. The caller
// holds p.mu.
func (p *Pool) lone(q *queue, r room) *place {
	if len(p.holders) != 1 {
		return nil
	}
	h := p.holders[0]
	if int(h.unproven) != h.old(p.age) || !p.fills(int(h.unproven), r.spare) || 4*h.queued() > int(h.held) {
		return nil
	}
	for pl := h.places; pl != nil; pl = pl.another {
		if pl.queue == q && pl.n > 0 {
			return pl
		}
	}
	return nil
}

// firstKnown returns the first place of the list known that belongs there and may go, or nil. It moves those before to
// where they belong. The caller holds p.mu.
func (p *Pool) firstKnown(q *queue, still bool) *place {
	for range looked {
		pl := q.known.Head()
		switch {
		case pl == nil:
			return nil
		case pl.host.held > 0:
			pl.moveTo(&q.stuck)
		case !p.lately(pl.host):
			pl.moveTo(&q.fresh)
		case pl.turn.Deficit < 0 && !still:
			p.thaw()
			q.known.Pass(&pl.listed)
		default:
			return pl
		}
	}
	return nil
}

// setAside takes h, which has no room in its window, out of the turns. The caller holds p.mu.
func (p *Pool) setAside(h *Host) {
	h.aside.Of = h
	p.aside.Add(&h.aside)
	for pl := h.places; pl != nil; pl = pl.another {
		pl.leave()
	}
}

// looked bounds how many hosts one search looks at that may not have a credit. The next search looks at others.
const looked = 16

// recall gives hosts that were set aside their turns again if they have room now, and reports whether it has
// found one. The caller holds p.mu.
func (p *Pool) recall(r room) (found bool) {
	n := 0
	for h := range p.aside.All {
		if p.within(h, r) {
			p.rejoin(h)
			found = true
		} else {
			p.aside.Pass(&h.aside)
		}
		if n++; n == looked {
			break
		}
	}
	return found
}

// grow begins another age: the Calls of the age before the last are old from now on, and windows change. If
// unproven Calls have had most credits for some ages while others wait, because Calls hang, grow returns how many
// hang, once, and otherwise 0. The caller holds p.mu.
func (p *Pool) grow() (hang int) {
	p.age++
	for _, h := range p.holders {
		if p.assess(h); h.waiting > 0 {
			h.relist()
		}
	}
	for h := range p.aside.All { // each is looked at in its turn
		p.rejoin(h)
	}
	if r := p.room(); p.shares() && p.queue.n > 0 && p.unproven >= r.spare {
		if p.scarceFor++; p.scarceFor == scarcity && 2*p.old() >= r.spare {
			hang = p.old()
		}
	} else {
		p.scarceFor = 0
	}
	return hang
}

// scarcity is the number of ages for which unproven Calls must have had most credits before Scarce is called.
const scarcity = 3

// old is how many Calls are outstanding for longer than a Call usually is. The caller holds p.mu.
func (p *Pool) old() int { return p.outstanding - p.ages.Young(p.age) }

// hold counts n Calls of h that are dispatched. The caller holds p.mu.
func (p *Pool) hold(h *Host, n int) {
	if h.held == 0 {
		p.holders = append(p.holders, h)
		h.holder = int32(len(p.holders))
	}
	if h.held > 0 && !h.wasAnswered() {
		p.tried = p.age
	}
	h.held += int32(n)
	if h.ages.Add(p.age, int32(n)); h.waiting > 0 && h.ages.Young(p.age) == n {
		h.relist()
	}
	p.assess(h)
}

// unhold ends the count of n Calls that had credits like c. The caller holds p.mu.
func (p *Pool) unhold(h *Host, c *credit, n int32) {
	h.held -= n
	h.ages.Drop(p.age, c.age, n)
	if c.answered {
		if !h.wasAnswered() {
			p.tried = 0
		}
		h.answered = p.age
		h.replies.Add(p.age, n)
	}
	p.assess(h)
	if h.aside.In() {
		p.rejoin(h)
	}
	if h.held == 0 {
		n := len(p.holders) - 1
		last := p.holders[n]
		p.holders[h.holder-1], p.holders[n] = last, nil
		p.holders = p.holders[:n]
		last.holder, h.holder = h.holder, 0
	}
	if h.waiting > 0 && h.ages.Young(p.age) == 0 {
		h.relist()
	}
}

// unproven is how many of held Calls are, of which so many are old, when the host got so many Replies lately.
func unproven(old, held, replies int) int { return max(old, held-replies, 0) }

// assess finds how many Calls of h are unproven. The caller holds p.mu.
func (p *Pool) assess(h *Host) {
	n := unproven(h.old(p.age), int(h.held), h.replies.Young(p.age))
	p.unproven += n - int(h.unproven)
	h.unproven = int32(n)
}

// Idle reports whether the pool has nothing to remember of h, which has no flow any more.
func (p *Pool) Idle(h *Host) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return h.idle()
}
