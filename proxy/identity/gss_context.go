package identity

import (
	"sync"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/loop"
)

// gssPatience is how long a Call that was sent may take to get as far as the server's window.
const gssPatience = 2 * time.Second

// A gssShard has the contexts of some clients of an upstream.
type gssShard struct {
	mu   sync.Mutex // guards all below and the contexts; locked before what the methods of OrderedCall and Flow lock
	all  map[uint64]*gssContext
	free *gssContext // contexts to use again, linked by next
	kept int         // length of free
}

// gssKept is how many contexts a shard keeps to use them again.
const gssKept = 64

// add makes a context, which has a Flow if it is one of those that were kept. s.mu is held.
func (s *gssShard) add(o *GSSOptions, key uint64) *gssContext {
	x := s.free
	if x != nil {
		s.free, x.next = x.next, nil
		s.kept--
	} else {
		x = &gssContext{opts: o, shard: s}
	}
	x.key, x.live, x.arrived = key, true, 0
	if s.all == nil {
		s.all = make(map[uint64]*gssContext)
	}
	s.all[key] = x
	return x
}

// keep ends x, which has no Calls under way, and keeps it to be used again if there is room. s.mu is held.
func (s *gssShard) keep(x *gssContext) {
	x.live = false
	delete(s.all, x.key)
	if s.kept < gssKept {
		x.next, s.free = s.free, x
		s.kept++
	}
}

// A gssContext is the Calls of one context that are under way: one list of those that wait for
// their turn, at most one that its pool has, and one list of those that are outstanding.
type gssContext struct {
	opts  *GSSOptions // constant, as is shard
	shard *gssShard
	next  *gssContext // in gssShard.free

	// Guarded by shard.mu.
	flow           Flow // constant while live
	key            uint64
	waiting, last  *GSSCall // the first and the last that wait
	entering       *GSSCall // the Call that was given to its pool and has not been sent
	oldest, newest *GSSCall // the first and the last that are outstanding, in the order they were sent
	outstanding    int
	followed       int    // of outstanding, those of flow, which the next Call of flow follows
	behind         int    // of outstanding, those that were queued behind longer ones
	arrived        uint64 // counts the Calls
	live           bool   // the context is in shard.all
	pumping        bool   // a goroutine is in pump
	timer          bool   // a timer will call pump
}

// A GSSCall is a Call's place in its context. The Call holds it by value. The lock of the shard guards it, apart from
// Owner, client and context. The zero value is that of a Call that keeps no order.
type GSSCall struct {
	Owner OrderedCall // the Call; constant after Enter, as is client

	client     any         // the connection of the client
	context    *gssContext // nil: the Call has no place in a context; belongs to the goroutine that owns the Call
	prev, next *GSSCall    // neighbours in a list of the context
	number     uint64      // the place of the Call in the order of arrival
	at         int64       // when it was sent
	sequence   uint32      // its sequence number
	inFlow     bool        // the Call waits in context.flow
	isSent     bool        // the Call is among those that are outstanding
	isBehind   bool        // counted in gssContext.behind
	isFull     bool        // counted as one that found no room
}

// InOrder reports whether the Call has a place in a context. The other methods are for such Calls alone, and for the
// goroutine that owns the Call. Their argument is the number of the calling loop, or loop.Elsewhere.
func (c *GSSCall) InOrder() bool { return c.context != nil }

// MayOvertake reports whether the Call may be written before longer messages that wait. It may
// while none of the context's Calls waits behind such a message.
func (c *GSSCall) MayOvertake() bool {
	x := c.context
	x.shard.mu.Lock()
	defer x.shard.mu.Unlock()
	return x.behind == 0
}

// KeepBehind notes that the Call is written after the messages that wait.
func (c *GSSCall) KeepBehind() {
	x := c.context
	x.shard.mu.Lock()
	defer x.shard.mu.Unlock()
	x.behind++
	c.isBehind = true
}

// Sent notes that the Call has been sent, and lets the next one go. It runs on the loop of the Call's
// connection.
func (c *GSSCall) Sent(here int) {
	x := c.context
	x.shard.mu.Lock()
	if x.entering == c {
		x.entering = nil
		if c.inFlow {
			x.flow.Follow(c.Owner)
			x.followed++
		}
		c.at, c.isSent = x.opts.Now(), true
		c.insert(x.newest, &x.oldest, &x.newest)
		x.outstanding++
	}
	x.shard.mu.Unlock()
	x.pump(here)
}

// Again has the Call wait for its turn again if it was sent and the server cannot have received all of
// it. Otherwise the Call still has its turn, and Again returns false.
func (c *GSSCall) Again(here int) bool {
	x := c.context
	x.shard.mu.Lock()
	if !c.isSent {
		x.shard.mu.Unlock()
		return false
	}
	x.drop(c)
	c.Owner.Hold()
	x.wait(c)
	moved, flow := x.unbind(), x.flow
	x.shard.mu.Unlock()
	if moved {
		flow.Kick(here)
	}
	x.pump(here)
	return true
}

