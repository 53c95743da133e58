package chaos

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/internal/testkit/proxytest"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric/fabrictest"
	"github.com/rdmabridge/rdmabridge/rdmaside/rpcrdma"
)

// A responder is an RPC-over-RDMA Responder with the faults of its sky. It uses none of
// the code that the bridge is made of but the codecs: it reduces a READ and counts credits
// its own way, so that it does not share a mistake with the bridge's Requester.
type responder struct {
	name   string
	seed   seed
	server *server
	sky    *sky
	l      fabric.Listener
	slow   bool // late answers come at least some milliseconds late
	exact  bool // time is virtual: a Reply that was sent has come when time has passed

	conns atomic.Int64 // so far
	calls atomic.Int64
	ended sync.WaitGroup
}

const (
	responderInline   = 4096
	responderReceives = 256 // more than any grant the bridge may use
)

// listen starts a responder. Its connections are on loop.
func (r *responder) listen(p fabric.Provider, loop loop.Loop, addr string) error {
	var err error
	r.l, err = p.Listen(addr, fabric.ListenOptions{MaxConnections: 1024, MaxStarting: 128, MaxStartingPerAddr: 16}, func(in fabric.Incoming) {
		n := int(r.conns.Add(1))
		c := &responderConn{r: r, loop: loop, dice: r.seed.dice(r.name, n), live: make(map[uint64]*pull), handles: make(map[fabric.Handle]offer), lates: make(map[uint64]uint32)}
		c.own = newReverses(r.server, c.dice)
		if peer, ok := rpcrdma.FindPrivateData(in.PrivateData()); ok {
			c.canInvalidate = peer.RemoteInvalidation
			c.replyInline = min(responderInline, peer.RecvSize)
		} else {
			c.replyInline = rpcrdma.DefaultInline
		}
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		r.ended.Add(1)
		if _, err := in.Accept(ctx, loop, fabric.ConnOptions{
			PrivateData: rpcrdma.AppendPrivateData(nil, rpcrdma.PrivateData{RemoteInvalidation: true, SendSize: responderInline, RecvSize: responderInline}),
			Receives:    responderReceives, Sends: 4096, ORD: 16, IRD: 0,
		}, c); err != nil {
			r.ended.Done() // its Closed is not called
		}
	})
	return err
}

// A responderConn is one connection of a responder, owned by its loop.
type responderConn struct {
	r             *responder
	loop          loop.Loop
	dice          *rand.Rand
	conn          fabric.Conn
	canInvalidate bool
	replyInline   int

	receives   receives
	closed     bool
	unexpected bool // it has sent a Reply that answers no Call
	ledger     creditLedger

	live    map[uint64]*pull // Reads posted, by ID
	next    uint64
	offers  int
	handles map[fabric.Handle]offer // of Calls not answered
	lates   map[uint64]uint32       // XIDs of answered Calls on whose memory work was posted, by the ID of the work
	header  rpcrdma.Header
	own     reverses
}

// An offer says which Call offered a handle, and counts the handles of a connection.
type offer struct {
	xid uint32
	n   int
}

// A pull is a Call whose Read chunks are being fetched.
type pull struct {
	call   *rcall
	left   int
	failed bool
	inline []byte
	chunks []pulled
}

type pulled struct {
	position uint32
	octets   []byte
}

// An rcall is a Call on a responderConn until it is answered.
type rcall struct {
	c      *responderConn
	xid    uint32
	reads  []rpcrdma.ReadSegment
	write  []rpcrdma.Segment // the first Write chunk
	writes int               // Write chunks
	reply  []rpcrdma.Segment // the Reply chunk
	hasRep bool
	job    job
	m      []byte
}

// Setup is part of fabric.Handler.
func (c *responderConn) Setup(conn fabric.Conn) error {
	c.conn = conn
	return c.receives.post(conn, responderReceives, responderInline)
}

// Closed is part of fabric.Handler.
func (c *responderConn) Closed(err error) {
	c.closed = true
	// "A Requester MUST maintain enough receive resources to accommodate expected
	// replies." RFC 8166 Section 3.3.1. It could not expect the Replies to no Call.
	if !c.unexpected && (errors.Is(err, fabrictest.ErrNoReceive) || errors.Is(err, fabrictest.ErrTooLong)) {
		c.r.server.book.wrong("%s: no Receive for a Reply: %v; %s", c.r.name, err, &c.ledger)
	}
	c.r.ended.Done()
}

// Completed is part of fabric.Handler.
func (c *responderConn) Completed(cs []fabric.Completion) {
	for i := range cs {
		p := &cs[i]
		switch p.Op {
		case fabric.OpReceive:
			if p.Err != nil {
				continue
			}
			m, err := c.receives.again(p)
			if err != nil && !errors.Is(err, fabric.ErrClosed) {
				c.r.server.book.wrong("harness: post receive: %v", err)
			}
			c.received(m)
		case fabric.OpRead:
			c.fetched(p)
		case fabric.OpWrite:
			c.tooLate(p)
		}
	}
}

