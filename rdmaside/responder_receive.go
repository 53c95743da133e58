package rdmaside

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/rdmabridge/rdmabridge/internal/regmem"
	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
	"github.com/rdmabridge/rdmabridge/rdmaside/rpcrdma"
)

func (c *ResponderConn) completed(cs []fabric.Completion) {
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
	if p.Bytes < 0 || p.Bytes > len(b) {
		c.recvs.drop(i)
		c.end(fmt.Errorf("rdmaside: receive of %d octets in a buffer of %d", p.Bytes, len(b)))
		return
	}
	b = b[:p.Bytes]
	xid, credits, plain := rpcrdma.ParsePlain(b)
	if plain {
		// The RPC message tells the direction: RFC 8167 Section 4.1.
		if _, mtype, ok := oncrpc.MessageType(b[rpcrdma.PlainLen:]); ok && mtype == oncrpc.TypeReply {
			c.reverseReply(i, xid, credits, b[rpcrdma.PlainLen:])
			return
		}
	}
	if len(c.parked) > 0 {
		c.park(i, p.Bytes) // keep the order of arrival
		return
	}
	x := c.exchange()
	if x == nil {
		c.park(i, p.Bytes)
		return
	}
	c.message(x, i, b)
}

// message handles b, which is in Receive buffer i and is not a reverse Reply,
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
	kept := c.grants.Call(requested)
	c.publish()
	if !kept {
		// "If the granted value is exceeded, the RDMA layer may signal an error,
		// possibly terminating the connection." RFC 8166 Section 3.3.1.
		err := fmt.Errorf("%w: %d outstanding", errOverrun, c.grants.Outstanding)
		c.drop(x)
		c.refuse(xid, refusal{reasonCredits, err})
		return false
	}
	c.use()
	return true
}

// drop completes a Call without an answer.
func (c *ResponderConn) drop(x *Exchange) {
	c.grants.Drop()
	c.publish()
	c.recycle(x)
}

func (c *ResponderConn) publish() { c.outstanding.Store(int32(c.grants.Outstanding)) }

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

// gatherCall begins to assemble a Call that did not come whole.
func (c *ResponderConn) gatherCall(x *Exchange) {
	if err := x.layout(c.responder.opts.MaxCall); err != nil || c.ord == 0 {
		c.answerError(x, rpcrdma.ErrChunk) // also when the peer serves no Reads
		return
	}
	if len(x.chunks) == 1 && x.header.Proc == rpcrdma.Msg {
		// The Payload stream is here, so it tells how long the chunk's item must
		// be before anything is pulled.
		if err := oncrpc.ParseCall(x.inline, &x.call); err != nil {
			c.badCall(x, err)
			return
		}
		if !x.call.Reducible() {
			c.answerError(x, rpcrdma.ErrChunk)
			return
		}
		b := c.responder.opts.Registry.Lookup(x.call.Program, x.call.Version)
		s, err := ulb.RestoreCall(b, &x.call, x.chunks[0].position, x.chunks[0].length)
		if err != nil {
			c.answerRPC(x, oncrpc.GarbageArguments)
			return
		}
		x.trim(s.Length, s.Padding)
	}
	if c.starved.first == nil && c.lease(x) || x.state != exchangeBusy {
		return
	}
	x.state = exchangeStarved
	c.starved.push(x)
	c.await()
}

// lease leases memory for the Call of x and begins to pull it. It returns false
// when there is no memory now, and when there never will be. In the latter case
// it has answered the Call.
func (c *ResponderConn) lease(x *Exchange) bool {
	l, err := c.responder.opts.Memory.Lease(x.total)
	if err != nil {
		if errors.Is(err, regmem.ErrBudget) {
			c.responder.metrics.noMemory.Inc()
			return false
		}
		c.answerError(x, rpcrdma.ErrChunk)
		return false
	}
	x.pulled, x.message = l, l.Bytes()
	x.scatter(x.message)
	if x.header.Proc == rpcrdma.Msg {
		c.responder.metrics.copied.Add(uint64(len(x.inline)))
	}
	if x.recv >= 0 {
		c.repost(x) // the inline part has been copied
	}
	if len(x.pieces) == 0 {
		c.dispatch(x)
		return true
	}
	x.state = exchangePulling
	l.Post()
	c.pulling.push(x)
	c.pull()
	return true
}

