package faults

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/internal/regmem"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
	"github.com/rdmabridge/rdmabridge/rdmaside/rpcrdma"
)

// ownID is set in the Work Request IDs of this package.
const ownID = 1 << 62

// errFault ends a connection as a rule says.
var errFault = errors.New("faults: a rule ends the connection")

// An rdmaConn is everything between the Responder and the provider of one connection: the connection that
// comes in, its loop, the connection, and its handler. It belongs to the loop.
type rdmaConn struct {
	fabric.Incoming
	loop.SocketLoop
	server *Server
	front  *rdmaFront
	conn   fabric.Conn
	above  fabric.Handler // the Responder's
	wire   *wire          // nil if the provider does not use a socket of the loop

	receives map[uint64][]byte        // posted, by ID
	offers   map[uint32]offer         // of Calls that are not answered, by XID
	armed    map[uint32]*pending      // Calls with faults, whose Replies come next
	current  *pending                 // whose Reply is being posted
	leases   map[uint64]*regmem.Lease // of posted Work Requests that this package has changed
	last     uint64
	kept     []fabric.Completion // scratch, for the Responder
	done     []fabric.Completion // of Sends that were dropped
	posted   bool                // completions are on their way
	ended    bool
	header   rpcrdma.Header
}

// An offer has the chunks of a Call.
type offer struct {
	writes [][]rpcrdma.Segment
	reply  []rpcrdma.Segment
}

// Accept is part of fabric.Incoming.
func (c *rdmaConn) Accept(ctx context.Context, on loop.Loop, o fabric.ConnOptions, h fabric.Handler) (fabric.Conn, error) {
	c.above = h
	o.Sends += 16 // for Work Requests of this package
	if _, err := c.Incoming.Accept(ctx, on, o, c); err != nil {
		return nil, err
	}
	return c, nil
}

// Attach is part of loop.SocketLoop.
func (c *rdmaConn) Attach(nc net.Conn, s loop.Stream) error {
	c.wire = &wire{stream: s, loop: c.SocketLoop, spoil: -1}
	return c.SocketLoop.Attach(nc, c.wire)
}

// Setup is part of fabric.Handler.
func (c *rdmaConn) Setup(conn fabric.Conn) error {
	c.conn = conn
	return c.above.Setup(c)
}

// Completed is part of fabric.Handler.
func (c *rdmaConn) Completed(cs []fabric.Completion) {
	kept := c.kept[:0]
	for _, p := range cs {
		switch {
		case p.Op == fabric.OpReceive:
			b := c.receives[p.ID]
			delete(c.receives, p.ID)
			if p.Err == nil {
				c.offered(p.Message(b))
			}
		case p.Op != fabric.OpRead && c.leases[p.ID] != nil:
			c.leases[p.ID].Unpost()
			c.leases[p.ID].Release()
			delete(c.leases, p.ID)
		}
		if p.ID&ownID == 0 {
			kept = append(kept, p)
		}
	}
	c.kept = kept
	if len(kept) > 0 {
		c.above.Completed(kept)
	}
}

// offered remembers the chunks of the Call b.
func (c *rdmaConn) offered(b []byte) {
	h := &c.header
	if _, err := h.Decode(b); err != nil || len(h.Writes) == 0 && h.Reply == nil {
		return
	}
	var o offer
	for _, w := range h.Writes {
		o.writes = append(o.writes, append([]rpcrdma.Segment(nil), w.Segments...))
	}
	if h.Reply != nil {
		o.reply = append([]rpcrdma.Segment{}, h.Reply.Segments...)
	}
	c.offers[h.XID] = o
}

// Closed is part of fabric.Handler.
func (c *rdmaConn) Closed(err error) {
	c.ended = true
	for i := range c.done {
		c.done[i].Err = fabric.ErrFlushed
	}
	c.deliver()
	c.above.Closed(err)
}

// complete completes a Send that was dropped.
func (c *rdmaConn) complete(id uint64) {
	if id == 0 {
		return
	}
	c.done = append(c.done, fabric.Completion{ID: id, Op: fabric.OpSend})
	if !c.posted {
		c.posted = true
		c.Post(loop.TaskFunc(c.deliver))
	}
}

func (c *rdmaConn) deliver() {
	c.posted = false
	if done := c.done; len(done) > 0 {
		c.done = nil
		c.above.Completed(done)
	}
}

// The methods of fabric.Conn that pass everything on.

