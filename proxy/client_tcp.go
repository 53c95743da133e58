package proxy

import (
	"errors"
	"io"
	"net/netip"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/tcpframe"
)

// A tcpClient is one TCP connection of a client. It is owned by its loop.
type tcpClient struct {
	l    *listener
	conn *tcpframe.Conn // constant after Opened, as are loop and peer
	loop *eventLoop
	peer netip.Addr

	ledger   ledger
	strays   int  // Replies that answered nothing
	stopped  bool // it is not read from
	draining bool
	aborted  bool // for a Call that cannot be answered
	ended    flag // set by the loop, read anywhere
}

// Opened is part of tcpframe.RecordHandler.
func (s *tcpClient) Opened(c *tcpframe.Conn) {
	s.conn = c
	s.loop = s.l.p.loops[c.Loop().Index()]
	s.peer = c.RemoteAddr().Addr().Unmap()
	s.ledger.owner = s
	s.ledger.open(s, s.l, s.peer)
	s.admit()
	if !s.l.join(s) {
		s.draining = true
		s.closeIfIdle()
	}
	s.ledger.follow(s.l, s.peer) // the terms may have changed before it joined
}

// Record is part of tcpframe.RecordHandler.
func (s *tcpClient) Record(_ *tcpframe.Conn, b tcpframe.Buffer) {
	if xid, mtype, _ := oncrpc.MessageType(b.Bytes()); mtype == oncrpc.TypeReply {
		s.reply(xid, b)
		return
	}
	c := s.loop.newCall()
	s.l.calls.Inc()
	c.client = s
	c.msg, c.buf = b.Bytes(), b
	if err := s.l.begin(c, &s.ledger, s.peer); err != nil {
		// The next record mark cannot be trusted after a record that is no Call.
		s.l.log.Warn().Stringer("peer", s.conn.RemoteAddr()).Err(err).Msg("not an RPC Call; connection closed")
		s.conn.Abort(err)
		s.dropped(c)
		return
	}
	s.limit()
}

// limit pauses a client that has as much under way as it may, or waits at a gate.
func (s *tcpClient) limit() {
	if !s.ledger.full && s.ledger.over(s.l) {
		s.ledger.full = true
	}
	s.admit()
}

// turn is part of gated.
func (s *tcpClient) turn(t *ticket) { s.loop.Post(t) }

// admitted is part of gated.
func (s *tcpClient) admitted(k gateKind) {
	s.ledger.shut &^= 1 << k
	s.admit()
}

// admit reads from the client unless something is in the way.
func (s *tcpClient) admit() {
	switch stop := s.ledger.full || s.ledger.shut != 0; {
	case stop == s.stopped:
	case stop:
		s.stopped = true
		s.conn.Pause()
	default:
		s.stopped = false
		s.conn.Resume()
	}
}

// Busy is part of tcpframe.BusyHandler.
func (s *tcpClient) Busy() bool { return s.ledger.calls > 0 }

// Closed is part of tcpframe.RecordHandler.
func (s *tcpClient) Closed(_ *tcpframe.Conn, err error) {
	s.ended.set()
	s.l.leave(s)
	s.ledger.close(s.l, errClientGone)
	if err != nil && !errors.Is(err, io.EOF) {
		s.l.log.Debug().Stringer("peer", s.conn.RemoteAddr()).Err(err).Msg("client connection ended")
	}
}

// home is part of client and session.
func (s *tcpClient) home() *eventLoop { return s.loop }

// books is part of session.
func (s *tcpClient) books() (*ledger, netip.AddrPort) { return &s.ledger, s.conn.RemoteAddr() }

// gone is part of client.
func (s *tcpClient) gone() bool { return s.ended.get() }

// deliver is part of client.
func (s *tcpClient) deliver(c *call) {
	switch {
	case s.ended.get():
		s.dropped(c)
	case c.out == nil:
		s.abandon(c, errUnanswered)
	default:
		s.ledger.lend(c)
		if s.ledger.held > s.l.maxHeld {
			s.abandon(c, errUnread)
			return
		}
		c.restoreXID()
		c.delivered()
		s.conn.Send(c.out, c)
		s.limit()
	}
}

// errUnanswered closes a client that took over a Call which had been given up.
var errUnanswered = errors.New("proxy: call without an answer")

// Release is called when the kernel has the Reply, or the connection has ended.
// tcpframe.Releaser.
func (c *call) Release() { c.client.dropped(c) }

// abandon is part of client. The client learns the only way RPC has that its
// Call will not be answered on this connection.
func (s *tcpClient) abandon(c *call, reason error) {
	if !s.ended.get() {
		c.result = resultAbandoned
	}
	if !s.ended.get() && !s.aborted {
		s.aborted = true
		s.l.log.Warn().Stringer("peer", s.conn.RemoteAddr()).Uint32("xid", c.clientXID).Err(reason).
			Msg("call cannot be answered; client connection closed")
		s.conn.Abort(reason)
	}
	s.dropped(c)
}

// refuse is part of pinClient.
func (s *tcpClient) refuse(c *call, u *upstream, reason error) {
	u.unpinnable(s.conn.RemoteAddr(), reason)
	c.result = resultAbandoned
	s.aborted = true // it is said
	s.conn.Abort(reason)
	s.dropped(c)
}

// dropped is part of client.
func (s *tcpClient) dropped(c *call) {
	if c.result == resultReplied && s.conn.Ended() {
		c.result = resultGone
	}
	s.l.results[c.result].Inc()
	s.ledger.credit(c)
	c.releaseMemory()
	if x := c.exchange; x != nil { // adopted from an RDMA client, whose memory the message was in
		c.exchange = nil
		abort(x)
	}
	s.loop.recycle(c)
	if s.ended.get() {
		return
	}
	if s.ledger.full && s.ledger.low(s.l) {
		s.ledger.full = false
		s.admit()
	}
	s.closeIfIdle()
}

func (s *tcpClient) closeIfIdle() {
	if s.draining && s.ledger.calls == 0 {
		s.conn.Close(errDraining)
	}
}

var (
	errDraining = errors.New("proxy: draining")
	errClosing  = errors.New("proxy: closing")
)

// drain is part of session.
func (s *tcpClient) drain() {
	s.loop.Post(loop.TaskFunc(func() {
		if s.draining || s.ended.get() {
			return
		}
		s.draining = true
		s.conn.Pause() // what was not read is sent again elsewhere
		s.closeIfIdle()
	}))
}

// close is part of session and client.
func (s *tcpClient) close(reason error) {
	s.loop.Post(loop.TaskFunc(func() {
		if !s.ended.get() {
			s.conn.Abort(reason)
		}
	}))
}
