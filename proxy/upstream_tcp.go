package proxy

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/netip"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/internal/proxyheader"
	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/xids"
	"github.com/rdmabridge/rdmabridge/pool"
	"github.com/rdmabridge/rdmabridge/rdmaside"
	"github.com/rdmabridge/rdmabridge/tcpframe"
)

// A tcpConn is one TCP connection to an upstream. TCP has no credits: the grant is the
// configured number, from the Reply to a first NULL Call on. A tcpConn belongs to its loop.
type tcpConn struct {
	u    *upstream
	opts *UpstreamOptions // the settings when the connection was dialled
	seat *pool.Seat
	loop *eventLoop
	conn *tcpframe.Conn // constant after Opened
	back callbacks

	start     *tlsStart // nil without TLS, and once it has begun
	securedAt time.Time // when it had begun

	pending xids.Table[*call]
	oldest  *call // the pending Call that was sent first
	newest  *call // the pending Call that was sent last
	due     *call // the pending Call that was sent first of those that are not late
	kept    int   // pending Calls that are past their deadline and stay: see overdue
	timer   *time.Timer
	ending  bool
	leaving bool  // another connection has replaced this one: see leave
	stamped int64 // the latest result of stamp
	heard   int64 // when the latest message came, on that clock
	latest  int64 // when the newest of the answered Calls was sent, on that clock; 0 for none
	probe   probe
}

// smallCall is how many octets a Call may have to be written before longer ones that wait:
// one client's megabytes must not hold up the others.
const smallCall = 16 << 10

var errDeadline = errors.New("proxy: call not answered in time")

// errIdleClosed reports that the server closed a connection that had worked and on which no
// Call was outstanding. Servers close connections that were idle for some minutes.
var errIdleClosed = errors.New("proxy: the server closed an idle connection")

// Bounds of a connection to a TCP upstream.
const (
	replyTimeout = 30 * time.Second // for 4 KiB of an incomplete Reply
	callTimeout  = 2 * time.Minute  // for 64 KiB of the Calls that are queued
)

// dialTCP makes a connection to addr, an address of endpoint, for owner unless that is nil. t learns
// whether the server answers.
func dialTCP(ctx context.Context, u *upstream, l *eventLoop, endpoint, addr string, t *addressTrial, s *pool.Seat, owner connOwner) (pool.Member, error) {
	m := &tcpConn{u: u, opts: u.settings(), seat: s, loop: l, back: callbacks{owner: owner}, pending: xids.New[*call](0), heard: u.p.engine.Now()}
	m.probe = probe{u: u, m: m, seat: s, loop: l, owner: owner, trial: t}
	s.Granted(0, pool.Elsewhere) // primed grants the credits
	o := tcpframe.DialOptions{
		Name: u.name, Reset: true,
		Conn: tcpframe.ConnOptions{
			Memory:    func(int) tcpframe.Memory { return replyMemory{memory{l.replies}, &u.p.slow} },
			MaxRecord: int(u.p.registry.Limits().MaxReply) + 64<<10,
			// The grant bounds the Calls. A server that reads slowly is not paused.
			MaxOutbound: 1 << 40, OutboundLimit: 1 << 40,
			StallTimeout: replyTimeout, SendTimeout: callTimeout,
			SilentTimeout: m.opts.SilentTimeout,
		},
	}
	switch {
	case !m.opts.NamesClients:
	case owner != nil:
		o.Preamble = owner.names(nil)
	default:
		o.Preamble = proxyheader.AppendLocal(nil) // for NULL Calls, which are no client's
	}
	var start *tlsStart
	if t := m.opts.TLS; t != nil {
		var err error
		if start, err = newTLSStart(u, m, endpoint, t); err != nil {
			return nil, err
		}
		m.start = start
		u.secure.add(m)
	}
	err := u.dialFrom(ctx, s, owner, func(from netip.AddrPort) (*tcpframe.Conn, error) {
		o.LocalAddr = from
		return u.p.engine.Dial(ctx, addr, l.tcp, o, m)
	})
	if err == nil && start != nil {
		err = start.wait(ctx)
	}
	if err != nil {
		u.secure.remove(m)
		return nil, err
	}
	l.tcp.Post(loop.TaskFunc(m.probe.prime))
	m.probe.start()
	return m, nil
}

// Dispatch is part of pool.Member.
func (m *tcpConn) Dispatch(e *pool.Entry, here int) { dispatch(e, m, m.loop, here) }

// Affinity is part of pool.Member.
func (m *tcpConn) Affinity() int { return m.loop.index }

// Close is part of pool.Member.
func (m *tcpConn) Close(err error) {
	m.loop.tcp.Post(loop.TaskFunc(func() {
		if !m.ending {
			m.abort(err)
		}
	}))
}

// abort ends the connection. Closed decides about its Calls.
func (m *tcpConn) abort(err error) {
	m.ending = true
	m.seat.Closing(m)
	m.conn.Abort(err)
}

