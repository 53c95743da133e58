package proxy

import (
	"hash/maphash"
	"net/netip"
	"sync"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/metrics"
	"github.com/rdmabridge/rdmabridge/pool"
)

// Order under RPCSEC_GSS
//
// Each Call of a GSS context has a sequence number, which is signed. A server keeps a window of
// the numbers up to the highest that it has seen, and silently discards a Call whose number is
// below the window: RFC 2203 Section 5.3.3.1. Linux has a window of 128, libtirpc of 32. A
// discarded Call costs its client a timeout and the bridge a credit for as long. So Calls must
// not arrive much later than those that the client sent after them. But the pool lets small
// Calls overtake large ones, connections overtake each other, and on an RDMA connection a Call
// with a Read chunk is executed when its server has fetched the chunk, while other Calls go on.
//
// So the Calls of one context keep their order:
//
//   - They go to the pool one after the other, each when the one before has been sent. While one
//     of them is outstanding, the next ones use the same connection (pool.Flow.Follow). Calls of a
//     client that has a pin or a lane use that, and no other Call follows them.
//   - On a TCP connection none of them goes before another that waits to be written.
//   - No more than UpstreamOptions.GSSWindow of them are outstanding, and the sequence number of
//     the next is less than GSSWindow above the number of the one that was sent first. After
//     gssPatience the server has seen that Call, even if it hangs, and only the first of these
//     two rules holds for it.
//
// All Calls from one address with one handle to one upstream are of one context. It is remembered
// while it has Calls under way, and no longer, so the proxy need not know when a client destroys it.
// Calls that create a context have no handle and no sequence number, and keep no order.

// gssPatience is how long a Call that was sent may take to get as far as the server's window.
const gssPatience = 2 * time.Second

// ordered reports whether h has to keep its place among the Calls of a GSS context.
func ordered(h *oncrpc.Call) bool {
	if h.Flavor != oncrpc.FlavorGSS || h.Protection == oncrpc.ProtectUnknown || h.GSS.HandleLen == 0 {
		return false
	}
	return h.GSS.Procedure != oncrpc.GSSInit && h.GSS.Procedure != oncrpc.GSSContinueInit
}

// gssShards is how many locks the contexts of an upstream share. All contexts of a client have one.
const gssShards = 16

// gssContexts are the GSS contexts that have Calls to one upstream under way. They are safe for
// concurrent use.
type gssContexts struct {
	u      *upstream
	seed   maphash.Seed
	held   *metrics.Counter
	shards [gssShards]gssShard
}

type gssShard struct {
	mu   sync.Mutex // guards all below and the contexts; locked before hosts.mu and Pool.mu
	all  map[uint64]*gssContext
	free *gssContext // contexts to use again, linked by next
	kept int         // length of free
}

// gssKept is how many contexts a shard keeps to use them again.
const gssKept = 64

func (t *gssContexts) init(u *upstream, m *metrics.Registry) {
	t.u, t.seed = u, maphash.MakeSeed()
	t.held = m.Counter(metrics.UpstreamGSSHeldCalls, u.name)
}

// shard returns the shard of the contexts of a client at a.
func (t *gssContexts) shard(a netip.Addr) *gssShard {
	return &t.shards[addressHash(a)%gssShards]
}

// A gssContext is the Calls of one context that are under way: one list of those that wait for
// their turn, at most one that the pool has, and one list of those that are outstanding.
type gssContext struct {
	set   *gssContexts // constant, as are shard and pool
	shard *gssShard
	pool  *pool.Pool  // the shared one
	next  *gssContext // in gssShard.free

	// Guarded by shard.mu.
	key            uint64
	flow           pool.Flow // where the Call that was given to pool waits; Calls of pins and lanes have other flows
	waiting, last  *call     // the first and the last that wait
	entering       *call     // the Call that was given to its pool and has not been sent
	oldest, newest *call     // the first and the last that are outstanding, in the order they were sent
	outstanding    int
	followed       int    // of outstanding, those of flow, which the next Call of flow follows
	behind         int    // of outstanding, those that were queued behind longer ones
	arrived        uint64 // counts the Calls
	live           bool   // the context is in shard.all
	pumping        bool   // a goroutine is in pump
	timer          bool   // a timer will call pump
}

