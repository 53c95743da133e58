package rdmaside

import (
	"github.com/rdmabridge/rdmabridge/internal/regmem"
	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
	"github.com/rdmabridge/rdmabridge/rdmaside/rpcrdma"
)

// An exchangeState is where an Exchange is.
//
//	idle --Receive--> starved --> pulling --> handed --Reply--> queued --> sending --> idle
//
// Any of the states between may be skipped. The end of the connection leaves
// what is handed with the handler and makes the rest idle.
type exchangeState uint8

const (
	exchangeIdle    exchangeState = iota
	exchangeBusy                  // being looked at, inside one call of the loop
	exchangeStarved               // waits for memory to pull its Call into
	exchangePulling               // Reads are posted or waiting for their turn
	exchangeHanded                // the handler's
	exchangeQueued                // its answer waits for room in the send queue
	exchangeSending               // its answer is posted
	exchangeLost                  // its answer is posted in part; waits for the end of the connection
)

const (
	// exchangeBuffer is the buffer that each Exchange has: for the Transport
	// header of a Reply, and at its end the shortest of RPC Replies.
	exchangeBuffer    = 512
	exchangeHeaderMax = exchangeBuffer - oncrpc.ReplyHeader
)

// An Exchange is one Call that arrived, until its Reply is posted. Its methods
// are for the loop of its connection only: a handler that works elsewhere posts
// to ResponderConn.Loop. Exchanges are reused: after Reply or Abort the handler
// has none.
type Exchange struct {
	conn   *ResponderConn // constant, as index and buffer
	index  int
	buffer *regmem.Lease

	state exchangeState
	next  *Exchange // in an exchangeQueue

	header     rpcrdma.Header // of the Call; then, its lists reused, of the Reply
	xid        uint32
	invalidate fabric.Handle // the only handle offered, if Send With Invalidate may be used
	recv       int           // the Receive buffer that holds the Call or its rest; -1 for none
	inline     []byte        // the Payload stream in it

	// The Call, plain.
	pulled  *regmem.Lease // holds it unless it is inline
	message []byte
	call    oncrpc.Call

	// Reading it.
	total   int // octets of the plain Call
	chunks  []readChunk
	places  []uint32 // scratch: positions of chunks
	pieces  []piece
	posted  int // pieces whose Read is posted
	fetched int // pieces whose Read has completed

	// The answer.
	done   Releaser
	whole  *regmem.Lease // the Reply, when it had to be gathered
	large  *regmem.Lease // header, or header and Payload stream, beyond buffer
	out    [][]byte      // Payload stream, reduced
	data   [][]byte      // what goes into each Write chunk from the first on; may be fewer than chunks
	items  []ulb.Splice  // scratch, long enough for a Write list
	size   int           // octets of out
	answer rpcrdma.Proc
	work   int // Work Requests the answer may take
}

// Conn is the connection.
func (x *Exchange) Conn() *ResponderConn { return x.conn }

// XID is the transaction's as it arrived, in the Transport header and the Call.
func (x *Exchange) XID() uint32 { return x.xid }

// Message is the plain RPC Call, contiguous and in memory of a regmem arena. It
// may be written to and is valid until Reply or Abort.
func (x *Exchange) Message() []byte { return x.message }

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

// exchange takes a free Exchange, or returns nil when there is none now: then park.
func (c *ResponderConn) exchange() *Exchange {
	if n := len(c.idle); n > 0 {
		x := c.idle[n-1]
		c.idle = c.idle[:n-1]
		x.state = exchangeBusy
		return x
	}
	// An answered Call keeps its Exchange until its Send has completed. The peer
	// may be quick to send the next one, but not this much quicker.
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

// recycle makes x idle and gives back what it holds.
func (c *ResponderConn) recycle(x *Exchange) {
	if x.recv >= 0 {
		c.repost(x)
	}
	for _, l := range [...]**regmem.Lease{&x.pulled, &x.whole, &x.large} {
		if *l != nil {
			(*l).Release()
			*l = nil
		}
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

// repost gives x's Receive buffer back to the provider, or away when the
// connection is ending: B3.
func (c *ResponderConn) repost(x *Exchange) {
	i := x.recv
	x.recv, x.inline = -1, nil
	c.repostBuffer(i)
}
