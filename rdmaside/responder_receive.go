package rdmaside

import (
	"errors"
	"fmt"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
	"github.com/rdmabridge/rdmabridge/rdmaside/rpcrdma"
)

func (c *ResponderConn) completed(cs []fabric.Completion) {
	c.called = false
	for i := range cs {
		p := &cs[i]
		switch p.Op {
		case fabric.OpReceive:
			c.received(p)
		case fabric.OpRead:
			c.fetched(p)
		case fabric.OpSend:
			if p.ID >= reverseSendID {
				c.reverseSendDone(p)
				continue
			}
			c.sent(p)
		case fabric.OpWrite:
			// Only failed Writes have completions.
			c.broken("write", p.Err)
		}
	}
}

// received handles one Receive. Every path out of it hands the buffer on or
// reposts it: rule B3.
func (c *ResponderConn) received(p *fabric.Completion) {
	i := c.recvs.completed(p.ID)
	if p.Err != nil || c.state != up {
		c.recvs.drop(i)
		if p.Err != nil {
			c.broken("receive", p.Err)
		}
		return
	}
	b := c.recvs.bytes(i)
	if p.Bytes < 0 || int(p.Bytes) > len(b) {
		c.recvs.drop(i)
		c.end(fmt.Errorf("rdmaside: receive of %d octets in a buffer of %d", p.Bytes, len(b)))
		return
	}
	b = p.Message(b)
	xid, credits, plain := rpcrdma.ParsePlain(b)
	if plain {
		// The RPC message tells the direction: RFC 8167 Section 4.1.
		if _, mtype, ok := oncrpc.MessageType(b[rpcrdma.PlainLen:]); ok && mtype == oncrpc.TypeReply {
			c.reverseReply(i, xid, credits, b[rpcrdma.PlainLen:])
			return
		}
	}
	if (len(c.parked) > 0 || c.grants.Full()) && isCall(b) {
		c.exceed(i, c.place(i, p)) // behind those that wait: the order of arrival is kept
		return
	}
	x := c.exchange()
	switch {
	case x == nil:
		c.park(i, len(c.place(i, p)))
	case p.Data != nil && len(b) <= exchangeHeaderMax:
		// The Receive buffer is needed for nothing, and x, which was used a moment ago, is in the cache.
		b = x.keepCall(b)
		c.responder.metrics.copied.Add(uint64(len(b)))
		c.repostBuffer(i)
		c.message(x, -1, b)
	default:
		c.message(x, i, c.place(i, p))
	}
}

// place returns the message of p, in Receive buffer i. It copies a message that came in place.
func (c *ResponderConn) place(i int, p *fabric.Completion) []byte {
	b := c.recvs.bytes(i)[:p.Bytes]
	if n := copy(b, p.Data); n > 0 {
		c.responder.metrics.copied.Add(uint64(n))
	}
	return b
}

// message handles b, which is in Receive buffer i, or in the buffer of x if i is -1, and is not a reverse Reply,
// with x.
func (c *ResponderConn) message(x *Exchange, i int, b []byte) {
	m := c.responder.metrics
	x.recv = i
	h := &x.header
	n := rpcrdma.PlainLen
	if xid, credits, plain := rpcrdma.ParsePlain(b); plain {
		h.Reset(xid, credits, rpcrdma.Msg)
	} else {
		var err error
		if n, err = h.Decode(b); err != nil {
			c.undecodable(x, err)
			return
		}
	}
	switch h.Proc {
	case rpcrdma.Done, rpcrdma.Error:
		// "Receivers MUST silently discard RDMA_DONE messages", Section 4.6.2. "A
		// Responder MUST silently discard RDMA_ERROR procedures", Section 4.2.4.
		// But an RDMA_ERROR that answers a reverse Call is for us: we are its
		// Requester.
		c.recycle(x)
		if h.Proc == rpcrdma.Done || !c.reverseError(h.XID) {
			m.droppedProc.Inc()
		}
		return
	}
	if h.Proc == rpcrdma.Msg && n != rpcrdma.PlainLen {
		if _, mtype, ok := oncrpc.MessageType(b[n:]); ok && mtype == oncrpc.TypeReply {
			// A reverse Reply with chunks, although none were offered for it.
			m.droppedReply.Inc()
			c.recycle(x)
			return
		}
	}
	if !c.begin(x, h.XID, h.Credits) {
		return
	}
	if h.Proc == rpcrdma.MsgP {
		// "When receiving an RDMA_MSGP procedure, Responders SHOULD reply with an
		// RDMA_ERROR procedure, setting the rdma_err field to ERR_CHUNK". Section 4.6.1.
		c.answerError(x, rpcrdma.ErrChunk)
		return
	}
	x.inline = b[n:]
	x.chunks = x.chunks[:0]
	if c.invalidate {
		x.invalidate = onlyHandle(h)
	}
	if len(h.Reads) == 0 && h.Proc == rpcrdma.Msg {
		x.message = x.inline
		c.dispatch(x)
		return
	}
	c.gatherCall(x)
}

// begin counts the Call of x against the grant. It returns false if that closed
// the connection.
func (c *ResponderConn) begin(x *Exchange, xid, requested uint32) bool {
	x.xid = xid
	g := &c.grants
	kept := g.Call(requested)
	c.publish()
	if !kept && int(g.Outstanding)+len(c.parked) > int(g.Needed())+c.beyond() {
		// The Requester knows a smaller grant since this Call.
		c.drop(x)
		c.overrun(xid)
		return false
	}
	c.keepExtra()
	c.use()
	return true
}

// undecodable answers a message whose header cannot be decoded: RFC 8166 Section
// 4.5.
func (c *ResponderConn) undecodable(x *Exchange, err error) {
	var he *rpcrdma.HeaderError
	if !errors.As(err, &he) || he.Answer == rpcrdma.Silence {
		// "it MUST silently discard the message before performing any parsing."
		c.responder.metrics.droppedHeader.Inc()
		c.recycle(x)
		return
	}
	c.responder.metrics.badHeader.Inc()
	if !c.begin(x, he.XID, x.header.Credits) {
		return
	}
	code := rpcrdma.ErrChunk
	if he.Answer == rpcrdma.AnswerErrVers {
		code = rpcrdma.ErrVers
	}
	x.header.Version = he.Version
	c.answerError(x, code)
}

// onlyHandle returns the handle that h offers if it offers no other, else 0.
func onlyHandle(h *rpcrdma.Header) fabric.Handle {
	var only uint32
	one := true
	see := func(s *rpcrdma.Segment) {
		if only == 0 {
			only = s.Handle
		} else if only != s.Handle {
			one = false
		}
	}
	for i := range h.Reads {
		see(&h.Reads[i].Segment)
	}
	for i := range h.Writes {
		for j := range h.Writes[i].Segments {
			see(&h.Writes[i].Segments[j])
		}
	}
	if h.Reply != nil {
		for j := range h.Reply.Segments {
			see(&h.Reply.Segments[j])
		}
	}
	if !one {
		return 0
	}
	return fabric.Handle(only)
}
