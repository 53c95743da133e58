package proxy

import (
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb/nfs"
	"github.com/rdmabridge/rdmabridge/proxy/session"
	"github.com/rdmabridge/rdmabridge/proxy/upstream"
)

// bind finds the queue of c, which goes to u, and with it the connections that may carry c. It writes down what c will
// cost and what its Reply will tell, and lowers what c asks for to what the way carries.
func (f *front) bind(c *call, u *upstream.Upstream) bool {
	h, a := &c.h, &c.rdma.Analysis
	q := f.queueTo(u)
	if !q.decided && (session.MayNeedLane(h) || u.Settings().Pins()) {
		var err error
		if q, err = f.chooseQueue(q, h, a); err != nil {
			f.closeUnpinned(c, u, err)
			return false
		}
	}
	if a.Session != 0 || q.lane != nil {
		c.learn(q)
	}
	c.charge.Expected = u.Expect(a, f.largeReply())
	c.queue = q
	c.entry.Flow = q.flowOf(f, a)
	if a.BackRequest != 0 {
		nfs.BoundBackChannel(c.rdma.Message, a, f.longestCallBack())
	}
	if a.Lower&ulb.Arguments != 0 {
		c.lowerArguments()
	}
	if a.LayoutTypes && u.Settings().HidesLayouts() {
		nfs.HideLayoutTypes(h, a)
	}
	c.entry.Cost, c.entry.Aside = u.Cost(len(c.rdma.Message), a), h.Procedure == 0
	f.account().bound(c, u)
	return true
}

// learn notes what the Reply to c, which waits in q, may tell of sessions.
func (c *call) learn(q *clientQueue) {
	a := &c.rdma.Analysis
	if id, ok := nfs.SequenceSession(c.rdma.Message, a); ok {
		q.session.Tighten(q.u.Lanes.Table, id, c.rdma.Message, a)
		c.session.Learns = q.lane != nil && q.lane.Learns(id)
	} else if q.lane != nil {
		c.session.Learns = q.lane.Hides(&c.h)
	}
}
