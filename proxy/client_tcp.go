package proxy

import (
	"net/netip"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/internal/regmem"
	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/proxy/admit"
	"github.com/rdmabridge/rdmabridge/proxy/admit/gates"
	"github.com/rdmabridge/rdmabridge/proxy/listener"
	"github.com/rdmabridge/rdmabridge/proxy/observe"
	"github.com/rdmabridge/rdmabridge/tcpframe"
)

// A tcpClient is one TCP connection of a client.
type tcpClient struct {
	front
	conn *tcpframe.Conn // constant after Opened

	kept   *call // was read and waits at a gate of the tenant; nil for none
	paused bool  // the connection is not read from
	strays int16 // Replies that answer no reverse Call
	copies int32 // Replies that the connection has copied and not written

	securedAt time.Time // when the connection got TLS
}

// newTCPClient makes the handler of a connection of on that l is about to accept.
func newTCPClient(l *listener.Listener, on *eventLoop) *tcpClient {
	return &tcpClient{front: front{listener: l, loop: on}}
}

// Opened is part of tcpframe.RecordHandler.
func (s *tcpClient) Opened(c *tcpframe.Conn) {
	s.conn = c
	s.open(s, s.listener, s.loop, c.RemoteAddr())
	c.SetMemory((*tcpMemory)(s))
	if s.slowStart() != nil {
		c.AwaitInput()
	}
	s.admit()
	s.join()
}

// Input is part of tcpframe.InputHandler.
func (s *tcpClient) Input(*tcpframe.Conn) {
	s.arrive()
	s.admit()
}

// Run is part of tcpframe.RunHandler. It takes short Calls.
func (s *tcpClient) Run(conn *tcpframe.Conn) {
	s.loop.run = run{}
	for m := conn.Next(); m != nil; m = conn.Next() {
		if _, mtype, _ := oncrpc.MessageType(m); mtype == oncrpc.TypeReply {
			return
		}
		b := s.loop.memory.LeaseTiny(&s.ledger, s.loop.calls, len(m))
		if b == nil {
			return
		}
		s.wait(0, 1<<gates.WaitMemory)
		copy(b.Bytes(), m)
		conn.Took(m, len(m))
		s.read(b, 0)
	}
}

// Record is part of tcpframe.RecordHandler.
func (s *tcpClient) Record(_ *tcpframe.Conn, r tcpframe.Buffer) {
	b := r.(*regmem.Lease)
	m := b.Bytes()
	counted := s.loop.memory.Arrived(&s.ledger, int64(b.Size()))
	if xid, mtype, _ := oncrpc.MessageType(m); mtype == oncrpc.TypeReply {
		s.loop.memory.Give(s.ledger.Host(), counted) // it is short, and on its way to the upstream
		s.reverseReply(xid, b)
		return
	}
	s.loop.run = run{}
	s.read(b, counted)
}

// read begins the Call in b, which counts as so many octets until the Call is over, or keeps it.
func (s *tcpClient) read(b *regmem.Lease, counted int64) {
	m := b.Bytes()
	c := s.loop.account.read(&s.front)
	c.rdma.Message, c.buf, c.shares = m, b, true
	if counted != 0 {
		c.charge.Hold(s.ledger.Host(), counted)
	}
	if s.tenantOpen && !mayStartTLS(m) && !s.enrollLate() {
		s.settle(c)
		return
	}
	if !s.ledger.MayBegin() {
		s.kept = c
		s.admit()
		return
	}
	if s.loop.run.begin(&s.front, c) {
		s.limit()
	}
	if s.startTLS != nil {
		s.secure()
	}
}

// beginKept begins the Call that waits for its tenant, if there is one and it may begin.
func (s *tcpClient) beginKept() {
	g := &s.ledger
	if g.AtGate() || s.draining || s.ended.get() || !g.MayBegin() {
		return
	}
	c := s.kept
	s.kept = nil
	if s.begin(c) {
		g.Fill(s.bounds())
	}
	if s.startTLS != nil {
		s.secure()
	}
}

