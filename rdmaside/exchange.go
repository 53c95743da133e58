package rdmaside

import (
	"github.com/rdmabridge/rdmabridge/internal/regmem"
	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
	"github.com/rdmabridge/rdmabridge/rdmaside/rpcrdma"
)

// An exchangeState is where an Exchange is in its life.
//
//	idle --Receive--> starved --> pulling --> handed --Reply--> queued --> sending --> idle
//
// An Exchange may skip any of the states between. When the connection closes,
// handed Exchanges stay with the handler and all others become idle.
type exchangeState uint8

const (
	exchangeIdle    exchangeState = iota
	exchangeBusy                  // in use inside one callback of the loop
	exchangeStarved               // waiting for memory to pull its Call into, or for earlier Calls to have theirs
	exchangePulling               // Reads are posted or queued
	exchangeHanded                // owned by the handler
	exchangeQueued                // the answer waits for room in the send queue
	exchangeSending               // the answer is posted
	exchangeLost                  // the answer is posted in part; waiting for the connection to close
)

const (
	// exchangeBuffer is the length in octets of each Exchange's buffer. It holds a short Call until
	// the Call is answered, then the Transport header of the Reply and, at its end, a short RPC Reply.
	exchangeBuffer    = 512
	exchangeHeaderMax = exchangeBuffer - ShortReply

	// ShortReply is the length in octets of the longest Reply that ReplyShort takes: PROG_MISMATCH, which is the
	// longest without results.
	ShortReply = oncrpc.ReplyHeader + 8
)

// An Exchange is one Call that arrived, until its Reply is posted. Its methods
// must be called on the loop of its connection: a handler that works elsewhere
// posts to ResponderConn.Loop. Exchanges are reused: after Reply or Abort the
// handler must not use one any more.
type Exchange struct {
	conn   *ResponderConn // constant
	index  int            // in ResponderConn.exchanges; constant
	buffer *regmem.Lease  // of exchangeBuffer octets; constant

	state exchangeState
	next  *Exchange // next in an exchangeQueue

	header     rpcrdma.Header // of the Call; later of the Reply, which reuses its lists
	xid        uint32
	invalidate fabric.Handle // the only handle offered, when Send With Invalidate may be used; else 0
	recv       int           // index of the Receive buffer that holds the Call or the part that came inline; -1 for none
	inline     []byte        // the Payload stream in that Receive buffer, or in buffer

	// The plain Call.
	pulled  *regmem.Lease // holds message unless it came inline
	isWhole bool          // pulled holds all of it
	message []byte
	call    oncrpc.Call

	// State of pulling the Call.
	total     int // octets of the plain Call
	chunks    []readChunk
	positions []uint32 // scratch: positions of chunks
	pieces    []piece
	posted    int // pieces whose Read is posted
	fetched   int // pieces whose Read has completed

	// The answer.
	done   Releaser
	whole  *regmem.Lease // the Reply in one piece, when parts had to be joined
	large  *regmem.Lease // header, or header and Payload stream, when buffer is too short
	out    [][]byte      // reduced Payload stream
	data   [][]byte      // data items for the Write chunks, in order; may be fewer than the chunks
	items  []ulb.Splice  // scratch, long enough for a Write list
	size   int           // octets in out
	answer rpcrdma.Proc
	copies bool // the handler allows the provider to copy the answer
	work   int  // the most Work Requests that the answer takes
}

// Conn returns the connection.
func (x *Exchange) Conn() *ResponderConn { return x.conn }

// keepCall copies the message b, of up to exchangeHeaderMax octets, to x's buffer.
func (x *Exchange) keepCall(b []byte) []byte {
	kept := x.buffer.Bytes()[:len(b):exchangeHeaderMax]
	copy(kept, b)
	return kept
}

// XID returns the transaction ID as it arrived, in the Transport header and in
// the Call.
func (x *Exchange) XID() uint32 { return x.xid }

