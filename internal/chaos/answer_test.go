package chaos

import (
	"encoding/binary"
	"slices"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/internal/testkit/proxytest"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
	"github.com/rdmabridge/rdmabridge/rdmaside/rpcrdma"
)

// answer sends the Reply to x with the faults that the sky draws.
func (x *rcall) answer() {
	c := x.c
	c.r.server.finish(&x.job)
	if c.closed {
		return
	}
	sky, dice := c.r.sky, c.dice
	if sky.strikes(dice, lostCall) {
		return // it was executed
	}
	if sky.strikes(dice, wrongXID) {
		c.send(x.xid^1<<31, 0, proxytest.WithXID(x.job.reply, x.xid^1<<31))
		return
	}
	if sky.strikes(dice, strayReply) {
		xid := dice.Uint32() | 1<<31 ^ x.xid&(1<<31)
		c.send(xid, 100000, proxytest.WithXID(x.job.reply[:min(len(x.job.reply), 500)&^3], xid))
	}
	if sky.strikes(dice, badHeader) {
		c.unexpected = true
		b := rpcrdma.AppendPlain(nil, x.xid, 32)
		c.post(b[:dice.IntN(len(b))&^3], 0)
		return
	}
	if x.job.id != 0 {
		switch {
		case sky.strikes(dice, errChunk), len(x.reads) > 0 && sky.strikes(dice, refuseReads),
			x.writes > 0 && sky.strikes(dice, refuseWrites), x.hasRep && sky.strikes(dice, refuseReply):
			x.refuse(rpcrdma.ErrChunk)
			return
		case sky.strikes(dice, errVers):
			x.refuse(rpcrdma.ErrVers)
			return
		}
	}
	if x.job.id != 0 && sky.strikes(dice, longMessage) {
		c.unexpected = true
		c.r.server.book.refuse(x.job.id)
		c.post(append(append(rpcrdma.AppendPlain(nil, x.xid, 32), x.job.reply...), make([]byte, 64<<10)...), 0)
		return
	}
	x.reduced()
}

// refuse answers x with RDMA_ERROR.
func (x *rcall) refuse(code rpcrdma.ErrCode) {
	c := x.c
	c.r.server.book.refuse(x.job.id)
	x.forget()
	grant := c.grant()
	var h rpcrdma.Header
	h.SetError(x.xid, rpcrdma.Version, grant, code)
	c.ledger.reply(grant)
	c.post(h.Append(nil), 0)
}

// forget notes that the Call has no handle any more.
func (x *rcall) forget() {
	x.each(func(s rpcrdma.Segment) { delete(x.c.handles, fabric.Handle(s.Handle)) })
}

// grant draws the credits of a Reply.
func (c *responderConn) grant() uint32 {
	switch sky := c.r.sky; {
	case sky.strikes(c.dice, grantZero):
		return 0
	case sky.strikes(c.dice, grantOne):
		return 1
	case sky.strikes(c.dice, grantHuge):
		return 100000
	}
	return 32
}

// reduced shapes the Reply as RFC 8166 Section 3.5 has it, and sends it.
func (x *rcall) reduced() {
	c := x.c
	sky, dice := c.r.sky, c.dice
	r := &reducedReply{rcall: x, payload: x.job.reply}
	r.h.Reset(x.xid, 0, rpcrdma.Msg)
	if x.writes > 0 {
		r.addWriteChunk()
	}
	r.h.Credits = c.grant()
	if r.h.Len()+len(r.payload) > c.replyInline {
		if !x.hasRep {
			c.r.server.book.wrong("call %#x (%v): no Reply chunk for a Reply of %d octets", x.job.id, x.job.kind, len(r.payload))
			return
		}
		r.addReplyChunk()
	} else if x.hasRep && r.h.Len()+len(r.payload)+4+rpcrdma.SegmentLen*len(x.reply) <= c.replyInline && dice.IntN(2) == 0 {
		r.h.SetReply(x.fill(x.reply, nil)...)
	}
	if r.h.Proc == rpcrdma.Msg && sky.strikes(dice, twoXIDs) {
		r.payload = proxytest.WithXID(r.payload, x.xid+1)
		r.refused = true
	}
	if s := slices.Concat(x.write, x.reply); len(s) > 0 && x.job.id != 0 && sky.strikes(dice, overWrite) {
		c.r.server.book.refuse(x.job.id)
		last := s[len(s)-1]
		_ = c.conn.PostWrite(0, fabric.Write{
			Parts: [][]byte{make([]byte, 4)},
			To:    fabric.Region{Handle: fabric.Handle(last.Handle), Offset: last.Offset + uint64(last.Length), Length: 4},
		})
		c.conn.Flush()
		return
	}
	// A late RDMA Write may be in the memory before the bridge looks at the Reply. So it must not
	// make up for one that is missing.
	write := r.late != nil && !r.refused && sky.strikes(dice, lateWrite)
	read := len(x.reads) > 0 && sky.strikes(dice, lateRead)
	var inv fabric.Handle
	if c.canInvalidate && !write && !read {
		inv = r.invalidates()
	}
	x.forget()
	r.send(inv)
	if write {
		r.late()
	}
	if m := c.own.draw(dice, &x.job); m != nil && !r.fatal {
		c.post(append(rpcrdma.AppendPlain(nil, binary.BigEndian.Uint32(m), reverseCredits), m...), 0)
	}
	if read {
		s := x.reads[0]
		c.later(func() {
			_ = c.conn.PostRead(c.late(x), fabric.Read{Into: make([]byte, s.Length), From: fabric.Region{Handle: fabric.Handle(s.Handle), Offset: s.Offset, Length: s.Length}})
		})
	}
	c.conn.Flush()
}

