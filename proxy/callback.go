package proxy

import (
	"errors"

	"github.com/rdmabridge/rdmabridge/internal/regmem"
	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/metrics"
	"github.com/rdmabridge/rdmabridge/rdmaside"
	"github.com/rdmabridge/rdmabridge/tcpframe"
)

// The back channel
//
// A Call that a server sends on a pinned connection is for the client that has it. It
// comes on a Requester ([rdmaside.ReverseHandler]) or a [tcpConn], and goes to a
// [tcpClient] as a record, or to an [rdmaClient] within the credits which that grants
// (RFC 8167). The Reply goes back where the Call came from, if that is there still:
// to no other connection, which would not know what to do with it. All of it happens
// on one loop, the client's.
//
// XIDs stay: a client has one name space for what it is sent, which is that of its
// server alone. A client of several servers may be sent one XID by two of them; over
// RDMA the second is refused, over TCP the answers tell.
//
// What the client does not answer costs it, and the server, no more than a place in a
// list; what cannot be brought to it is answered SYSTEM_ERR. A client that is going
// away is not called, and its server hears nothing: it will see its connection end,
// and has its ways. An error would make it give up the session.

const (
	// maxCallbacks bounds the Calls of a TCP server that its client has not answered, or
	// has not taken: more than sessions have slots for.
	maxCallbacks = 64
	// maxRefusals bounds the answers made here that a TCP server has not taken: more than
	// the Calls that one read brings.
	maxRefusals = 2048
	// maxCallbackOctets bounds those of one client that it has not taken.
	maxCallbackOctets = 1 << 20
)

// A reverser is a connection to a server that calls its client. Methods run on the
// client's loop, which is the connection's.
type reverser interface {
	// ReverseReply answers the Call xid with the plain RPC Reply m, which is taken until
	// done.Release is called. An error means that there is no such Call (any more), and
	// that m was not taken.
	ReverseReply(xid uint32, m []byte, done rdmaside.Releaser) error
	// ReverseRefuse answers it SYSTEM_ERR.
	ReverseRefuse(xid uint32)
}

// ReverseCall sends the client a Call of the server. rdmaside.ReverseHandler.
func (p *pin) ReverseCall(r *rdmaside.Requester, m *regmem.Lease) bool {
	return p.callBack(r, m.Bytes(), m, 2*pinnedReverse)
}

// callBack sends the client the plain RPC Call m, that came on from, unless so many
// wait for the client already. m is taken until done.Release is called, unless
// callBack reports false: then the server is to be told.
func (p *pin) callBack(from reverser, m []byte, done releaser, most int) bool {
	if !p.front.listens() {
		done.Release()
		return true
	}
	if p.owed >= most || p.owedOctets+len(m) > maxCallbackOctets {
		return false // the client does not take what it was sent
	}
	p.from = from
	c := &callback{p, done, len(m)}
	p.owed++
	p.owedOctets += c.octets
	if !p.front.client.callBack(m, c, from) {
		c.forget()
		return false
	}
	return true
}

// A callback is a Call on its way to the client.
type callback struct {
	p      *pin
	done   releaser
	octets int
}

// Release is called when the client's connection has taken the Call.
func (c *callback) Release() {
	c.forget()
	c.done.Release()
}

func (c *callback) forget() {
	c.p.owed--
	c.p.owedOctets -= c.octets
}

// callBack is part of client.
func (s *tcpClient) callBack(m []byte, done releaser, _ reverser) bool {
	s.conn.Send([][]byte{m}, done)
	return true
}

// maxStray is how many Replies that answer nothing a client may send.
const maxStray = 1000

var errStray = errors.New("proxy: too many replies that answer no call")

// reverseReply takes an RPC Reply of the client: the answer to a reverse Call, or a stray
// one, because the server's connection has been lost meanwhile or the server does
// not wait any more. Those are dropped, which does no harm.
func (s *tcpClient) reverseReply(xid uint32, b tcpframe.Buffer) {
	for _, ln := range s.ledger.queues {
		if p := ln.pin; p != nil && p.from != nil && p.from.ReverseReply(xid, b.Bytes(), b) == nil {
			return
		}
	}
	b.Release()
	s.listener.stray.Inc()
	if s.strays++; s.strays == maxStray {
		s.listener.log.Warn().Stringer("peer", s.conn.RemoteAddr()).Int("replies", s.strays).
			Msg("the client sends replies that answer no call; connection closed")
		s.conn.Abort(errStray)
	}
}

// callBack is part of client.
func (s *rdmaClient) callBack(m []byte, done releaser, from reverser) bool {
	switch err := s.conn.ReverseCall(m, done, callbackOwner{s, from}); {
	case err == nil:
		return true
	case errors.Is(err, rdmaside.ErrClosed):
		done.Release() // as for one that does not listen
		return true
	}
	return false
}

// A callbackOwner waits for the answers of an RDMA client to one connection of a
// server's.
type callbackOwner struct {
	s    *rdmaClient
	from reverser
}

