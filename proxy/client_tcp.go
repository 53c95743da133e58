package proxy

import (
	"time"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/tcpframe"
)

// A tcpClient is one TCP connection of a client.
type tcpClient struct {
	front
	conn *tcpframe.Conn // constant after Opened

	paused bool  // the connection is not read from
	copies int32 // Replies that the connection has copied and not written
	strays int   // Replies that answer no reverse Call

	securedAt time.Time // when the connection got TLS
}

// newTCPClient makes the handler of a connection that l is about to accept.
func newTCPClient(l *listener) *tcpClient { return &tcpClient{front: front{listener: l}} }

// Opened is part of tcpframe.RecordHandler.
func (s *tcpClient) Opened(c *tcpframe.Conn) {
	s.conn = c
	s.open(s, s.listener, s.listener.p.loops[c.Loop().Index()], c.RemoteAddr())
	c.SetMemory((*tcpMemory)(s))
	if s.ledger.slowStart() != nil {
		c.AwaitInput()
	}
	s.admit()
	s.join()
}

// Input is part of tcpframe.InputHandler.
func (s *tcpClient) Input(*tcpframe.Conn) {
	s.ledger.arrive()
	s.admit()
}

// Record is part of tcpframe.RecordHandler.
func (s *tcpClient) Record(_ *tcpframe.Conn, b tcpframe.Buffer) {
	m := b.Bytes()
	counted := s.loop.memory.arrived(&s.front, int64(cap(m)))
	if xid, mtype, _ := oncrpc.MessageType(m); mtype == oncrpc.TypeReply {
		s.loop.memory.give(s.ledger.host, counted) // it is short, and on its way to the upstream
		s.reverseReply(xid, b)
		return
	}
	c := s.newCall()
	c.rdma.Message, c.buf, c.shares = m, b, true
	c.held.host, c.held.octets = s.ledger.host, counted
	if s.tenantOpen && !mayStartTLS(m) && !s.enrollLate() {
		s.settle(c)
		return
	}
	if t := s.ledger.member; t != nil && !t.enter() {
		t.kept = c
		s.admit()
		return
	}
	if s.begin(c) {
		s.limit()
	}
	s.secure()
}

// beginKept begins the Call that waits for its tenant, if there is one and it may begin.
func (s *tcpClient) beginKept() {
	g := &s.ledger
	m := g.member
	if m.kept == nil || g.shut != 0 || s.draining || s.ended.get() || !m.enter() {
		return
	}
	c := m.kept
	m.kept = nil
	if s.begin(c) && g.full == 0 {
		g.full = g.over()
	}
	s.secure()
}

// Unread is part of tcpframe.UnreadHandler.
func (s *tcpClient) Unread(unread bool) {
	if unread {
		s.wait(1<<waitUnread, 1<<waitUnread)
	} else {
		s.wait(0, 1<<waitUnread)
	}
}

// Busy is part of tcpframe.BusyHandler.
func (s *tcpClient) Busy() bool { return !s.idle() }

// idle is part of client.
func (s *tcpClient) idle() bool {
	m := s.ledger.member
	return s.ledger.calls == 0 && s.copies == 0 && (m == nil || m.kept == nil)
}

// Closed is part of tcpframe.RecordHandler.
func (s *tcpClient) Closed(_ *tcpframe.Conn, err error) {
	s.end(err)
	if m := s.ledger.member; m != nil && m.kept != nil {
		c := m.kept
		m.kept = nil
		s.settle(c)
	}
}

// admit is part of client. It stops reading from a client that has as much under way as it
// may, waits at a gate, or is draining. It reads again when none of this is so.
func (s *tcpClient) admit() {
	g := &s.ledger
	if g.member != nil {
		s.beginKept()
	}
	if g.full != 0 && g.low() {
		g.full = 0
	}
	reasons := g.shut | g.full
	if s.draining {
		reasons |= 1 << waitDraining
	}
	s.wait(reasons, frontBits)
	switch pause := reasons != 0; {
	case pause == s.paused:
	case pause:
		s.paused = true
		s.conn.Pause()
	default:
		s.paused = false
		s.conn.Resume()
	}
}

// limit pauses the client if it has as much under way as it may: a Call has come, or a Reply
// has turned out longer than was expected.
func (s *tcpClient) limit() {
	if s.ledger.full == 0 {
		s.ledger.full = s.ledger.over()
	}
	s.admit()
}

// transmit is part of client.
func (s *tcpClient) transmit(c *call) {
	if s.lend(c) {
		if s.hands(c) && s.conn.SendCopy(c.reply.parts) {
			c.copied = true
			s.copies++
			s.settle(c)
			return
		}
		if !s.conn.Open() {
			c.result = resultGone // Send drops the Reply
		}
		s.conn.Send(c.reply.parts, c)
		s.limit()
	}
}

// has is part of client.
func (s *tcpClient) has() bool { return s.copies == 0 }

// Copied is part of tcpframe.CopyHandler.
func (s *tcpClient) Copied(records int, written bool) {
	r := resultReplied
	if !written {
		r = resultGone
	}
	s.counts.results[r].Add(uint64(records))
	s.copies -= int32(records)
	s.closeIfIdle()
}

// settled is part of client. A Reply that was not written in full before the connection
// ended has not reached the client.
func (s *tcpClient) settled(c *call) {
	if c.result == resultReplied && s.conn.Ended() {
		c.result = resultGone
	}
}

// fail is part of client.
func (s *tcpClient) fail(reason error) { s.conn.Abort(reason) }

// sending is part of client.
func (s *tcpClient) sending() sending {
	in := s.conn.Incoming()
	return sending{held: int64(in.Memory), octets: in.Octets, calls: in.Records, ready: !in.Paused}
}

// hangUp is part of client.
func (s *tcpClient) hangUp(reason error) {
	if reason == errDraining {
		s.conn.Close(reason)
		return
	}
	s.conn.Abort(reason)
}

// credits is part of client.
func (s *tcpClient) credits() (granted, used int) { return 0, 0 }

// network is part of client.
func (s *tcpClient) network() (loop.TCP, bool) { return s.conn.Measure() }