// A reducedReply is a Reply that may use the chunks of its Call.
type reducedReply struct {
	*rcall
	h       rpcrdma.Header
	payload []byte
	refused bool   // the Requester refuses it, which fails the Call
	fatal   bool   // the Requester refuses it, and ends the connection
	late    func() // misuses the chunk after the Reply
}

// addWriteChunk moves the data of a READ into the Write chunk.
func (r *reducedReply) addWriteChunk() {
	sky, dice := r.c.r.sky, r.c.dice
	var data []byte
	if r.job.kind == read && len(r.payload) > proxytest.ReadData {
		n := binary.BigEndian.Uint32(r.payload[proxytest.ReadData-4:])
		data, r.payload = r.payload[proxytest.ReadData:proxytest.ReadData+int(n)], r.payload[:proxytest.ReadData]
	}
	if len(data) == 0 && sky.strikes(dice, emptyChunk) {
		r.h.AddWrite()
		return
	}
	segments := r.spread(r.write, data)
	switch {
	case sky.strikes(dice, longChunk):
		segments[0].Length = r.write[0].Length + 4<<dice.IntN(10)
		r.refused = true
	case len(data) >= 8 && sky.strikes(dice, shortChunk):
		segments[len(segments)-1].Length -= 4
		r.refused = true
	}
	r.h.AddWrite(segments...)
	r.late = r.scribble(r.write, data)
}

// addReplyChunk moves the whole Reply into the Reply chunk.
func (r *reducedReply) addReplyChunk() {
	sky, dice := r.c.r.sky, r.c.dice
	segments := r.spread(r.reply, r.payload)
	switch {
	case sky.strikes(dice, longChunk):
		segments[0].Length = r.reply[0].Length + 4<<dice.IntN(10)
		r.refused = true
	case sky.strikes(dice, shortChunk):
		for i := range segments {
			segments[i].Length = 0
		}
		segments[0].Length = uint32(dice.IntN(5)) * 4 // shorter than any RPC Reply
		r.refused = true
	}
	r.late = r.scribble(r.reply, r.payload)
	r.h.Proc = rpcrdma.NoMsg
	r.h.SetReply(segments...)
	r.payload = nil
}

// spread writes data to the segments given, perhaps not all of it, and returns the segments with
// the lengths of all of it.
func (r *reducedReply) spread(to []rpcrdma.Segment, data []byte) []rpcrdma.Segment {
	if len(data) < 8 || !r.c.r.sky.strikes(r.c.dice, unwritten) {
		return r.fill(to, data)
	}
	r.refused = true
	const kept = 4
	switch at := r.c.dice.IntN(len(data) - kept); r.c.dice.IntN(4) {
	case 0: // the end is not written
		return r.fillBut(to, data, len(data)-kept, len(data))
	case 1: // nor the beginning
		return r.fillBut(to, data, 0, kept)
	case 2: // nor octets between
		return r.fillBut(to, data, at, at+kept)
	}
	return r.fillBut(to, data, 0, len(data)) // nothing is
}

// invalidates returns the handle that the Send invalidates, or 0.
func (r *reducedReply) invalidates() (inv fabric.Handle) {
	c := r.c
	if n, only := r.handlesOffered(); n == 1 && c.dice.IntN(2) == 0 {
		inv = only
	}
	if c.r.sky.strikes(c.dice, alienHandle) {
		if inv = c.alien(r.rcall); inv != 0 {
			r.fatal = true
		}
	}
	return inv
}

// send sends the Reply, sometimes twice.
func (r *reducedReply) send(inv fabric.Handle) {
	c := r.c
	book := c.r.server.book
	if !r.refused {
		book.write(r.job.id)
	}
	book.replying(r.job.id, "%p XID %#x %v, %d octets inline, Write chunk %v, Reply chunk %v, invalidates %#x, refused %v, fatal %v", c, r.xid, r.h.Proc, len(r.payload), r.write, r.reply, inv, r.refused, r.fatal)
	switch {
	case r.fatal: // the connection ends, and the Call may be refused or in limbo
		c.r.server.book.refuse(r.job.id)
	case r.refused:
		c.r.server.book.refuse(r.job.id)
		c.ledger.refuse(r.h.Credits)
	default:
		c.ledger.reply(r.h.Credits)
	}
	b := r.h.Append(nil)
	c.post(append(b, r.payload...), inv)
	if r.h.Proc == rpcrdma.Msg && r.writes == 0 && inv == 0 && c.r.sky.strikes(c.dice, twiceReply) {
		c.unexpected = true
		c.post(append(r.h.Append(nil), r.payload...), 0)
	}
}

