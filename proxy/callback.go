package proxy

import (
	"github.com/rdmabridge/rdmabridge/internal/regmem"
	"github.com/rdmabridge/rdmabridge/rdmaside"
)

// The back channel
//
// A Call that a server sends on a pinned connection is for the client that has it. It
// comes on a Requester ([rdmaside.ReverseHandler]) or a [tcpConn], and goes to a
// [tcpClient] as a record, or to an [rdmaClient] within the credits which that grants
// (RFC 8167). The Reply goes back where the Call came from, if that is there still:
// to no other connection, which would not know what to do with it. All of it happens
// on one loop, the client's.
//
// XIDs stay: a client has one name space for what it is sent, which is that of its
// server alone. A client of several servers may be sent one XID by two of them; over
// RDMA the second is refused, over TCP the answers tell.
//
// What the client does not answer costs it, and the server, no more than a place in a
// list; what cannot be brought to it is answered SYSTEM_ERR. A client that is going
// away is not called, and its server hears nothing: it will see its connection end,
// and has its ways. An error would make it give up the session.

const (
	// maxCallbacks bounds the Calls of a TCP server that its client has not answered, or
	// has not taken: more than sessions have slots for.
	maxCallbacks = 64
	// maxRefusals bounds the answers made here that a TCP server has not taken: more than
	// the Calls that one read brings.
	maxRefusals = 2048
	// maxCallbackOctets bounds those of one client that it has not taken.
	maxCallbackOctets = 1 << 20
)

// A reverser is a connection to a server that calls its client. Methods run on the
// client's loop, which is the connection's.
type reverser interface {
	// ReverseReply answers the Call xid with the plain RPC Reply m, which is taken until
	// done.Release is called. An error means that there is no such Call (any more), and
	// that m was not taken.
	ReverseReply(xid uint32, m []byte, done rdmaside.Releaser) error
	// ReverseRefuse answers it SYSTEM_ERR.
	ReverseRefuse(xid uint32)
}

// ReverseCall sends the client a Call of the server. rdmaside.ReverseHandler.
func (p *pin) ReverseCall(r *rdmaside.Requester, m *regmem.Lease) bool {
	return p.callBack(r, m.Bytes(), m, 2*pinnedReverse)
}

// callBack sends the client the plain RPC Call m, that came on from, unless so many
// wait for the client already. m is taken until done.Release is called, unless
// callBack reports false: then the server is to be told.
func (p *pin) callBack(from reverser, m []byte, done releaser, most int) bool {
	if !p.front.listens() {
		done.Release()
		return true
	}
	if p.owed >= most || p.owedOctets+len(m) > maxCallbackOctets {
		return false // the client does not take what it was sent
	}
	p.from = from
	c := &callback{p, done, len(m)}
	p.owed++
	p.owedOctets += c.octets
	if !p.front.client.callBack(m, c, from) {
		c.forget()
		return false
	}
	return true
}

// A callback is a Call on its way to the client.
type callback struct {
	p      *pin
	done   releaser
	octets int
}

// Release is called when the client's connection has taken the Call.
func (c *callback) Release() {
	c.forget()
	c.done.Release()
}

func (c *callback) forget() {
	c.p.owed--
	c.p.owedOctets -= c.octets
}
