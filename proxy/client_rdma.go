package proxy

import (
	"net/netip"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/proxy/admit"
	"github.com/rdmabridge/rdmabridge/proxy/admit/gates"
	"github.com/rdmabridge/rdmabridge/proxy/listener"
	"github.com/rdmabridge/rdmabridge/rdmaside"
)

// An rdmaClient is one RDMA connection of a client. Its credits bound how many Calls arrive.
// Calls that may not begin yet wait in a list. Calls that wait or arrive while the connection
// drains never begin: the client sends them again on its next connection.
type rdmaClient struct {
	front
	conn *rdmaside.ResponderConn

	waiting *call // the first of the Calls that have not begun, linked by next in the order they came
	last    *call // the last of them
	quiet   int64 // when a Call came or was settled last, on the loop's clock
}

// An rdmaHandler is a listener as the handler of its RDMA connections.
type rdmaHandler listener.Listener

// hoardingAfter is how long a client must have been idle to be closed for its Receives.
const hoardingAfter = 5 * time.Second

// Opened is part of rdmaside.ConnHandler.
func (h *rdmaHandler) Opened(rc *rdmaside.ResponderConn) {
	l := (*listener.Listener)(h)
	s := &rdmaClient{conn: rc}
	rc.Data = s
	s.open(s, l, rc.Loop().(*eventLoop), rc.Info().Peer)
	l.RDMAOpened(s.loop.index)
	rc.SetMemory((*rdmaMemory)(s))
	s.quiet = s.loop.Now()
	if err := l.RefuseIfFull(s.peer); err != nil {
		s.Close(err)
	}
	s.join()
}

// Ended is part of rdmaside.ConnHandler.
func (h *rdmaHandler) Ended(rc *rdmaside.ResponderConn, err error) {
	s := rc.Data.(*rdmaClient)
	s.listener.RDMAEnded(s.loop.index)
	s.end(err)
	for s.waiting != nil {
		s.settle(s.next())
	}
}

// Call is part of rdmaside.CallHandler.
func (h *rdmaHandler) Call(x *rdmaside.Exchange) {
	s := x.Conn().Data.(*rdmaClient)
	if !x.Follows() {
		s.loop.run = run{}
	}
	s.quiet = s.loop.Now()
	c := s.loop.account.read(&s.front)
	c.rdma.Message = x.Message()
	c.owner.exchange = x
	if !s.began {
		s.began = true
		s.arrive()
	}
	if s.waiting != nil || s.reasons() != 0 || !s.ledger.MayBegin() {
		s.front.wait(s.reasons(), gates.CallReasons)
		s.keep(c)
		return
	}
	s.loop.run.begin(&s.front, c)
}

// reasons are those for which another Call may not begin, a bit for each gates.Reason.
func (s *rdmaClient) reasons() uint16 {
	r := s.ledger.Reasons(s.bounds())
	if s.draining {
		r |= 1 << gates.WaitDraining
	}
	return r
}

// admit is part of client. It begins as many of the Calls that wait as may begin.
func (s *rdmaClient) admit() {
	for s.waiting != nil {
		r := s.reasons()
		if r == 0 && !s.ledger.MayBegin() {
			r = s.reasons()
		}
		s.front.wait(r, gates.CallReasons)
		if r != 0 {
			return
		}
		s.begin(s.next())
	}
	s.front.wait(0, gates.CallReasons)
}

// keep keeps c until the client may have another Call under way.
func (s *rdmaClient) keep(c *call) {
	c.usesSeldom = true
	if s.waiting == nil {
		s.waiting = c
	} else {
		s.last.next = c
	}
	s.last = c
}

// next takes the first Call that waits.
func (s *rdmaClient) next() *call {
	c := s.waiting
	s.waiting, c.next = c.next, nil
	return c
}

// transmit is part of client.
func (s *rdmaClient) transmit(c *call) {
	if c.reply.lease == nil {
		// The bridge made this Reply itself, in no arena, and a provider sends only from an
		// arena.
		if len(c.reply.parts[0]) <= rdmaside.ShortReply {
			if s.lend(c) {
				c.takeExchange().ReplyShort(c.reply.parts[0], c)
			}
			return
		}
		b, err := s.loop.replies.Lease(len(c.reply.parts[0]))
		if err != nil {
			s.abandon(c, err)
			return
		}
		c.reply.memory = b.Size()
		copy(b.Bytes(), c.reply.parts[0])
		c.one[0] = b.Bytes()
		c.reply.parts, c.reply.lease = c.one[:], b
	}
	switch {
	case !s.lend(c):
	case s.hands(c):
		c.takeExchange().ReplyCopy(c.reply.parts, c)
	default:
		c.takeExchange().Reply(c.reply.parts, c)
	}
}

// settled is part of client.
func (s *rdmaClient) settled(*call) { s.quiet = s.loop.Now() }

// passed is part of client. What the connection has copied counts as sent.
func (s *rdmaClient) passed(n int) {
	s.quiet = s.loop.Now()
	s.loop.account.copied(&s.front, n, true)
}

// fail is part of client. The connection ends when front.settle aborts the Call's Exchange.
func (s *rdmaClient) fail(error) {}

// Sending is part of client.
func (s *rdmaClient) Sending() admit.Sending {
	held, octets := s.conn.Pulling()
	return admit.Sending{Held: int64(held), Octets: octets, Ready: held > 0}
}

// hangUp is part of client.
func (s *rdmaClient) hangUp(reason error) {
	if reason == errDraining {
		reason = nil // an orderly end
	}
	s.conn.Close(reason)
}

// closeIfUnused closes a client that has been silent for idle and is owed nothing.
func (s *rdmaClient) closeIfUnused(idle time.Duration) {
	if s.unused(idle) {
		s.listener.Refused(s.peer, listener.RefusedIdle, nil)
		s.conn.Close(nil)
	}
}

// closeIfHoarding closes a client that is not used and has far more Receives than its
// share.
func (s *rdmaClient) closeIfHoarding() {
	if s.unused(hoardingAfter) && s.conn.Hoards() {
		s.listener.Refused(s.peer, listener.RefusedHoarding, nil)
		s.conn.Close(nil)
	}
}

// has is part of client.
func (s *rdmaClient) has() bool { return true }

// idle is part of client.
func (s *rdmaClient) idle() bool {
	return s.ledger.Idle() && s.waiting == nil && s.conn.Outstanding() == 0 && !s.conn.Unwritten()
}

// unused reports whether the client has been silent for idle and is owed nothing.
func (s *rdmaClient) unused(idle time.Duration) bool {
	return !s.ended.get() && !s.draining && s.idle() &&
		time.Duration(s.loop.Now()-s.quiet) >= idle && time.Since(s.conn.LastActivity()) >= idle
}

// credits is part of client.
func (s *rdmaClient) credits() (granted, used int) { return s.conn.Credits() }

// network is part of client.
func (s *rdmaClient) network() (loop.TCP, bool) { return s.conn.Measure() }

// local is part of client.
func (s *rdmaClient) local() netip.AddrPort { return s.conn.Info().Local }

// proxy is part of client.
func (s *rdmaClient) proxy() netip.AddrPort { return netip.AddrPort{} }
