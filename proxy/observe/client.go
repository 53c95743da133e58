package observe

import (
	"time"

	"github.com/rdmabridge/rdmabridge/internal/status"
	"github.com/rdmabridge/rdmabridge/metrics"
)

// A Client is what a client connection carries for this package: what its Calls came to. It belongs to the loop of
// the connection.
type Client struct {
	Active int64   // when its last Call was read, on the clock of the loops
	Tenant *Tenant // that its Calls count for; nil for none

	since   int64 // when it connected, on the wall clock
	calls   uint64
	failed  uint64
	repeats uint64
	in, out uint64
	phases  [Phases]uint64
	flying  inFlight
}

// NewClient begins with a client that has connected now, on the clock of the loops.
func NewClient(now int64) Client { return Client{since: time.Now().UnixNano(), Active: now} }

// inFlight is what a look at all Calls finds of those of a client.
type inFlight struct {
	round  uint64 // the look that found it
	calls  int
	oldest int64 // when the oldest of them was read
	xid    uint32
	op     *Series
}

// Saw notes that a look at all Calls, the one with the number round, has found a Call of the client.
func (n *Client) Saw(round uint64, p *Progress) {
	s := &n.flying
	if s.round != round {
		*s = inFlight{round: round}
	}
	s.calls++
	if s.oldest == 0 || p.Began < s.oldest {
		s.oldest, s.xid, s.op = p.Began, p.ClientXID, nil
		if p.op != nil {
			s.op = p.op.Series
		}
	}
}

// Snapshot copies the record, with the Calls that the look with the number round has found.
func (n *Client) Snapshot(round uint64) Client {
	s := *n
	if s.flying.round != round {
		s.flying = inFlight{}
	}
	return s
}

// oldestCall is when the oldest of the Calls in flight was read. Without one it is later than any time.
func (n *Client) oldestCall() int64 {
	if n.flying.calls == 0 {
		return 1<<63 - 1
	}
	return n.flying.oldest
}

// describe fills in d what the record has, at now on the clock of the loops, which is wall.
func (n *Client) describe(d *status.Client, now int64, wall time.Time) {
	d.Since, d.Active = time.Unix(0, n.since), wall.Add(-time.Duration(max(0, now-n.Active)))
	d.Traffic = status.Traffic{BytesIn: n.in, BytesOut: n.out}
	d.Phases = phasesOf(n.calls, &n.phases)
	d.Failed, d.Repeats, d.InFlight = n.failed, n.repeats, n.flying.calls
	if n.flying.calls > 0 {
		d.OldestCall, d.OldestXID = float64(max(0, now-n.flying.oldest))/1e9, n.flying.xid
		if o := n.flying.op; o != nil {
			d.OldestOp = o.name
		}
	}
}

// phasesOf makes a status.Phases of sums in nanoseconds.
func phasesOf(calls uint64, d *[Phases]uint64) status.Phases {
	s := func(p Phase) float64 { return float64(d[p]) / 1e9 }
	return status.Phases{Calls: calls, Admission: s(PhaseAdmission), Credit: s(PhaseCredit), Server: s(PhaseServer), Client: s(PhaseClient)}
}

// A Tenant counts the answered Calls of the clients of one tenant on one loop.
type Tenant struct{ calls, in, out *metrics.Counter }

// NewTenant returns the counters in m of the tenant with the name.
func NewTenant(m *metrics.Registry, name string) *Tenant {
	return &Tenant{
		m.Counter(metrics.TenantCalls, name),
		m.Counter(metrics.TenantBytes, name, "in"), m.Counter(metrics.TenantBytes, name, "out"),
	}
}

// Value returns the Calls and octets that were counted.
func (t *Tenant) Value() (calls uint64, octets status.Traffic) {
	return t.calls.Value(), status.Traffic{BytesIn: t.in.Value(), BytesOut: t.out.Value()}
}
