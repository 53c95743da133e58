package rdmaside

import (
	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/metrics"
	"github.com/rdmabridge/rdmabridge/rdmaside/rpcrdma"
)

// ResponderMetrics count what the connections of one listener do. A nil
// *ResponderMetrics counts nothing.
type ResponderMetrics struct {
	callsInline, callsPulled               *metrics.Counter
	repliesInline, repliesLong, repliesCut *metrics.Counter
	chunks                                 [chunkKinds]*metrics.Counter
	errChunk, errVers                      *metrics.Counter
	badHeader, garbage, noMemory           *metrics.Counter
	droppedReply, droppedProc              *metrics.Counter
	droppedHeader                          *metrics.Counter
	refusals                               [refusalReasons]*metrics.Counter
	refusedCalls                           [oncrpc.Refusals]*metrics.Counter
	copied                                 *metrics.Counter
	reverse                                responderReverseMetrics
	granted, receives, starved             *metrics.Gauge
	lastCredit, creditsDenied              *metrics.Counter
	creditsTaken, parked, excess, stalled  *metrics.Counter
}

// NewResponderMetrics registers the metrics of one listener.
func NewResponderMetrics(reg *metrics.Registry, listener string) *ResponderMetrics {
	m := &ResponderMetrics{copied: reg.Counter(metrics.ListenerCopiedBytes, listener, "responder")}
	calls := func(shape string) *metrics.Counter {
		return reg.Counter(metrics.ListenerRDMACalls, listener, shape)
	}
	m.callsInline, m.callsPulled = calls("inline"), calls("pulled")
	replies := func(shape string) *metrics.Counter {
		return reg.Counter(metrics.ListenerRDMAReplies, listener, shape)
	}
	m.repliesInline, m.repliesLong, m.repliesCut = replies("inline"), replies("reply_chunk"), replies("write_chunk")
	for i, kind := range chunkKindNames {
		m.chunks[i] = reg.Counter(metrics.ListenerRDMAChunkBytes, listener, kind)
	}
	rdmaErrors := func(code string) *metrics.Counter {
		return reg.Counter(metrics.ListenerRDMAErrors, listener, code)
	}
	m.errChunk, m.errVers = rdmaErrors("err_chunk"), rdmaErrors("err_vers")
	m.badHeader = reg.Counter(metrics.ListenerRDMABadHeaders, listener)
	m.garbage = reg.Counter(metrics.ListenerRDMAGarbageCalls, listener)
	m.noMemory = reg.Counter(metrics.ListenerRDMAMemoryWaits, listener)
	dropped := func(reason string) *metrics.Counter {
		return reg.Counter(metrics.ListenerRDMADroppedMessages, listener, reason)
	}
	m.droppedReply, m.droppedProc, m.droppedHeader = dropped("reply"), dropped("procedure"), dropped("header")
	m.reverse.init(reg, listener)
	for i, reason := range refusalNames[:requesterReasons] {
		m.refusals[i] = reg.Counter(metrics.ListenerRefusedConnections, listener, reason)
	}
	for why := oncrpc.RefusedNot + 1; why < oncrpc.Refusals; why++ {
		m.refusedCalls[why] = reg.Counter(metrics.ListenerRefusedCalls, listener, oncrpc.RefusalNames[why])
	}
	m.granted = reg.Gauge(metrics.ListenerCreditsGranted, listener)
	m.receives = reg.Gauge(metrics.ListenerRDMAReceives, listener)
	m.starved = reg.Gauge(metrics.ListenerCreditsStarvedConnections, listener)
	m.lastCredit = reg.Counter(metrics.ListenerCreditsExhausted, listener)
	m.parked = reg.Counter(metrics.ListenerRDMAParkedCalls, listener)
	m.excess = reg.Counter(metrics.ListenerRDMAExcessCalls, listener)
	m.stalled = reg.Counter(metrics.ListenerRefusedConnections, listener, "stalled")
	m.creditsDenied = reg.Counter(metrics.ListenerCreditsDenied, listener)
	m.creditsTaken = reg.Counter(metrics.ListenerCreditsLowered, listener)
	return m
}

func (m *ResponderMetrics) called(x *Exchange) {
	if x.pulled != nil {
		m.callsPulled.Inc()
		data, stream := 0, x.total
		for _, ch := range x.chunks {
			data += int(ch.length)
			stream -= int(ch.length + ch.padding)
		}
		m.chunks[chunkRead].Add(uint64(data))
		if x.header.Proc == rpcrdma.NoMsg {
			m.chunks[chunkPositionZero].Add(uint64(stream))
		}
		return
	}
	m.callsInline.Inc()
}

func (m *ResponderMetrics) replied(x *Exchange) {
	switch {
	case x.answer == rpcrdma.Error:
	case x.answer == rpcrdma.NoMsg:
		m.repliesLong.Inc()
		m.chunks[chunkReply].Add(uint64(x.size))
	case len(x.data) > 0:
		m.repliesCut.Inc()
		for _, item := range x.data {
			m.chunks[chunkWrite].Add(uint64(len(item)))
		}
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
	m.calls = reg.Counter(metrics.ListenerReverseCalls, listener)
	m.replies = reg.Counter(metrics.ListenerReverseReplies, listener)
	m.unanswered = reg.Counter(metrics.ListenerReverseUnansweredCalls, listener)
	for i, reason := range callbackRefusalNames {
		m.refused[i] = reg.Counter(metrics.ListenerReverseRefusedCalls, listener, reason)
	}
}
