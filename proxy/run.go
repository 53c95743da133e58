package proxy

import (
	"encoding/binary"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
)

// A run is the Calls that one read of a TCP client, or one batch of completions of an RDMA client, has brought, one after
// the other. What decides about a Call is mostly what has decided about the one before it: both have the same program,
// version, procedure and credential. Such a Call follows the one before without going through the stages, unless it does
// more harm when repeated than to do once more what it says.
//
// A loop has one run. The client empties it before its first Call, because tasks may have changed since the latest one what
// decides about Calls. Each Call that goes through the stages begins another one.
type run struct {
	latest *call      // the Call that began last, if it is in the batch of its loop; otherwise nil
	args   ulb.Layout // of the arguments of Calls that may follow it; nil if that is not known yet, or none may
}

// begin does what front.begin does, for c, which may be the next Call of r.
func (r *run) begin(f *front, c *call) (isCall bool) {
	if p := r.latest; p != nil {
		if r.args == nil {
			r.args = f.leads(p)
		}
		f.loop.submitted = nil
		if r.args != nil && f.follow(c, p, r.args) {
			r.latest = f.loop.submitted
			return true
		}
	}
	f.loop.submitted = nil
	isCall = f.begin(c)
	// Another loop may have what is not in the batch, or it has been settled.
	r.latest = f.loop.submitted
	return isCall
}

// leads returns the layout of the arguments of Calls of f that may follow p, which has just gone through the stages; nil if
// none may. What the stages have done with p must follow from its header alone, and they must not have changed it, but
// for its XID.
func (f *front) leads(p *call) ulb.Layout {
	if p.owner.front != f || p.signed || p.usesSeldom || p.queue.lane != nil || f.cache.user.Number() == 0 {
		return nil
	}
	a := &p.rdma.Analysis
	if a.Class > ulb.Idempotent || a.Lower != 0 || a.LayoutTypes || p.h.Program == oncrpc.ProgramNLM {
		return nil
	}
	return f.listener.Registry.Fixed(&p.h)
}

// follow takes c the way that p has gone, the Call before it, if args is the layout of its arguments and the rest of
// its header is that of p. Otherwise it does nothing.
func (f *front) follow(c, p *call, args ulb.Layout) bool {
	m, h, at := c.rdma.Message, &c.h, p.h.Args
	if len(m) < at || string(m[4:at]) != string(p.rdma.Message[4:at]) || !args.Fits(m, at) {
		return false
	}
	user, account := &f.cache.user, f.account()
	s := f.settings().Policy
	if s != nil && !f.cache.decisions.Passes(s, user.Number(), &p.h, p.rdma.Analysis.Changes, f.seen.Active) {
		return false
	}
	*h = p.h
	h.XID, h.Message = binary.BigEndian.Uint32(m), m
	c.rdma.Analysis, c.rdma.Binding = p.rdma.Analysis, p.rdma.Binding
	account.begun(c)
	account.analysed(c)
	c.queue, c.charge.Expected = p.queue, p.charge.Expected
	e := &c.entry
	e.Flow, e.Aside, e.Repeatable = p.entry.Flow, p.entry.Aside, p.entry.Repeatable
	e.Cost = p.entry.Cost + len(m) - len(p.rdma.Message)
	account.bound(c, p.up)
	c.setXID(user.NextXID(h))
	if !f.repeats(c) {
		f.submit(c)
	}
	return true
}
