package proxy

import (
	"errors"
	"net/netip"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/rdmaside"
)

// rdmaHandler is a listener as the owner of its RDMA connections.
type rdmaHandler listener

// Opened is part of rdmaside.ConnHandler.
func (h *rdmaHandler) Opened(rc *rdmaside.ResponderConn) {
	l := (*listener)(h)
	s := &rdmaClient{l: l, conn: rc, loop: rc.Loop().(*eventLoop), peer: rc.Info().Peer}
	rc.Data = s
	s.ledger.owner = s
	s.ledger.open(s, l, s.peer.Addr().Unmap())
	s.quiet = s.loop.Now()
	if !l.enter(s.peer.Addr().Unmap()) {
		l.refused(s.peer, refusedAddress, errCrowded)
		s.close(errCrowded) // several came at once
	}
	if !l.join(s) {
		s.draining = true
		s.closeIfIdle()
	}
	s.ledger.follow(l, s.peer.Addr().Unmap()) // the terms may have changed before it joined
}

var errCrowded = errors.New("proxy: too many connections from this address")

// Ended is part of rdmaside.ConnHandler.
func (h *rdmaHandler) Ended(rc *rdmaside.ResponderConn, err error) {
	s := rc.Data.(*rdmaClient)
	s.ended.set()
	s.l.leave(s)
	s.l.exit(s.peer.Addr().Unmap())
	s.ledger.close(s.l, errClientGone)
	for s.waiting != nil {
		s.dropped(s.next())
	}
	if err != nil {
		s.l.log.Debug().Stringer("peer", s.peer).Err(err).Msg("client connection ended")
	}
}

// Call is part of rdmaside.CallHandler.
func (h *rdmaHandler) Call(x *rdmaside.Exchange) {
	s := x.Conn().Data.(*rdmaClient)
	s.quiet = s.loop.Now()
	c := s.loop.newCall()
	s.l.calls.Inc()
	c.client = s
	c.exchange = x
	c.msg = x.Message()
	if s.waiting != nil || !s.free() {
		s.wait(c)
		return
	}
	s.begin(c)
}

func (s *rdmaClient) begin(c *call) {
	if err := s.l.begin(c, &s.ledger, s.peer.Addr().Unmap()); err != nil {
		s.l.log.Warn().Stringer("peer", s.peer).Err(err).Msg("not an RPC Call; connection closed")
		s.dropped(c)
	}
}

// An rdmaClient is one RDMA connection of a client. Its credits bound how many
// Calls it has under way; those that would be too much wait here, and those that come
// during a drain: those are never begun, and its client sends them again when it
// has another connection. It is owned by its loop.
type rdmaClient struct {
	l    *listener
	conn *rdmaside.ResponderConn
	loop *eventLoop
	peer netip.AddrPort

	ledger   ledger
	waiting  *call // Calls not begun, linked by next, in the order they came
	last     *call // of them
	quiet    int64 // since when there was no Call and no end of one: loop.Now
	draining bool
	aborted  bool // for a Call that cannot be answered
	ended    flag // set by the loop, read anywhere
}

// free reports whether another Call may begin.
func (s *rdmaClient) free() bool {
	return !s.draining && s.ledger.shut == 0 && !s.ledger.over(s.l)
}

// turn is part of gated.
func (s *rdmaClient) turn(t *ticket) { s.loop.Post(t) }

// admitted is part of gated.
func (s *rdmaClient) admitted(k gateKind) {
	s.ledger.shut &^= 1 << k
	s.admit()
}

// admit begins the Calls that may.
func (s *rdmaClient) admit() {
	for s.waiting != nil && s.free() {
		s.begin(s.next())
	}
}