// Unread is part of tcpframe.UnreadHandler.
func (s *tcpClient) Unread(unread bool) {
	if unread {
		s.wait(1<<gates.WaitUnread, 1<<gates.WaitUnread)
	} else {
		s.wait(0, 1<<gates.WaitUnread)
	}
}

// Busy is part of tcpframe.BusyHandler.
func (s *tcpClient) Busy() bool { return !s.idle() }

// idle is part of client.
func (s *tcpClient) idle() bool {
	return s.ledger.Idle() && s.copies == 0 && s.kept == nil
}

// Closed is part of tcpframe.RecordHandler.
func (s *tcpClient) Closed(_ *tcpframe.Conn, err error) {
	s.end(err)
	if c := s.kept; c != nil {
		s.kept = nil
		s.settle(c)
	}
}

// admit is part of client. It stops reading from a client that has as much under way as it
// may, waits at a gate, or is draining. It reads again when none of this is so.
func (s *tcpClient) admit() {
	if !s.reads() || s.ledger.Waits() {
		s.pauseOrResume()
	}
}

// reads reports whether the bridge reads from the client, which is not draining and has no Call that waits.
func (s *tcpClient) reads() bool { return s.kept == nil && !s.paused && !s.draining }

// pauseOrResume does what admit does, for a client that is paused, drains or waits. It is apart so that admit, which
// each Call asks, stays short.
func (s *tcpClient) pauseOrResume() {
	if s.kept != nil {
		s.beginKept()
	}
	reasons := s.ledger.LastingReasons(s.bounds())
	if s.draining {
		reasons |= 1 << gates.WaitDraining
	}
	s.wait(reasons, gates.CallReasons)
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
	s.ledger.Fill(s.bounds())
	s.admit()
}

// transmit is part of client.
func (s *tcpClient) transmit(c *call) {
	if !s.lend(c) {
		return
	}
	if s.hands(c) && len(c.reply.parts) == 1 && s.copy(c.reply.parts[0]) {
		c.progress.Copied = true
		s.settle(c)
		return
	}
	if !s.conn.Open() {
		c.progress.Result = observe.ResultGone // Send drops the Reply
	}
	s.conn.Send(c.reply.parts, c)
	s.limit()
}

// copy sends m, if the connection can copy it.
func (s *tcpClient) copy(m []byte) bool {
	if !s.conn.SendCopy(m) {
		return false
	}
	s.copies++
	return true
}

// has is part of client.
func (s *tcpClient) has() bool { return s.copies == 0 }

// Copied is part of tcpframe.CopyHandler.
func (s *tcpClient) Copied(records int, written bool) {
	s.loop.account.copied(&s.front, records, written)
	s.copies -= int32(records)
	s.closeIfIdle()
}

// settled is part of client. A Reply that was not written in full before the connection
// ended has not reached the client.
func (s *tcpClient) settled(c *call) {
	if c.progress.Result == observe.ResultReplied && s.conn.Ended() {
		c.progress.Result = observe.ResultGone
	}
}

// passed is part of client. Copied says what becomes of the Replies.
func (s *tcpClient) passed(n int) { s.copies += int32(n) }

// fail is part of client.
func (s *tcpClient) fail(reason error) { s.conn.Abort(reason) }

// Sending is part of client.
func (s *tcpClient) Sending() admit.Sending {
	in := s.conn.Incoming()
	return admit.Sending{Held: int64(in.Memory), Octets: in.Octets, Calls: in.Records, Ready: !in.Paused}
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

// local is part of client.
func (s *tcpClient) local() netip.AddrPort { return s.conn.LocalAddr() }

// proxy is part of client.
func (s *tcpClient) proxy() netip.AddrPort {
	if a := s.conn.WireAddr(); a != s.peer {
		return a
	}
	return netip.AddrPort{}
}
