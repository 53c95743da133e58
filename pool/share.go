package pool

import (
	"math/rand/v2"
	"time"
)

// Sharing credits
//
// A credit that a Call holds comes back with the Reply, and a Call to a file system that hangs
// gets no Reply for a minute. Nothing tells such a Call from another when it is dispatched. So the
// pool always keeps credits back, for hosts that hold few or none:
//
//	free credits          a host may have one of them
//	more than a half      if it holds less than a half; its old Calls count twice. Unless seven
//	                      eighths are free and the slow start is over, it must also have been
//	                      answered lately or hold none
//	more than an eighth   if it holds none, if it is quick, or if it is answered and credits have
//	                      been scarce for some seconds. For a quick host more than a quarter of the
//	                      eighth is enough while no other host waits
//	an eighth or less     if it holds none and has been answered lately
//
// The half that a host may hold is Options.Share per cent of the credits. A host that has only a few
// Calls outstanding, all of them old, counts as one that holds none if it was answered lately: poor.
//
// A Call is old after one to two seconds. A host is quick if it got so many Replies lately that its
// Calls take a fraction of a second on average. Credits are scarce if Calls waited and hardly more
// than the half was free, at several ages in succession: by then the pool knows whose Calls hang,
// because their hosts get no Replies. So hosts whose Calls are answered have nearly all credits, at
// once or, if the server is slow, after a while. Hosts whose Calls hang, however many there are, do
// not get further than the half.
//
// A host with Calls that hang may have others that do not. So a host that holds credits may have one
// more Call on trial, while few Calls of the pool are on trial. A quick host needs none: its Calls do
// not hang. A host that was not answered lately may not have it before its Calls are old. While an
// eighth of the credits or less is free, a few Calls go as newcomers: their hosts hold none and were
// not answered lately.

// scarcity is the number of ages for which credits must have been scarce before hosts that are
// answered may have more than the half.
const scarcity = 3

// remembered is the number of ages for which a host counts as answered lately after a Reply.
const remembered = 10

// quickness is how many Replies a host must have got in the last two ages, for each Call that it
// has outstanding, to count as quick: its Calls take less than a quarter of a second.
const quickness = 8

// A trial says why a Call has a credit that the other rules would not have given to its host.
type trial uint8

const (
	noTrial  trial = iota // the other rules gave the credit
	onTrial               // the host holds others
	newcomer              // the host holds none and was not answered lately
	trials
)

// A window is how many credits a pool has, how many are free, and how many must be free for a
// host to get one.
type window struct {
	credits, free int
	half          int // more must be free for a host that holds some
	eighth        int // more must be free for a host that holds none and was not answered lately
}

// firstAge is the age of a new pool, in which no host counts as answered lately.
const firstAge = 1 << 10

// A shared is what a pool knows of the Calls outstanding. The pool's lock guards it.
type shared struct {
	age         uint32      // how often ageing has passed, beginning with firstAge
	outstanding int         // Calls dispatched and not done, on retired connections, too
	ages        ages[int]   // of these Calls
	trials      [trials]int // of these Calls, those that are on trial, by kind
	thawing     bool        // thaw has set its timer
	behind      *queue      // the least served queue, as poorest has found it for due; nil while debts are void
	hosts       int         // hosts that have waiting Calls
	candidates  int         // places in the lists poor, unknown and trial of all queues
	turned      time.Time   // when a Call last went in its host's turn although another host waited
	scarceFor   int         // ages for which credits have been scarce
}

// free returns how many credits are free on all usable connections. A connection with more Calls
// outstanding than credits takes none from the others. The caller holds p.mu.
func (p *Pool) free() int { return p.credits - p.inUse + p.owed }

// window returns the window at present. While the slow start is not over, its limit stands for
// the credits. The caller holds p.mu.
func (p *Pool) window() window {
	credits, free := p.credits, p.free()
	if !p.slowStart.Over() {
		credits, free = p.slowStart.bound(credits, free)
	}
	if !p.shares() {
		return window{credits: credits, free: free}
	}
	half := credits - (credits*p.opts.Share+99)/100
	return window{credits, free, half, min((credits+4)/8, half)}
}

// shares reports whether the pool keeps credits back.
func (p *Pool) shares() bool { return p.opts.Share > 0 && p.opts.Share < 100 }

// A host is in debt if it has had more than its share. When no Call has gone in its host's turn for
// as long as frozen, debts are void.
const frozen = 50 * time.Millisecond

// due reports whether a Call of pl may go before its host's turn. It may if neither the host nor
// the queue has had more than its share. It also may if debts are void, because the hosts that wait
// for their turns hold as much as they may, if more than half of the eighth is free, or if the
// host is set aside and has no turn. The caller holds p.mu.
func (s *shared) due(pl *place, w window) bool {
	return s.behind == nil || w.free > (w.eighth+1)/2 || !pl.turn.in() || pl.turn.deficit >= 0 && pl.queue.served <= s.behind.served+maxLag
}

