package proxy

import (
	"errors"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/internal/regmem"
	"github.com/rdmabridge/rdmabridge/rdmaside"
	"github.com/rdmabridge/rdmabridge/tcpframe"
)

// callBack is part of client.
func (s *tcpClient) callBack(m []byte, done releaser, _ reverser) bool {
	tapReverse(s.loop, s, m, true, false)
	s.conn.Send([][]byte{m}, done)
	return true
}

// deaf is part of client. A client that is not read from can answer nothing.
func (s *tcpClient) deaf() bool { return s.paused }

// deaf is part of client. An RDMA client's Replies have Receives of their own.
func (s *rdmaClient) deaf() bool { return false }

// longestCallBack is part of client.
func (s *tcpClient) longestCallBack() int { return maxCallbackOctets }

// maxStray is how many Replies that answer no reverse Call a client may send.
const maxStray = 1000

var errStray = errors.New("proxy: too many replies that answer no call")

// reverseReply takes an RPC Reply of the client to a reverse Call. The Reply may be a stray,
// because the server's connection has been lost or the server waits no longer. Dropping it
// does no harm.
func (s *tcpClient) reverseReply(xid uint32, b tcpframe.Buffer) {
	tapReverse(s.loop, s, b.Bytes(), false, true)
	for _, q := range s.ledger.queues {
		if r := q.reverser(); r != nil && r.ReverseReply(xid, b.Bytes(), b) == nil {
			return
		}
	}
	b.Release()
	s.listener.stray.Inc()
	if s.strays++; s.strays == maxStray {
		s.listener.lines.strays.Line(&s.listener.log, zerolog.WarnLevel, "client_closed").Str("reason", "stray_replies").Stringer("peer", s.conn.RemoteAddr()).Int("replies", s.strays).
			Msg("the client sends replies that answer no call; connection closed")
		s.conn.Abort(errStray)
	}
}

// callBack is part of client.
func (s *rdmaClient) callBack(m []byte, done releaser, from reverser) bool {
	tapReverse(s.loop, s, m, true, false)
	switch err := s.conn.ReverseCall(m, done, callbackOwner{s, from}); {
	case err == nil:
		return true
	case errors.Is(err, rdmaside.ErrClosed):
		done.Release() // the client is going away, as in pin.callBack
		return true
	}
	return false
}

// longestCallBack is part of client.
func (s *rdmaClient) longestCallBack() int { return s.conn.LongestReverseCall() }

// A callbackOwner brings an RDMA client's answers to the connection that the reverse Calls
// came on.
type callbackOwner struct {
	s    *rdmaClient
	from reverser
}

// ReverseDone is part of rdmaside.ReverseOwner.
func (o callbackOwner) ReverseDone(_ *rdmaside.ResponderConn, xid uint32, m *regmem.Lease, err error) {
	switch {
	case m != nil:
		tapReverse(o.s.loop, o.s, m.Bytes(), false, true)
		if o.from.ReverseReply(xid, m.Bytes(), m) != nil {
			m.Release()
			o.s.listener.stray.Inc()
		}
	case !errors.Is(err, rdmaside.ErrClosed):
		o.from.ReverseRefuse(xid)
	}
}
