package rdmaside

import (
	"fmt"

	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
	"github.com/rdmabridge/rdmabridge/rdmaside/rpcrdma"
)

// submit posts the answer of x, or queues it until there is room for its Work
// Requests. Answers keep their order.
func (c *ResponderConn) submit(x *Exchange) {
	switch {
	case x.work > c.sendRoom():
		if x.answer == rpcrdma.Error {
			panic("BUG: rdmaside: send queue without room for one Send")
		}
		c.answerError(x, rpcrdma.ErrChunk) // the answer can never be posted
	case c.queued.first != nil || x.work > c.work:
		x.state = exchangeQueued
		c.queued.push(x)
	default:
		c.post(x)
	}
}

// post posts the answer of x in this order: its Writes, the Receive that the Call
// used, the Send. The Receive comes before the Send, which grants a credit for
// it: "The Responder MUST ensure that an increase in receive resources is
// effected before the next RPC Reply message is sent." RFC 8166 Section 3.3.1.
func (c *ResponderConn) post(x *Exchange) {
	h := &x.header
	c.work -= x.work
	x.state = exchangeSending
	err := error(nil)
	if x.answer != rpcrdma.Error {
		err = c.push(x)
	}
	if err == nil {
		if x.recv >= 0 {
			c.repost(x)
		}
		c.yield()
		h.Credits = c.grants.Reply()
		c.countGranted(int64(h.Credits))
		c.publish()
		err = c.send(x)
	} else {
		c.grants.Drop()
		c.publish()
	}
	if err != nil {
		// Nothing tells how much was posted, so the Call is lost and the
		// connection must be closed. The provider owns the Call's memory until
		// that has happened.
		x.state = exchangeLost
		c.end(fmt.Errorf("rdmaside: post reply: %w", err))
	}
}

// push writes the Reply into the chunks offered, by RDMA Write, and sets the
// lengths in every chunk that is returned: "the Responder updates each segment
// length field to reflect the actual amount of data that is being returned in
// that segment." RFC 8166 Section 3.4.6.
func (c *ResponderConn) push(x *Exchange) error {
	h := &x.header
	for i := range h.Writes {
		var err error
		if i < len(x.data) && len(x.data[i]) > 0 {
			err = c.fill(h.Writes[i].Segments, x.data[i:i+1])
		} else {
			err = c.fill(h.Writes[i].Segments, nil)
		}
		if err != nil {
			return err
		}
	}
	h.Proc = x.answer
	if h.Reply == nil {
		return nil
	}
	if x.answer == rpcrdma.NoMsg {
		return c.fill(h.Reply.Segments, x.out)
	}
	return c.fill(h.Reply.Segments, nil)
}

// fill writes pieces to the segments, front to back, and sets each segment's
// length to the octets written to it. The caller has checked that they fit.
func (c *ResponderConn) fill(segments []rpcrdma.Segment, pieces [][]byte) error {
	at := 0 // offset in pieces[0]
	for i := range segments {
		s := &segments[i]
		room, sent := s.Length, uint32(0)
		s.Length = 0
		for room > 0 && len(pieces) > 0 {
			parts, n := c.parts[:0], uint32(0)
			for room > 0 && len(pieces) > 0 && (c.info.MaxParts == 0 || len(parts) < c.info.MaxParts) {
				p := pieces[0][at:]
				if uint64(len(p)) > uint64(room) {
					p = p[:room]
					at += len(p)
				} else {
					pieces, at = pieces[1:], 0
				}
				parts = append(parts, p)
				n += uint32(len(p))
				room -= uint32(len(p))
			}
			c.parts = parts
			to := fabric.Region{Handle: fabric.Handle(s.Handle), Offset: s.Offset + uint64(sent), Length: n}
			if err := c.conn.PostWrite(0, fabric.Write{Parts: parts, To: to}); err != nil {
				return err
			}
			sent += n
		}
		s.Length = sent
	}
	return nil
}

// send posts the Send of x's answer: the header, followed by the Payload stream
// in an RDMA_MSG.
func (c *ResponderConn) send(x *Exchange) error {
	h := &x.header
	n := h.Len()
	b := x.buffer.Bytes()[:0:exchangeHeaderMax]
	inline := x.answer == rpcrdma.Msg
	gathered := inline && c.info.MaxParts != 0 && 1+len(x.out) > c.info.MaxParts
	if n > exchangeHeaderMax || gathered {
		octets := n
		if gathered {
			octets += x.size
		}
		l, err := c.responder.opts.Replies.Lease(octets)
		if err != nil {
			return err
		}
		x.large = l
		l.Post()
		b = l.Bytes()[:0]
	}
	b = h.Append(b)
	if gathered {
		for _, p := range x.out {
			b = append(b, p...)
		}
		inline = false
	}
	parts := append(c.parts[:0], b)
	if inline {
		parts = append(parts, x.out...)
	}
	c.parts = parts
	// Most answers are one short Send, which is copied, so that all that belongs to the Call is free while it is in the
	// cache. The parts of a Write must stay until a Send behind it has completed.
	if x.copies && x.work == 1 && x.invalidate == 0 && x.large == nil && c.copier != nil && c.copier.SendCopy(parts) {
		c.responder.metrics.replied(x)
		c.work++
		c.recycle(x)
		return nil
	}
	x.buffer.Post()
	if err := c.conn.PostSend(uint64(x.index)+1, fabric.Send{Parts: parts, Invalidate: x.invalidate}); err != nil {
		x.unpost()
		return err
	}
	c.responder.metrics.replied(x)
	return nil
}

// unpost removes the posted marks that send set.
func (x *Exchange) unpost() {
	x.buffer.Unpost()
	if x.large != nil {
		x.large.Unpost()
	}
}

// sent handles the completion of a Send, which is also the completion of the
// Writes before it.
func (c *ResponderConn) sent(p *fabric.Completion) {
	x := c.exchanges[p.ID-1]
	if x.state != exchangeSending {
		panic("BUG: rdmaside: completion of a Send that is not posted (B1)")
	}
	if p.Err != nil {
		c.broken("send", p.Err)
	}
	x.unpost()
	c.work += x.work
	c.recycle(x)
	for c.state == up && c.queued.first != nil && c.queued.first.work <= c.work {
		x := c.queued.first
		c.queued.pop()
		c.post(x)
	}
}

// sendRoom returns how many Work Requests of answers an empty send queue has room
// for.
func (c *ResponderConn) sendRoom() int { return max(1024, 4*c.responder.opts.Credits) }
