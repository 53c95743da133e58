package proxy

import (
	"errors"

	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb/nfs"
	"github.com/rdmabridge/rdmabridge/proxy/authorise"
)

// submit gives c, which the client's ledger counts, to its pool, or to its GSS context, which gives it to the pool.
func (f *front) submit(c *call) {
	if c.usesSeldom && c.tap.Refused() && c.stump == 0 && !f.refuseForNow(c) {
		return
	}
	f.loop.account.asked(c)
	if c.keepsOrder() {
		f.submitInOrder(c)
		return
	}
	c.setState(callQueued)
	c.progress.Asked = f.loop.Now()
	f.loop.batch.Submit(c.queue.pool, &c.entry)
	f.loop.submitted = c
}

// submitInOrder gives c, which the client's ledger counts, to its GSS context.
func (f *front) submitInOrder(c *call) {
	f.ordered++
	c.charge.Ordered, c.usesSeldom = true, true
	c.up.GSSContexts.Enter(&c.gss, c, f.loop.index)
}

// proceed submits c, which was held because it repeats a Call that has ended without a Reply.
func (f *front) proceed(c *call) {
	f.unhold(c)
	if f.Gone() {
		c.finish(f.loop.index)
		return
	}
	f.submit(c)
}

var errRefusedTwice = errors.New("a call that was to be refused for now was sent twice")

// refuseForNow has the client send c again later, because a Tap refuses it. It reports true if c goes to the server, without
// what it changes. c repeats no Call in flight, whose Reply it would wait for instead.
func (f *front) refuseForNow(c *call) (goes bool) {
	c.tap.Postpone()
	if !c.landAlone() { // another connection has just repeated it, and compares the message
		c.giveUp(f.loop.index, errRefusedTwice)
		return false
	}
	if c.cut(nfs.Later) {
		return true
	}
	c.answer(authorise.AppendRefusal(c.local[:0], &c.h, nfs.Later, c.rdma.Analysis.Session != 0))
	c.finish(f.loop.index)
	return false
}
