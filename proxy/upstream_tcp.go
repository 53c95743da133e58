package proxy

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net/netip"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/internal/proxyheader"
	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/xids"
	"github.com/rdmabridge/rdmabridge/internal/status"
	"github.com/rdmabridge/rdmabridge/internal/tlsconf"
	"github.com/rdmabridge/rdmabridge/pool"
	"github.com/rdmabridge/rdmabridge/proxy/certs"
	"github.com/rdmabridge/rdmabridge/proxy/observe"
	"github.com/rdmabridge/rdmabridge/proxy/reach"
	"github.com/rdmabridge/rdmabridge/proxy/session"
	"github.com/rdmabridge/rdmabridge/proxy/settings"
	"github.com/rdmabridge/rdmabridge/proxy/upstream"
	"github.com/rdmabridge/rdmabridge/rdmaside"
	"github.com/rdmabridge/rdmabridge/tcpframe"
)

// A tcpConn is one TCP connection to an upstream. TCP has no credits: the grant is the
// configured number, from the Reply to a first NULL Call on. A tcpConn belongs to its loop.
type tcpConn struct {
	u    *upstream.Upstream
	opts *settings.UpstreamOptions // the settings when the connection was dialled
	seat *pool.Seat
	loop *eventLoop
	conn *tcpframe.Conn // constant after Opened
	back session.ServerCalls

	tls *reach.Handshake // nil without TLS

	pending xids.Table[*call]
	oldest  *call  // the pending Call that was sent first
	newest  *call  // the pending Call that was sent last
	due     *call  // the pending Call that was sent first of those that are not late
	kept    int    // pending Calls that are past their deadline and stay: see overdue
	copies  uint32 // Calls of which conn has made copies, modulo 2^32 as the next one
	wrote   uint32 // copies that the kernel has, the first ones
	timer   *time.Timer
	ending  bool
	leaving bool  // another connection has replaced this one: see leave
	stamped int64 // the latest result of stamp
	heard   int64 // when the latest message came, on that clock
	latest  int64 // when the newest of the answered Calls was sent, on that clock; 0 for none
	probe   reach.Probe
	askedAt int64 // when the NULL Call of probe was sent, by stamp
}

// smallCall is how many octets a Call may have to be written before longer ones that wait:
// one client's megabytes must not hold up the others.
const smallCall = 16 << 10

// Bounds of a connection to a TCP upstream.
const (
	replyTimeout = 30 * time.Second // for 4 KiB of an incomplete Reply
	callTimeout  = 2 * time.Minute  // for 64 KiB of the Calls that are queued
)

// dialTCP makes the connection d to u, on its loop l.
func dialTCP(ctx context.Context, u *upstream.Upstream, l *eventLoop, d *upstream.Dial) (pool.Member, error) {
	s, c := d.Seat, d.Lane
	m := &tcpConn{u: u, opts: u.Settings(), seat: s, loop: l, pending: xids.New[*call](0), heard: u.Engine.Now()}
	m.back.Init(u.ServerCalls, c, m)
	m.probe.Init(u.Watch, m, s, l, d.Trial, primed(c))
	s.Granted(0, pool.Elsewhere) // primed grants the credits
	o := tcpframe.DialOptions{
		Name: u.Name, Reset: true,
		Conn: tcpframe.ConnOptions{
			Memory:    func(int) tcpframe.Memory { return replyMemory{memory{l.replies}, u.Slow} },
			MaxRecord: int(u.Registry.Limits().MaxReply) + 64<<10,
			// The grant bounds the Calls. A server that reads slowly is not paused.
			MaxOutbound: 1 << 40, OutboundLimit: 1 << 40,
			StallTimeout: replyTimeout, SendTimeout: callTimeout,
			SilentTimeout: m.opts.SilentTimeout,
		},
	}
	switch {
	case !m.opts.NamesClients:
	case c != nil:
		o.Preamble = c.Preamble()
	default:
		o.Preamble = proxyheader.AppendLocal(nil) // for NULL Calls, which are no client's
	}
	if t := m.opts.TLS; t != nil {
		var err error
		if m.tls, err = u.Handshakes.Add(t, d.Endpoint, m.opts.ConnectTimeout, l, m.Close); err != nil {
			return nil, err
		}
	}
	err := u.Ports.Dial(ctx, s, u.FirstPort(s, c), func(from netip.AddrPort) (*tcpframe.Conn, error) {
		o.LocalAddr = from
		return u.Engine.Dial(ctx, d.Addr, l.tcp, o, m)
	})
	if err == nil {
		err = m.tls.Wait(ctx)
	}
	if err != nil {
		m.tls.Remove()
		return nil, err
	}
	m.probe.Start()
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
	case m.back.Lane() != nil && !m.back.Lane().Carries(c.queue.lane, &c.session, &c.h, &c.rdma.Analysis):
		c.unsent(m, session.ErrMoved)
		return
	case m.probe.Is(c.rdma.XID) || !m.pending.Put(c.rdma.XID, c):
		c.unsent(m, rdmaside.ErrBusyXID)
		return
	}
	m.link(c)
	m.probe.Sent(&c.entry)
	m.arm()
	m.loop.account.sent(c)
	x := c.order()
	if x == nil && m.conn.SendCopy(c.rdma.Message) {
		m.copies++
		c.sent.copied, c.sent.number = true, m.copies
		return
	}
	c.one[0] = c.rdma.Message
	c.sent.writing = true
	if len(c.rdma.Message) <= smallCall && (x == nil || x.MayOvertake()) {
		m.conn.SendFirst(c.one[:], (*written)(c))
	} else {
		if x != nil {
			x.KeepBehind()
		}
		m.conn.Send(c.one[:], (*written)(c))
	}
	if x != nil {
		x.Sent(m.loop.index)
	}
}