// scarce returns w. If credits have been scarce for some ages, it lowers the half to the eighth:
// capped admits only hosts that are answered then. The caller holds p.mu.
func (p *Pool) scarce(w window) window {
	if p.scarceFor >= scarcity {
		w.half = w.eighth
	}
	return w
}

// quick reports whether the Calls of h are answered so fast that it may have more than the half.
// The caller holds p.mu.
func (s *shared) quick(h *Host) bool { return h.replies.young(s.age) > quickness*h.held }

// least returns how many credits must stay free when a Call goes in its host's turn. They are kept
// for hosts that hold none. While no two hosts wait, fewer are kept. The caller holds p.mu.
func (p *Pool) least(w window) int {
	if p.hosts <= 1 {
		return (w.eighth + 3) / 4
	}
	return w.eighth
}

// bound returns how many credits must stay free when h takes one that any host may take. The
// caller holds p.mu.
func (p *Pool) bound(h *Host, w window) int {
	switch {
	case !p.quick(h):
		return w.half
	case p.hosts == 0 || h.waiting > 0: // no other host waits, unless least finds that two do
		return p.least(w)
	}
	return w.eighth
}

// capped reports whether h holds so much, or has held it for so long, that it gets no further
// credit from those that any host may take. A host that was not answered lately gets only one,
// unless nearly all are free and the slow start is over: its first Reply shows that it may have
// more. The caller holds p.mu.
func (p *Pool) capped(h *Host, w window) bool {
	if h.held == 0 || !p.shares() {
		return false
	}
	switch {
	case 2*h.held >= w.credits-w.half && h.held+h.old(p.age) >= w.credits-p.bound(h, w):
		return true
	case !p.lately(h) && (w.free <= w.credits-w.eighth || !p.slowStart.Over()):
		return true
	}
	return p.scarceFor >= scarcity && p.age-h.answered > 1
}

// fits reports whether h may have one of the credits that any host may take. The caller holds
// p.mu.
func (p *Pool) fits(h *Host, w window) bool {
	return (w.free > w.half || w.free > p.bound(h, w)) && !p.capped(h, w)
}

// old is how many Calls of h are outstanding for longer than a Call usually is. The caller holds
// p.mu.
func (h *Host) old(now uint32) int { return h.held - h.ages.young(now) }

// lately reports whether h was answered lately. The caller holds p.mu.
func (s *shared) lately(h *Host) bool { return s.age-h.answered < remembered }

// admits reports whether a Call of f that has just come may take a credit before all Calls that
// wait. The caller holds p.mu.
func (p *Pool) admits(f *Flow, w window) bool {
	h := f.host()
	switch {
	case w.free <= 0:
		return false
	case p.fits(h, w):
		return !p.queue.blocks(f)
	}
	return p.poor(h) && p.entitled(h, w) && !p.queue.poor(f)
}

// fewOld is how many old Calls a host may have outstanding and count as poor.
const fewOld = 4

// poor reports whether h has no Call outstanding, or only a few old ones although it was answered
// lately. The caller holds p.mu.
func (s *shared) poor(h *Host) bool {
	return h.held == 0 || h.held <= fewOld && s.lately(h) && h.ages.young(s.age) == 0
}

// entitled reports whether h, which is poor, may have a credit. The caller holds p.mu.
func (p *Pool) entitled(h *Host, w window) bool {
	return w.free > w.eighth || w.free > 0 && h.held == 0 && p.lately(h)
}

// take removes from the queues the Call that seat s dispatches next, and returns it, or nil. It
// also returns why the Call may go, if it goes on trial. The caller holds p.mu, and s has a free
// credit.
func (p *Pool) take(s *Seat, w window) (*Entry, trial) {
	w = p.scarce(w)
	for w.free > p.least(w) {
		q := p.queue.turn(s.affinity, s.index)
		if !q.waits() {
			break
		}
		pl := q.front()
		if p.fits(pl.host, w) {
			if p.hosts > 1 {
				p.turned = time.Now()
			}
			return p.queue.popOf(pl), noTrial
		}
		if p.hosts <= 1 {
			break
		}
		pl.leave()
	}
	if p.candidates == 0 {
		return nil, noTrial
	}
	pl, t := p.poorest(s, w)
	if pl == nil {
		return nil, noTrial
	}
	return p.queue.popOf(pl), t
}

