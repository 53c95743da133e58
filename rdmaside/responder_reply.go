package rdmaside

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/internal/regmem"
	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
	"github.com/rdmabridge/rdmabridge/rdmaside/rpcrdma"
)

// Reply answers with the plain RPC Reply in parts, whose first four octets are
// the XID of the Call, and completes x. The slice of slices is lent until Reply
// returns. The octets, in memory of a regmem arena, are lent until done.Release
// is called, once, on the loop. done may be nil. When the connection is closed,
// Reply drops the Reply and releases done at once.
//
// If the Reply fits nothing that the Requester offered, the answer is RDMA_ERROR
// with ERR_CHUNK: RFC 8166 Section 4.5.3.
func (x *Exchange) Reply(parts [][]byte, done Releaser) {
	if x.state != exchangeHanded {
		panic("BUG: rdmaside: an exchange is ended twice")
	}
	c := x.conn
	x.done = done
	if c.state != up {
		c.drop(x)
		return
	}
	x.size = 0
	for _, p := range parts {
		x.keep(p)
	}
	if len(x.out) == 0 || len(x.out[0]) < 4 || binary.BigEndian.Uint32(x.out[0]) != x.xid || x.size%4 != 0 {
		c.responder.lines.bugs.Line(&c.responder.opts.Log, zerolog.ErrorLevel, "bug").Uint32("xid", x.xid).Int("octets", x.size).Msg("BUG: handler answered with another call's reply; connection closed")
		x.giveUp(errors.New("reply is not the call's"))
		return
	}
	h := &x.header
	if len(h.Writes) > 0 {
		switch err := x.reduce(); {
		case errors.Is(err, regmem.ErrBudget):
			// ERR_CHUNK says that the error is permanent, and a lack of memory is
			// not.
			x.giveUp(err)
			return
		case err != nil:
			c.answerError(x, rpcrdma.ErrChunk)
			return
		}
	}
	// Of a Reply that is joined the parts are not needed any more. But they stay the client's until it has the
	// Reply: their owner charges it for the memory that its Replies take.
	c.shape(x)
}

// ReplyCopy does what Reply does, for a handler that need not know when the Reply has been sent: if it can, it copies the
// Reply and releases done before it returns.
func (x *Exchange) ReplyCopy(parts [][]byte, done Releaser) {
	x.copies = true
	x.Reply(parts, done)
}

// ReplyNow does what ReplyCopy does with the Reply m, which is borrowed, if nothing more than a Send is needed and the
// provider can copy that at once. Otherwise it does nothing and reports false.
func (x *Exchange) ReplyNow(m []byte) bool {
	if x.state != exchangeHanded {
		panic("BUG: rdmaside: an exchange is ended twice")
	}
	c, h := x.conn, &x.header
	if c.state != up || c.copier == nil || c.queued.first != nil || x.recv >= 0 || x.invalidate != 0 ||
		h.Proc != rpcrdma.Msg || h.Len() != rpcrdma.PlainLen || rpcrdma.PlainLen+len(m) > c.replyInline ||
		len(m) < 4 || len(m)%4 != 0 || binary.BigEndian.Uint32(m) != x.xid {
		return false
	}
	c.yield()
	// The Call stays what it is in the front of the buffer.
	b := rpcrdma.AppendPlain(x.shortReply(), x.xid, c.grants.Next())
	c.parts = append(c.parts[:0], b, m)
	if !c.copier.SendCopy(c.parts) {
		return false
	}
	c.countGranted(int64(c.grants.Reply()))
	c.publish()
	c.responder.metrics.repliesInline.Inc()
	c.recycle(x)
	return true
}

// ReplyShort does what Reply does with the Reply m of at most ShortReply octets. It copies m to memory that x has, so
// that a Call can be refused when there is no other.
func (x *Exchange) ReplyShort(m []byte, done Releaser) {
	x.Reply([][]byte{append(x.shortReply(), m...)}, done)
}

