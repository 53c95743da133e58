package admin

import (
	"math"
	"sync"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/status"
)

const (
	sampleEvery = 5 * time.Second
	// historyPoints are ten minutes.
	historyPoints = int(10 * time.Minute / sampleEvery)
	// judgedSpan is how far back the document is that Judge compares with.
	judgedSpan = 30 * time.Second
)

// A sampler keeps the history. Its goroutine asks for a document every five seconds, keeps those of the
// last half minute for Judge, and adds a point to each list. The memory is bounded by historyPoints and
// the number of upstreams. It is safe for concurrent use.
type sampler struct {
	document func(status.Query) status.Document

	startOnce, stopOnce sync.Once
	stop                chan struct{}
	done                chan struct{} // closed when the goroutine has ended; nil before start

	mu      sync.Mutex         // guards the fields below; a leaf
	recent  []*status.Document // of the last judgedSpan, the oldest first
	history status.History     // its lists are never changed, only replaced
}

func (s *sampler) init(document func(status.Query) status.Document) {
	s.document, s.stop, s.done = document, make(chan struct{}), make(chan struct{})
	s.history = emptyHistory()
}

// start starts the goroutine. It does nothing the second time.
func (s *sampler) start() {
	s.startOnce.Do(func() { go s.run() })
}

// close ends the goroutine, also one that was not started.
func (s *sampler) close() {
	s.startOnce.Do(func() { close(s.done) })
	s.stopOnce.Do(func() { close(s.stop) })
	<-s.done
}

func (s *sampler) run() {
	defer close(s.done)
	t := time.NewTicker(sampleEvery)
	defer t.Stop()
	for {
		d := s.document(status.Query{})
		s.add(&d)
		select {
		case <-s.stop:
			return
		case <-t.C:
		}
	}
}

// view returns the history, and the document of about half a minute ago, or the oldest one if there is
// none that old, or nil if there is none.
func (s *sampler) view() (status.History, *status.Document) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.recent) == 0 {
		return s.history, nil
	}
	return s.history, s.recent[0]
}

// add adds d.
func (s *sampler) add(d *status.Document) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(s.recent); n > 0 {
		s.history = extend(&s.history, s.recent[n-1], d)
	}
	s.recent = append(s.recent, d)
	for len(s.recent) > 1 && d.Time.Sub(s.recent[1].Time) >= judgedSpan {
		s.recent = append([]*status.Document(nil), s.recent[1:]...) // a copy: the array must not keep old documents
	}
}

func emptyHistory() status.History {
	none := []float64{}
	return status.History{
		Step: sampleEvery.Seconds(), Calls: none, BytesIn: none, BytesOut: none, Latency: none, Clients: none,
		Memory: none, Failed: none, Upstreams: map[string]status.UpstreamHistory{},
	}
}

// extend returns h with one more point, which is of the time between old and now. Upstreams that now
// does not have are left out.
func extend(h *status.History, old, now *status.Document) status.History {
	seconds := now.Time.Sub(old.Time).Seconds()
	if seconds <= 0 {
		return *h // the clock was set back
	}
	rate := func(a, b uint64) float64 { return grown(a, b) / seconds }
	var calls, in, out, failed float64
	for l, was := range status.Beside(now.Listeners, old.Listeners, (*status.Listener).Key) {
		in += rate(was.BytesIn, l.BytesIn)
		out += rate(was.BytesOut, l.BytesOut)
	}
	var latency, latencyCalls float64
	for o, was := range status.Beside(now.Operations, old.Operations, (*status.Operation).Key) {
		calls += rate(was.Calls, o.Calls)
		for class, n := range o.Statuses {
			if status.Failure(class) {
				failed += rate(was.Statuses[class], n)
			}
		}
		if p := o.Phases.Sub(&was.Phases); o.Phases.Calls >= was.Phases.Calls {
			latency += max(0, p.Total())
			latencyCalls += float64(p.Calls)
		}
	}
	clients := 0
	for i := range now.Listeners {
		clients += now.Listeners[i].Clients
	}
	next := status.History{
		Step: h.Step, End: now.Time,
		Calls: point(h.Calls, calls), BytesIn: point(h.BytesIn, in), BytesOut: point(h.BytesOut, out),
		Latency: point(h.Latency, quotient(latency, latencyCalls)), Clients: point(h.Clients, float64(clients)),
		Memory: point(h.Memory, float64(now.Memory.Used)), Failed: point(h.Failed, failed),
		Upstreams: make(map[string]status.UpstreamHistory, len(now.Upstreams)),
	}
	for u, was := range status.Beside(now.Upstreams, old.Upstreams, (*status.Upstream).Key) {
		if was.Phases.Calls > u.Phases.Calls {
			was = &status.Upstream{} // it began anew
		}
		p := u.Phases.Sub(&was.Phases)
		lists, known := h.Upstreams[u.Name]
		if !known { // as long as all others
			zeros := make([]float64, len(h.Calls))
			lists = status.UpstreamHistory{Calls: zeros, Latency: zeros, Credits: zeros, Waiting: zeros}
		}
		next.Upstreams[u.Name] = status.UpstreamHistory{
			Calls:   point(lists.Calls, float64(p.Calls)/seconds),
			Latency: point(lists.Latency, quotient(p.Server, float64(p.Calls))),
			Credits: point(lists.Credits, min(1, quotient(float64(u.Credits.Used), float64(u.Credits.Granted)))),
			Waiting: point(lists.Waiting, float64(u.Credits.Waiting)),
		}
	}
	return next
}

// grown returns how much a counter has grown from a to b, which is everything if it began anew.
func grown(a, b uint64) float64 {
	if b < a {
		return float64(b)
	}
	return float64(b - a)
}

// quotient returns a/b, and 0 for what is no number in JSON.
func quotient(a, b float64) float64 {
	if q := a / b; b != 0 && !math.IsNaN(q) && !math.IsInf(q, 0) {
		return max(0, q)
	}
	return 0
}

// point returns a copy of list that ends with v and has at most historyPoints.
func point(list []float64, v float64) []float64 {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		v = 0
	}
	if len(list) >= historyPoints {
		list = list[len(list)-historyPoints+1:]
	}
	return append(append(make([]float64, 0, len(list)+1), list...), v)
}
