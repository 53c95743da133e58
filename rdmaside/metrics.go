package rdmaside

import (
	"errors"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
	"github.com/rdmabridge/rdmabridge/metrics"
	"github.com/rdmabridge/rdmabridge/rdmaside/rpcrdma"
)

var (
	callShapes  = [...]string{ulb.CallInline: "inline", ulb.CallReadChunk: "read_chunk", ulb.CallLong: "long"}
	replyShapes = [...]string{ulb.ReplyInline: "inline", ulb.ReplyWriteChunk: "write_chunk", ulb.ReplyChunk: "reply_chunk"}
	fates       = [...]Fate{NotSent, InLimbo, Answered}
)

// RequesterMetrics count what the Requesters of one upstream do. A nil
// *RequesterMetrics counts nothing.
type RequesterMetrics struct {
	calls                       [len(callShapes)][len(replyShapes)]*metrics.Counter
	octetsSent, octetsReceived  *metrics.Counter
	seconds                     *metrics.Histogram
	failures                    [len(fates)]*metrics.Counter
	refusals                    [refusalReasons]*metrics.Counter
	errChunk, errVers           *metrics.Counter
	droppedStray, droppedHeader *metrics.Counter
	droppedProc, droppedReverse *metrics.Counter
	reverseCalls                *metrics.Counter
	deadlines, dropped          *metrics.Counter
	reverseReplies, reverseLost *metrics.Counter
	reverseRefused              [reverseRefusals]*metrics.Counter
	noMemory                    *metrics.Counter
	copied                      *metrics.Counter
}

// NewRequesterMetrics registers the metrics of one upstream.
func NewRequesterMetrics(reg *metrics.Registry, upstream string) *RequesterMetrics {
	m := &RequesterMetrics{copied: metrics.Copied(reg, "requester", upstream)}
	for i, call := range callShapes {
		for j, reply := range replyShapes {
			m.calls[i][j] = reg.Counter("requester_calls_total", "Calls sent over RDMA, by shape.",
				"upstream", upstream, "call", call, "reply", reply)
		}
	}
	m.octetsSent = reg.Counter("requester_call_octets_total", "Octets of plain Calls sent over RDMA.", "upstream", upstream)
	m.octetsReceived = reg.Counter("requester_receive_octets_total", "Octets received in RDMA Sends.", "upstream", upstream)
	m.seconds = reg.Histogram("requester_call_seconds", "Time from posting the Send of a Call to handing its Reply back.",
		metrics.LatencyBounds, 1e-9, "upstream", upstream)
	for i, f := range fates {
		m.failures[i] = reg.Counter("requester_failures_total", "Calls that failed without a Reply, by fate: not_sent may be sent on any connection, in_limbo may have been executed, answered must not be sent again as it is.",
			"upstream", upstream, "fate", f.String())
	}
	for i, reason := range refusalNames {
		m.refusals[i] = reg.Counter("requester_refused_total", "Connections closed because of an invalid message from the Responder, by reason.",
			"upstream", upstream, "reason", reason)
	}
	rdmaErrors := func(code string) *metrics.Counter {
		return reg.Counter("requester_rdma_errors_total", "RDMA_ERROR messages received, by error code.", "upstream", upstream, "code", code)
	}
	m.errChunk, m.errVers = rdmaErrors("err_chunk"), rdmaErrors("err_vers")
	dropped := func(reason string) *metrics.Counter {
		return reg.Counter("requester_dropped_total", "Messages from a Responder that were discarded, by reason.", "upstream", upstream, "reason", reason)
	}
	m.droppedStray, m.droppedHeader = dropped("stray"), dropped("header")
	m.droppedProc, m.droppedReverse = dropped("procedure"), dropped("reverse")
	m.reverseCalls = reg.Counter("requester_reverse_calls_total", "Reverse Calls received from the upstream.", "upstream", upstream)
	m.reverseReplies = reg.Counter("requester_reverse_replies_total", "Reverse Calls that the client answered.", "upstream", upstream)
	m.reverseLost = reg.Counter("requester_reverse_unanswered_total", "Reverse Calls that were passed to the client and never answered.", "upstream", upstream)
	for i, reason := range reverseRefusalNames {
		m.reverseRefused[i] = reg.Counter("requester_reverse_refused_total", "Reverse Calls that the proxy answered with an error, by reason.",
			"upstream", upstream, "reason", reason)
	}
	m.deadlines = reg.Counter("requester_deadlines_total", "Connections closed because the upstream did not answer a Call in time.", "upstream", upstream)
	m.dropped = reg.Counter("requester_leaked_credits_total", "Calls that the upstream never answered although it answered later ones. Each used up one credit of its connection.", "upstream", upstream)
	m.noMemory = reg.Counter("requester_no_memory_total", "Attempts to send a Call that found no memory for the Reply.", "upstream", upstream)
	return m
}

func (m *RequesterMetrics) sent(s ulb.Shape, octets int) {
	m.calls[s.Call][s.Reply].Inc()
	m.octetsSent.Add(uint64(octets))
}

func (m *RequesterMetrics) done(d time.Duration) { m.seconds.Observe(uint64(max(d, 0))) }

func (m *RequesterMetrics) failed(f Fate) { m.failures[f].Inc() }

func (m *RequesterMetrics) refused(err error) { countRefusal(&m.refusals, err) }

func (m *RequesterMetrics) errorReceived(code rpcrdma.ErrCode) {
	if code == rpcrdma.ErrVers {
		m.errVers.Inc()
		return
	}
	m.errChunk.Inc()
}

func countRefusal(counters *[refusalReasons]*metrics.Counter, err error) {
	var r refusal
	if errors.As(err, &r) {
		counters[r.reason].Inc()
	}
}

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
	creditsTaken, parked                   *metrics.Counter
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