// Abort completes x without an answer and closes the connection: "If a Responder
// is unable to construct and transmit an RPC Reply or RPC-over-RDMA error
// message, the Responder MUST close the connection to signal to the Requester
// that a reply was lost." RFC 8166 Section 4.5.4.
func (x *Exchange) Abort() {
	if x.state != exchangeHanded {
		panic("BUG: rdmaside: an exchange is ended twice")
	}
	x.giveUp(errAborted)
}

func (x *Exchange) giveUp(err error) {
	c, xid := x.conn, x.xid
	c.drop(x)
	c.end(fmt.Errorf("rdmaside: call %#08x: %w", xid, err))
}

// reduce moves the data items that belong into Write chunks from x.out to x.data.
//
// "When a Requester provides a Write list, the Responder MUST push data
// corresponding to DDP-eligible result data items to Requester memory referenced
// in the Write list." RFC 8166 Section 4.3.2. The n-th item goes into the n-th
// chunk: Section 4.3.2.1 and RFC 8267 Section 6.4.1. When that chunk is empty
// "The Responder MUST return the corresponding result data item inline", Section
// 4.3.2.3. Items without a chunk stay inline.
func (x *Exchange) reduce() error {
	c, chunks := x.conn, x.header.Writes
	for len(chunks) > 0 && chunks[len(chunks)-1].Length() == 0 {
		chunks = chunks[:len(chunks)-1]
	}
	if len(chunks) == 0 || !x.call.Reducible() {
		return nil
	}
	b := c.responder.opts.Registry.Lookup(x.call.Program, x.call.Version)
	m := x.out[0]
	if len(x.out) > 1 {
		if x.reduced(b) {
			return fits(uint64(len(x.data[0])), chunks[0].Length())
		}
		// ReducibleItems needs the Reply in one piece.
		l, err := c.responder.opts.Replies.Lease(x.size)
		if err != nil {
			return err
		}
		x.whole = l
		m = l.Bytes()[:0]
		for _, p := range x.out {
			m = append(m, p...)
		}
		clear(x.out)
		x.out = append(x.out[:0], m)
	}
	for cap(x.items) < len(chunks) {
		x.items = append(x.items[:cap(x.items)], ulb.Splice{})
	}
	items := x.items[:len(chunks)]
	items = items[:ulb.ReducibleItems(b, x.call.Procedure, m, items)]
	clear(x.out)
	x.out, x.size = x.out[:0], 0
	at := 0
	for i := range items {
		s := &items[i]
		room := chunks[i].Length()
		if room == 0 || s.Length == 0 {
			x.data = append(x.data, nil)
			continue
		}
		if err := fits(uint64(s.Length), room); err != nil {
			return err
		}
		x.keep(m[at:s.Pos])
		// "A Responder MUST NOT write XDR roundup padding into a Write chunk, even if
		// the Requester made space available for it." Section 3.4.6.2.
		x.data = append(x.data, m[s.Pos:s.Pos+s.Length])
		at = int(s.Pos + s.Length + s.Padding)
	}
	x.keep(m[at:])
	for n := len(x.data); n > 0 && x.data[n-1] == nil; n-- {
		x.data = x.data[:n-1]
	}
	return nil
}

// fits returns an error if an item of n octets does not fit into a Write chunk of
// room octets.
func fits(n, room uint64) error {
	if n > room {
		return fmt.Errorf("item of %d octets, Write chunk of %d", n, room)
	}
	return nil
}

// keep appends b to the Payload stream.
func (x *Exchange) keep(b []byte) {
	if len(b) > 0 {
		x.out = append(x.out, b)
		x.size += len(b)
	}
}

