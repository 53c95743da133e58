package rdmaside

import (
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
		m.refusals[i] = reg.Counter("requester_refused_total", "Replies of a Responder that were refused, by reason. The Call fails; its connection ends only for the reason handle.",
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

// A requesterTally is what a Requester has counted and RequesterMetrics has not. The Requester
// adds it once for each pass of completions, because each atomic addition waits for all stores
// before it, and a Call would make five.
type requesterTally struct {
	calls                              [len(callShapes)][len(replyShapes)]uint32
	octetsSent, octetsReceived, copied uint64
}

// sent counts a Call of so many octets.
func (t *requesterTally) sent(s ulb.Shape, octets int) {
	t.calls[s.Call][s.Reply]++
	t.octetsSent += uint64(octets)
}

// add adds t and empties it.
func (m *RequesterMetrics) add(t *requesterTally) {
	for i := range t.calls {
		for j, n := range t.calls[i] {
			if n > 0 {
				m.calls[i][j].Add(uint64(n))
			}
		}
	}
	addSome(m.octetsSent, t.octetsSent)
	addSome(m.octetsReceived, t.octetsReceived)
	addSome(m.copied, t.copied)
	*t = requesterTally{}
}

func addSome(c *metrics.Counter, n uint64) {
	if n > 0 {
		c.Add(n)
	}
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