// Leave forgets the Call, which has ended, and lets the next one go.
func (c *GSSCall) Leave(here int) {
	x := c.context
	x.shard.mu.Lock()
	switch {
	case c.isSent:
		x.drop(c)
	case x.entering == c:
		x.entering = nil
		if c.isBehind {
			x.behind--
			c.isBehind = false
		}
	default:
		c.remove(&x.waiting, &x.last)
	}
	c.context = nil
	moved, flow := x.unbind(), x.flow
	x.shard.mu.Unlock()
	if moved {
		flow.Kick(here)
	}
	x.pump(here)
}

// Unlink takes c, which GSSContexts.Forget or Unlink has returned, from its list, and returns the next one.
func (c *GSSCall) Unlink() (next *GSSCall) {
	next, c.next = c.next, nil
	return next
}

// wait puts c among the Calls that wait, in the order of arrival. x.shard.mu is held.
func (x *gssContext) wait(c *GSSCall) {
	before := x.last // of c
	for before != nil && before.number > c.number {
		before = before.prev
	}
	c.insert(before, &x.waiting, &x.last)
}

// insert puts c behind before, or at the beginning if that is nil, in the list with these ends.
// The lock of the shard is held.
func (c *GSSCall) insert(before *GSSCall, first, last **GSSCall) {
	c.prev = before
	if before == nil {
		c.next, *first = *first, c
	} else {
		c.next, before.next = before.next, c
	}
	if c.next == nil {
		*last = c
	} else {
		c.next.prev = c
	}
}

// remove removes c from the list with these ends. The lock of the shard is held.
func (c *GSSCall) remove(first, last **GSSCall) {
	if c.prev == nil {
		*first = c.next
	} else {
		c.prev.next = c.next
	}
	if c.next == nil {
		*last = c.prev
	} else {
		c.next.prev = c.prev
	}
	c.prev, c.next = nil, nil
}

// pump gives the pool as many Calls, one after the other, as may go now. here is the number of the
// calling loop, or loop.Elsewhere. If another goroutine is in pump, that one goes on, and pump
// returns at once.
func (x *gssContext) pump(here int) {
	s := x.shard
	s.mu.Lock()
	defer s.mu.Unlock()
	if x.pumping || !x.live {
		return
	}
	x.pumping = true
	for c := x.due(); c != nil; c = x.due() {
		s.mu.Unlock()
		c.Owner.Submit(here)
		s.mu.Lock()
	}
	x.pumping = false
	if x.waiting == nil && x.entering == nil && x.outstanding == 0 {
		s.keep(x)
	}
}

// due takes the next Call that waits, if it may go now. x.shard.mu is held.
func (x *gssContext) due() *GSSCall {
	c := x.waiting
	if c == nil || x.entering != nil || !x.room(c) {
		return nil
	}
	c.remove(&x.waiting, &x.last)
	x.entering = c
	if x.followed == 0 {
		x.flow.Follow(nil)
	}
	return c
}

// room reports whether the server's window has room for c. x.shard.mu is held.
func (x *gssContext) room(c *GSSCall) bool {
	window := x.opts.Window()
	if x.outstanding >= window {
		return x.full(c)
	}
	late := x.opts.Now() - int64(gssPatience)
	old := x.oldest
	for old != nil && old.at < late {
		old = old.next
	}
	if old == nil || int32(c.sequence-old.sequence) < int32(window) {
		return true
	}
	if !x.timer {
		x.timer = true
		time.AfterFunc(gssPatience, func() {
			x.shard.mu.Lock()
			x.timer = false
			x.shard.mu.Unlock()
			x.pump(loop.Elsewhere)
		})
	}
	return x.full(c)
}

// full counts that c finds no room, once.
func (x *gssContext) full(c *GSSCall) bool {
	if !c.isFull {
		c.isFull = true
		x.opts.Full()
	}
	return false
}

// unbind lets the Call that was given to its pool use any connection, if no other is outstanding any
// more for whose connection it waits. If it reports true, the caller has to call flow.Kick
// without the lock. x.shard.mu is held.
func (x *gssContext) unbind() (moved bool) {
	return x.followed == 0 && x.entering != nil && x.entering.inFlow && x.flow.Unbind()
}

// drop takes c, which was sent, from those that are outstanding. x.shard.mu is held.
func (x *gssContext) drop(c *GSSCall) {
	c.remove(&x.oldest, &x.newest)
	x.outstanding--
	if c.inFlow {
		x.followed--
	}
	if c.isBehind {
		x.behind--
	}
	c.isSent, c.isBehind = false, false
}