// reduced moves the item of a Reply in two parts, as a Requester assembles it,
// without a copy: the item is the whole second part, and there is no other item.
// It returns false, and changes nothing, when the Reply is not like that.
func (x *Exchange) reduced(b ulb.Binding) bool {
	if len(x.out) != 2 || x.header.Writes[0].Length() == 0 {
		return false
	}
	var r oncrpc.Reply
	base, item := x.out[0], x.out[1]
	if oncrpc.ParseReply(base, &r) != nil || !r.Succeeded() {
		return false
	}
	pos, n, ok, err := b.ResultItem(x.call.Procedure, base, r.Results, true)
	if err != nil || !ok || n == 0 || int(pos) != len(base) || uint64(n)+uint64(-n&3) != uint64(len(item)) {
		return false
	}
	x.data = append(x.data, item[:n])
	x.out[1] = nil
	x.out, x.size = x.out[:1], len(base)
	return true
}

// shape chooses between RDMA_MSG and RDMA_NOMSG for the Reply in x.
func (c *ResponderConn) shape(x *Exchange) {
	h := &x.header
	h.Reads = h.Reads[:0] // "Responders MUST leave the Read list empty in all replies."
	h.Proc = rpcrdma.Msg
	n := h.Len()
	switch {
	case n+x.size <= c.replyInline:
		x.answer = rpcrdma.Msg
	case n <= c.replyInline && h.Reply != nil && uint64(x.size) <= h.Reply.Length():
		// "If a Reply chunk was provided and the reduced Payload stream is larger than
		// the reply inline threshold, the Responder MUST use the Requester-provided
		// Reply chunk for the reply." Section 3.5.3.
		x.answer = rpcrdma.NoMsg
	default:
		c.answerError(x, rpcrdma.ErrChunk)
		return
	}
	x.work = 1
	for i, item := range x.data {
		x.work += segments(&h.Writes[i], len(item))
	}
	if x.answer == rpcrdma.NoMsg {
		x.work += segments(h.Reply, x.size) + len(x.out)
	}
	c.submit(x)
}

// segments returns how many segments of w are needed to hold n octets.
func segments(w *rpcrdma.WriteChunk, n int) (used int) {
	for i := range w.Segments {
		if n <= 0 {
			break
		}
		if length := w.Segments[i].Length; length > 0 {
			used++
			n -= int(min(uint64(n), uint64(length)))
		}
	}
	return used
}

// answerError answers x with RDMA_ERROR, which "indicates a permanent error" (RFC
// 8166 Section 4.5). It must not be used for an error that may be gone a moment
// later. header.Version must be the Call's.
func (c *ResponderConn) answerError(x *Exchange, code rpcrdma.ErrCode) {
	if code == rpcrdma.ErrVers {
		c.responder.metrics.errVers.Inc()
	} else {
		c.responder.metrics.errChunk.Inc()
	}
	x.withdraw()
	x.header.SetError(x.xid, x.header.Version, 0, code)
	x.answer, x.work, x.invalidate = rpcrdma.Error, 1, 0
	c.submit(x)
}

// answerRPC answers x, whose header has been parsed, with an RPC Reply without
// results.
func (c *ResponderConn) answerRPC(x *Exchange, acceptStat uint32) {
	c.responder.metrics.garbage.Inc()
	if x.call.Flavor == oncrpc.FlavorGSS {
		// The verifier is a checksum that only the server can compute, so no RPC
		// Reply is possible: RFC 2203 Section 5.3.3.2.
		c.answerError(x, rpcrdma.ErrChunk)
		return
	}
	c.answerPlain(x, oncrpc.AppendAccepted(x.shortReply(), x.xid, acceptStat))
}

// shortReply returns the memory for a Reply of at most ShortReply octets.
func (x *Exchange) shortReply() []byte {
	return x.buffer.Bytes()[exchangeHeaderMax:exchangeHeaderMax:exchangeBuffer]
}

// answerPlain answers x, whose Transport header has been parsed, with the Reply b, which is in
// the memory of shortReply.
func (c *ResponderConn) answerPlain(x *Exchange, b []byte) {
	x.withdraw()
	x.out, x.size = append(x.out[:0], b), len(b)
	c.shape(x)
}

// withdraw removes the Reply that was to be sent.
func (x *Exchange) withdraw() {
	clear(x.out)
	clear(x.data)
	x.out, x.data, x.size = x.out[:0], x.data[:0], 0
}