// await asks to be called when there may be memory for the first starved Call.
func (c *ResponderConn) await() {
	if c.waiting || c.starved.first == nil || c.state != up {
		return
	}
	c.waiting = true
	c.responder.opts.Memory.Wait(c.starved.first.total, c.wake)
}

type memoryTask ResponderConn

// Run leases memory for starved Calls.
func (t *memoryTask) Run() {
	c := (*ResponderConn)(t)
	c.waiting = false
	for c.state == up && c.starved.first != nil {
		x := c.starved.first
		x.state = exchangeBusy
		c.starved.pop()
		if !c.lease(x) && x.state == exchangeBusy {
			// Return it to the front of the queue.
			x.state = exchangeStarved
			x.next = c.starved.first
			c.starved.first = x
			if c.starved.last == nil {
				c.starved.last = x
			}
			break
		}
	}
	c.await()
}

// pull posts Reads, in the order their Calls came, as many as the peer serves at
// once.
func (c *ResponderConn) pull() {
	for c.state == up && c.reads < c.ord && c.pulling.first != nil {
		x := c.pulling.first
		p := &x.pieces[x.posted]
		into := x.message[p.at : p.at+int(p.from.Length)]
		if err := c.conn.PostRead(uint64(x.index)+1, fabric.Read{Into: into, From: p.from}); err != nil {
			c.end(fmt.Errorf("rdmaside: post read: %w", err))
			return
		}
		c.reads++
		x.posted++
		if x.posted == len(x.pieces) {
			c.pulling.pop()
		}
	}
	c.watchReads()
}

// fetched handles the completion of a Read.
func (c *ResponderConn) fetched(p *fabric.Completion) {
	x := c.exchanges[p.ID-1]
	c.reads--
	c.watch.done++
	x.fetched++
	if p.Err != nil {
		c.broken("read", p.Err) // closed releases x
		return
	}
	if c.state == up {
		if x.fetched == len(x.pieces) {
			x.pulled.Unpost()
			x.state = exchangeBusy
			c.dispatch(x)
		}
		c.pull()
	}
}

// dispatch hands the plain Call of x to the handler, or answers it with an error.
func (c *ResponderConn) dispatch(x *Exchange) {
	// "the value of the rdma_xid field does not match the value of the XID field in
	// the accompanying RPC message": ERR_CHUNK. RFC 8166 Section 4.5.2.
	if len(x.message) < 4 || binary.BigEndian.Uint32(x.message) != x.xid {
		c.answerError(x, rpcrdma.ErrChunk)
		return
	}
	if err := oncrpc.ParseCall(x.message, &x.call); err != nil {
		c.badCall(x, err)
		return
	}
	if len(x.chunks) > 0 {
		if !x.call.Reducible() {
			c.answerError(x, rpcrdma.ErrChunk)
			return
		}
		// "This type of parsing failure might be due to mismatches between chunk
		// sizes or offsets and the contents of the Payload stream": GARBAGE_ARGS.
		if !x.itemsMatch(c.responder.opts.Registry) {
			c.answerRPC(x, oncrpc.GarbageArguments)
			return
		}
	}
	c.responder.metrics.called(x)
	x.state = exchangeHanded
	c.responder.calls.Call(x)
}

// badCall closes the connection of a peer whose message is no RPC Call.
func (c *ResponderConn) badCall(x *Exchange, err error) {
	xid := x.xid
	c.drop(x)
	c.refuse(xid, refusal{reasonPayload, err})
}

// repostBuffer returns Receive buffer i to the provider, or releases it when it
// is not needed any more.
func (c *ResponderConn) repostBuffer(i int) {
	if c.state != up {
		c.recvs.drop(i)
		c.countReceives()
		return
	}
	if c.surplus() {
		c.shrink(i)
		return
	}
	if err := c.recvs.post(i); err != nil {
		c.end(fmt.Errorf("rdmaside: post receive: %w", err))
	}
}

// broken closes the connection because a Work Request failed. A flushed Work
// Request is no such failure: the connection is closing already.
func (c *ResponderConn) broken(what string, err error) {
	if !errors.Is(err, fabric.ErrFlushed) {
		c.end(fmt.Errorf("rdmaside: %s: %w", what, err))
	}
}
