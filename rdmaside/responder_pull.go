package rdmaside

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/internal/regmem"
	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
	"github.com/rdmabridge/rdmabridge/rdmaside/rpcrdma"
)

// gatherCall begins to assemble a Call of which parts are in Read chunks.
func (c *ResponderConn) gatherCall(x *Exchange) {
	if err := x.layout(c.responder.opts.MaxCall); err != nil || c.ord == 0 {
		c.answerError(x, rpcrdma.ErrChunk) // ord is 0 if the peer serves no Reads
		return
	}
	if len(x.chunks) == 1 && x.header.Proc == rpcrdma.Msg {
		// The Payload stream came inline, so it tells the length of the chunk's item before the
		// Responder pulls any octet.
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
	x.state = exchangeStarved
	c.starved.push(x)
	c.pump()
}

// pump posts Reads and leases memory for further Calls, as far as possible. A Call gets memory
// when all Reads of the Calls before it are posted: what a Requester has offered beyond that
// costs no memory yet.
func (c *ResponderConn) pump() {
	for c.pull(); c.state == up && c.pulling.first == nil && c.starved.first != nil && !c.waiting; c.pull() {
		x := c.starved.first
		x.state = exchangeBusy
		c.starved.pop()
		if c.lease(x) || x.state != exchangeBusy {
			continue
		}
		x.state = exchangeStarved
		c.starved.unpop(x)
		c.waiting = true
		c.memory.Wait(x.total, c.wake)
	}
	c.watchReads()
}

// lease leases memory for the Call of x and begins to pull it. It returns false if it cannot.
// If a later attempt may succeed, the state of x is still exchangeBusy. Otherwise lease has
// answered the Call.
func (c *ResponderConn) lease(x *Exchange) bool {
	l, err := c.memory.Lease(x.total)
	if err != nil {
		if errors.Is(err, regmem.ErrBudget) {
			c.responder.metrics.noMemory.Inc()
			return false
		}
		c.answerError(x, rpcrdma.ErrChunk)
		return false
	}
	c.watch.leases++
	x.pulled, x.message = l, l.Bytes()
	x.scatter(x.message)
	if x.header.Proc == rpcrdma.Msg {
		c.responder.metrics.copied.Add(uint64(len(x.inline)))
	}
	if x.recv >= 0 {
		c.repost(x) // the inline part has been copied
	}
	if len(x.pieces) == 0 {
		c.whole(x)
		return true
	}
	x.state = exchangePulling
	l.Post()
	c.held += l.Size()
	c.pulling.push(x)
	return true
}

type memoryTask ResponderConn

// Run leases memory for starved Calls.
func (t *memoryTask) Run() {
	c := (*ResponderConn)(t)
	c.waiting, c.called = false, false
	c.pump()
}

// pull posts Reads in the order in which their Calls arrived. It has at most as many
// outstanding as the peer serves at once.
func (c *ResponderConn) pull() {
	for c.state == up && c.reads < c.ord && c.pulling.first != nil {
		x := c.pulling.first
		p := &x.pieces[x.posted]
		into := x.message[p.at : p.at+int(p.from.Length)]
		if err := c.conn.PostRead(uint64(x.index)+1, fabric.Read{Into: into, From: p.from}); err != nil {
			c.end(fmt.Errorf("rdmaside: post read: %w", err))
			return
		}
		if c.reads == 0 && x.posted == 0 { // not between two Reads of one Call, of a peer that serves one at a time
			c.watch.begun = true
		}
		c.reads++
		x.posted++
		if x.posted == len(x.pieces) {
			c.pulling.pop()
		}
	}
}

// fetched handles the completion of a Read.
func (c *ResponderConn) fetched(p *fabric.Completion) {
	x := c.exchanges[p.ID-1]
	c.reads--
	c.watch.done++
	c.watch.octets += int64(x.pieces[x.fetched].from.Length) // Reads complete in order
	x.fetched++
	if p.Err != nil {
		c.broken("read", p.Err) // closed releases x
		return
	}
	if c.state == up {
		if x.fetched == len(x.pieces) {
			c.held -= x.pulled.Size()
			x.pulled.Unpost()
			x.state = exchangeBusy
			c.whole(x)
		}
		c.pump()
	}
}

// whole dispatches x, whose Call has arrived whole.
func (c *ResponderConn) whole(x *Exchange) {
	x.isWhole = true
	c.memory.Pulled(x.pulled)
	c.dispatch(x)
}

// Pulling returns how many octets of memory the Calls hold that are being pulled, and how many
// octets have been pulled so far.
func (c *ResponderConn) Pulling() (held int, octets int64) { return c.held, c.watch.octets }

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
	c.called = true
}

// badCall refuses a Call whose header cannot be walked because of err. It closes the connection of a peer whose
// message is no RPC Call at all.
func (c *ResponderConn) badCall(x *Exchange, err error) {
	s, xid := c.responder, x.xid
	if x.call.XID != xid {
		c.answerError(x, rpcrdma.ErrChunk) // as in dispatch
		return
	}
	b, why := x.call.AppendRefusal(x.shortReply(), err)
	if why == oncrpc.RefusedNot {
		c.drop(x)
		c.refuse(xid, refusal{reasonPayload, err})
		return
	}
	s.metrics.refusedCalls[why].Inc()
	s.lines.calls.Line(&s.opts.Log, zerolog.WarnLevel, "call_header_refused").Str("reason", oncrpc.RefusalNames[why]).
		Stringer("peer", c.info.Peer).Uint32("xid", xid).Err(err).Msg("the header of a Call is not valid; call refused")
	c.answerPlain(x, b)
}
