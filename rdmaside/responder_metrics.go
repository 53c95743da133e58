package rdmaside

import (
	"github.com/rdmabridge/rdmabridge/metrics"
	"github.com/rdmabridge/rdmabridge/rdmaside/rpcrdma"
)

// ResponderMetrics count what the connections of one listener do. A nil
// *ResponderMetrics counts nothing.
type ResponderMetrics struct {
	callsInline, callsPulled               *metrics.Counter
	repliesInline, repliesLong, repliesCut *metrics.Counter
	errChunk, errVers                      *metrics.Counter
	badHeader, garbage, noMemory           *metrics.Counter
	droppedReply, droppedProc              *metrics.Counter
	droppedHeader                          *metrics.Counter
	refusals                               [refusalReasons]*metrics.Counter
	copied                                 *metrics.Counter
	reverse                                responderReverseMetrics
	granted, receives, starved             *metrics.Gauge
	lastCredit, creditsDenied              *metrics.Counter
	creditsTaken, parked, excess, stalled  *metrics.Counter
}

// NewResponderMetrics registers the metrics of one listener.
func NewResponderMetrics(reg *metrics.Registry, listener string) *ResponderMetrics {
	m := &ResponderMetrics{copied: metrics.Copied(reg, "responder", listener)}
	calls := func(shape string) *metrics.Counter {
		return reg.Counter("responder_calls_total", "Calls received over RDMA, by shape.", "listener", listener, "call", shape)
	}
	m.callsInline, m.callsPulled = calls("inline"), calls("pulled")
	replies := func(shape string) *metrics.Counter {
		return reg.Counter("responder_replies_total", "Replies sent over RDMA, by shape.", "listener", listener, "reply", shape)
	}
	m.repliesInline, m.repliesLong, m.repliesCut = replies("inline"), replies("reply_chunk"), replies("write_chunk")
	rdmaErrors := func(code string) *metrics.Counter {
		return reg.Counter("responder_rdma_errors_total", "RDMA_ERROR messages sent, by error code.", "listener", listener, "code", code)
	}
	m.errChunk, m.errVers = rdmaErrors("err_chunk"), rdmaErrors("err_vers")
	m.badHeader = reg.Counter("responder_bad_headers_total", "Transport headers that could not be decoded and were answered with RDMA_ERROR.", "listener", listener)
	m.garbage = reg.Counter("responder_garbage_args_total", "Calls whose chunks do not match their arguments.", "listener", listener)
	m.noMemory = reg.Counter("responder_no_memory_total", "Calls with chunks that had to wait for memory.", "listener", listener)
	dropped := func(reason string) *metrics.Counter {
		return reg.Counter("responder_dropped_total", "Messages from a Requester that were discarded, by reason.", "listener", listener, "reason", reason)
	}
	m.droppedReply, m.droppedProc, m.droppedHeader = dropped("reply"), dropped("procedure"), dropped("header")
	m.reverse.init(reg, listener)
	for i, reason := range refusalNames {
		m.refusals[i] = reg.Counter("responder_refused_total", "Connections closed because of an invalid message from the Requester, by reason.",
			"listener", listener, "reason", reason)
	}
	m.granted = reg.Gauge("responder_granted_credits", "Credits granted last, summed over all connections.", "listener", listener)
	m.receives = reg.Gauge("responder_receives", "Receive buffers of all connections, posted or held by a Call.", "listener", listener)
	m.starved = reg.Gauge("responder_starved_connections", "Connections that recently used all their credits and get no more because memory for Receives is short.", "listener", listener)
	m.lastCredit = reg.Counter("responder_last_credit_calls_total", "Calls that used the last credit of their connection, so that the Requester had to wait.", "listener", listener)
	m.parked = reg.Counter("responder_parked_calls_total", "Messages that waited in their Receive buffer until the connection could handle another Call.", "listener", listener)
	m.excess = reg.Counter("responder_excess_calls_total", "Calls beyond the grant, which waited until an earlier Call of their connection was answered. Clients send them when their processes are interrupted.", "listener", listener)
	m.stalled = reg.Counter("responder_stalled_total", "Connections closed because the Requester served RDMA Reads too slowly, or because there was no memory for its Calls.", "listener", listener)
	m.creditsDenied = reg.Counter("responder_credits_denied_total", "Times a connection needed more credits and got none because memory for Receives is short.", "listener", listener)
	m.creditsTaken = reg.Counter("responder_credits_taken_total", "Times the grant of a connection was lowered to its share of the memory for Receives.", "listener", listener)
	return m
}

func (m *ResponderMetrics) called(x *Exchange) {
	if x.pulled != nil {
		m.callsPulled.Inc()
		return
	}
	m.callsInline.Inc()
}

func (m *ResponderMetrics) replied(x *Exchange) {
	switch {
	case x.answer == rpcrdma.Error:
	case x.answer == rpcrdma.NoMsg:
		m.repliesLong.Inc()
	case len(x.data) > 0:
		m.repliesCut.Inc()
	default:
		m.repliesInline.Inc()
	}
}

func (m *ResponderMetrics) refused(err error) { countRefusal(&m.refusals, err) }

// responderReverseMetrics count the reverse Calls of a listener's connections.
type responderReverseMetrics struct {
	calls, replies, unanswered *metrics.Counter
	refused                    [callbackRefusals]*metrics.Counter
}

func (m *responderReverseMetrics) init(reg *metrics.Registry, listener string) {
	m.calls = reg.Counter("responder_reverse_calls_total", "Reverse Calls sent to clients.", "listener", listener)
	m.replies = reg.Counter("responder_reverse_replies_total", "Reverse Calls that the client answered.", "listener", listener)
	m.unanswered = reg.Counter("responder_reverse_unanswered_total", "Reverse Calls that the client never answered.", "listener", listener)
	for i, reason := range callbackRefusalNames {
		m.refused[i] = reg.Counter("responder_reverse_refused_total", "Reverse Calls that were not sent, or not answered with a Reply, by reason.",
			"listener", listener, "reason", reason)
	}
}
