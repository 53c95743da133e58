package proxy

import (
	"sync/atomic"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/proxy/admit/gates"
	"github.com/rdmabridge/rdmabridge/proxy/observe"
	"github.com/rdmabridge/rdmabridge/proxy/upstream"
	"github.com/rdmabridge/rdmabridge/rdmaside"
	"github.com/rdmabridge/rdmabridge/tcpframe"
)

// One account of each Call
//
// The road of a Call tells the account of its loop what happens, and the account tells those who count. No step of
// the road touches a counter of Calls by itself.
//
//	event      on the loop of     who is told
//	read       the client         the listener, the client
//	begun      the client         rates of the client and of its tenant
//	limited    the client         the rate of a rule
//	analysed   the client         the capture
//	bound      the client         the operation, the upstream's Calls under way, limits of the client and of its tenant
//	answered   the client         the operation, limits of the client and of its tenant
//	asked      the client         the upstream's slow start
//	sent       the connection     the pool, the capture
//	replied    the connection     the pool, the upstream, its watch and its slow start, the capture
//	failed     the connection     the upstream
//	delivered  the client         the class of the Reply, the capture
//	lent       the client         limits and rates of the client and of its tenant, the rate of a rule
//	settled    the client         the operation, the client and its tenant, the listener, limits, all who watch
//
// A Call that waits for its turn is read and not begun yet. One that is answered here is neither asked nor sent. It may
// fail, and be sent and replied to, several times.
//
// A short Reply that the client's connection copies as it comes ends its Call at once: passed is told in place of replied,
// delivered, lent and settled, and passedRun behind the last such Reply.
//
// Who is not configured is not told: a Call looks once at each place whether anybody watches.

// An account is told of the Calls of one loop's clients, and of those on its connections to upstreams. It belongs to
// the loop.
type account struct {
	loop  *eventLoop     // constant, as the next two
	tcp   *tcpframe.Loop // has the time
	here  int            // the loop's number
	tally observe.Tally
	watch atomic.Pointer[observe.Watch] // who looks at Calls; nil for nobody; stored by any goroutine
}

// read returns a call for a message that f has just sent.
func (a *account) read(f *front) *call {
	c := a.loop.newCall()
	c.h = oncrpc.Call{} // of the Call before: this one may end before it is parsed
	c.owner.front = f
	now := a.tcp.Now()
	c.progress.Began = f.ledger.Pauses.Readable(now, f.listener.IsRDMA)
	f.seen.Active = now
	f.counts.Calls.Inc()
	return c
}

// begun notes that c is a Call, in which nothing has been changed. Its header may be one that cannot be walked.
func (a *account) begun(c *call) {
	c.progress.Size = int32(len(c.rdma.Message))
	c.rdma.XID, c.progress.ClientXID = c.h.XID, c.h.XID
	if c.owner.front.ledger.Limited() {
		a.chargeCall(c)
	}
}

// analysed notes that the header and the arguments of c were read. Nothing has been changed in it.
func (a *account) analysed(c *call) {
	if t := a.tap(); t != nil && a.looks(t, c) {
		a.showBegun(c, t)
	}
}

// chargeCall charges c to the rates that limit its client.
func (a *account) chargeCall(c *call) {
	c.owner.front.ledger.ChargeCall(a.tcp.Now(), len(c.rdma.Message))
}

// limited notes that a rule limits the rate of Calls like c to s.
func (a *account) limited(c *call, s *gates.SharedRate) {
	c.limit, c.usesSeldom = s, true
	c.owner.front.ledger.ChargeRule(a.tcp.Now(), len(c.rdma.Message), s)
}

// bound notes that c, which was analysed, goes to the upstream up.
func (a *account) bound(c *call, up *upstream.Upstream) {
	f := c.owner.front
	c.up = up
	c.progress.Begin(c.queue.rows.Row(&c.h, c.rdma.Analysis.Operation))
	c.progress.Operations = c.rdma.Analysis.Operations
	up.Begun(a.here)
	f.ledger.Charge(&c.charge, c.progress.Size)
}

// answered notes that the bridge answers c itself.
func (a *account) answered(c *call) {
	f := c.owner.front
	c.progress.Replied = a.tcp.Now()
	if c.parsed() {
		l := f.listener
		c.progress.Begin(l.Table(a.here, nil).Row(&c.h, l.Registry.Operation(&c.h)))
	}
	f.ledger.Charge(&c.charge, c.progress.Size)
}

// asked notes that c is about to be given to its pool, or to its GSS context.
func (a *account) asked(c *call) {
	if u := c.up; !u.SlowStart.Over() {
		enterSlowStart(c, u)
	}
}

// sent notes that a connection of the loop has c. Of a Call that is sent several times the first counts.
func (a *account) sent(c *call) {
	c.entry.Sent()
	if c.progress.Sent == 0 {
		c.progress.Sent = a.tcp.Now()
	}
	if c.tapped() {
		a.showSent(c)
	}
}