// wait keeps c until the client has taken some of what it is owed.
func (s *rdmaClient) wait(c *call) {
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

// home is part of client and session.
func (s *rdmaClient) home() *eventLoop { return s.loop }

// books is part of session.
func (s *rdmaClient) books() (*ledger, netip.AddrPort) { return &s.ledger, s.peer }

// gone is part of client.
func (s *rdmaClient) gone() bool { return s.ended.get() }

// deliver is part of client.
func (s *rdmaClient) deliver(c *call) {
	if c.out == nil {
		s.abandon(c, errUnanswered)
		return
	}
	c.restoreXID()
	if c.reply == nil {
		// A Reply of our own is in no arena yet, and a provider sends only from there.
		b, err := s.loop.replies.Lease(len(c.out[0]))
		if err != nil {
			s.abandon(c, err)
			return
		}
		c.size = b.Cap()
		copy(b.Bytes(), c.out[0])
		c.outArray[0] = b.Bytes()
		c.out, c.reply = c.outArray[:], b
	}
	s.ledger.lend(c)
	if s.ledger.held > s.l.maxHeld {
		s.abandon(c, errUnread)
		return
	}
	if !s.ended.get() {
		c.delivered()
	}
	x := c.takeExchange()
	x.Reply(c.out, c)
}

// abandon is part of client.
func (s *rdmaClient) abandon(c *call, reason error) {
	if !s.ended.get() {
		c.result = resultAbandoned
	}
	if !s.ended.get() && !s.aborted {
		s.aborted = true
		s.l.log.Warn().Stringer("peer", s.peer).Uint32("xid", c.clientXID).Err(reason).
			Msg("call cannot be answered; client connection closed")
	}
	s.dropped(c)
}

// refuse is part of pinClient.
func (s *rdmaClient) refuse(c *call, u *upstream, reason error) {
	u.unpinnable(s.peer, reason)
	c.result = resultAbandoned
	s.aborted = true // it is said
	s.dropped(c)
}

// dropped is part of client.
func (s *rdmaClient) dropped(c *call) {
	s.quiet = s.loop.Now()
	s.l.results[c.result].Inc()
	s.ledger.credit(c)
	x := c.takeExchange()
	c.releaseMemory()
	s.loop.recycle(c)
	if x != nil {
		x.Abort()
	}
	if s.ended.get() {
		return
	}
	s.admit()
	s.closeIfIdle()
}

// takeExchange returns the exchange to answer on, and ends the call's own when
// it was adopted: its connection ends, which leaves only its memory to give back.
func (c *call) takeExchange() *rdmaside.Exchange {
	x := c.exchange
	c.exchange = nil
	if c.heir == nil {
		return x
	}
	if x != nil {
		abort(x)
	}
	x, c.heir = c.heir, nil
	return x
}

// abort ends x on its loop.
func abort(x *rdmaside.Exchange) { x.Conn().Loop().Post(loop.TaskFunc(x.Abort)) }

func (s *rdmaClient) closeIfIdle() {
	if s.draining && s.ledger.calls == 0 {
		s.conn.Close(nil)
	}
}

// closeIfUnused closes a client of which nothing was heard for so long, and which
// nobody owes anything.
func (s *rdmaClient) closeIfUnused(idle time.Duration) {
	if s.unused(idle) {
		s.l.refused(s.peer, refusedIdle, nil)
		s.conn.Close(nil)
	}
}

// closeIfHoarding closes a client that is not used and has far more Receives than
// its share.
func (s *rdmaClient) closeIfHoarding() {
	if s.unused(hoardingAfter) && s.conn.Hoards() {
		s.l.refused(s.peer, refusedHoarding, nil)
		s.conn.Close(nil)
	}
}

// unused reports whether nothing was heard of the client for so long, and nobody
// owes it anything.
func (s *rdmaClient) unused(idle time.Duration) bool {
	return !s.ended.get() && !s.draining &&
		s.ledger.calls == 0 && s.waiting == nil && s.conn.Outstanding() == 0 &&
		time.Duration(s.loop.Now()-s.quiet) >= idle && time.Since(s.conn.LastActivity()) >= idle
}

// drain is part of session.
func (s *rdmaClient) drain() {
	s.loop.tcp.Post(loop.TaskFunc(func() {
		s.draining = true
		if !s.ended.get() {
			s.closeIfIdle()
		}
	}))
}

// close is part of session and client.
func (s *rdmaClient) close(reason error) {
	s.loop.tcp.Post(loop.TaskFunc(func() {
		if !s.ended.get() {
			s.conn.Close(reason)
		}
	}))
}