// unwritten reports whether the kernel may not have the whole message. It has so many copies.
func (s *sentTCP) unwritten(wrote uint32) bool {
	return s.writing || s.copied && int32(s.number-wrote) > 0
}

// link makes c the newest Call.
func (m *tcpConn) link(c *call) {
	c.sent.at, c.sent.copied = m.stamp(), false
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
	at, _ := m.pending.Find(c.rdma.XID)
	m.unlinkAt(c, at)
}

// unlinkAt does what unlink does, for a Call that is there among the pending ones.
func (m *tcpConn) unlinkAt(c *call, at uint32) {
	m.pending.RemoveAt(at)
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

// LateCalls is part of session.Member.
func (m *tcpConn) LateCalls() int { return m.kept }

// Drop is part of session.Member.
func (m *tcpConn) Drop() { m.Close(rdmaside.ErrDropped) }

// Credits is part of upstreamConn and reach.Conn.
func (m *tcpConn) Credits() int { return m.opts.Credits }

// outstanding is part of upstreamConn.
func (m *tcpConn) outstanding() int { return m.pending.Len() }

// OldestCall is part of upstreamConn.
func (m *tcpConn) OldestCall() time.Duration {
	if m.oldest == nil {
		return 0
	}
	return m.since(m.oldest.sent.at)
}

// Network is part of upstreamConn and reach.Conn.
func (m *tcpConn) Network() (loop.TCP, bool) { return m.conn.Measure() }

// Local is part of upstreamConn.
func (m *tcpConn) Local() string { return m.conn.LocalAddr().String() }

// Stalled is part of upstreamConn.
func (m *tcpConn) Stalled() bool { return m.probe.Stalled() }

// Opened is part of tcpframe.RecordHandler.
func (m *tcpConn) Opened(c *tcpframe.Conn) {
	m.conn = c
	m.tls.Opened(c)
}

// Secured is part of tcpframe.TLSHandler.
func (m *tcpConn) Secured(_ *tcpframe.Conn, cs *tls.ConnectionState) { m.tls.Secured(cs) }

// Security is part of upstreamConn.
func (m *tcpConn) Security() *status.TLS {
	if s := m.conn.TLS(); s != nil {
		return certs.PeerStatus(tlsconf.IdentityOf(s.PeerCertificates))
	}
	return nil
}

// Run is part of tcpframe.RunHandler. It takes Replies that their clients' connections copy at once.
func (m *tcpConn) Run(conn *tcpframe.Conn) {
	run := &m.loop.replied
	for msg := conn.Next(); msg != nil; msg = conn.Next() {
		xid, _, _ := oncrpc.MessageType(msg)
		at, c := m.pending.Find(xid)
		if c == nil || m.ending || oncrpc.CheckReply(msg) != nil || !run.takes(c) || !run.relay(conn, c, msg) {
			break
		}
		m.unlinkAt(c, at)
		m.answered(c.sent.at)
		m.probe.Replied(&c.entry)
		run.took(c, msg)
	}
	if run.calls > 0 {
		m.heard = m.loop.Now()
	}
	run.end()
	if m.leaving {
		m.leave()
	}
}

// Record is part of tcpframe.RecordHandler.
func (m *tcpConn) Record(_ *tcpframe.Conn, b tcpframe.Buffer) {
	if m.tls.Busy() {
		m.tls.Record(b)
		return
	}
	msg := b.Bytes()
	m.heard = m.loop.Now()
	xid, mtype, ok := oncrpc.MessageType(msg)
	if ok && mtype == oncrpc.TypeCall {
		m.back.Called(xid, b.Bytes(), b)
		return
	}
	if ok && m.probe.Is(xid) {
		var r oncrpc.Reply
		weak := oncrpc.ParseReply(msg, &r) == nil && r.RefusedWith(oncrpc.AuthTooWeak)
		m.u.Watch.TooWeak(weak && m.conn.TLS() == nil)
		b.Release()
		m.probed()
		return
	}
	c := m.pending.Get(xid)
	if c == nil {
		m.u.Stray.Inc()
		b.Release()
		return
	}
	if err := oncrpc.CheckReply(msg); err != nil {
		b.Release()
		m.answer(c, tcpAnswer{reason: upstream.RefusedMalformed, err: err})
		return
	}
	m.answer(c, tcpAnswer{reply: b})
}

// Copied is part of tcpframe.CopyHandler. The connection writes copies in their order.
func (m *tcpConn) Copied(records int, written bool) {
	if written {
		m.wrote += uint32(records)
	}
}

// probed follows the Reply to the NULL Call of the probe.
func (m *tcpConn) probed() {
	m.answered(m.askedAt)
	m.probe.Done(true)
}

// replied hands on msg, the Reply to c, which is not outstanding any more. lease holds it; nil if the client's
// connection has a copy.
func (m *tcpConn) replied(c *call, msg []byte, lease releaser) {
	m.probe.Replied(&c.entry)
	c.one[0] = msg
	c.reply.parts, c.reply.lease, c.reply.memory = c.one[:], lease, cap(msg)
	m.loop.account.replied(c)
	if m.ending {
		c.entry.Seat().Done(&c.entry, m.loop.index)
	} else {
		m.loop.batch.Done(&c.entry)
	}
	c.answered(m.loop)
}

// Closed is part of tcpframe.RecordHandler.
func (m *tcpConn) Closed(_ *tcpframe.Conn, err error) {
	m.ending = true
	if m.latest == 0 {
		err = upstream.Unanswered(err, m.conn.TLS() != nil)
	}
	if m.tls.Closed(err) {
		return
	}
	if m.timer != nil {
		m.timer.Stop()
	}
	m.seat.Closing(m)
	m.probe.End(err)
	if m.oldest == nil && m.latest != 0 && errors.Is(err, io.EOF) {
		err = reach.ErrIdleClosed
	}
	m.u.Ends.Count(err)
	m.back.End()
	m.loop.account.connEnded(m, err)
	if o := m.back.Lane(); o != nil {
		o.Ended(err)
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
		if c.sent.unwritten(m.wrote) {
			c.sent.writing, fate = false, rdmaside.NotSent
		}
		c.entry.Seat().Done(&c.entry, m.loop.index)
		c.failed(m.loop, &rdmaside.CallError{XID: c.rdma.XID, Fate: fate, Local: true, Err: err})
	}
	m.seat.Ended(err)
}

// arm starts the timer that calls overdue, unless it runs.
func (m *tcpConn) arm() {
	if m.timer == nil {
		m.startTimer()
	}
}

func (m *tcpConn) startTimer() {
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
	if m.probe.Out() && (sent == 0 || m.askedAt < sent) {
		c, sent = nil, m.askedAt
	}
	switch {
	case sent == 0:
	case !m.late(sent):
		m.arm()
	case m.leaving:
		m.leave()
	case c != nil && m.seat.Overdue(m.since(sent)):
		m.abort(upstream.ErrDeadline)
	case m.latest > sent && !(c != nil && c.entry.Flow.Sticky):
		m.u.Leaked.Inc()
		if o := m.back.Lane(); c != nil && o != nil && o.Keeps(c.signed, m.kept+1, m.Credits()) {
			m.due, c.sent.kept = c.sent.newer, true
			m.kept++
			c.overdue(m.loop.index)
			return true
		}
		if m.leaving = m.seat.Retire(m); m.leaving {
			m.leave()
			return false
		}
		m.abort(upstream.ErrDeadline)
	default:
		m.abort(upstream.ErrDeadline)
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

// Ask is part of reach.Conn.
func (m *tcpConn) Ask(xid uint32, message []byte) error {
	if m.ending || m.leaving || !m.conn.Open() || m.pending.Get(xid) != nil {
		return reach.ErrUnasked
	}
	m.conn.Send([][]byte{bytes.Clone(message)}, nil) // the connection may keep what is queued until it ends
	m.askedAt = m.stamp()
	m.arm()
	return nil
}

// Unheard is part of reach.Conn.
func (m *tcpConn) Unheard() time.Duration { return m.since(m.heard) }

// Waits is part of reach.Conn.
func (m *tcpConn) Waits() bool { return m.oldest != nil }

// Writes is part of session.Wire.
func (m *tcpConn) Writes() bool { return !m.ending && m.conn.Open() }

// SendReverse is part of session.Wire.
func (m *tcpConn) SendReverse(b []byte, done session.Releaser) {
	m.loop.account.reverse(m, b, true, true)
	m.conn.Send([][]byte{b}, done)
}

// CameReverse is part of session.Wire.
func (m *tcpConn) CameReverse(b []byte) { m.loop.account.reverse(m, b, false, false) }

// TapKey is part of observe.Tapped.
func (m *tcpConn) TapKey() any { return m }

// DescribeTap is part of observe.Tapped.
func (m *tcpConn) DescribeTap(c *observe.TapConn) {
	c.Leg, c.Name, c.Local, c.Peer = observe.TapUpstreams, m.u.Name, m.conn.LocalAddr(), m.conn.RemoteAddr()
}

// A written is a call as the owner of its message while a TCP upstream's connection has it.
type written call

// Release is called when the connection needs the message no longer. When the connection
// has ended before the kernel took the whole message, the server cannot have executed the
// Call: it stays marked as being written. tcpframe.Releaser.
func (w *written) Release() {
	c := (*call)(w)
	if m := c.conn.(*tcpConn); !m.conn.Ended() {
		m.written(c)
	}
}