// A gssCall is a call's place in its context. The lock of the shard guards it, apart from context
// and counted.
type gssCall struct {
	context    *gssContext // nil: the call has no order; belongs to the goroutine that owns the call
	prev, next *call       // neighbours in a list of the context
	number     uint64      // the place of the call in the order of arrival
	at         int64       // when it was sent, on the clock of the loops
	isSent     bool        // the call is among those that are outstanding
	isBehind   bool        // counted in gssContext.behind
	full       bool        // counted as one that found no room
	counted    bool        // counted in ledger.ordered; the client's loop's
}

// order returns the context in which c has its place, or nil. Only a Call that is signed has one,
// so that other Calls do not touch the cache line of gss.
func (c *call) order() *gssContext {
	if !c.signed {
		return nil
	}
	return c.gss.context
}

// submitInOrder gives c, which the client's ledger counts, to its GSS context.
func (f *front) submitInOrder(c *call) {
	u := c.up
	u.admission.enter(c, &f.ledger)
	f.ledger.ordered++
	c.usesSeldom = true
	c.gss.counted = true
	u.contexts.enter(c).pump(f.loop.index)
}

// enter adds c to its context, a new one if none of its Calls is under way.
func (t *gssContexts) enter(c *call) *gssContext {
	g := &c.owner.front.ledger
	s := t.shard(g.addr())
	key := t.key(c, g.addr())
	s.mu.Lock()
	defer s.mu.Unlock()
	x := s.all[key]
	if x == nil {
		p := t.u.poolFor(g.addr())
		x = s.add(t, key, p, t.u.p.hosts.at(g.host, p))
		// Where the upstream is on TCP, the server's duplicate request cache looks at the port.
		x.flow.Weight, x.flow.Sticky, x.flow.Hash = g.weight, !t.u.isRDMA, addressHash(g.addr())
	} else if x.flow.Weight != g.weight { // it has changed since
		x.pool.Reweigh(&x.flow, g.weight)
	}
	if c.queue.pool == x.pool {
		c.entry.Flow = &x.flow
	}
	c.setState(callHeld)
	x.arrived++
	c.gss.context, c.gss.number = x, x.arrived
	x.wait(c)
	return x
}

// key hashes what tells the context of c from others.
func (t *gssContexts) key(c *call, a netip.Addr) uint64 {
	addr := a.As16()
	h := &c.h
	handle := h.Message[oncrpc.CredentialPos:][:h.CredentialLen][gssHandleAt:][:h.GSS.HandleLen]
	return fold(maphash.Comparable(t.seed, addr), maphash.Bytes(t.seed, handle))
}

// gssHandleAt is where the handle begins in an RPCSEC_GSS credential: behind version, procedure,
// sequence number, service, and its length.
const gssHandleAt = 20

// add makes a context. s.mu is held.
func (s *gssShard) add(t *gssContexts, key uint64, p *pool.Pool, h *pool.Host) *gssContext {
	x := s.free
	if x != nil {
		s.free, x.next = x.next, nil
		s.kept--
	}
	if x == nil || x.pool != p || x.flow.Host != h { // a flow belongs to one pool and one host
		x = &gssContext{set: t, shard: s, pool: p, flow: pool.Flow{Host: h, Ordered: true}}
	}
	x.key, x.live, x.arrived = key, true, 0
	if s.all == nil {
		s.all = make(map[uint64]*gssContext)
	}
	s.all[key] = x
	return x
}

