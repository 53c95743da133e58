package proxy

import (
	"context"
	"errors"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/pool"
	"github.com/rdmabridge/rdmabridge/rdmaside"
)

// An rdmaConn is one RPC-over-RDMA connection of an upstream's pool. It is
// owned by its loop.
type rdmaConn struct {
	u    *upstream
	seat *pool.Seat
	loop *eventLoop
	r    *rdmaside.Requester // constant once the member is seated

	probe probe
}

// dialRDMA makes a connection, for p alone unless that is nil.
func dialRDMA(ctx context.Context, u *upstream, l *eventLoop, endpoint string, s *pool.Seat, p *pin) (pool.Member, error) {
	m := &rdmaConn{u: u, seat: s, loop: l}
	uo := u.settings()
	m.probe = probe{u: u, m: m, seat: s, loop: l}
	o := rdmaside.RequesterOptions{
		Memory: l.replies, Registry: u.p.registry,
		Credits: uo.Credits, CallInline: uo.CallInline, ReplyInline: uo.ReplyInline,
		Deadline: uo.CallTimeout, RemoteInvalidation: true,
		Log: u.log, Metrics: u.requester,
	}
	if p != nil {
		o.IdleReceives = pinnedReceives
		o.Reverse, o.ReverseReceives = p, pinnedReverse
	}
	r, err := rdmaside.DialRequester(ctx, uo.Provider, l, endpoint, o, m)
	if err != nil {
		return nil, err
	}
	m.r = r
	// "one credit until the first Reply": until then nothing changes it. RFC 8166
	// Section 3.3.3.
	s.Granted(r.Grant(), pool.Elsewhere)
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
		// A pool that ends with every Call answered has nothing to complain about:
		// an orderly close, no Terminate.
		if errors.Is(err, pool.ErrClosed) && r.Outstanding() == 0 {
			err = nil
		}
		r.Close(err)
	}))
}

// send is part of member.
func (m *rdmaConn) send(c *call) {
	err := m.r.Send(&c.rdma)
	if err == nil {
		c.entry.Sent()
		return
	}
	m.refused(c, err)
}

// refused gives back a call, whose credit is still held, that the Requester did
// not send.
func (m *rdmaConn) refused(c *call, err error) {
	// Nothing is dispatched until a Reply has given memory back; if those that hold
	// it are clients that do not read, relief sees to it. One of the pool's Calls
	// waits for all: while one waits, memory goes to nobody else.
	if p := m.seat.Pool(); errors.Is(err, rdmaside.ErrNoMemory) && p.Hold() {
		m.r.Wait(&c.rdma, m.u.p.slow.waits(p.Resume))
	}
	c.unsent(m, err)
}

// credits is part of member.
func (m *rdmaConn) credits() int { return m.r.Grant() }

// Granted is part of rdmaside.Watcher.
func (m *rdmaConn) Granted(_ *rdmaside.Requester, grant int) { m.seat.Granted(grant, m.loop.index) }

// Ended is part of rdmaside.Watcher.
func (m *rdmaConn) Ended(_ *rdmaside.Requester, err error) {
	m.probe.end()
	m.u.ended(err)
	m.seat.Ended(err)
}

// Dropped is part of rdmaside.DropWatcher.
func (m *rdmaConn) Dropped(*rdmaside.Requester) bool {
	m.u.leaked.Inc()
	return m.seat.Retire(m)
}

// ask is part of probed.
func (m *rdmaConn) ask(p *probe) error { return m.r.Send(&p.call) }

// unheard is part of probed.
func (m *rdmaConn) unheard() time.Duration { return time.Since(m.r.LastActivity()) }

// done takes back a Call that the Requester has carried, or not: err.
func (m *rdmaConn) done(c *call, err *rdmaside.CallError) {
	seat, here := c.entry.Seat(), m.loop.index
	if err == nil {
		c.reply.parts, c.reply.lease, c.reply.memory = c.rdma.Reply.Parts(), &c.rdma.Reply, c.rdma.Reply.Held()
		seat.Done(&c.entry, here)
		c.answered(here)
		return
	}
	if err.Fate == rdmaside.NotSent {
		// Not taken after all, as if Send had said so: the connection may be well.
		m.refused(c, err.Err)
		return
	}
	if m.credits() == 0 {
		seat.Closing(m) // it is ending: nothing more may go there
	}
	seat.Done(&c.entry, here)
	c.failed(here, err)
}