// late names work on the memory of x, which was answered.
func (c *responderConn) late(x *rcall) (id uint64) {
	c.next++
	c.lates[c.next] = x.xid
	return c.next
}

// later runs f now or a little later.
func (c *responderConn) later(f func()) {
	if c.dice.IntN(2) == 0 && !c.r.exact && !c.r.slow {
		f()
		return
	}
	time.AfterFunc(between(c.dice, 5*time.Millisecond, 20*time.Millisecond), func() {
		c.loop.Post(loop.TaskFunc(func() {
			if !c.closed {
				f()
				c.conn.Flush()
			}
		}))
	})
}

// scribble writes the data again where it was written: right octets, too late.
func (x *rcall) scribble(to []rpcrdma.Segment, data []byte) func() {
	if len(data) == 0 {
		return nil
	}
	c, s := x.c, to[0]
	data = data[:min(len(data), int(s.Length))]
	return func() {
		c.later(func() {
			_ = c.conn.PostWrite(c.late(x), fabric.Write{Parts: [][]byte{data}, To: fabric.Region{Handle: fabric.Handle(s.Handle), Offset: s.Offset, Length: uint32(len(data))}})
		})
	}
}

// handlesOffered counts the handles of x and returns the last one.
func (x *rcall) handlesOffered() (n int, last fabric.Handle) {
	x.each(func(s rpcrdma.Segment) {
		if h := fabric.Handle(s.Handle); h != last {
			n++
			last = h
		}
	})
	return n, last
}

// alien is the handle of another Call than x, or one of none.
func (c *responderConn) alien(x *rcall) fabric.Handle {
	var found fabric.Handle
	first := 0
	for h, o := range c.handles { // in no order: the oldest
		if o.xid != x.xid && (found == 0 || o.n < first) {
			found, first = h, o.n
		}
	}
	if found == 0 {
		found = fabric.Handle(c.dice.Uint32() | 1)
	}
	return found
}

// fill RDMA Writes data to the segments given and returns them with the lengths
// used.
func (x *rcall) fill(to []rpcrdma.Segment, data []byte) []rpcrdma.Segment {
	return x.fillBut(to, data, 0, 0)
}

// fillBut does what fill does, and leaves out the octets [from, until) of data.
func (x *rcall) fillBut(to []rpcrdma.Segment, data []byte, from, until int) []rpcrdma.Segment {
	used := append([]rpcrdma.Segment(nil), to...)
	var pieces []piece
	at := 0
	for i := range used {
		end := min(len(data), at+int(used[i].Length))
		used[i].Length = uint32(end - at)
		pieces = append(pieces, piece{used[i], at, at, min(end, from)}, piece{used[i], at, max(at, until), end})
		at = end
	}
	if at < len(data) {
		x.c.r.server.book.wrong("call %#x (%v): %d octets more than its chunk holds", x.job.id, x.job.kind, len(data)-at)
	}
	// No rule gives the RDMA Writes an order: each piece goes in two, the last first.
	if x.c.r.sky.strikes(x.c.dice, backwards) {
		for i := range pieces {
			p := &pieces[i]
			if middle := (p.from + p.until) / 2; p.from < middle {
				pieces = append(pieces, piece{p.to, p.at, middle, p.until})
				p.until = middle
			}
		}
		slices.Reverse(pieces)
	}
	for _, p := range pieces {
		if p.from < p.until {
			_ = x.c.conn.PostWrite(0, fabric.Write{Parts: [][]byte{data[p.from:p.until]}, To: fabric.Region{Handle: fabric.Handle(p.to.Handle), Offset: p.to.Offset + uint64(p.from-p.at), Length: uint32(p.until - p.from)}})
		}
	}
	return used
}

// A piece is the octets [from, until) of data, of which those from at on go to a segment.
type piece struct {
	to              rpcrdma.Segment
	at, from, until int
}

// send sends a message without chunks that is no answer to a Call.
func (c *responderConn) send(xid, credits uint32, payload []byte) {
	c.unexpected = true
	b := rpcrdma.AppendPlain(nil, xid, credits)
	c.post(append(b, payload[:min(len(payload), c.replyInline-len(b))]...), 0)
}

// post sends b. It ignores errors: Closed learns that the connection has ended.
func (c *responderConn) post(b []byte, inv fabric.Handle) {
	_ = c.conn.PostSend(0, fabric.Send{Parts: [][]byte{b}, Invalidate: inv})
	c.conn.Flush()
}
