package proxy

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/netip"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/pool"
	"github.com/rdmabridge/rdmabridge/rdmaside"
	"github.com/rdmabridge/rdmabridge/tcpframe"
)

// A tcpConn is one TCP connection of an upstream's pool. TCP has no credits:
// its grant is the configured number of Calls outstanding, from the start. It is
// owned by its loop.
type tcpConn struct {
	u    *upstream
	opts *UpstreamOptions // when it was dialed
	seat *pool.Seat
	loop *eventLoop
	conn *tcpframe.Conn // constant after Opened
	back callbacks

	pending map[uint32]*call // by XID
	oldest  *call            // ends of the list of pending Calls in the order sent
	newest  *call
	timer   *time.Timer
	ending  bool
	leaving bool      // another connection has the seat: see leave
	heard   time.Time // when a message came
	latest  time.Time // when the Call was sent, of those answered, that was sent last
	probe   probe
}

// smallCall is how long a Call may be, in octets, to be written before longer ones
// that wait: one client's megabytes are not to hold up the rest.
const smallCall = 16 << 10

var errEarlyReply = errors.New("proxy: reply to a call that was not sent in full")

var errDeadline = errors.New("proxy: call not answered in time")

// errIdleClosed is the end of a connection that has worked, by a server that owes nothing
// on it: servers close what nobody has used for some minutes.
var errIdleClosed = errors.New("proxy: the server closed an idle connection")

// Bounds of a connection to a TCP upstream.
const (
	replyFragments = 1024             // record fragments of one Reply
	replyTimeout   = 30 * time.Second // for 4 KiB of an incomplete Reply
	callTimeout    = 2 * time.Minute  // for 64 KiB of the Calls that are queued
)