// ReverseDone is part of rdmaside.ReverseOwner.
func (o callbackOwner) ReverseDone(_ *rdmaside.ResponderConn, xid uint32, m *regmem.Lease, err error) {
	switch {
	case m != nil:
		if o.from.ReverseReply(xid, m.Bytes(), m) != nil {
			m.Release()
			o.s.listener.stray.Inc()
		}
	case !errors.Is(err, rdmaside.ErrClosed):
		o.from.ReverseRefuse(xid)
	}
}

// callbacks are the Calls that a TCP server sends on one connection.
type callbacks struct {
	pin     *pin        // whose connection it is; nil: nobody's, and nobody is called
	calls   []uint32    // XIDs of those outstanding, oldest first
	refused int         // answers made here that the socket has not taken
	call    oncrpc.Call // scratch
}

// forget takes xid out, if it is there.
func (k *callbacks) forget(xid uint32) bool {
	for i, x := range k.calls {
		if x == xid {
			k.calls = k.calls[:i+copy(k.calls[i:], k.calls[i+1:])]
			return true
		}
	}
	return false
}

// end forgets all: the connection has ended.
func (k *callbacks) end(m *callbackMetrics) {
	m.unanswered.Add(uint64(len(k.calls)))
	k.calls = nil
}

// Release is called when an answer made here is gone. tcpframe.Releaser.
func (k *callbacks) Release() { k.refused-- }

// called takes a Call of the server.
func (m *tcpConn) called(xid uint32, b tcpframe.Buffer) {
	k, metrics := &m.back, m.u.back
	metrics.calls.Inc()
	if err := oncrpc.ParseCall(b.Bytes(), &k.call); err != nil {
		metrics.dropped.Inc()
		b.Release()
		return
	}
	k.call.Message = nil
	if k.pin == nil {
		b.Release()
		m.refuse(xid, callbackProgram)
		return
	}
	k.forget(xid) // sent again; there is one answer
	if !k.pin.callBack(m, b.Bytes(), b, maxCallbacks) {
		b.Release()
		m.refuse(xid, callbackClient)
		return
	}
	if len(k.calls) == maxCallbacks {
		// The server has given up on one of them. If that is answered after all, the
		// answer is a stray.
		k.forget(k.calls[0])
		metrics.unanswered.Inc()
	}
	k.calls = append(k.calls, xid)
}

// ReverseReply is part of reverser.
func (m *tcpConn) ReverseReply(xid uint32, msg []byte, done rdmaside.Releaser) error {
	if m.ending || !m.conn.Open() || !m.back.forget(xid) {
		return rdmaside.ErrNoReverseCall
	}
	if !oncrpc.IsReply(msg, xid) {
		done.Release()
		m.refuse(xid, callbackMalformed)
		return nil
	}
	m.u.back.replies.Inc()
	m.conn.Send([][]byte{msg}, done)
	return nil
}

// ReverseRefuse is part of reverser.
func (m *tcpConn) ReverseRefuse(xid uint32) {
	if m.back.forget(xid) {
		m.refuse(xid, callbackClient)
	}
}

// refuse answers a Call of the server here. A server that does not read what it is
// answered gets no answer.
func (m *tcpConn) refuse(xid uint32, why callbackRefusal) {
	if m.ending || !m.conn.Open() {
		return
	}
	if m.back.refused >= maxRefusals {
		m.u.back.dropped.Inc()
		return
	}
	stat := uint32(oncrpc.SystemError)
	if why == callbackProgram {
		stat = oncrpc.ProgramUnavailable
	}
	m.u.back.refused[why].Inc()
	m.back.refused++
	m.conn.Send([][]byte{oncrpc.AppendAccepted(nil, xid, stat)}, &m.back)
}

// A callbackRefusal is why a Call of a TCP server was answered here; a metric label.
type callbackRefusal uint8

const (
	callbackProgram   callbackRefusal = iota // nobody takes them on this connection
	callbackClient                           // who it is for does not take it
	callbackMalformed                        // its answer is no RPC Reply
	callbackRefusals
)

var callbackRefusalNames = [callbackRefusals]string{"program", "client", "malformed"}

// callbackMetrics count the Calls of one TCP upstream.
type callbackMetrics struct {
	calls, replies, unanswered, dropped *metrics.Counter
	refused                             [callbackRefusals]*metrics.Counter
}

func newCallbackMetrics(reg *metrics.Registry, upstream string) *callbackMetrics {
	m := &callbackMetrics{
		calls:      reg.Counter("upstream_reverse_calls_total", "Calls that a TCP server sent.", "upstream", upstream),
		replies:    reg.Counter("upstream_reverse_replies_total", "Calls of a TCP server that were answered by who they are for.", "upstream", upstream),
		unanswered: reg.Counter("upstream_reverse_unanswered_total", "Calls of a TCP server that were handed on and never answered.", "upstream", upstream),
		dropped:    reg.Counter("upstream_reverse_dropped_total", "Calls of a TCP server that are none, or more than it takes answers to.", "upstream", upstream),
	}
	for i, reason := range callbackRefusalNames {
		m.refused[i] = reg.Counter("upstream_reverse_refused_total", "Calls of a TCP server that were answered with an error made here.",
			"upstream", upstream, "reason", reason)
	}
	return m
}