// unsent notes that a connection has not sent c after all.
func (a *account) unsent(c *call) {
	if c.progress.Replays == 0 {
		c.progress.Sent = 0
	}
}

// replied notes that the upstream has answered c, which still has its credit.
func (a *account) replied(c *call) {
	n := &c.up.Counts[a.here]
	c.progress.Replied = a.tcp.Now()
	n.Sent.Inc()
	n.Replied.Inc()
	if c.tapped() {
		a.showReplied(c)
	}
	a.heard(c, octets(c.reply.parts))
}

// heard notes what the Reply of so many octets to c says of the upstream.
func (a *account) heard(c *call, octets int) {
	u := c.up
	c.entry.Answered()
	u.Watch.Spoke(c.h.Program, c.h.Version)
	if !c.rdma.Analysis.Known {
		u.LearnLength(octets)
	}
	if c.charge.InSlowStart() || !u.SlowStart.Over() {
		u.Admission.Answered(&c.charge, c.entry.Cost, a.here)
	}
}

// failed notes that a connection of the loop has not brought c to a Reply. c got as far as fate says; what comes of it
// is told by call.cameTo.
func (a *account) failed(c *call, fate rdmaside.Fate) {
	if fate == rdmaside.NotSent {
		a.unsent(c)
		return
	}
	c.up.Counts[a.here].Sent.Inc()
}

// cameTo notes a failure of c on its connection. Any goroutine that owns c.
func (c *call) cameTo(what upstream.Failure) { c.up.CameTo(what) }

// delivered notes that the Reply of c is about to go to the client.
func (a *account) delivered(c *call) {
	c.progress.Classify(c.reply.parts[0], c.h.Protection, octets(c.reply.parts), a.tcp.Now())
	if c.tapped() {
		a.showDelivered(c)
	}
}

// lent notes that the memory of the Reply of c is the client's until it has the Reply.
func (a *account) lent(c *call) {
	g := &c.owner.front.ledger
	g.Lend(&c.charge, c.reply.memory, c.rdma.Analysis.Known)
	if g.Limited() {
		now, n := a.tcp.Now(), octets(c.reply.parts)
		g.ChargeReply(now, n)
		if c.usesSeldom && c.limit != nil {
			c.limit.ChargeReply(now, n)
		}
	}
}

// held notes that c repeats a Call in flight, and waits for its Reply. c counts as absorbed from now on.
func (a *account) held(c *call) {
	c.progress.Absorbed = true
	c.owner.front.counts.Results[observe.ResultAbsorbed].Inc()
}

// passed notes that the upstream has answered c with m, which the client's connection copies, and that c, which nobody
// looks at, is over. passedRun follows, once for several such Calls of one client to one upstream.
func (a *account) passed(c *call, m []byte) {
	f, p, now := c.owner.front, &c.progress, a.tcp.Now()
	a.heard(c, len(m))
	a.tally.Passed(&f.seen, p, c.rdma.XID, m, c.h.Protection, now)
	f.ledger.Pass(&c.charge, p.Size, len(m), c.rdma.Analysis.Known)
	if f.ledger.Limited() { // not by a rule: replyRun.takes leaves such Calls to others
		f.ledger.ChargeReply(now, len(m))
	}
}

// passedRun notes that passed was told of n Calls to u.
func (a *account) passedRun(u *upstream.Upstream, n int) {
	counts := &u.Counts[a.here]
	counts.Sent.Add(uint64(n))
	counts.Replied.Add(uint64(n))
	u.Settled(a.here, n)
}

// copied notes what became of n Replies of f that its connection had copied: the client has them, or never will.
func (a *account) copied(f *front, n int, written bool) {
	r := observe.ResultReplied
	if !written {
		r = observe.ResultGone
	}
	f.counts.Results[r].Add(uint64(n))
}

// settled notes that c is over: its client has the Reply, or never will have it.
func (a *account) settled(c *call) {
	f, p, now := c.owner.front, &c.progress, a.tcp.Now()
	a.tally.Settled(&f.seen, p, c.rdma.XID, now)
	if !p.Absorbed && !p.Copied {
		f.counts.Results[p.Result].Inc()
	}
	if a.watched() {
		a.showSettled(c)
	}
	if c.up != nil {
		c.up.Settled(a.here, 1)
	}
	if c.charge.InSlowStart() {
		c.up.Admission.Dropped(&c.charge, c.entry.Cost)
	}
	f.ledger.Settle(&c.charge, p.Size)
}

// watched reports whether anybody looks at Calls.
func (a *account) watched() bool { return a.watch.Load() != nil }

// observed reports whether an Observer looks at Calls.
func (a *account) observed() bool {
	w := a.watch.Load()
	return w != nil && w.Observer != nil
}

// enterSlowStart counts c in the slow start of u.
func enterSlowStart(c *call, u *upstream.Upstream) {
	c.owner.front.ledger.EnterSlowStart(u.Admission, &c.charge, c.h.Procedure, c.entry.Cost)
}
