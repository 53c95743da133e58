package proxy

import (
	"context"
	"errors"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb/nfs"
	"github.com/rdmabridge/rdmabridge/internal/status"
	"github.com/rdmabridge/rdmabridge/pool"
	"github.com/rdmabridge/rdmabridge/rdmaside"
)

// An rdmaConn is one RPC-over-RDMA connection to an upstream. It belongs to its loop.
type rdmaConn struct {
	u     *upstream
	seat  *pool.Seat
	loop  *eventLoop
	owner connOwner           // nil for a shared connection
	r     *rdmaside.Requester // constant once dialRDMA has returned

	deadline time.Duration // of Calls; constant

	probe probe
}

// dialRDMA makes a connection to addr, for owner unless that is nil. t learns whether the server answers.
func dialRDMA(ctx context.Context, u *upstream, l *eventLoop, addr string, t *addressTrial, s *pool.Seat, owner connOwner) (pool.Member, error) {
	m := &rdmaConn{u: u, seat: s, loop: l, owner: owner}
	uo := u.settings()
	m.deadline = uo.CallTimeout
	m.probe = probe{u: u, m: m, seat: s, loop: l, owner: owner, trial: t}
	o := rdmaside.RequesterOptions{
		Memory: l.replies, Registry: u.p.registry,
		Credits: uo.Credits, CallInline: uo.CallInline, ReplyInline: uo.ReplyInline,
		Deadline: uo.CallTimeout, RemoteInvalidation: true,
		Warm: warmAnswered, Log: u.log, Lines: &u.refusals, Metrics: u.counts[l.index].requester,
	}
	if owner != nil {
		o.Reverse = (*rdmaReverse)(m)
		o.IdleReceives, o.ReverseReceives = owner.receives()
	}
	r, err := rdmaside.DialRequester(ctx, uo.Provider, l, addr, o, m)
	if err != nil {
		return nil, err
	}
	m.r = r
	// The connection has one credit until the first Reply: RFC 8166 Section 3.3.3. A Call that
	// hangs would hold it for long, so that a NULL Call has it, and the pool has none before.
	s.Granted(0, pool.Elsewhere)
	l.tcp.Post(loop.TaskFunc(m.probe.prime))
	m.probe.start()
	return m, nil
}

// Dispatch is part of pool.Member.
func (m *rdmaConn) Dispatch(e *pool.Entry, here int) { dispatch(e, m, m.loop, here) }

// Affinity is part of pool.Member.
func (m *rdmaConn) Affinity() int { return m.loop.index }

// Close is part of pool.Member.
func (m *rdmaConn) Close(err error) {
	r := m.r
	m.loop.tcp.Post(loop.TaskFunc(func() {
		// When the pool ends with every Call answered, the close is orderly and sends no
		// Terminate.
		if errors.Is(err, pool.ErrClosed) && r.Outstanding() == 0 {
			err = nil
		}
		r.Close(err)
	}))
}

// send is part of upstreamConn.
func (m *rdmaConn) send(c *call) {
	if m.owner != nil && !m.owner.carries(c) {
		c.unsent(m, errMoved)
		return
	}
	if a := &c.rdma.Analysis; a.BackRequest != 0 {
		nfs.BoundBackChannel(c.rdma.Message, a, m.r.LongestReverseCall())
	}
	c.rdma.Spare = c.spare(m.loop)
	err := m.r.Send(&c.rdma)
	if err == nil {
		m.probe.sends(c)
		if m.loop.tapping() {
			m.tapSent(c)
		}
		c.wasSent(m.loop)
		if x := c.order(); x != nil {
			x.sent(c, m.loop.index)
		}
		return
	}
	m.notSent(c, err)
}

