package proxy

import (
	"errors"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb/nfs"
)

// begin takes the Call in c.message as far as the pool of its upstream: it finds the upstream,
// has the Call analysed and gives it an XID. It reports false when the message is no RPC Call,
// and has closed the connection then.
func (f *front) begin(c *call) bool {
	h, g, l := &c.h, &f.ledger, f.listener
	err := oncrpc.ParseCall(c.message.octets, h)
	if err != nil && !errors.Is(err, oncrpc.ErrVersion) {
		f.malformed(c, err)
		return false
	}
	c.began = f.loop.Now()
	for _, b := range g.buckets {
		b.chargeCall(c.began, len(c.message.octets), g)
	}
	c.rdma.XID, c.clientXID = h.XID, h.XID
	c.rdma.Message = c.message.octets
	if err != nil {
		f.answer(c, oncrpc.AppendRPCMismatch(c.reply.local[:0], h.XID))
		return true
	}
	u := f.route(c)
	if u == nil {
		return true
	}
	if h.Program == oncrpc.ProgramNLM {
		nlmOwner(h, g.addr)
	}
	q := g.queueTo(u)
	if !q.decided {
		if q, err = g.pinned(q, h); err != nil {
			f.closeUnpinned(c, u, err)
			return true
		}
	}
	a := &c.rdma.Analysis
	here := f.loop.index // not by way of c.owner, which another connection may replace below
	c.up = u
	u.under[here].n++
	c.rdma.Binding = l.p.registry.Analyse(h, a)
	if a.Session != 0 {
		u.sessions.Tighten(c.message.octets, a)
	}
	c.charge.expected = u.expect(a, g.large)
	c.queue, c.owner.queue = q, q
	c.entry.Flow = q.flowOf(c)
	if c.assignXID(g) {
		c.reply.result = resultAbsorbed
		f.settle(c)
		return true
	}
	if a.BackRequest != 0 {
		nfs.BoundBackChannel(c.message.octets, a, f.client.longestCallBack())
	}
	g.charge(c)
	c.entry.Cost = u.cost(len(c.message.octets), a)
	u.admission.enter(c, g)
	c.setState(callQueued)
	if err := q.pool.Submit(&c.entry, here); err != nil {
		c.giveUp(here, err)
	}
	return true
}

// route returns the upstream that c goes to, or nil after it has answered c itself.
func (f *front) route(c *call) *upstream {
	h, local := &c.h, c.reply.local[:0]
	u, mismatch, low, high := f.listener.settings().routes.find(h.Program, h.Version)
	switch {
	case h.TLSProbe() && h.Procedure != 0:
		// "If an RPC client uses the AUTH_TLS authentication flavor on any procedure other
		// than the NULL procedure [...], the RPC server MUST reject that RPC Call by
		// returning a reply_stat of MSG_DENIED with a reject_stat of AUTH_ERROR and an
		// auth_stat of AUTH_BADCRED." RFC 9289 Section 4.1.
		f.answer(c, oncrpc.AppendAuthError(local, h.XID, oncrpc.AuthBadCredential))
	case h.TLSProbe():
		// RFC 9289 Section 4.1: a NULL reply without STARTTLS in its verifier says
		// that there is no TLS here. The probe is for this hop and not sent on.
		f.answer(c, oncrpc.AppendAccepted(local, h.XID, oncrpc.Success))
	case h.Program == oncrpc.ProgramCCP, u == nil && !mismatch:
		// CCP negotiates the connection it travels on: RFC 5666 Section 6.
		f.answer(c, oncrpc.AppendAccepted(local, h.XID, oncrpc.ProgramUnavailable))
	case mismatch:
		f.answer(c, oncrpc.AppendProgramMismatch(local, h.XID, low, high))
	case h.Program == oncrpc.ProgramNLM && nlmRefused(h):
		f.answer(c, oncrpc.AppendAccepted(local, h.XID, oncrpc.ProcedureUnavailable))
	default:
		return u
	}
	return nil
}

// answer gives the client the Reply b, which the bridge has made in c.reply.local.
func (f *front) answer(c *call, b []byte) {
	f.ledger.charge(c)
	c.answer(b)
	c.setState(callReplying)
	f.deliver(c)
}

// assignXID gives c the XID that the upstream will see: xid.go. It reports true when c is a
// retransmission of a Call that is still in flight. c is not sent to the upstream then: the
// Reply to the Call in flight goes to the connection of c, and assignXID closes the connection
// that the Reply would have gone to.
func (c *call) assignXID(g *ledger) (absorbed bool) {
	x := c.up.p.xids
	switch c.h.Flavor {
	case oncrpc.FlavorNone, oncrpc.FlavorSys, oncrpc.FlavorShort, oncrpc.FlavorDH:
	default:
		c.signed = true
		return false
	}
	if c.rdma.Analysis.Class == ulb.ReadOnly {
		c.setXID(x.fresh())
		return false
	}
	own := ofSlot(g.slot, c.h.XID)
	c.xid.tag = x.tag(g.addr, c.up.number, &c.h, own)
	cl := x.assign(c, own)
	if !cl.absorbed {
		c.setXID(cl.xid)
		return false
	}
	if old := cl.old; old.front != nil {
		g.adopt(cl.expected)
		if old.exchange != nil {
			abort(old.exchange)
		}
		old.front.close(errSuperseded)
	}
	return true
}
