package proxy

import (
	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/metrics"
	"github.com/rdmabridge/rdmabridge/rdmaside"
	"github.com/rdmabridge/rdmabridge/tcpframe"
)

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