// notSent gives back a call that the Requester did not send. The call still holds its credit.
func (m *rdmaConn) notSent(c *call, err error) {
	// The pool dispatches nothing until a Reply has given memory back. When slow clients
	// hold the memory, slowClients closes them. One of the pool's Calls waits for all others:
	// while it waits, no other request for memory is served before it.
	if p := m.seat.Pool(); errors.Is(err, rdmaside.ErrNoMemory) && p.Hold() {
		m.r.Wait(&c.rdma, m.u.p.slow.waits(p.Resume))
	}
	if c.replays == 0 {
		c.times.sent = 0
	}
	c.unsent(m, err)
}

// lateCalls is part of lateMember.
func (m *rdmaConn) lateCalls() int { return m.r.Late() }

// credits is part of upstreamConn.
func (m *rdmaConn) credits() int { return m.r.Grant() }

// oldestCall is part of upstreamConn.
func (m *rdmaConn) oldestCall() time.Duration { return m.r.Oldest() }

// network is part of upstreamConn.
func (m *rdmaConn) network() (loop.TCP, bool) { return m.r.Measure() }

// local is part of upstreamConn.
func (m *rdmaConn) local() string { return m.r.Info().Local.String() }

// security is part of upstreamConn.
func (m *rdmaConn) security() *status.TLS { return nil }

// stalled is part of upstreamConn.
func (m *rdmaConn) stalled() bool { return m.probe.stalled.Load() }

// Granted is part of rdmaside.Watcher.
func (m *rdmaConn) Granted(_ *rdmaside.Requester, grant int) { m.seat.Granted(grant, m.loop.index) }

// Ended is part of rdmaside.Watcher.
func (m *rdmaConn) Ended(_ *rdmaside.Requester, err error) {
	m.probe.end(err)
	m.u.ended(err)
	m.loop.tapEnded(m, err)
	if m.owner != nil {
		m.owner.ended(err)
	}
	m.seat.Ended(err)
}

// Dropped is part of rdmaside.DropWatcher.
func (m *rdmaConn) Dropped(_ *rdmaside.Requester, rc *rdmaside.Call, late int) rdmaside.Drop {
	m.u.leaked.Inc()
	c, ok := rc.Owner.(*call)
	switch {
	case ok && m.seat.Overdue(m.deadline):
		return rdmaside.DropClose
	case ok && m.owner != nil && m.owner.keeps(c, late, m.r.Grant()):
		c.overdue(m.loop.index)
		return rdmaside.DropKeep
	case m.seat.Retire(m):
		return rdmaside.DropRetire
	}
	return rdmaside.DropClose
}

// ask is part of probed.
func (m *rdmaConn) ask(p *probe) error { return m.r.Send(&p.call) }

// unheard is part of probed.
func (m *rdmaConn) unheard() time.Duration { return time.Since(m.r.LastActivity()) }

// waits is part of probed.
func (m *rdmaConn) waits() bool { return m.r.Outstanding() > 0 }

// done takes back a Call that the Requester has finished with, with the Reply or err.
func (m *rdmaConn) done(c *call, err *rdmaside.CallError) {
	seat, here := c.entry.Seat(), m.loop.index
	if err == nil {
		m.probe.replied(c)
		c.reply.parts, c.reply.lease, c.reply.memory = c.rdma.Reply.Parts(), &c.rdma.Reply, c.rdma.Reply.Held()
		if m.loop.tapping() {
			m.tapReply(c)
		}
		c.entry.Answered()
		m.loop.batch.Done(seat, &c.entry)
		c.answered(here)
		return
	}
	if err.Fate == rdmaside.NotSent {
		// Send accepted the Call and could not send it. The connection may be well.
		m.notSent(c, err.Err)
		return
	}
	if m.credits() == 0 {
		seat.Closing(m) // the connection is ending and takes no more Calls
		if errors.Is(err.Err, rdmaside.ErrDeadline) {
			seat.Overdue(m.deadline) // before the Call goes elsewhere
		}
	}
	seat.Done(&c.entry, here)
	c.failed(here, err)
}
