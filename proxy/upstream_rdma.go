package proxy

import (
	"context"
	"errors"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/internal/regmem"
	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb/nfs"
	"github.com/rdmabridge/rdmabridge/internal/status"
	"github.com/rdmabridge/rdmabridge/pool"
	"github.com/rdmabridge/rdmabridge/proxy/observe"
	"github.com/rdmabridge/rdmabridge/proxy/reach"
	"github.com/rdmabridge/rdmabridge/proxy/session"
	"github.com/rdmabridge/rdmabridge/proxy/upstream"
	"github.com/rdmabridge/rdmabridge/rdmaside"
)

// An rdmaConn is one RPC-over-RDMA connection to an upstream. It belongs to its loop.
type rdmaConn struct {
	u    *upstream.Upstream
	seat *pool.Seat
	loop *eventLoop
	lane *session.Conn       // nil for a shared connection
	r    *rdmaside.Requester // constant once dialRDMA has returned

	deadline time.Duration // of Calls; constant

	probe reach.Probe
	null  rdmaside.Call // of the probe
}

// dialRDMA makes the connection d to u, on its loop l.
func dialRDMA(ctx context.Context, u *upstream.Upstream, l *eventLoop, d *upstream.Dial) (pool.Member, error) {
	s, c := d.Seat, d.Lane
	m := &rdmaConn{u: u, seat: s, loop: l, lane: c}
	m.probe.Init(u.Watch, m, s, l, d.Trial, primed(c))
	uo := u.Settings()
	m.deadline = uo.CallTimeout
	o := rdmaside.RequesterOptions{
		Memory: l.replies, Registry: u.Registry,
		Credits: uo.Credits, CallInline: uo.CallInline, ReplyInline: uo.ReplyInline,
		Deadline: uo.CallTimeout, RemoteInvalidation: true,
		Take: takeReply, Took: l.replied.end, Warm: warmAnswered, Cold: l.cold,
		Log: u.Log, Lines: &u.Refusals, Metrics: u.Counts[l.index].Requester,
	}
	if c != nil {
		o.Reverse = (*rdmaReverse)(m)
		o.IdleReceives, o.ReverseReceives = c.Receives()
	}
	r, err := rdmaside.DialRequester(ctx, uo.Provider, l, d.Addr, o, m)
	if err != nil {
		return nil, err
	}
	m.r = r
	// The connection has one credit until the first Reply: RFC 8166 Section 3.3.3. A Call that
	// hangs would hold it for long, so that a NULL Call has it, and the pool has none before.
	s.Granted(0, pool.Elsewhere)
	m.probe.Start()
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
	if m.lane != nil && !m.lane.Carries(c.queue.lane, &c.session, &c.h, &c.rdma.Analysis) {
		c.unsent(m, session.ErrMoved)
		return
	}
	if a := &c.rdma.Analysis; a.BackRequest != 0 {
		nfs.BoundBackChannel(c.rdma.Message, a, m.r.LongestReverseCall())
	}
	c.rdma.Spare = c.spare(m.loop)
	err := m.r.Send(&c.rdma)
	if err == nil {
		m.probe.Sent(&c.entry)
		m.loop.account.sent(c)
		if x := c.order(); x != nil {
			x.Sent(m.loop.index)
		}
		return
	}
	m.notSent(c, err)
}

// notSent gives back a call that the Requester did not send. The call still holds its credit.
func (m *rdmaConn) notSent(c *call, err error) {
	// The pool dispatches nothing until a Reply has given memory back. When slow clients
	// hold the memory, admit.SlowReaders closes them. One of the pool's Calls waits for all others:
	// while it waits, no other request for memory is served before it.
	if p := m.seat.Pool(); errors.Is(err, rdmaside.ErrNoMemory) && p.Hold() {
		l := m.loop
		m.r.Wait(&c.rdma, m.u.Slow.Waits(func() {
			l.tcp.Post(loop.TaskFunc(func() { p.Resume(l.index) }))
		}))
	}
	m.loop.account.unsent(c)
	c.unsent(m, err)
}

