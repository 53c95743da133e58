package proxy

import (
	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb/nfs"
)

// begin takes the Call in c.rdma.Message as far as the pool of its upstream: it finds the upstream,
// has the Call analysed and gives it an XID. It reports false when the message is no RPC Call,
// and has closed the connection then. A Call whose header cannot be walked is refused.
func (f *front) begin(c *call) bool {
	h, g, l := &c.h, &f.ledger, f.listener
	var err error
	if x := c.owner.exchange; x != nil {
		*h = *x.Header()
	} else {
		err = oncrpc.ParseCall(c.rdma.Message, h)
	}
	refusal, why := []byte(nil), oncrpc.RefusedNot
	if err != nil {
		if refusal, why = h.AppendRefusal(c.local[:0], err); why == oncrpc.RefusedNot {
			f.malformed(c, err)
			return false
		}
	}
	for _, b := range g.buckets {
		b.chargeCall(f.loop.Now(), len(c.rdma.Message), g)
	}
	if m := g.member; m != nil {
		m.chargeCall(f.loop.Now(), len(c.rdma.Message))
	}
	c.size = int32(len(c.rdma.Message))
	c.rdma.XID, c.clientXID = h.XID, h.XID
	if err != nil {
		f.refuseHeader(c, refusal, why, err)
		return true
	}
	if t := f.loop.tap.Load(); t != nil {
		f.tapRead(t, c)
	}
	if f.latest == nil {
		f.latest = new(latestCalls)
	}
	f.latest.see(h)
	s, a := l.settings(), &c.rdma.Analysis
	var u *upstream
	if !f.secured && s.opts.TLS.required() && !h.TLSProbe() {
		f.refusePlain(c)
		return true
	}
	c.rdma.Binding = l.p.registry.Analyse(h, a)
	if p := s.policy; p == nil {
		u = f.route(c, s, nil)
	} else if e := f.latest.let(p, h, a.Changes); e != nil {
		e.calls.Inc()
		e.latest = f.totals.active // as count has it, which costs a call
		u = f.route(c, s, nil)
	} else {
		u = f.obey(c, s)
	}
	if u == nil {
		return true
	}
	if h.Program == oncrpc.ProgramNLM {
		l.p.xids.identity.nlmOwner(h, g.addr())
	}
	q := g.queueTo(u)
	if !q.decided {
		if q, err = g.decide(q, h, a); err != nil {
			f.closeUnpinned(c, u, err)
			return true
		}
	}
	c.up = u
	c.op = l.table(f.loop, u).row(h, a.Operation)
	c.op.inFlight++
	c.operations = a.Operations
	u.under[f.loop.index].n++
	if id, ok := nfs.SequenceSession(c.rdma.Message, a); ok {
		q.tighten(id, c.rdma.Message, a)
		c.learns = q.lane != nil && q.lane.learns(id)
	} else if q.lane != nil {
		c.learns = q.lane.hides(h)
	}
	c.charge.expected = u.expect(a, g.large)
	c.queue = q
	c.entry.Flow = q.flowOf(c)
	if a.BackRequest != 0 {
		nfs.BoundBackChannel(c.rdma.Message, a, f.client.longestCallBack())
	}
	if a.Lower&ulb.Arguments != 0 {
		c.lowerArguments()
	}
	if a.LayoutTypes && u.settings().HideLayouts {
		nfs.HideLayoutTypes(h, a)
	}
	c.entry.Cost, c.entry.Aside = u.cost(len(c.rdma.Message), a), h.Procedure == 0
	g.charge(c)
	c.assignXID(q)
	c.entry.Repeatable = c.replayable()
	if !c.signed && a.Class != ulb.ReadOnly && !rewritten(a) {
		switch l.p.flights.enter(c) {
		case entryDropped:
			c.result = resultAbsorbed
			f.settle(c)
			return true
		case entryHeld:
			g.hold(c)
			return true
		}
	}
	if c.signed && ordered(&c.h) {
		f.submitInOrder(c)
		return true
	}
	f.submit(c)
	return true
}

// submit gives c, which the client's ledger counts, to its pool.
func (f *front) submit(c *call) {
	c.up.admission.enter(c, &f.ledger)
	c.setState(callQueued)
	c.times.asked = f.loop.Now()
	f.loop.batch.Submit(c.queue.pool, &c.entry)
}

// proceed submits c, which was held because it repeats a Call that has ended without a Reply.
func (f *front) proceed(c *call) {
	f.ledger.unhold(c)
	if f.gone() {
		c.finish(f.loop.index)
		return
	}
	f.submit(c)
}

// route returns the upstream that c goes to, or nil after it has answered c itself. A rule sends c to an
// upstream that is not nil; otherwise the routes of s decide.
func (f *front) route(c *call, s *listenerSettings, to *upstream) *upstream {
	h, local := &c.h, c.local[:0]
	u, mismatch, low, high := to, false, uint32(0), uint32(0)
	if to == nil {
		u, mismatch, low, high = s.routes.find(h.Program, h.Version)
	}
	switch {
	case h.TLSProbe():
		f.answerProbe(c, s.opts.TLS)
	case h.Program == oncrpc.ProgramCCP, u == nil && !mismatch:
		// CCP negotiates the connection it travels on: RFC 5666 Section 6.
		f.answer(c, oncrpc.AppendAccepted(local, h.XID, oncrpc.ProgramUnavailable))
	case mismatch:
		f.answer(c, oncrpc.AppendProgramMismatch(local, h.XID, low, high))
	case h.Program == oncrpc.ProgramNLM && nlmRefused(h):
		f.answer(c, oncrpc.AppendAccepted(local, h.XID, oncrpc.ProcedureUnavailable))
	default:
		f.plain = f.plain || !f.secured && h.Procedure != 0
		return u
	}
	return nil
}

// answer gives the client the Reply b, which the bridge has made in c.local.
func (f *front) answer(c *call, b []byte) {
	if c.h.Args != 0 { // its header was parsed to the end
		c.op = f.listener.table(f.loop, nil).row(&c.h, f.listener.p.registry.Operation(&c.h))
		c.op.inFlight++
	}
	c.times.replied = f.loop.Now()
	f.ledger.charge(c)
	c.answer(b)
	c.setState(callReplying)
	f.deliver(c)
}

// assignXID gives c the XID that the upstream will see: xid.go.
func (c *call) assignXID(q *clientQueue) {
	if c.signed = signsXID(&c.h); c.signed {
		return
	}
	f := c.owner.front
	c.setXID(xidOf(f.latest.keyOf(c.up.p.xids.seed, &f.loop.credentials, &q.key, &c.h), &c.h))
}
