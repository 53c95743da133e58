package proxy

import (
	"errors"

	"github.com/rdmabridge/rdmabridge/internal/regmem"
	"github.com/rdmabridge/rdmabridge/proxy/session"
	"github.com/rdmabridge/rdmabridge/rdmaside"
	"github.com/rdmabridge/rdmabridge/tcpframe"
)

// callBack is part of client.
func (s *tcpClient) callBack(m []byte, done session.Releaser, _ session.Reverser) bool {
	s.account().reverse(s, m, true, false)
	s.conn.Send([][]byte{m}, done)
	return true
}

// deaf is part of client. A client that is not read from can answer nothing.
func (s *tcpClient) deaf() bool { return s.paused }

// deaf is part of client. An RDMA client's Replies have Receives of their own.
func (s *rdmaClient) deaf() bool { return false }

// longestReverse is part of client.
func (s *tcpClient) longestReverse() int { return session.MaxCallBackOctets }

// maxStray is how many Replies that answer no reverse Call a client may send.
const maxStray = 1000

var errStray = errors.New("proxy: too many replies that answer no call")

// reverseReply takes an RPC Reply of the client to a reverse Call. The Reply may be a stray,
// because the server's connection has been lost or the server waits no longer. Dropping it
// does no harm.
func (s *tcpClient) reverseReply(xid uint32, b tcpframe.Buffer) {
	s.account().reverse(s, b.Bytes(), false, true)
	for _, q := range s.queues {
		if r := q.reverser(); r != nil && r.ReverseReply(xid, b.Bytes(), b) == nil {
			return
		}
	}
	b.Release()
	s.listener.StrayReply()
	if s.strays++; s.strays == maxStray {
		s.listener.StrayReplies(s.conn.RemoteAddr(), int(s.strays))
		s.conn.Abort(errStray)
	}
}

// callBack is part of client.
func (s *rdmaClient) callBack(m []byte, done session.Releaser, from session.Reverser) bool {
	s.account().reverse(s, m, true, false)
	switch err := s.conn.ReverseCall(m, done, callbackOwner{s, from}); {
	case err == nil:
		return true
	case errors.Is(err, rdmaside.ErrClosed):
		done.Release() // the client is going away, as one that does not listen
		return true
	}
	return false
}

// longestReverse is part of client.
func (s *rdmaClient) longestReverse() int { return s.conn.LongestReverseCall() }

// A callbackOwner brings an RDMA client's answers to the connection that the reverse Calls
// came on.
type callbackOwner struct {
	s    *rdmaClient
	from session.Reverser
}

// ReverseDone is part of rdmaside.ReverseOwner.
func (o callbackOwner) ReverseDone(_ *rdmaside.ResponderConn, xid uint32, m *regmem.Lease, err error) {
	switch {
	case m != nil:
		o.s.account().reverse(o.s, m.Bytes(), false, true)
		if o.from.ReverseReply(xid, m.Bytes(), m) != nil {
			m.Release()
			o.s.listener.StrayReply()
		}
	case !errors.Is(err, rdmaside.ErrClosed):
		o.from.ReverseRefuse(xid)
	}
}