// send is part of upstreamConn.
func (m *tcpConn) send(c *call) {
	switch {
	case m.ending || m.leaving || !m.conn.Open():
		c.unsent(m, rdmaside.ErrClosed)
		return
	case m.back.owner != nil && !m.back.owner.carries(c):
		c.unsent(m, errMoved)
		return
	case m.pending.Get(c.rdma.XID) != nil || m.probe.is(c.rdma.XID):
		c.unsent(m, rdmaside.ErrBusyXID)
		return
	}
	c.usesSeldom = true
	m.pending.Put(c.rdma.XID, c)
	m.link(c)
	m.probe.sends(c)
	m.arm()
	c.wasSent(m.loop)
	if m.loop.tapping() {
		m.tapSent(c)
	}
	c.one[0] = c.rdma.Message
	c.sent.writing = true
	x := c.order()
	if len(c.rdma.Message) <= smallCall && (x == nil || x.mayOvertake()) {
		m.conn.SendFirst(c.one[:], (*written)(c))
	} else {
		if x != nil {
			x.keepsBehind(c)
		}
		m.conn.Send(c.one[:], (*written)(c))
	}
	if x != nil {
		x.sent(c, m.loop.index)
	}
}

// link makes c the newest Call.
func (m *tcpConn) link(c *call) {
	c.sent.at = m.stamp()
	c.sent.older, c.sent.newer = m.newest, nil
	if m.newest != nil {
		m.newest.sent.newer = c
	} else {
		m.oldest = c
	}
	m.newest = c
	if m.due == nil {
		m.due = c
	}
}

// unlink removes c from the pending Calls.
func (m *tcpConn) unlink(c *call) {
	m.pending.Remove(c.rdma.XID)
	if m.due == c {
		m.due = c.sent.newer
	}
	if c.sent.kept {
		c.sent.kept = false
		m.kept--
	}
	if c.sent.older != nil {
		c.sent.older.sent.newer = c.sent.newer
	} else {
		m.oldest = c.sent.newer
	}
	if c.sent.newer != nil {
		c.sent.newer.sent.older = c.sent.older
	} else {
		m.newest = c.sent.older
	}
	c.sent.older, c.sent.newer = nil, nil
}

// lateCalls is part of lateMember.
func (m *tcpConn) lateCalls() int { return m.kept }

// credits is part of upstreamConn.
func (m *tcpConn) credits() int { return m.opts.Credits }

// oldestCall is part of upstreamConn.
func (m *tcpConn) oldestCall() time.Duration {
	if m.oldest == nil {
		return 0
	}
	return m.since(m.oldest.sent.at)
}

// network is part of upstreamConn.
func (m *tcpConn) network() (loop.TCP, bool) { return m.conn.Measure() }

// local is part of upstreamConn.
func (m *tcpConn) local() string { return m.conn.LocalAddr().String() }

// stalled is part of upstreamConn.
func (m *tcpConn) stalled() bool { return m.probe.stalled.Load() }

// Opened is part of tcpframe.RecordHandler.
func (m *tcpConn) Opened(c *tcpframe.Conn) {
	m.conn = c
	if m.start != nil {
		m.start.probe()
	}
}

// Record is part of tcpframe.RecordHandler.
func (m *tcpConn) Record(_ *tcpframe.Conn, b tcpframe.Buffer) {
	if m.start != nil {
		m.start.record(b)
		return
	}
	msg := b.Bytes()
	m.heard = m.loop.Now()
	xid, mtype, ok := oncrpc.MessageType(msg)
	if ok && mtype == oncrpc.TypeCall {
		m.called(xid, b)
		return
	}
	if ok && m.probe.is(xid) {
		b.Release()
		m.probed()
		return
	}
	c := m.pending.Get(xid)
	if c == nil {
		m.u.stray.Inc()
		b.Release()
		return
	}
	if err := oncrpc.CheckReply(msg); err != nil {
		b.Release()
		m.answer(c, tcpAnswer{reason: refusedMalformed, err: err})
		return
	}
	m.answer(c, tcpAnswer{reply: b})
}

// probed follows the Reply to the NULL Call of the probe.
func (m *tcpConn) probed() {
	m.answered(m.probe.sentAt)
	m.probe.done(true)
}

// replied hands on b, the Reply to c, which is not outstanding any more.
func (m *tcpConn) replied(c *call, b tcpframe.Buffer) {
	msg := b.Bytes()
	m.probe.replied(c)
	c.one[0] = msg
	c.reply.parts, c.reply.lease, c.reply.memory = c.one[:], b, cap(msg)
	if m.loop.tapping() {
		m.tapReply(c)
	}
	c.entry.Answered()
	if m.ending {
		c.entry.Seat().Done(&c.entry, m.loop.index)
	} else {
		m.loop.batch.Done(c.entry.Seat(), &c.entry)
	}
	c.answered(m.loop.index)
}

