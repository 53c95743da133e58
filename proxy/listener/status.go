package listener

import (
	"time"

	"github.com/rdmabridge/rdmabridge/internal/status"
	"github.com/rdmabridge/rdmabridge/proxy/admit/gates"
	"github.com/rdmabridge/rdmabridge/proxy/authorise"
	"github.com/rdmabridge/rdmabridge/proxy/certs"
	"github.com/rdmabridge/rdmabridge/proxy/observe"
)

// A Report is what a loop says of a listener.
type Report struct {
	Waiting gates.PauseReport
	matched authorise.Report
}

// Report looks at what the loop with the number here has counted, and adds the Calls under way to inFlight. On the
// loop.
func (l *Listener) Report(here int, now int64, inFlight map[*observe.Series]int) Report {
	n := &l.counts[here]
	for _, t := range n.tables {
		t.InFlight(inFlight)
	}
	return Report{Waiting: n.Waits.Report(), matched: l.Settings().Policy.Report(here, now)}
}

// Status describes l. found are the reports of the loops, and ops the operations of all listeners.
func (l *Listener) Status(found []Report, ops []status.Operation) status.Listener {
	s := l.Settings()
	d := status.Listener{
		Name: l.Name, Transport: observe.Transport(l.IsRDMA), Address: l.Addr(), Clients: l.ClientCount(),
		Limit:  s.Opts.MaxConnections,
		Paused: make(map[string]int), Calls: make(map[string]uint64), Refused: l.refusedStatus(),
		Accepted: l.accepted.Value(),
	}
	var matched []authorise.Report
	for i := range found {
		matched = append(matched, found[i].matched)
		for i, n := range found[i].Waiting.Now {
			if n > 0 {
				d.Paused[gates.ReasonNames[i]] += n
			}
		}
	}
	d.Rules = s.Policy.Status(matched, time.Now())
	for i := range d.Rules {
		if r := s.Rates.Rule(i); r != nil {
			d.Rules[i].Waiting = r.Waiting()
		}
	}
	for r := range observe.Results {
		if n := l.results[r].Value(); n > 0 {
			d.Calls[r.String()] = n
		}
	}
	for i := range ops {
		if o := &ops[i]; o.Listener == l.Name {
			d.InFlight += o.InFlight
			d.BytesIn += o.BytesIn
			d.BytesOut += o.BytesOut
		}
	}
	if t := s.TLS(); t != nil {
		d.TLS = certs.Status(t.Server.Condition())
	}
	if d.Address == "" {
		d.Unreachable = "it does not listen"
	}
	return d
}