// LateCalls is part of session.Member.
func (m *rdmaConn) LateCalls() int { return m.r.Late() }

// Drop is part of session.Member.
func (m *rdmaConn) Drop() { m.Close(rdmaside.ErrDropped) }

// Credits is part of upstreamConn and reach.Conn.
func (m *rdmaConn) Credits() int { return m.r.Grant() }

// outstanding is part of upstreamConn.
func (m *rdmaConn) outstanding() int { return m.r.Outstanding() }

// OldestCall is part of upstreamConn.
func (m *rdmaConn) OldestCall() time.Duration { return m.r.Oldest() }

// Network is part of upstreamConn and reach.Conn.
func (m *rdmaConn) Network() (loop.TCP, bool) { return m.r.Measure() }

// Local is part of upstreamConn.
func (m *rdmaConn) Local() string { return m.r.Info().Local.String() }

// Security is part of upstreamConn.
func (m *rdmaConn) Security() *status.TLS { return nil }

// Stalled is part of upstreamConn.
func (m *rdmaConn) Stalled() bool { return m.probe.Stalled() }

// Granted is part of rdmaside.Watcher.
func (m *rdmaConn) Granted(_ *rdmaside.Requester, grant int) { m.seat.Granted(grant, m.loop.index) }

// Ended is part of rdmaside.Watcher.
func (m *rdmaConn) Ended(_ *rdmaside.Requester, err error) {
	m.probe.End(err)
	m.u.Ends.Count(err)
	m.loop.account.connEnded(m, err)
	if m.lane != nil {
		m.lane.Ended(err)
	}
	m.seat.Ended(err)
}

// Dropped is part of rdmaside.DropWatcher.
func (m *rdmaConn) Dropped(_ *rdmaside.Requester, rc *rdmaside.Call, late int) rdmaside.Drop {
	m.u.Leaked.Inc()
	c, ok := rc.Owner.(*call)
	switch {
	case ok && m.seat.Overdue(m.deadline):
		return rdmaside.DropClose
	case ok && m.lane != nil && m.lane.Keeps(c.signed, late, m.r.Grant()):
		c.overdue(m.loop.index)
		return rdmaside.DropKeep
	case m.seat.Retire(m):
		return rdmaside.DropRetire
	}
	return rdmaside.DropClose
}

// Ask is part of reach.Conn.
func (m *rdmaConn) Ask(xid uint32, message []byte) error {
	memory, err := m.loop.replies.Lease(len(message))
	if err != nil {
		return err
	}
	copy(memory.Bytes(), message)
	m.null = rdmaside.Call{XID: xid, Message: memory.Bytes(), Owner: &nullCall{m, memory}}
	var h oncrpc.Call
	if err := oncrpc.ParseCall(message, &h); err != nil {
		panic("BUG: proxy: a NULL Call is none: " + err.Error())
	}
	m.null.Binding = m.u.Registry.Analyse(&h, &m.null.Analysis)
	if err := m.r.Send(&m.null); err != nil {
		memory.Release()
		return err
	}
	return nil
}

// A nullCall owns the outstanding NULL Call of m's probe.
type nullCall struct {
	m      *rdmaConn
	memory *regmem.Lease // holds the message
}

// CallDone is part of rdmaside.CallOwner.
func (n *nullCall) CallDone(c *rdmaside.Call, err *rdmaside.CallError) {
	n.memory.Release()
	c.Message = nil
	if err == nil {
		c.Reply.Release()
	} else if n.m.Credits() == 0 {
		n.m.seat.Closing(n.m)
	}
	n.m.probe.Done(err == nil || err.Fate == rdmaside.Answered)
}

// Unheard is part of reach.Conn.
func (m *rdmaConn) Unheard() time.Duration { return time.Since(m.r.LastActivity()) }

// Waits is part of reach.Conn.
func (m *rdmaConn) Waits() bool { return m.r.Outstanding() > 0 }