// Closed is part of tcpframe.RecordHandler.
func (m *tcpConn) Closed(_ *tcpframe.Conn, err error) {
	m.ending = true
	m.u.secure.remove(m)
	if m.start != nil {
		m.start.end(err)
		return
	}
	if m.timer != nil {
		m.timer.Stop()
	}
	m.seat.Closing(m)
	m.probe.end(err)
	if m.oldest == nil && m.latest != 0 && errors.Is(err, io.EOF) {
		err = errIdleClosed
	}
	m.u.ended(err)
	m.back.end(m.u.back)
	m.loop.tapEnded(m, err)
	if o := m.back.owner; o != nil {
		o.ended(err)
	}
	for m.oldest != nil {
		c := m.oldest
		if a := c.sent.early; a != nil {
			c.sent.writing = false
			m.settle(c, *a)
			continue
		}
		m.unlink(c)
		fate := rdmaside.InLimbo
		if c.sent.writing {
			c.sent.writing, fate = false, rdmaside.NotSent
		}
		c.entry.Seat().Done(&c.entry, m.loop.index)
		c.failed(m.loop.index, &rdmaside.CallError{XID: c.rdma.XID, Fate: fate, Local: true, Err: err})
	}
	m.seat.Ended(err)
}

// arm starts the timer that calls overdue, unless it runs.
func (m *tcpConn) arm() {
	if m.timer != nil {
		return
	}
	every := min(max(m.opts.CallTimeout/8, 10*time.Millisecond), time.Second)
	m.timer = time.AfterFunc(every, func() { m.loop.tcp.Post(loop.TaskFunc(m.overdue)) })
}

// overdue looks whether a Call is past its deadline. The oldest Call is past it first. When the
// server has answered a Call that was sent later, it has dropped the oldest: another
// connection replaces this one, which ends after its other Calls, unless the owner keeps it.
// Otherwise the connection ends at once.
func (m *tcpConn) overdue() {
	m.timer = nil
	for !m.ending && m.passedBy() {
	}
}

// passedBy does what overdue does, for the oldest Call. It reports whether the owner keeps the
// connection although that Call is past its deadline: the next one may be, too.
func (m *tcpConn) passedBy() (kept bool) {
	sent := int64(0)
	c := m.due
	if c != nil {
		sent = c.sent.at
	}
	if m.probe.out && (sent == 0 || m.probe.sentAt < sent) {
		c, sent = nil, m.probe.sentAt
	}
	switch {
	case sent == 0:
	case !m.late(sent):
		m.arm()
	case m.leaving:
		m.leave()
	case c != nil && m.seat.Overdue(m.since(sent)):
		m.abort(errDeadline)
	case m.latest > sent && !(c != nil && c.entry.Flow.Sticky):
		m.u.leaked.Inc()
		if o := m.back.owner; c != nil && o != nil && o.keeps(c, m.kept+1, m.credits()) {
			m.due, c.sent.kept = c.sent.newer, true
			m.kept++
			c.overdue(m.loop.index)
			return true
		}
		if m.leaving = m.seat.Retire(m); m.leaving {
			m.leave()
			return false
		}
		m.abort(errDeadline)
	default:
		m.abort(errDeadline)
	}
	return false
}

// late reports whether a Call sent at t is past its deadline.
func (m *tcpConn) late(t int64) bool { return m.since(t) > m.opts.CallTimeout }

// stamp is the time on the loop's clock, moved on by a nanosecond for each Call of a pass, so that a Call that is sent
// later has a later time: see passedBy.
func (m *tcpConn) stamp() int64 {
	m.stamped = max(m.loop.Now(), m.stamped+1)
	return m.stamped
}

// since is how long ago t was, a result of stamp or a time on the loop's clock.
func (m *tcpConn) since(t int64) time.Duration { return time.Duration(max(0, m.loop.Now()-t)) }

// answered notes the Reply to a Call that was sent at t.
func (m *tcpConn) answered(t int64) { m.latest = max(m.latest, t) }

// leave ends a connection that another one has replaced, as soon as each Call on it is
// answered or past its deadline.
func (m *tcpConn) leave() {
	if m.newest != nil && !m.late(m.newest.sent.at) {
		m.arm()
		return
	}
	if !m.ending {
		m.abort(rdmaside.ErrDropped)
	}
}

// ask is part of probed.
func (m *tcpConn) ask(p *probe) error {
	if m.ending || m.leaving || !m.conn.Open() || m.pending.Get(p.call.XID) != nil {
		return errUnasked
	}
	// The connection may keep what is queued until it ends, and p's memory is released
	// earlier: send a copy.
	m.conn.Send([][]byte{bytes.Clone(p.call.Message)}, nil)
	p.sentAt = m.stamp()
	m.arm()
	return nil
}

// unheard is part of probed.
func (m *tcpConn) unheard() time.Duration { return m.since(m.heard) }

// waits is part of probed.
func (m *tcpConn) waits() bool { return m.oldest != nil }