// dialTCP makes a connection, for p alone unless that is nil.
func dialTCP(ctx context.Context, u *upstream, l *eventLoop, endpoint string, s *pool.Seat, p *pin) (pool.Member, error) {
	m := &tcpConn{u: u, opts: u.settings(), seat: s, loop: l, back: callbacks{pin: p}, pending: make(map[uint32]*call), heard: time.Now()}
	m.probe = probe{u: u, m: m, seat: s, loop: l}
	s.Granted(m.opts.Credits, pool.Elsewhere)
	o := tcpframe.DialOptions{
		Name: u.name, Reset: true,
		Conn: tcpframe.ConnOptions{
			Memory:       func(int) tcpframe.Memory { return replyMemory{memory{l.replies}, &u.p.slow} },
			MaxRecord:    int(u.p.registry.Limits().MaxReply) + 64<<10,
			MaxFragments: replyFragments,
			// The grant bounds the Calls. A server that reads slowly is not paused.
			MaxOutbound: 1 << 40, OutboundLimit: 1 << 40,
			StallTimeout: replyTimeout, SendTimeout: callTimeout,
			SilentTimeout: m.opts.SilentTimeout,
		},
	}
	err := u.dialFrom(ctx, s, p, func(from netip.AddrPort) (*tcpframe.Conn, error) {
		o.LocalAddr = from
		return u.p.engine.Dial(ctx, endpoint, l.tcp, o, m)
	})
	if err != nil {
		return nil, err
	}
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

// abort ends the connection. Its Calls end in Closed.
func (m *tcpConn) abort(err error) {
	m.ending = true
	m.seat.Closing(m)
	m.conn.Abort(err)
}

// send is part of member.
func (m *tcpConn) send(c *call) {
	switch {
	case m.ending || m.leaving || !m.conn.Open():
		c.unsent(m, rdmaside.ErrClosed)
		return
	case m.pending[c.rdma.XID] != nil || m.probe.is(c.rdma.XID):
		c.unsent(m, rdmaside.ErrBusyXID)
		return
	}
	m.pending[c.rdma.XID] = c
	m.link(c)
	m.arm()
	c.entry.Sent()
	c.one[0] = c.message.octets
	c.sent.writing = true
	if len(c.message.octets) <= smallCall {
		m.conn.SendFirst(c.one[:], (*written)(c))
		return
	}
	m.conn.Send(c.one[:], (*written)(c))
}

// link makes c the newest Call.
func (m *tcpConn) link(c *call) {
	c.sent.at = time.Now()
	c.sent.older, c.sent.newer = m.newest, nil
	if m.newest != nil {
		m.newest.sent.newer = c
	} else {
		m.oldest = c
	}
	m.newest = c
}

// unlink takes c, which is pending, out.
func (m *tcpConn) unlink(c *call) {
	delete(m.pending, c.rdma.XID)
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

// credits is part of member.
func (m *tcpConn) credits() int { return m.opts.Credits }

// Opened is part of tcpframe.RecordHandler.
func (m *tcpConn) Opened(c *tcpframe.Conn) { m.conn = c }

// Record is part of tcpframe.RecordHandler.
func (m *tcpConn) Record(_ *tcpframe.Conn, b tcpframe.Buffer) {
	msg := b.Bytes()
	m.heard = time.Now()
	xid, mtype, ok := oncrpc.MessageType(msg)
	if ok && mtype == oncrpc.TypeCall {
		m.called(xid, b)
		return
	}
	if ok && m.probe.is(xid) {
		b.Release()
		m.answered(m.probe.sentAt)
		m.probe.done(true)
		return
	}
	c := m.pending[xid]
	if !ok || mtype != oncrpc.TypeReply || c == nil {
		m.u.stray.Inc()
		b.Release()
		return
	}
	if c.sent.writing {
		// Answered before all of it was sent: its memory is still in use.
		b.Release()
		c.sent.writing = false // nobody knows what the server made of it
		m.abort(errEarlyReply)
		return
	}
	m.unlink(c)
	m.answered(c.sent.at)
	c.one[0] = msg
	c.reply.parts, c.reply.lease, c.reply.memory = c.one[:], b, cap(msg)
	c.entry.Seat().Done(&c.entry, m.loop.index)
	c.answered(m.loop.index)
	if m.leaving {
		m.leave()
	}
}

// Closed is part of tcpframe.RecordHandler.
func (m *tcpConn) Closed(_ *tcpframe.Conn, err error) {
	m.ending = true
	if m.timer != nil {
		m.timer.Stop()
	}
	m.seat.Closing(m)
	m.probe.end()
	if m.oldest == nil && !m.latest.IsZero() && errors.Is(err, io.EOF) {
		err = errIdleClosed
	}
	m.u.ended(err)
	m.back.end(m.u.back)
	for m.oldest != nil {
		c := m.oldest
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

// arm sees to it that overdue is looked for.
func (m *tcpConn) arm() {
	if m.timer != nil {
		return
	}
	every := min(max(m.opts.CallTimeout/8, 10*time.Millisecond), time.Second)
	m.timer = time.AfterFunc(every, func() { m.loop.tcp.Post(loop.TaskFunc(m.overdue)) })
}

// overdue looks for Calls past their deadline. The oldest is the first to be: while
// those sent after it are answered it was dropped, and the connection is left;
// otherwise it ends.
func (m *tcpConn) overdue() {
	m.timer = nil
	if m.ending {
		return
	}
	var sent time.Time
	if m.oldest != nil {
		sent = m.oldest.sent.at
	}
	if m.probe.out && (sent.IsZero() || m.probe.sentAt.Before(sent)) {
		sent = m.probe.sentAt
	}
	switch {
	case sent.IsZero():
	case !m.late(sent):
		m.arm()
	case m.leaving:
		m.leave()
	case m.latest.After(sent) && !(m.oldest != nil && m.oldest.entry.Flow.Sticky):
		m.u.leaked.Inc()
		if m.leaving = m.seat.Retire(m); m.leaving {
			m.leave()
			return
		}
		m.abort(errDeadline)
	default:
		m.abort(errDeadline)
	}
}

// late reports whether a Call sent at t is past its deadline.
func (m *tcpConn) late(t time.Time) bool { return time.Since(t) > m.opts.CallTimeout }

// answered takes note of the Reply to a Call sent at t.
func (m *tcpConn) answered(t time.Time) {
	if t.After(m.latest) {
		m.latest = t
	}
}

// leave ends a connection that another one has replaced, once all Calls on it are
// answered or past their deadline.
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
	if m.ending || m.leaving || !m.conn.Open() || m.pending[p.call.XID] != nil {
		return errUnasked
	}
	// A copy: what is queued is let go of only at the end of the connection.
	m.conn.Send([][]byte{bytes.Clone(p.call.Message)}, nil)
	m.arm()
	return nil
}

// unheard is part of probed.
func (m *tcpConn) unheard() time.Duration { return time.Since(m.heard) }
