package proxy

import (
	"github.com/rdmabridge/rdmabridge/internal/regmem"
	"github.com/rdmabridge/rdmabridge/rdmaside"
)

// The back channel
//
// A reverse Call, which a server sends on a pinned connection, is for the client that the
// connection belongs to. It comes on a Requester ([rdmaside.ReverseHandler]) or a [tcpConn].
// It goes to a [tcpClient] as a record, or to an [rdmaClient] within the credits that the
// client grants (RFC 8167). The Reply goes back to the connection that the Call came on, and
// is dropped when that has ended: another connection would not know the Call. All of this
// happens on one loop, the client's. lane_callback.go has the rules for connections that clients
// share.
//
// XIDs stay as they are, because a client that speaks to one server has one name space for
// reverse Calls. Two servers may send one client the same XID. Over RDMA the second Call is
// refused; over TCP the Replies tell which Call they answer.
//
// A Call that the client does not answer costs the client and the server no more than an
// entry in a list. The proxy answers SYSTEM_ERR to a Call that it cannot bring to the client.
// It drops a Call for a client that is going away: the server will see its connection end and
// knows what to do then, while an error would make it give up the session.

const (
	// maxCallbacks bounds the reverse Calls of one TCP server's connection that wait for the
	// client. Sessions have fewer slots.
	maxCallbacks = 64
	// maxRefusals bounds the error Replies that wait to be written to a TCP server. One read
	// brings fewer Calls.
	maxRefusals = 2048
	// maxCallbackOctets bounds the reverse Calls that wait to be written to one client.
	maxCallbackOctets = 1 << 20
)

// A reverser is a connection to a server, as the answerer of the server's reverse Calls. Its
// methods run on the client's loop, on which the connection lives, too.
type reverser interface {
	// ReverseReply answers the Call xid with the plain RPC Reply m, and keeps m until it
	// calls done.Release. An error means that no such Call is outstanding, and that m
	// remains the caller's.
	ReverseReply(xid uint32, m []byte, done rdmaside.Releaser) error
	// ReverseRefuse answers the Call xid with SYSTEM_ERR.
	ReverseRefuse(xid uint32)
}

// callBackRDMA is part of connOwner.
func (p *pin) callBackRDMA(from reverser, m *regmem.Lease) bool {
	return p.bring(from, m.Bytes(), m, 2*pinnedReverse)
}

// callBack is part of connOwner.
func (p *pin) callBack(from reverser, m []byte, done releaser) bool {
	return p.bring(from, m, done, maxCallbacks)
}

// bring does what callBack does, while fewer than most Calls wait for the client.
func (p *pin) bring(from reverser, m []byte, done releaser, most int) bool {
	if !p.front.listens() {
		done.Release()
		return true
	}
	p.from = from
	return p.owed.send(p.front.client, m, done, from, most)
}

// An owed counts the reverse Calls that wait for room in a client's connection. It belongs to the
// client's loop.
type owed struct{ calls, octets int }

// send sends the client the plain RPC Call m, which came on the connection from. It keeps m until it
// calls done.Release. It reports false when most Calls wait for the client already, or when the
// client has no room for the Call. Then m remains the caller's.
func (o *owed) send(to client, m []byte, done releaser, from reverser, most int) bool {
	if o.calls >= most || o.octets+len(m) > maxCallbackOctets {
		return false // the client does not read
	}
	c := &callback{o, done, len(m)}
	o.calls++
	o.octets += c.octets
	if !to.callBack(m, c, from) {
		c.forget()
		return false
	}
	return true
}

// A callback is a reverse Call that waits for room in the client's connection.
type callback struct {
	owed   *owed
	done   releaser
	octets int
}

// Release is called when the client's connection has written the Call.
func (c *callback) Release() {
	c.forget()
	c.done.Release()
}

func (c *callback) forget() {
	c.owed.calls--
	c.owed.octets -= c.octets
}