func (c *rdmaConn) PostRead(id uint64, r fabric.Read) error { return c.conn.PostRead(id, r) }
func (c *rdmaConn) Flush()                                  { c.conn.Flush() }
func (c *rdmaConn) Info() fabric.Info                       { return c.conn.Info() }
func (c *rdmaConn) LastActivity() time.Time                 { return c.conn.LastActivity() }
func (c *rdmaConn) Close(err error)                         { c.conn.Close(err) }
func (c *rdmaConn) Register(b []byte, a fabric.Access) (fabric.Region, error) {
	return c.conn.Register(b, a)
}

func (c *rdmaConn) Invalidate(id uint64, h fabric.Handle) (bool, error) {
	return c.conn.Invalidate(id, h)
}

// PostReceive is part of fabric.Conn.
func (c *rdmaConn) PostReceive(id uint64, b []byte) error {
	err := c.conn.PostReceive(id, b)
	if err == nil {
		c.receives[id] = b
	}
	return err
}

// PostWrite is part of fabric.Conn.
func (c *rdmaConn) PostWrite(id uint64, w fabric.Write) error {
	if p := c.current; p != nil && p.is(chunkUnwritten) {
		p.spoilt = true
		return nil
	}
	return c.conn.PostWrite(id, w)
}

// PostSend is part of fabric.Conn. It injects the fault of the Call that the Send answers.
func (c *rdmaConn) PostSend(id uint64, s fabric.Send) error {
	xid := binary.BigEndian.Uint32(s.Parts[0])
	if id >= 1<<32 { // the Responder's reverse Calls
		return c.conn.PostSend(id, s)
	}
	o := c.offers[xid]
	delete(c.offers, xid)
	p := c.armed[xid]
	if p == nil {
		return c.conn.PostSend(id, s)
	}
	delete(c.armed, xid)
	if p.dropped {
		c.complete(id)
		return nil
	}
	struck, err := c.spoil(id, s, p, o)
	if err == nil && struck {
		c.server.judge.injected(p.fault, &p.incident)
	}
	return err
}

// spoil posts the Send s with the fault of p, and reports whether there was something to spoil.
func (c *rdmaConn) spoil(id uint64, s fabric.Send, p *pending, o offer) (struck bool, err error) {
	i := p.fault
	switch i.Fault {
	case duplicateReply:
		if err := c.conn.PostSend(0, s); err != nil {
			return false, err
		}
		s.Invalidate = 0
		return true, c.conn.PostSend(id, s)
	case chunkUnwritten:
		return p.spoilt, c.conn.PostSend(id, s)
	case closeConn:
		c.complete(id)
		c.conn.Close(nil)
		return true, nil
	case resetConn:
		c.complete(id)
		c.reset()
		return true, nil
	case cut, corrupt, halfClose, freeze:
		return c.spoilWire(id, s, i)
	case chunkOverrun:
		seg := o.used()
		if seg == nil {
			return false, c.conn.PostSend(id, s)
		}
		if err := c.write(seg.Handle, seg.Offset+uint64(seg.Length)); err != nil {
			return false, err
		}
		return true, c.conn.PostSend(id, s)
	case lateWrite:
		if seg := o.used(); seg != nil {
			struck = true
			time.AfterFunc(i.wait, func() {
				c.Post(loop.TaskFunc(func() {
					if !c.ended {
						_ = c.write(seg.Handle, seg.Offset) // the connection may have ended
						c.conn.Flush()
					}
				}))
			})
		}
		return struck, c.conn.PostSend(id, s)
	case wrongInvalidate:
		seg := o.used()
		if seg == nil {
			return false, c.conn.PostSend(id, s)
		}
		s.Invalidate = fabric.Handle(seg.Handle ^ 0x5500)
		return true, c.conn.PostSend(id, s)
	}
	return c.spoilMessage(id, s, i, o)
}

// used returns the last segment with room of the first chunk that has one, or nil.
func (o *offer) used() *rpcrdma.Segment {
	for _, w := range append(o.writes, o.reply) {
		for i := len(w) - 1; i >= 0; i-- {
			if w[i].Length > 0 {
				return &w[i]
			}
		}
	}
	return nil
}

// write writes four octets into the client's memory.
func (c *rdmaConn) write(handle uint32, offset uint64) error {
	m, err := c.server.memory.Lease(4)
	if err != nil {
		return err
	}
	copy(m.Bytes(), "!!!!")
	return c.lend(m, 0, func(id uint64) error {
		return c.conn.PostWrite(id, fabric.Write{Parts: [][]byte{m.Bytes()}, To: fabric.Region{Handle: fabric.Handle(handle), Offset: offset}})
	})
}

// lend posts a Work Request that uses m until it is complete. id is 0 for one of this package.
func (c *rdmaConn) lend(m *regmem.Lease, id uint64, post func(id uint64) error) error {
	if id == 0 {
		c.last++
		id = ownID | c.last
	}
	m.Post()
	if err := post(id); err != nil {
		m.Unpost()
		m.Release()
		return err
	}
	c.leases[id] = m
	return nil
}