// takeReply has the client's connection copy msg, the Reply to rc, if it can. rdmaside.RequesterOptions.
func takeReply(rc *rdmaside.Call, msg []byte) bool {
	c, ok := rc.Owner.(*call)
	if !ok {
		return false // of a probe
	}
	r := &c.conn.(*rdmaConn).loop.replied
	if !r.takes(c) || !r.copy(c, msg) {
		return false
	}
	c.one[0], c.progress.Copied = msg, true
	return true
}

// done takes back a Call that the Requester has finished with, with the Reply or err.
func (m *rdmaConn) done(c *call, err *rdmaside.CallError) {
	seat, here := c.entry.Seat(), m.loop.index
	if err == nil {
		m.probe.Replied(&c.entry)
		if c.progress.Copied {
			m.loop.replied.took(c, c.one[0])
			return
		}
		c.reply.parts, c.reply.lease, c.reply.memory = c.rdma.Reply.Parts(), &c.rdma.Reply, c.rdma.Reply.Held()
		m.loop.account.replied(c)
		m.loop.batch.Done(&c.entry)
		c.answered(m.loop)
		return
	}
	if err.Fate == rdmaside.NotSent {
		// Send accepted the Call and could not send it. The connection may be well.
		m.notSent(c, err.Err)
		return
	}
	if m.Credits() == 0 {
		seat.Closing(m) // the connection is ending and takes no more Calls
		if errors.Is(err.Err, rdmaside.ErrDeadline) {
			seat.Overdue(m.deadline) // before the Call goes elsewhere
		}
	}
	seat.Done(&c.entry, here)
	c.failed(m.loop, err)
}

// TapKey is part of observe.Tapped.
func (m *rdmaConn) TapKey() any { return m }

// DescribeTap is part of observe.Tapped.
func (m *rdmaConn) DescribeTap(c *observe.TapConn) { m.describe(c, m.r) }

func (m *rdmaConn) describe(c *observe.TapConn, r *rdmaside.Requester) {
	i := r.Info()
	c.Leg, c.RDMA, c.Name, c.Local, c.Peer = observe.TapUpstreams, true, m.u.Name, i.Local, i.Peer
}

// CallDone is called when an RDMA upstream has answered, or when its connection knows that it
// will not. rdmaside.CallOwner.
func (c *call) CallDone(_ *rdmaside.Call, err *rdmaside.CallError) {
	c.conn.(*rdmaConn).done(c, err)
}

// A rdmaReverse is an rdmaConn as the handler of the reverse Calls of its server.
type rdmaReverse rdmaConn

// ReverseCall has a reverse Call brought to the client. rdmaside.ReverseHandler.
func (v *rdmaReverse) ReverseCall(r *rdmaside.Requester, m *regmem.Lease) bool {
	from := &rdmaReverser{(*rdmaConn)(v), r}
	v.loop.account.reverse(from, m.Bytes(), false, false)
	return v.lane.CallBack(from, m.Bytes(), m)
}

// A rdmaReverser is the connection r of m as a session.Reverser. m may not know r yet.
type rdmaReverser struct {
	m *rdmaConn
	r *rdmaside.Requester
}

// TapKey is part of observe.Tapped.
func (v *rdmaReverser) TapKey() any { return v.m }

// DescribeTap is part of observe.Tapped.
func (v *rdmaReverser) DescribeTap(c *observe.TapConn) { v.m.describe(c, v.r) }

// ReverseReply is part of session.Reverser.
func (v *rdmaReverser) ReverseReply(xid uint32, m []byte, done session.Releaser) error {
	if !v.m.probe.Over() { // the Tap knows no connection that has ended
		v.m.loop.account.reverse(v, m, true, true)
	}
	return v.r.ReverseReply(xid, m, done)
}

// ReverseRefuse is part of session.Reverser.
func (v *rdmaReverser) ReverseRefuse(xid uint32) { v.r.ReverseRefuse(xid) }
