package nfs4test

import (
	"bytes"
	"context"
	"encoding/binary"
	"net/netip"
	"sync/atomic"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/internal/regmem"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb/nfs"
	"github.com/rdmabridge/rdmabridge/rdmaside"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
)

// RDMAOptions configure a listener over RPC-over-RDMA.
type RDMAOptions struct {
	Address  string
	Provider fabric.Provider
	Loops    []loop.Loop // connections are spread over them
	Arena    *regmem.Arena
	Credits  int // granted to each connection
}

// rdmaWindow is how many credits nfsd asks for in the reverse direction.
const rdmaWindow = 2

// An rdmaServer is a listener over RPC-over-RDMA.
type rdmaServer struct {
	s   *Server
	mem *regmem.Account
}

// An rdmaConn carries the messages of an RDMA connection.
type rdmaConn struct {
	*rdmaside.ResponderConn
	mem *regmem.Account
	c   *conn
}

// ListenRDMA listens over RPC-over-RDMA and returns the address.
func (s *Server) ListenRDMA(o RDMAOptions) (string, error) {
	reg := ulb.NewRegistry(ulb.Limits{})
	nfs.Register(reg)
	x := &rdmaServer{s: s, mem: o.Arena.Account("nfs4test", o.Arena.Budget())}
	resp, err := rdmaside.NewResponder(rdmaside.ResponderOptions{
		Memory: x.mem, Registry: reg, Credits: o.Credits, FirstCredits: o.Credits, ReverseCredits: rdmaWindow,
		CallInline: 4096, ReplyInline: 4096, MaxCall: 4<<20 + 64<<10, RemoteInvalidation: true,
	}, x)
	if err != nil {
		return "", err
	}
	ctx, stop := context.WithCancel(context.Background())
	var n atomic.Int64
	l, err := o.Provider.Listen(o.Address, fabric.ListenOptions{MaxConnections: 4096, MaxStarting: 128, MaxStartingPerAddr: 128}, func(in fabric.Incoming) {
		on := o.Loops[int(n.Add(1))%len(o.Loops)]
		_, _ = resp.Accept(ctx, in, on) // a failed start-up is the dialer's to report
	})
	if err != nil {
		stop()
		return "", err
	}
	s.mu.Lock()
	s.listeners = append(s.listeners, func() {
		_ = l.Close()
		stop()
		s.closeConns(func(c *conn) bool { _, ok := c.t.(*rdmaConn); return ok })
	})
	s.mu.Unlock()
	return l.Addr().String(), nil
}

// Opened is part of rdmaside.ConnHandler.
func (x *rdmaServer) Opened(rc *rdmaside.ResponderConn) {
	t := &rdmaConn{ResponderConn: rc, mem: x.mem}
	// A Responder does not know its peer's address. Its connections count as those of one host.
	t.c = x.s.open(t, "a peer over RDMA", netip.Addr{}, rdmaWindow)
	rc.Data = t
}

// Ended is part of rdmaside.ConnHandler.
func (x *rdmaServer) Ended(rc *rdmaside.ResponderConn, err error) { rc.Data.(*rdmaConn).c.ended(err) }

// Call is part of rdmaside.CallHandler.
func (x *rdmaServer) Call(e *rdmaside.Exchange) {
	t := e.Conn().Data.(*rdmaConn)
	a, err := t.c.call(bytes.Clone(e.Message()))
	if err != nil {
		e.Abort()
		return
	}
	if a.delay == 0 {
		t.reply(e, a.reply)
		return
	}
	a.send(x.s, func(m []byte) { t.Loop().Post(loop.TaskFunc(func() { t.reply(e, m) })) })
}

func (t *rdmaConn) reply(e *rdmaside.Exchange, m []byte) {
	l, err := t.lease(m)
	if err != nil {
		e.Abort()
		return
	}
	e.Reply([][]byte{l.Bytes()}, l)
}

func (t *rdmaConn) lease(m []byte) (*regmem.Lease, error) {
	l, err := t.mem.Lease(len(m))
	if err == nil {
		copy(l.Bytes(), m)
	}
	return l, err
}

func (t *rdmaConn) reverseCall(m []byte) {
	t.Loop().Post(loop.TaskFunc(func() {
		l, err := t.lease(m)
		if err == nil {
			if err = t.ReverseCall(l.Bytes(), l, t); err == nil {
				t.Flush()
				return
			}
			l.Release()
		}
		t.c.reverseFailed(binary.BigEndian.Uint32(m), err)
	}))
}

// ReverseDone is part of rdmaside.ReverseOwner.
func (t *rdmaConn) ReverseDone(_ *rdmaside.ResponderConn, xid uint32, m *regmem.Lease, err error) {
	if m == nil {
		if err != rdmaside.ErrClosed {
			t.c.reverseFailed(xid, err)
		}
		return
	}
	b := bytes.Clone(m.Bytes())
	m.Release()
	t.c.reverseReply(xid, b)
}

func (t *rdmaConn) close(err error) {
	t.Loop().Post(loop.TaskFunc(func() { t.ResponderConn.Close(err) }))
}
