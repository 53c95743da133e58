package faults

import (
	"context"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/internal/regmem"
	"github.com/rdmabridge/rdmabridge/rdmaside"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
)

// incoming sets up a connection over RDMA, or not.
func (s *Server) incoming(r *rdmaside.Responder, in fabric.Incoming) {
	peer := in.Peer().Addr().Unmap()
	if i := s.connects(overRDMA, peer); i != nil {
		if i.Fault == refuse || !s.wait(i.wait) {
			_ = in.Reject(nil) // the peer notices either way
			return
		}
	}
	c := &rdmaConn{Incoming: in, SocketLoop: s.loopOf(), server: s, armed: make(map[uint32]*pending), offers: make(map[uint32]offer), receives: make(map[uint64][]byte), leases: make(map[uint64]*regmem.Lease)}
	c.front = &rdmaFront{wrapped: c}
	c.front.s = s.newSession(c.front, overRDMA, peer)
	if _, err := r.Accept(context.Background(), c, c); err != nil {
		s.log.Warn().Err(err).Stringer("client", peer).Msg("RDMA connection not set up")
	}
}

// An rdmaHandler has the Calls of all connections.
type rdmaHandler struct{}

// Opened is part of rdmaside.ConnHandler.
func (rdmaHandler) Opened(c *rdmaside.ResponderConn) {
	f := c.Loop().(*rdmaConn).front
	f.conn, c.Data = c, f
}

// Ended is part of rdmaside.ConnHandler.
func (rdmaHandler) Ended(c *rdmaside.ResponderConn, _ error) {
	f := c.Data.(*rdmaFront)
	f.ended = true
	f.s.end()
}

// Call is part of rdmaside.CallHandler.
func (rdmaHandler) Call(x *rdmaside.Exchange) {
	f := x.Conn().Data.(*rdmaFront)
	p := &pending{x: x}
	o := f.wrapped.offers[x.XID()]
	p.write, p.reply = len(o.writes) > 0, o.reply != nil
	f.s.received(x.Message(), p)
}

// An rdmaFront is a client's connection over RDMA. It belongs to the loop.
type rdmaFront struct {
	s       *session
	conn    *rdmaside.ResponderConn
	wrapped *rdmaConn
	ended   bool
}

func (f *rdmaFront) exclusive(do func()) { f.wrapped.Post(loop.TaskFunc(do)) }

func (f *rdmaFront) close(err error) { f.conn.Close(err) }

// forget completes the Exchange: the wrapped connection drops what the Responder sends.
func (f *rdmaFront) forget(p *pending) {
	if f.ended {
		p.x.Reply(nil, nil)
		return
	}
	m, err := f.s.server.memory.Lease(24)
	if err != nil {
		p.x.Abort()
		return
	}
	m.Resize(len(rpcErrors["SYSTEM_ERR"](m.Bytes()[:0], p.x.XID())))
	f.wrapped.armed[p.x.XID()] = &pending{dropped: true}
	p.x.Reply([][]byte{m.Bytes()}, m)
}

// send sends a Reply; the wrapped connection spoils it.
func (f *rdmaFront) send(p *pending, m *regmem.Lease) {
	if p.fault != nil && p.fault.Fault != delay && p.fault.Fault != reorder && p.fault.Fault != rpcError {
		f.wrapped.armed[p.xid], f.wrapped.current = p, p
	}
	p.x.Reply([][]byte{m.Bytes()}, m)
	f.wrapped.current = nil
}

// callBack sends a Call of the server to the client.
func (f *rdmaFront) callBack(m *regmem.Lease) {
	if err := f.conn.ReverseCall(m.Bytes(), m, f); err != nil {
		m.Release()
	}
}

// ReverseDone is part of rdmaside.ReverseOwner.
func (f *rdmaFront) ReverseDone(_ *rdmaside.ResponderConn, _ uint32, m *regmem.Lease, _ error) {
	if m == nil {
		return
	}
	if f.s.up != nil {
		f.s.up.write(m.Bytes())
	}
	m.Release()
}