// received takes the message b.
func (c *responderConn) received(b []byte) {
	book := c.r.server.book
	h := &c.header
	n, err := h.Decode(b)
	if err != nil {
		book.wrong("the bridge sent a Transport header that is none: %v", err)
		return
	}
	if h.Proc != rpcrdma.Msg && h.Proc != rpcrdma.NoMsg {
		book.wrong("the bridge sent %v", h.Proc)
		return
	}
	if m := b[n:]; h.Proc == rpcrdma.Msg && len(m) >= 8 && !proxytest.IsCall(m) {
		if len(h.Reads)+len(h.Writes) > 0 || h.Reply != nil {
			book.wrong("the answer to a server's Call %#x has chunks", h.XID)
		}
		c.own.answered(m)
		return
	}
	x := c.called()
	p := &pull{call: x, inline: b[n:]}
	if len(x.reads) == 0 {
		c.assembled(p)
		return
	}
	if c.pull(p) && p.left == 0 {
		c.assembled(p)
	}
}

// called checks the Transport header of a Call and remembers its handles.
func (c *responderConn) called() *rcall {
	book, h := c.r.server.book, &c.header
	c.r.calls.Add(1)
	if over := c.ledger.call(h.Credits); over {
		book.wrong("%s: call %#x: the bridge has more Calls outstanding than any grant it can have seen allows: %s", c.r.name, h.XID, &c.ledger)
	}
	x := &rcall{c: c, xid: h.XID, writes: len(h.Writes), hasRep: h.Reply != nil}
	x.reads = append(x.reads, h.Reads...)
	if len(h.Writes) > 0 {
		x.write = append(x.write, h.Writes[0].Segments...)
	}
	if h.Reply != nil {
		x.reply = append(x.reply, h.Reply.Segments...)
	}
	if len(h.Writes) > 1 || len(h.Writes) > 0 && h.Reply != nil {
		book.wrong("%d Write chunks and a Reply chunk: %v", len(h.Writes), h.Reply != nil)
	}
	offers := c.offers
	x.each(func(s rpcrdma.Segment) {
		other, ok := c.handles[fabric.Handle(s.Handle)]
		if ok && other.n > offers {
			return // another segment of the same memory
		}
		if ok {
			book.wrong("handle %#x of call %#x is offered again for call %#x", s.Handle, other.xid, h.XID)
		}
		c.offers++
		c.handles[fabric.Handle(s.Handle)] = offer{h.XID, c.offers}
	})
	return x
}

// pull posts the RDMA Reads of the chunks of p, and reports whether it could post them all.
func (c *responderConn) pull(p *pull) bool {
	for _, s := range p.call.reads {
		into := make([]byte, s.Length)
		p.chunks = append(p.chunks, pulled{s.Position, into})
		if s.Length == 0 {
			continue
		}
		c.next++
		c.live[c.next] = p
		p.left++
		err := c.conn.PostRead(c.next, fabric.Read{Into: into, From: fabric.Region{Handle: fabric.Handle(s.Handle), Offset: s.Offset, Length: s.Length}})
		if err != nil {
			delete(c.live, c.next)
			return false
		}
	}
	c.conn.Flush()
	return true
}

// each calls f for every segment offered.
func (x *rcall) each(f func(rpcrdma.Segment)) {
	for _, s := range x.reads {
		f(s.Segment)
	}
	for _, s := range x.write {
		f(s)
	}
	for _, s := range x.reply {
		f(s)
	}
}

func (c *responderConn) fetched(d *fabric.Completion) {
	p := c.live[d.ID]
	delete(c.live, d.ID)
	c.tooLate(d)
	if p == nil {
		return // of a late Read
	}
	p.failed = p.failed || d.Err != nil
	if p.left--; p.left == 0 && !p.failed {
		c.assembled(p)
	}
}

// tooLate checks that work on the memory of a Call that has ended has failed.
func (c *responderConn) tooLate(d *fabric.Completion) {
	xid, ok := c.lates[d.ID]
	delete(c.lates, d.ID)
	if ok && d.Err == nil && c.r.exact {
		c.r.server.book.wrong("a handle of call %#x reaches memory after the Reply", xid)
	}
}

// assembled executes a Call whose chunks have all come: RFC 8166 Section 4.4.
func (c *responderConn) assembled(p *pull) {
	m := p.inline
	x := p.call
	if len(p.chunks) > 0 {
		m = nil
		rest := p.inline
		for i, ch := range p.chunks {
			if n := int(ch.position) - len(m); n > 0 {
				if n > len(rest) {
					c.r.server.book.wrong("a Read chunk at position %d of %d octets", ch.position, len(m)+len(rest))
					return
				}
				m = append(m, rest[:n]...)
				rest = rest[n:]
			}
			m = append(m, ch.octets...)
			if i+1 == len(p.chunks) || p.chunks[i+1].position != ch.position {
				m = append(m, make([]byte, -len(m)&3)...) // roundup
			}
		}
		m = append(m, rest...)
	}
	x.m = m
	sky, dice := c.r.sky, c.dice
	if dice.IntN(2) == 0 && sky.strikes(dice, lostCall) {
		return // before it is executed
	}
	j, ok := c.r.server.take(m)
	if !ok {
		return
	}
	c.own.took(&j)
	x.job = j
	if c.r.server.hangs(&x.job, func() { c.loop.Post(loop.TaskFunc(x.answer)) }) {
		return
	}
	if sky.strikes(dice, hangUp) {
		c.r.server.finish(&x.job)
		c.conn.Close([]error{nil, errHangUp}[dice.IntN(2)])
		return
	}
	if sky.strikes(dice, lateReply) {
		time.AfterFunc(between(dice, 0, 50*time.Millisecond), func() { c.loop.Post(loop.TaskFunc(x.answer)) })
		return
	}
	x.answer()
}

var errHangUp = errors.New("chaos: the responder hangs up")
