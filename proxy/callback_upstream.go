package proxy

import (
	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/metrics"
	"github.com/rdmabridge/rdmabridge/rdmaside"
	"github.com/rdmabridge/rdmabridge/tcpframe"
)

// callbacks are the reverse Calls that a TCP server sends on one connection.
type callbacks struct {
	owner   connOwner   // nil for a shared connection, on which no client is called
	calls   []uint32    // XIDs of the outstanding Calls, oldest first
	refused int         // error Replies that the socket has not written yet
	call    oncrpc.Call // scratch
}

// forget removes xid, and reports whether it was outstanding.
func (k *callbacks) forget(xid uint32) bool {
	for i, x := range k.calls {
		if x == xid {
			k.calls = k.calls[:i+copy(k.calls[i:], k.calls[i+1:])]
			return true
		}
	}
	return false
}

// end forgets all Calls: the connection has ended.
func (k *callbacks) end(m *callbackMetrics) {
	m.unanswered.Add(uint64(len(k.calls)))
	k.calls = nil
}

// Release is called when an error Reply is written, or never will be. tcpframe.Releaser.
func (k *callbacks) Release() { k.refused-- }

// called has a reverse Call of the server brought to the client, or refuses it.
func (m *tcpConn) called(xid uint32, b tcpframe.Buffer) {
	k, metrics := &m.back, m.u.back
	metrics.calls.Inc()
	if err := oncrpc.ParseCall(b.Bytes(), &k.call); err != nil {
		metrics.dropped.Inc()
		b.Release()
		return
	}
	k.call.Message = nil
	tapReverse(m.loop, m, b.Bytes(), false, false)
	if k.owner == nil {
		b.Release()
		m.refuse(xid, callbackProgram)
		return
	}
	k.forget(xid) // a retransmission gets one Reply
	if !k.owner.callBack(m, b.Bytes(), b) {
		b.Release()
		m.refuse(xid, callbackClient)
		return
	}
	if len(k.calls) == k.owner.mostCallBacks() {
		// The server has given up on the oldest Call. If the client answers it after all, the
		// Reply is a stray.
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
	tapReverse(m.loop, m, msg, true, true)
	m.conn.Send([][]byte{msg}, done)
	return nil
}

// ReverseRefuse is part of reverser.
func (m *tcpConn) ReverseRefuse(xid uint32) {
	if m.back.forget(xid) {
		m.refuse(xid, callbackClient)
	}
}

// refuse answers the reverse Call xid with an error. A server that does not read its Replies
// gets none.
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
	b := oncrpc.AppendAccepted(nil, xid, stat)
	tapReverse(m.loop, m, b, true, true)
	m.conn.Send([][]byte{b}, &m.back)
}

// A callbackRefusal is why the proxy answered a reverse Call of a TCP server; a metric label.
type callbackRefusal uint8

const (
	callbackProgram   callbackRefusal = iota // the connection is shared, and no client is called on it
	callbackClient                           // the client does not take the Call
	callbackMalformed                        // the client's answer is no RPC Reply
	callbackRefusals
)

var callbackRefusalNames = [callbackRefusals]string{"program", "client", "malformed"}

// callbackMetrics count the reverse Calls of one TCP upstream.
type callbackMetrics struct {
	calls, replies, unanswered, dropped *metrics.Counter
	refused                             [callbackRefusals]*metrics.Counter
}

func newCallbackMetrics(reg *metrics.Registry, upstream string) *callbackMetrics {
	m := &callbackMetrics{
		calls:      reg.Counter(metrics.UpstreamReverseCalls, upstream),
		replies:    reg.Counter(metrics.UpstreamReverseReplies, upstream),
		unanswered: reg.Counter(metrics.UpstreamReverseUnansweredCalls, upstream),
		dropped:    reg.Counter(metrics.UpstreamReverseDroppedMessages, upstream),
	}
	for i, reason := range callbackRefusalNames {
		m.refused[i] = reg.Counter(metrics.UpstreamReverseRefusedCalls, upstream, reason)
	}
	return m
}
