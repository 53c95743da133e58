package session

import (
	"github.com/rdmabridge/rdmabridge/metrics"
)

// callbackMetrics count the reverse Calls on the lanes of one upstream, by what became of them.
type callbackMetrics struct{ answered, delayed, unknown, refused, unanswered *metrics.Counter }

func newCallbackMetrics(m *metrics.Registry, upstream string) callbackMetrics {
	by := func(outcome string) *metrics.Counter {
		return m.Counter(metrics.UpstreamSessionCallbacks, upstream, outcome)
	}
	return callbackMetrics{by("answered"), by("delayed"), by("unknown"), by("refused"), by("unanswered")}
}
