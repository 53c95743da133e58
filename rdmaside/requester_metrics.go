package rdmaside

import (
	"math/bits"

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
	chunks                      [chunkKinds]*metrics.Counter
	failures                    [len(fates)]*metrics.Counter
	refusals                    [refusalReasons]*metrics.Counter
	errChunk, errVers           *metrics.Counter
	droppedStray, droppedHeader *metrics.Counter
	droppedProc, droppedReverse *metrics.Counter
	reverseCalls                *metrics.Counter
	reverseReplies, reverseLost *metrics.Counter
	reverseRefused              [reverseRefusals]*metrics.Counter
	noMemory                    *metrics.Counter
	copied                      *metrics.Counter
}

// NewRequesterMetrics registers the metrics of one upstream.
func NewRequesterMetrics(reg *metrics.Registry, upstream string) *RequesterMetrics {
	m := &RequesterMetrics{copied: reg.Counter(metrics.UpstreamCopiedBytes, upstream, "requester")}
	for i, call := range callShapes {
		for j, reply := range replyShapes {
			m.calls[i][j] = reg.Counter(metrics.UpstreamRDMACalls, upstream, call, reply)
		}
	}
	m.octetsSent = reg.Counter(metrics.UpstreamRDMACallBytes, upstream)
	for i, kind := range chunkKindNames {
		m.chunks[i] = reg.Counter(metrics.UpstreamRDMAChunkBytes, upstream, kind)
	}
	m.octetsReceived = reg.Counter(metrics.UpstreamRDMAReceivedBytes, upstream)
	for i, f := range fates {
		m.failures[i] = reg.Counter(metrics.UpstreamRDMAFailedCalls, upstream, f.String())
	}
	for i, reason := range refusalNames {
		m.refusals[i] = reg.Counter(metrics.UpstreamRDMARefusedReplies, upstream, reason)
	}
	rdmaErrors := func(code string) *metrics.Counter {
		return reg.Counter(metrics.UpstreamRDMAErrors, upstream, code)
	}
	m.errChunk, m.errVers = rdmaErrors("err_chunk"), rdmaErrors("err_vers")
	dropped := func(reason string) *metrics.Counter {
		return reg.Counter(metrics.UpstreamRDMADroppedMessages, upstream, reason)
	}
	m.droppedStray, m.droppedHeader = dropped("stray"), dropped("header")
	m.droppedProc, m.droppedReverse = dropped("procedure"), dropped("reverse")
	m.reverseCalls = reg.Counter(metrics.UpstreamReverseCalls, upstream)
	m.reverseReplies = reg.Counter(metrics.UpstreamReverseReplies, upstream)
	m.reverseLost = reg.Counter(metrics.UpstreamReverseUnansweredCalls, upstream)
	for i, reason := range reverseRefusalNames {
		m.reverseRefused[i] = reg.Counter(metrics.UpstreamReverseRefusedCalls, upstream, reason)
	}
	m.noMemory = reg.Counter(metrics.UpstreamRDMAMemoryWaits, upstream)
	return m
}

// A requesterTally is what a Requester has counted and RequesterMetrics has not. The Requester
// adds it once for each pass of completions, because each atomic addition waits for all stores
// before it, and a Call would make five.
type requesterTally struct {
	calls                              [len(callShapes)][len(replyShapes)]uint32
	shapes                             uint16 // a bit for each element of calls that is not 0
	octetsSent, octetsReceived, copied uint64
	chunks                             [chunkKinds]uint64
}

// sent counts a Call of so many octets, of which an argument of argument octets has a chunk in some
// shapes.
func (t *requesterTally) sent(s ulb.Shape, octets int, argument uint32) {
	switch s.Call {
	case ulb.CallReadChunk:
		t.chunks[chunkRead] += uint64(argument)
	case ulb.CallLong:
		t.chunks[chunkPositionZero] += uint64(octets)
	}
	t.calls[s.Call][s.Reply]++
	t.shapes |= 1 << (int(s.Call)*len(replyShapes) + int(s.Reply))
	t.octetsSent += uint64(octets)
}

// add adds t and empties it.
func (m *RequesterMetrics) add(t *requesterTally) {
	for ; t.shapes != 0; t.shapes &= t.shapes - 1 {
		bit := bits.TrailingZeros16(t.shapes)
		i, j := bit/len(replyShapes), bit%len(replyShapes)
		m.calls[i][j].Add(uint64(t.calls[i][j]))
	}
	addSome(m.octetsSent, t.octetsSent)
	addSome(m.octetsReceived, t.octetsReceived)
	addSome(m.copied, t.copied)
	for i, n := range t.chunks {
		addSome(m.chunks[i], n)
	}
	*t = requesterTally{}
}

func addSome(c *metrics.Counter, n uint64) {
	if n > 0 {
		c.Add(n)
	}
}

func (m *RequesterMetrics) failed(f Fate) { m.failures[f].Inc() }

func (m *RequesterMetrics) refused(err error) { countRefusal(&m.refusals, err) }

func (m *RequesterMetrics) errorReceived(code rpcrdma.ErrCode) {
	if code == rpcrdma.ErrVers {
		m.errVers.Inc()
		return
	}
	m.errChunk.Inc()
}