// wait puts c among the Calls that wait, in the order of arrival. x.shard.mu is held.
func (x *gssContext) wait(c *call) {
	before := x.last // of c
	for before != nil && before.gss.number > c.gss.number {
		before = before.gss.prev
	}
	c.link(before, &x.waiting, &x.last)
}

// link puts c behind before, or at the beginning if that is nil, in the list with these ends.
// x.shard.mu is held.
func (c *call) link(before *call, first, last **call) {
	c.gss.prev = before
	if before == nil {
		c.gss.next, *first = *first, c
	} else {
		c.gss.next, before.gss.next = before.gss.next, c
	}
	if c.gss.next == nil {
		*last = c
	} else {
		c.gss.next.gss.prev = c
	}
}

// unlink removes c from the list with these ends. x.shard.mu is held.
func (c *call) unlink(first, last **call) {
	if c.gss.prev == nil {
		*first = c.gss.next
	} else {
		c.gss.prev.gss.next = c.gss.next
	}
	if c.gss.next == nil {
		*last = c.gss.prev
	} else {
		c.gss.next.gss.prev = c.gss.prev
	}
	c.gss.prev, c.gss.next = nil, nil
}

// pump gives the pool as many Calls, one after the other, as may go now. here is the number of the
// calling loop, or pool.Elsewhere. If another goroutine is in pump, that one goes on, and pump
// returns at once.
func (x *gssContext) pump(here int) {
	s := x.shard
	s.mu.Lock()
	defer s.mu.Unlock()
	if x.pumping || !x.live {
		return
	}
	x.pumping = true
	for c := x.take(); c != nil; c = x.take() {
		s.mu.Unlock()
		c.enterPool(here)
		s.mu.Lock()
	}
	x.pumping = false
	if x.waiting == nil && x.entering == nil && x.outstanding == 0 {
		x.live = false
		delete(s.all, x.key)
		if s.kept < gssKept {
			x.next, s.free = s.free, x
			s.kept++
		}
	}
}

// take takes the next Call that waits, if it may go now. x.shard.mu is held.
func (x *gssContext) take() *call {
	c := x.waiting
	if c == nil || x.entering != nil || !x.room(c) {
		return nil
	}
	c.unlink(&x.waiting, &x.last)
	x.entering = c
	if x.followed == 0 {
		x.flow.Follow(nil)
	}
	return c
}

// room reports whether the server's window has room for c. x.shard.mu is held.
func (x *gssContext) room(c *call) bool {
	u := x.set.u
	window := u.settings().GSSWindow
	if x.outstanding >= window {
		return x.full(c)
	}
	late := u.p.engine.Now() - int64(gssPatience)
	old := x.oldest
	for old != nil && old.gss.at < late {
		old = old.gss.next
	}
	if old == nil || int32(c.h.GSS.Sequence-old.h.GSS.Sequence) < int32(window) {
		return true
	}
	if !x.timer {
		x.timer = true
		time.AfterFunc(gssPatience, func() {
			x.shard.mu.Lock()
			x.timer = false
			x.shard.mu.Unlock()
			x.pump(pool.Elsewhere)
		})
	}
	return x.full(c)
}

// full counts that c finds no room, once.
func (x *gssContext) full(c *call) bool {
	if !c.gss.full {
		c.gss.full = true
		x.set.held.Inc()
	}
	return false
}

// enterPool gives c to its pool.
func (c *call) enterPool(here int) {
	if c.owner.front.gone() {
		c.finish(here)
		return
	}
	c.setState(callQueued)
	if c.times.asked == 0 {
		c.times.asked = c.up.p.engine.Now()
	}
	if err := c.queue.pool.Submit(&c.entry, here); err != nil {
		c.giveUp(here, err)
	}
}

// mayOvertake reports whether a Call of x may be written before longer messages that wait. It may
// while none of the context's Calls waits behind such a message.
func (x *gssContext) mayOvertake() bool {
	x.shard.mu.Lock()
	defer x.shard.mu.Unlock()
	return x.behind == 0
}

