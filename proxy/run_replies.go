package proxy

import (
	"encoding/binary"

	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
	"github.com/rdmabridge/rdmabridge/proxy/observe"
	"github.com/rdmabridge/rdmabridge/proxy/upstream"
	"github.com/rdmabridge/rdmabridge/tcpframe"
)

// A replyRun is the Replies, one after the other in what one read of a server's connection has brought, to Calls of one
// client connection, which copies them at once. Each Call is over as soon as its Reply is taken. What depends on the
// client or the upstream, and not on the Call, is done by end, once. A loop has one replyRun, which is empty between two
// reads.
type replyRun struct {
	loop   *eventLoop // constant
	client *front     // that the Replies go to; nil for none
	tcp    *tcpClient // client, or nil if that is an RDMA client
	up     *upstream.Upstream
	calls  int
}

// takes reports whether the next Reply may be taken that is the one to c: c is a Call of a client of the loop, nobody
// looks at it, and its Reply is not to be changed, or to be kept for others or for later. r.client is its client then,
// and c is not in flight. A lane compares a Reply with its Call, whose memory an RDMA client's connection takes back.
func (r *replyRun) takes(c *call) bool {
	if f := c.owner.front; f != r.client {
		r.end()
		if f.loop != r.loop || f.ended.get() || r.loop.account.observed() {
			return false
		}
		r.client, r.up = f, c.up
		r.tcp, _ = f.client.(*tcpClient)
	}
	a := &c.rdma.Analysis
	return !c.sent.writing && !c.usesSeldom && c.stump == 0 && a.Lower&ulb.Results == 0 && a.SessionOps == 0 &&
		c.progress.Result == observe.ResultGone && (r.tcp != nil || c.queue.lane == nil) && c.landAlone()
}

// copy has the client's connection copy m, the Reply to c, with the client's XID. If that cannot be done now, copy reports
// false and leaves m as it is.
func (r *replyRun) copy(c *call, m []byte) bool {
	binary.BigEndian.PutUint32(m, c.progress.ClientXID)
	if r.tcp != nil {
		if r.tcp.conn.SendCopy(m) {
			return true
		}
	} else if c.owner.exchange.ReplyNow(m) {
		c.takeExchange() // and the message
		return true
	}
	binary.BigEndian.PutUint32(m, c.rdma.XID)
	return false
}

// relay does what copy does, for m that from.Next has returned.
func (r *replyRun) relay(from *tcpframe.Conn, c *call, m []byte) bool {
	if r.tcp != nil {
		return from.Relay(r.tcp.conn, m)
	}
	if !r.copy(c, m) {
		return false
	}
	from.Took(m, 0)
	return true
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
	l.batch.Done(&c.entry)
	r.calls++
	c.setState(callReplying)
	c.releaseMessage(l)
	l.recycle(c)
}

// end does what depends on the client of the Replies that were taken, and empties r.
func (r *replyRun) end() {
	f, u, n := r.client, r.up, r.calls
	*r = replyRun{loop: r.loop}
	if n == 0 {
		return
	}
	r.loop.account.passedRun(u, n)
	f.client.passed(n)
	if f.ended.get() {
		return
	}
	f.client.admit()
	f.closeIfIdle()
}
