package proxy

import (
	"errors"

	"github.com/rdmabridge/rdmabridge/internal/regmem"
	"github.com/rdmabridge/rdmabridge/rdmaside"
	"github.com/rdmabridge/rdmabridge/tcpframe"
)

// callBack is part of client.
func (s *tcpClient) callBack(m []byte, done releaser, _ reverser) bool {
	s.conn.Send([][]byte{m}, done)
	return true
}

// maxStray is how many Replies that answer nothing a client may send.
const maxStray = 1000

var errStray = errors.New("proxy: too many replies that answer no call")

// reverseReply takes an RPC Reply of the client: the answer to a reverse Call, or a stray
// one, because the server's connection has been lost meanwhile or the server does
// not wait any more. Those are dropped, which does no harm.
func (s *tcpClient) reverseReply(xid uint32, b tcpframe.Buffer) {
	for _, ln := range s.ledger.queues {
		if p := ln.pin; p != nil && p.from != nil && p.from.ReverseReply(xid, b.Bytes(), b) == nil {
			return
		}
	}
	b.Release()
	s.listener.stray.Inc()
	if s.strays++; s.strays == maxStray {
		s.listener.log.Warn().Stringer("peer", s.conn.RemoteAddr()).Int("replies", s.strays).
			Msg("the client sends replies that answer no call; connection closed")
		s.conn.Abort(errStray)
	}
}

// callBack is part of client.
func (s *rdmaClient) callBack(m []byte, done releaser, from reverser) bool {
	switch err := s.conn.ReverseCall(m, done, callbackOwner{s, from}); {
	case err == nil:
		return true
	case errors.Is(err, rdmaside.ErrClosed):
		done.Release() // as for one that does not listen
		return true
	}
	return false
}

// A callbackOwner waits for the answers of an RDMA client to one connection of a
// server's.
type callbackOwner struct {
	s    *rdmaClient
	from reverser
}

// ReverseDone is part of rdmaside.ReverseOwner.
func (o callbackOwner) ReverseDone(_ *rdmaside.ResponderConn, xid uint32, m *regmem.Lease, err error) {
	switch {
	case m != nil:
		if o.from.ReverseReply(xid, m.Bytes(), m) != nil {
			m.Release()
			o.s.listener.stray.Inc()
		}
	case !errors.Is(err, rdmaside.ErrClosed):
		o.from.ReverseRefuse(xid)
	}
}
