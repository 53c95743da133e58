package proxy

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/rdmaside"
	"github.com/rdmabridge/rdmabridge/tcpframe"
)

// Replies of TCP servers that are refused
//
// Many clients share a connection, and all their Calls are in limbo when it ends. So a Reply with a fault fails its
// own Call and nothing else: package tcpframe reads the record to its end, and its first octets name the Call. That
// Call is not sent again, because the server would make the same Reply on the next connection. A Call for whose
// Reply there was no memory is in limbo, as after the end of a connection. A message that names no Call is dropped.

var errRefused = errors.New("proxy: invalid reply")

// Dropped is part of tcpframe.DropHandler.
func (m *tcpConn) Dropped(_ *tcpframe.Conn, head []byte, reason string, err error) (known bool) {
	if m.tls.Busy() {
		m.tls.Unreadable(err)
		return false
	}
	m.heard = m.loop.Now()
	xid, mtype, whole := oncrpc.MessageType(head)
	if !whole && len(head) >= 4 {
		xid = binary.BigEndian.Uint32(head)
	}
	switch c := m.pending.Get(xid); {
	case whole && mtype == oncrpc.TypeCall:
		m.back.Malformed(xid)
	case len(head) >= 4 && m.probe.Is(xid):
		m.probed()
		known = true
	case len(head) >= 4 && c != nil:
		m.answer(c, tcpAnswer{reason: reason, err: err})
		return true
	}
	m.refusedReply(nil, reason, err)
	return known
}

// answer handles the answer to c. The server may answer before the whole Call was sent, as one does that refuses a long
// Call by its header. Then the message is still in use, and the answer waits for it.
func (m *tcpConn) answer(c *call, a tcpAnswer) {
	switch {
	case !c.sent.writing:
		m.settle(c, a)
	case c.sent.early == nil:
		early := a // so that only an early answer is on the heap
		c.sent.early = &early
	default: // the Call is answered
		m.u.Stray.Inc()
		if a.reply != nil {
			a.reply.Release()
		}
	}
}

// written is called when the message of c is not in use any more.
func (m *tcpConn) written(c *call) {
	c.sent.writing = false
	if a := c.sent.early; a != nil {
		m.loop.Post(&earlyAnswer{m, c, a})
	}
}

// An earlyAnswer is an answer that has waited until the Call was sent. It is handled in a task of its own, because the
// connection is in the middle of writing.
type earlyAnswer struct {
	m *tcpConn
	c *call
	a *tcpAnswer
}

// Run is part of loop.Task. The connection may have ended since, and c may be another Call.
func (t *earlyAnswer) Run() {
	if t.c.sent.early == t.a {
		t.m.settle(t.c, *t.a)
	}
}

// settle ends the outstanding Call c with its answer.
func (m *tcpConn) settle(c *call, a tcpAnswer) {
	c.sent.early = nil
	m.unlink(c)
	m.answered(c.sent.at)
	if a.err == nil {
		m.replied(c, a.reply.Bytes(), a.reply)
	} else {
		m.refusedReply(c, a.reason, a.err)
		fate := rdmaside.Answered
		if errors.Is(a.err, tcpframe.ErrMemory) {
			fate = rdmaside.InLimbo
		}
		c.creditDone(m.loop.number())
		err := fmt.Errorf("%w: %w", errRefused, a.err)
		c.failed(m.loop, &rdmaside.CallError{XID: c.rdma.XID, Fate: fate, Local: true, Err: err})
	}
	if m.leaving {
		m.leave()
	}
}

// refusedReply counts and logs a message that is refused. c is the Call that it answers, or nil.
func (m *tcpConn) refusedReply(c *call, reason string, err error) {
	m.u.RefusedReplies[reason].Inc()
	e := m.u.RefusedReplyLines.Line(&m.u.Log, zerolog.WarnLevel, "reply_refused").
		Stringer("peer", m.conn.RemoteAddr()).Str("reason", reason).Err(err)
	if c == nil {
		e.Msg("message refused; it answers no call")
		return
	}
	e.Uint32("xid", c.rdma.XID).Str("operation", c.rdma.Analysis.Procedure).Msg("reply refused; its call failed")
}