// keepsBehind notes that c is written after the messages that wait.
func (x *gssContext) keepsBehind(c *call) {
	x.shard.mu.Lock()
	defer x.shard.mu.Unlock()
	x.behind++
	c.gss.isBehind = true
}

// sent notes that c has been sent, and lets the next Call go. It runs on the loop of c's
// connection, whose number is here.
func (x *gssContext) sent(c *call, here int) {
	x.shard.mu.Lock()
	if x.entering == c {
		x.entering = nil
		if x.has(c) {
			x.flow.Follow(&c.entry)
			x.followed++
		}
		c.gss.at, c.gss.isSent = x.set.u.p.engine.Now(), true
		c.link(x.newest, &x.oldest, &x.newest)
		x.outstanding++
	}
	x.shard.mu.Unlock()
	x.pump(here)
}

// again has c wait for its turn again if it was sent and the server cannot have received all of
// it. Otherwise c still has its turn, and again returns false.
func (x *gssContext) again(c *call, here int) bool {
	x.shard.mu.Lock()
	if !c.gss.isSent {
		x.shard.mu.Unlock()
		return false
	}
	x.drop(c)
	c.setState(callHeld)
	x.wait(c)
	moved := x.unbind()
	x.shard.mu.Unlock()
	if moved {
		x.pool.Kick(here)
	}
	x.pump(here)
	return true
}

// has reports whether c waits in the flow of x, and not in that of a pin or a lane.
func (x *gssContext) has(c *call) bool { return c.entry.Flow == &x.flow }

// unbind lets the Call that was given to its pool use any connection, if no other is outstanding any
// more for whose connection it waits. If it reports true, the caller has to call Kick of the pool
// without the lock. x.shard.mu is held.
func (x *gssContext) unbind() (moved bool) {
	return x.followed == 0 && x.entering != nil && x.has(x.entering) && x.pool.Unbind(&x.flow)
}

// drop takes c, which was sent, from those that are outstanding. x.shard.mu is held.
func (x *gssContext) drop(c *call) {
	c.unlink(&x.oldest, &x.newest)
	x.outstanding--
	if x.has(c) {
		x.followed--
	}
	if c.gss.isBehind {
		x.behind--
	}
	c.gss.isSent, c.gss.isBehind = false, false
}

// leave forgets c, which has ended, and lets the next Call go.
func (x *gssContext) leave(c *call, here int) {
	x.shard.mu.Lock()
	switch {
	case c.gss.isSent:
		x.drop(c)
	case x.entering == c:
		x.entering = nil
		if c.gss.isBehind {
			x.behind--
			c.gss.isBehind = false
		}
	default:
		c.unlink(&x.waiting, &x.last)
	}
	c.gss.context = nil
	moved := x.unbind()
	x.shard.mu.Unlock()
	if moved {
		x.pool.Kick(here)
	}
	x.pump(here)
}

// forget ends the Calls of f, whose client has gone, that have not been sent.
func (t *gssContexts) forget(f *front) {
	s := t.shard(f.ledger.addr())
	var ended *call // linked by gss.next
	var entering []*gssContext
	s.mu.Lock()
	for _, x := range s.all {
		for c := x.waiting; c != nil; {
			next := c.gss.next
			if c.owner.front == f {
				c.unlink(&x.waiting, &x.last)
				c.gss.context = nil
				c.gss.next, ended = ended, c
			}
			c = next
		}
		if c := x.entering; c != nil && c.owner.front == f && x.has(c) {
			entering = append(entering, x)
		}
	}
	s.mu.Unlock()
	for ended != nil {
		c := ended
		ended, c.gss.next = c.gss.next, nil
		c.finish(pool.Elsewhere)
	}
	for _, x := range entering {
		x.pool.Forget(&x.flow, errClientGone) // Expired queues a Call again that is another client's
	}
}