// poorest returns a place with a Call for s, whose host is poor or may have a Call on trial. It
// looks at the queue of s first, and then at those of the loops, beginning with a random one. The
// caller holds p.mu.
func (p *Pool) poorest(s *Seat, w window) (*place, trial) {
	qs := &p.queue
	lot := rand.Uint32()
	p.behind = nil
	if time.Since(p.turned) <= frozen {
		p.behind = leastServed(leastServed(nil, qs.byLoop), qs.bySeat)
	}
	if pl, t := p.poorIn(qs.bySeat[s.index], w, lot); pl != nil {
		return pl, t
	}
	if qs.anySeat == 0 {
		return nil, noTrial
	}
	first := int(lot>>2) % len(qs.byLoop)
	for i := range qs.byLoop {
		if pl, t := p.poorIn(qs.byLoop[(first+i)%len(qs.byLoop)], w, lot); pl != nil {
			return pl, t
		}
	}
	return nil, noTrial
}

// poorIn does what poorest does, for one queue. A random bit of lot decides whether hosts that may
// have a Call on trial go before those that are poor. The caller holds p.mu.
func (p *Pool) poorIn(q *queue, w window, lot uint32) (*place, trial) {
	if lot&2 == 0 {
		if pl, t := p.tryable(q, w); pl != nil {
			return pl, t
		}
	}
	pl := q.poor.first
	for indebted := 0; pl != nil && indebted < mostIndebted; {
		switch {
		case !p.due(pl, w):
			indebted++
			p.thaw()
			pl.moveTo(nil)
			pl.moveTo(&q.poor)
		case p.entitled(pl.host, w):
			return pl, noTrial
		case pl.host.held == 0:
			pl.moveTo(&q.unknown)
		default:
			pl.moveTo(&q.aside)
		}
		pl = q.poor.first
	}
	return p.tryable(q, w)
}

// thaw has the pool look again when debts may be void. The caller holds p.mu.
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

// mostIndebted bounds how many places of hosts in debt are looked at in one search. The search for
// the next credit looks at others.
const mostIndebted = 16

// tryable returns a place of a host that may have a Call on trial, or that holds nothing, was not
// answered lately and may have a credit. The caller holds p.mu.
func (p *Pool) tryable(q *queue, w window) (*place, trial) {
	most := max(1, w.eighth)
	if pl := q.unknown.first; pl != nil && p.due(pl, w) {
		if w.free > w.eighth {
			return pl, noTrial
		}
		if p.trials[newcomer] < (most+1)/2 {
			return pl, newcomer
		}
	}
	// If any credits are kept for hosts that hold none, the last one is.
	for pl := q.trial.first; pl != nil && w.free > min(1, w.eighth) && p.trials[onTrial] < most; pl = q.trial.first {
		if p.due(pl, w) && (p.lately(pl.host) || w.free > (w.half+w.eighth)/2 && pl.host.ages.young(p.age) == 0) {
			return pl, onTrial
		}
		pl.moveTo(&q.aside)
	}
	return nil, noTrial
}

// poor reports whether a poor host waits for a credit that f could have.
func (qs *queues) poor(f *Flow) bool {
	if f.seatQueue > 0 && qs.bySeat[f.seatQueue-1].poor.first != nil {
		return true
	}
	if qs.anySeat == 0 {
		return false
	}
	for _, q := range qs.byLoop {
		if q.poor.first != nil {
			return true
		}
	}
	return false
}

// grow begins another age: the Calls of the age before the last are old from now on, credits may
// have become scarce, and the hosts that were set aside get another chance. If credits have become
// scarce just now because Calls hang, grow returns how many hang, and otherwise 0. The caller holds
// p.mu.
func (p *Pool) grow() (hang int) {
	p.age++
	if w := p.window(); p.shares() && p.queue.n > 0 && w.free <= w.half+w.eighth {
		if p.scarceFor++; p.scarceFor == scarcity && 2*p.old() >= w.half {
			hang = p.old()
		}
	} else {
		p.scarceFor = 0
	}
	for q := range p.queue.all {
		for _, l := range []*placeList{&q.trial, &q.aside} {
			for pl := l.first; pl != nil; {
				next := pl.next
				pl.enter()
				pl.relist()
				pl = next
			}
		}
	}
	return hang
}

// more reports whether another queued Call may go, although each credit that came back has gone to
// one already. So it is when a host was set aside and has its turns again. The caller holds p.mu.
func (p *Pool) more() bool {
	if p.queue.n == 0 {
		return false
	}
	w := p.scarce(p.window())
	if w.free <= p.least(w) {
		return false
	}
	for q := range p.queue.all {
		if q.waits() && (p.hosts > 1 || p.fits(q.ring.first.of.host, w)) {
			return true
		}
	}
	return false
}

// old is how many Calls are outstanding for longer than a Call usually is. The caller holds p.mu.
func (p *Pool) old() int { return p.outstanding - p.ages.young(p.age) }