// Message returns the plain RPC Call, contiguous and in memory of a regmem arena.
// The handler may write to it. It is valid until Reply or Abort.
func (x *Exchange) Message() []byte { return x.message }

// Header returns the header of Message, parsed. It is valid as long as Message is.
func (x *Exchange) Header() *oncrpc.Call { return &x.call }

// Follows reports whether one batch of completions has brought the Call and another one, which was handed over before it.
// It is for CallHandler.Call.
func (x *Exchange) Follows() bool { return x.conn.called }

// An exchangeQueue is a list of Exchanges, first in first out.
type exchangeQueue struct{ first, last *Exchange }

func (q *exchangeQueue) push(x *Exchange) {
	x.next = nil
	if q.last == nil {
		q.first = x
	} else {
		q.last.next = x
	}
	q.last = x
}

func (q *exchangeQueue) pop() {
	x := q.first
	if q.first = x.next; q.first == nil {
		q.last = nil
	}
	x.next = nil
}

// unpop undoes a pop of x.
func (q *exchangeQueue) unpop(x *Exchange) {
	if x.next = q.first; q.last == nil {
		q.last = x
	}
	q.first = x
}

// exchange returns an Exchange for a new Call. It returns nil when none is free now; the caller
// then parks the message.
func (c *ResponderConn) exchange() *Exchange {
	if n := len(c.idle); n > 0 {
		x := c.idle[n-1]
		c.idle = c.idle[:n-1]
		x.state = exchangeBusy
		return x
	}
	// An answered Call keeps its Exchange until its Send has completed. The peer
	// may send more Calls before that, but hardly ever gets this far ahead.
	if len(c.exchanges) >= 4*c.responder.opts.Credits+len(c.recvs.buffers) {
		return nil
	}
	l, err := c.responder.opts.Replies.Lease(exchangeBuffer)
	if err != nil {
		c.awaitExchange()
		return nil
	}
	x := &Exchange{conn: c, index: len(c.exchanges), buffer: l, recv: -1, state: exchangeBusy}
	c.exchanges = append(c.exchanges, x)
	return x
}

// awaitExchange arranges for parked messages to be handled when there is memory
// for an Exchange. When the limit on Exchanges is reached, recycle arranges it
// instead.
func (c *ResponderConn) awaitExchange() {
	if !c.awaiting {
		c.awaiting = true
		c.responder.opts.Replies.Wait(exchangeBuffer, c.unpark)
	}
}

// drop completes a Call without an answer.
func (c *ResponderConn) drop(x *Exchange) {
	c.grants.Drop()
	c.publish()
	c.recycle(x)
}

// recycle releases the resources of x and makes x idle.
func (c *ResponderConn) recycle(x *Exchange) {
	if x.recv >= 0 {
		c.repost(x)
	}
	if x.pulled != nil {
		c.memory.Release(x.pulled, x.isWhole)
		x.pulled, x.isWhole = nil, false
	}
	if x.whole != nil {
		x.whole.Release()
		x.whole = nil
	}
	if x.large != nil {
		x.large.Release()
		x.large = nil
	}
	if x.done != nil {
		x.done.Release()
		x.done = nil
	}
	clear(x.out)
	clear(x.data)
	x.out, x.data = x.out[:0], x.data[:0]
	x.message, x.inline, x.call.Message = nil, nil, nil
	x.invalidate = 0
	x.copies = false
	x.state = exchangeIdle
	if c.state == ended {
		x.buffer.Release()
		x.buffer = nil
		return
	}
	c.idle = append(c.idle, x)
	if len(c.parked) > 0 {
		c.loop.Post((*parkedTask)(c))
	}
}

// repost returns x's Receive buffer to the provider, or releases it when the
// connection is closing: rule B3.
func (c *ResponderConn) repost(x *Exchange) {
	i := x.recv
	x.recv, x.inline = -1, nil
	c.repostBuffer(i)
}
