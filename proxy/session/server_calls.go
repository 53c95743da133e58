package session

import (
	"errors"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/metrics"
)

const (
	// MaxServerCalls bounds the reverse Calls of one TCP server's connection that wait for a pinned
	// client. Sessions have fewer slots.
	MaxServerCalls = 64
	// maxRefusals bounds the error Replies that wait to be written to a TCP server. One read
	// brings fewer Calls.
	maxRefusals = 2048
)

// errNoServerCall says that no Call with the XID of a Reply is outstanding.
var errNoServerCall = errors.New("session: reply to no reverse call")

// A Wire is the connection to a TCP server, as far as its reverse Calls need it.
type Wire interface {
	// Writes reports whether messages can be sent.
	Writes() bool
	// SendReverse sends the Reply m, and calls done.Release when it is written, or never will be.
	SendReverse(m []byte, done Releaser)
	// CameReverse is told of each Call of the server.
	CameReverse(m []byte)
}

// ServerCalls are the reverse Calls that a TCP server sends on one connection. They belong to the connection's loop.
// They are a Reverser.
type ServerCalls struct {
	metrics *ServerCallMetrics // constant, as are lane and wire
	lane    *Conn              // nil for a shared connection, on which no client is called
	wire    Wire
	calls   []uint32    // XIDs of the outstanding Calls, oldest first
	refused int         // error Replies that the socket has not written yet
	call    oncrpc.Call // scratch
}

// Init prepares the reverse Calls of the connection w, which is that of lane, or a shared one if lane is nil.
func (k *ServerCalls) Init(m *ServerCallMetrics, lane *Conn, w Wire) {
	k.metrics, k.lane, k.wire = m, lane, w
}

// Lane is the place of the connection in a lane; nil for a shared one.
func (k *ServerCalls) Lane() *Conn { return k.lane }

// forget removes xid, and reports whether it was outstanding.
func (k *ServerCalls) forget(xid uint32) bool {
	for i, x := range k.calls {
		if x == xid {
			k.calls = k.calls[:i+copy(k.calls[i:], k.calls[i+1:])]
			return true
		}
	}
	return false
}

// End forgets all Calls: the connection has ended.
func (k *ServerCalls) End() {
	k.metrics.unanswered.Add(uint64(len(k.calls)))
	k.calls = nil
}

// Release is called when an error Reply is written, or never will be. Releaser.
func (k *ServerCalls) Release() { k.refused-- }

// Called has the reverse Call m brought to the client, or refuses it. It takes m until it calls done.Release.
func (k *ServerCalls) Called(xid uint32, m []byte, done Releaser) {
	k.metrics.calls.Inc()
	if err := oncrpc.ParseCall(m, &k.call); err != nil {
		k.metrics.dropped.Inc()
		done.Release()
		return
	}
	k.call.Message = nil
	k.wire.CameReverse(m)
	if k.lane == nil {
		done.Release()
		k.refuse(xid, refusedProgram)
		return
	}
	k.forget(xid) // a retransmission gets one Reply
	if !k.lane.CallBack(k, m, done) {
		done.Release()
		k.refuse(xid, refusedClient)
		return
	}
	if len(k.calls) == k.lane.MostCallBacks() {
		// The server has given up on the oldest Call. If the client answers it after all, the
		// Reply is a stray.
		k.forget(k.calls[0])
		k.metrics.unanswered.Inc()
	}
	k.calls = append(k.calls, xid)
}

// Malformed refuses a reverse Call with this XID, which could not be read.
func (k *ServerCalls) Malformed(xid uint32) {
	k.metrics.calls.Inc()
	k.refuse(xid, refusedMalformed)
}

// ReverseReply is part of Reverser.
func (k *ServerCalls) ReverseReply(xid uint32, m []byte, done Releaser) error {
	if !k.wire.Writes() || !k.forget(xid) {
		return errNoServerCall
	}
	if !oncrpc.IsReply(m, xid) {
		done.Release()
		k.refuse(xid, refusedMalformed)
		return nil
	}
	k.metrics.replies.Inc()
	k.wire.SendReverse(m, done)
	return nil
}

// ReverseRefuse is part of Reverser.
func (k *ServerCalls) ReverseRefuse(xid uint32) {
	if k.forget(xid) {
		k.refuse(xid, refusedClient)
	}
}

// refuse answers the reverse Call xid with an error. A server that does not read its Replies
// gets none.
func (k *ServerCalls) refuse(xid uint32, why serverCallRefusal) {
	if !k.wire.Writes() {
		return
	}
	if k.refused >= maxRefusals {
		k.metrics.dropped.Inc()
		return
	}
	stat := uint32(oncrpc.SystemError)
	if why == refusedProgram {
		stat = oncrpc.ProgramUnavailable
	}
	k.metrics.refused[why].Inc()
	k.refused++
	k.wire.SendReverse(oncrpc.AppendAccepted(nil, xid, stat), k)
}

// A serverCallRefusal is why the proxy answered a reverse Call of a TCP server; a metric label.
type serverCallRefusal uint8

const (
	refusedProgram   serverCallRefusal = iota // the connection is shared, and no client is called on it
	refusedClient                             // the client does not take the Call
	refusedMalformed                          // the client's answer is no RPC Reply
	serverCallRefusals
)

var serverCallRefusalNames = [serverCallRefusals]string{"program", "client", "malformed"}

// ServerCallMetrics count the reverse Calls of one TCP upstream.
type ServerCallMetrics struct {
	calls, replies, unanswered, dropped *metrics.Counter
	refused                             [serverCallRefusals]*metrics.Counter
}

// NewServerCallMetrics makes the counters of an upstream.
func NewServerCallMetrics(reg *metrics.Registry, upstream string) *ServerCallMetrics {
	m := &ServerCallMetrics{
		calls:      reg.Counter(metrics.UpstreamReverseCalls, upstream),
		replies:    reg.Counter(metrics.UpstreamReverseReplies, upstream),
		unanswered: reg.Counter(metrics.UpstreamReverseUnansweredCalls, upstream),
		dropped:    reg.Counter(metrics.UpstreamReverseDroppedMessages, upstream),
	}
	for i, reason := range serverCallRefusalNames {
		m.refused[i] = reg.Counter(metrics.UpstreamReverseRefusedCalls, upstream, reason)
	}
	return m
}