// reset ends the connection without an orderly close.
func (c *rdmaConn) reset() {
	if c.wire != nil {
		c.wire.Abort()
	} else {
		c.conn.Close(errFault)
	}
}

// spoilWire injects a fault into the octets of the Send. A provider without a socket closes the
// connection instead.
func (c *rdmaConn) spoilWire(id uint64, s fabric.Send, i *injection) (bool, error) {
	w := c.wire
	if w == nil {
		c.complete(id)
		c.conn.Close(errFault)
		return false, nil
	}
	c.conn.Flush() // what comes before it
	size := 0
	for _, p := range s.Parts {
		size += len(p)
	}
	switch i.Fault {
	case cut:
		w.cutting, w.left, w.how = true, i.Octets, i.How
	case corrupt:
		w.spoil = corruptAt(size, 64)
	case freeze:
		w.freeze(i.wait)
	}
	err := c.conn.PostSend(id, s)
	c.conn.Flush()
	if i.Fault == halfClose {
		_ = w.CloseWrite()
		w.deaf = true
	}
	return true, err
}

// spoilMessage posts a changed copy of the Send.
func (c *rdmaConn) spoilMessage(id uint64, s fabric.Send, i *injection, o offer) (struck bool, err error) {
	h := &c.header
	at, err := h.Decode(s.Parts[0])
	if err != nil {
		return false, fmt.Errorf("faults: the Responder's header: %w", err)
	}
	var payload []byte
	payload = append(payload, s.Parts[0][at:]...)
	for _, p := range s.Parts[1:] {
		payload = append(payload, p...)
	}
	struck, most := true, 1<<30
	switch i.Fault {
	case wrongXID, badVersion, badProcedure, shortHeader, errChunk, errVers:
		s.Invalidate = 0 // the client discards the message, or the Call stays as it was
	}
	switch i.Fault {
	case wrongXID:
		if i.Where != "payload" {
			h.XID ^= 0x80000000
		}
		if i.Where != "header" && len(payload) >= 4 {
			payload[0] ^= 0x80
		}
	case grant:
		h.Credits = *i.Credits
	case errChunk:
		h.SetError(h.XID, rpcrdma.Version, h.Credits, rpcrdma.ErrChunk)
		payload = nil
	case errVers:
		h.SetError(h.XID, rpcrdma.Version, h.Credits, rpcrdma.ErrVers)
		h.Low, h.High = i.Low, i.High
		payload = nil
	case badVersion:
		h.Version = *i.Value
	case badProcedure:
		// Only the number changes: what follows looks as before.
	case shortHeader:
		most = min(i.Octets, h.Len()-1)
	case shortReply:
		if h.Proc != rpcrdma.Msg || len(payload) <= 8 {
			struck = false
			break
		}
		payload = payload[:len(payload)-min(i.Octets, len(payload)-8)]
	case chunkShort, chunkLong, chunkBeyond:
		struck = spoilChunk(h, i, o)
	case chunkMissing:
		if struck = len(h.Writes) > 0; struck {
			h.Writes = h.Writes[:0]
		}
	}
	m, err := c.server.memory.Lease(h.Len() + len(payload))
	if err != nil {
		return false, err
	}
	b := append(h.Append(m.Bytes()[:0]), payload...)
	if i.Fault == badProcedure {
		binary.BigEndian.PutUint32(b[12:], *i.Value)
	}
	m.Resize(min(len(b), most))
	return struck, c.lend(m, id, func(id uint64) error {
		return c.conn.PostSend(id, fabric.Send{Parts: [][]byte{m.Bytes()}, Invalidate: s.Invalidate})
	})
}

// spoilChunk changes the length that the Reply h returns for the last segment that has octets in it.
func spoilChunk(h *rpcrdma.Header, i *injection, o offer) bool {
	n := uint32(i.Octets)
	spoil := func(returned, offered []rpcrdma.Segment) bool {
		for k := min(len(returned), len(offered)) - 1; k >= 0; k-- {
			s, room := &returned[k], offered[k].Length
			switch {
			case s.Length == 0:
				continue
			case i.Fault == chunkShort:
				s.Length -= min(n, s.Length)
			case i.Fault == chunkBeyond:
				s.Length = room + n
			case s.Length == room:
				return false
			default:
				s.Length += min(n, room-s.Length)
			}
			return true
		}
		return false
	}
	for k := range min(len(h.Writes), len(o.writes)) {
		if spoil(h.Writes[k].Segments, o.writes[k]) {
			return true
		}
	}
	return h.Reply != nil && spoil(h.Reply.Segments, o.reply)
}
