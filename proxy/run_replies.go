package proxy

import (
	"encoding/binary"

	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
	"github.com/rdmabridge/rdmabridge/proxy/observe"
	"github.com/rdmabridge/rdmabridge/proxy/upstream"
)

// A replyRun is the Replies, one after the other in what one read of a server's connection has brought, to Calls of one
// client connection, which copies them. Each Call is over as soon as its Reply is taken. What depends on the client or the
// upstream, and not on the Call, is done by end, once. A loop has one replyRun, which is empty between two reads.
type replyRun struct {
	loop   *eventLoop // constant
	client *tcpClient // that the Replies go to; nil for none
	up     *upstream.Upstream
	calls  int
}

// takes reports whether the next Reply may be taken that is the one to c: c is a Call of a client of the loop, nobody
// looks at Calls, and its Reply is not to be changed, or to be kept for others or for later. r.client is its client then,
// and c is not in flight.
func (r *replyRun) takes(c *call) bool {
	if f := c.owner.front; r.client == nil || f != &r.client.front {
		r.end()
		if f.loop != r.loop || f.ended.get() || r.loop.account.watched() {
			return false
		}
		s, ok := f.client.(*tcpClient)
		if !ok {
			return false
		}
		r.client, r.up = s, c.up
	}
	a := &c.rdma.Analysis
	return !c.sent.writing && !c.usesSeldom && c.stump == 0 && a.Lower&ulb.Results == 0 && a.SessionOps == 0 &&
		c.progress.Result == observe.ResultGone && c.landAlone()
}

// took ends c, whose Reply m the client's connection copies with the client's XID.
func (r *replyRun) took(c *call, m []byte) {
	l := r.loop
	if q := c.queue.lane; q != nil {
		c.one[0] = m
		q.Replied(&c.session, &c.h, c.rdma.Message, &c.rdma.Analysis, c.one[:], c.signed)
	}
	binary.BigEndian.PutUint32(m, c.progress.ClientXID)
	l.account.passed(c, m)
	l.batch.Done(c.entry.Seat(), &c.entry)
	r.calls++
	c.setState(callReplying)
	c.releaseMessage(l)
	l.recycle(c)
}

// end does what depends on the client of the Replies that were taken, and empties r.
func (r *replyRun) end() {
	s, u, n := r.client, r.up, r.calls
	if n == 0 {
		r.client, r.up = nil, nil
		return
	}
	r.client, r.up, r.calls = nil, nil, 0
	r.loop.account.passedRun(u, n)
	s.copies += int32(n)
	if s.ended.get() {
		return
	}
	s.admit()
	s.closeIfIdle()
}
