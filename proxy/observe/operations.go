package observe

import (
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
	"github.com/rdmabridge/rdmabridge/internal/status"
	"github.com/rdmabridge/rdmabridge/metrics"
)

// Operations
//
// Each loop counts the Calls of its clients by listener, upstream and operation. The tables are indexed by
// ulb.Analysis.Operation, so that a Call costs no search. What has been used once has series, and nothing
// else has. Programs without a binding come off the wire, so only the first strangePrograms of them have
// rows of their own.

// strangePrograms is how many programs and versions without a binding have rows of their own in a table.
const strangePrograms = 8

// A Table counts the Calls of one loop's clients from one listener to one upstream. It belongs to the loop.
type Table struct {
	listener string
	upstream string // "" for Calls that the bridge answers itself
	local    *metrics.Registry
	all      *Operations
	phases   *PhaseHistograms // of the loop, for the upstream; nil for Calls that the bridge answers itself
	rows     []*Operation     // by ulb.Analysis.Operation; nil for those that were not used
	strange  []*Operation     // of programs without a binding
}

// An Operation is one row of a Table. It belongs to the loop.
type Operation struct {
	*Series
	strange    uint32 // the program, if it has no binding
	inFlight   int
	replies    [Classes]*metrics.Counter // nil for those that were not used
	in, out    *metrics.Counter
	time       [Phases]*metrics.Counter
	seconds    *metrics.Histogram
	operations *metrics.Counter
	table      *Table
}

// PhaseHistograms show how the time of an upstream's Calls that were answered divides, on the loop of their clients.
type PhaseHistograms [Phases]*metrics.Histogram

// NewPhaseHistograms returns the histograms in m of an upstream.
func NewPhaseHistograms(m *metrics.Registry, upstream string) *PhaseHistograms {
	h := new(PhaseHistograms)
	for i, name := range phaseNames {
		h[i] = m.Histogram(metrics.UpstreamPhaseSeconds, upstream, name)
	}
	return h
}

// A Series is the rows of all loops for one operation.
type Series struct {
	Key
	status ulb.StatusKind
	labels []string // their values
	ended  bool     // its listener or upstream has ended, and with it its series; guarded by Operations.mu

	replies    [Classes]atomic.Pointer[metrics.Counter] // nil for those that were not used
	in, out    *metrics.Counter
	time       [Phases]*metrics.Counter
	seconds    *metrics.Histogram
	operations *metrics.Counter
}

// Operations are the rows of all tables. They are safe for concurrent use.
type Operations struct {
	root  *metrics.Registry
	known []ulb.Operation // constant

	mu  sync.Mutex // guards all; a leaf, held while series are made
	all map[Key]*Series
}

// NewOperations makes the Operations whose sums are in root. known are those with a binding, by
// ulb.Analysis.Operation.
func NewOperations(root *metrics.Registry, known []ulb.Operation) *Operations {
	return &Operations{root: root, known: known, all: make(map[Key]*Series)}
}

// Table makes a table of one loop, whose registry is local. phases are those of the upstream; nil for Calls that the
// bridge answers itself, whose upstream is "".
func (o *Operations) Table(listener, upstream string, local *metrics.Registry, phases *PhaseHistograms) *Table {
	return &Table{listener: listener, upstream: upstream, local: local, all: o, phases: phases, rows: make([]*Operation, len(o.known))}
}

// A Key names an operation.
type Key struct {
	Listener, Upstream string // names; Upstream is "" for Calls that the bridge answers itself
	program            string // such as nfs, or a number
	version            uint32
	name               string // such as READ
}

// programName is what labels say of the program n.
func programName(n uint32) string {
	if name := oncrpc.ProgramName(n); name != "" && n != oncrpc.ProgramCCP { // the bridge refuses CCP, and counts a number
		return name
	}
	return strconv.FormatUint(uint64(n), 10)
}

// Row returns the row of a Call with the header h, whose operation has the number i.
func (t *Table) Row(h *oncrpc.Call, i uint16) *Operation {
	if o := t.rows[i]; o != nil && i != 0 {
		return o
	}
	return t.other(h, i)
}

// other returns a row that is not used yet, or one for a program without a binding.
func (t *Table) other(h *oncrpc.Call, i uint16) *Operation {
	if i != 0 {
		op := &t.all.known[i]
		t.rows[i] = t.make(programName(op.Program), op.Version, op.Name, op.Status)
		return t.rows[i]
	}
	for _, o := range t.strange {
		if o.strange == h.Program && o.version == h.Version {
			return o
		}
	}
	if len(t.strange) >= strangePrograms {
		if o := t.rows[0]; o != nil {
			return o
		}
		t.rows[0] = t.make("other", 0, "other", ulb.NoStatus)
		return t.rows[0]
	}
	o := t.make(programName(h.Program), h.Version, "other", ulb.NoStatus)
	o.strange = h.Program
	t.strange = append(t.strange, o)
	return o
}

// make makes a row.
func (t *Table) make(program string, version uint32, name string, kind ulb.StatusKind) *Operation {
	key := Key{Listener: t.listener, Upstream: t.upstream, program: program, version: version, name: name}
	all := t.all
	all.mu.Lock()
	defer all.mu.Unlock()
	s := all.all[key]
	if s == nil {
		s = &Series{Key: key, status: kind}
		s.labels = []string{s.Listener, s.Upstream, program, strconv.FormatUint(uint64(version), 10), name}
		s.in, s.out, s.time, s.seconds, s.operations = s.series(all.root)
		all.all[key] = s
	}
	o := &Operation{Series: s, table: t}
	o.in, o.out, o.time, o.seconds, o.operations = s.series(t.local)
	return o
}

// InFlight adds the Calls of each operation that are in flight to into.
func (t *Table) InFlight(into map[*Series]int) {
	for _, o := range slices.Concat(t.rows, t.strange) {
		if o != nil && o.inFlight > 0 {
			into[o.Series] += o.inFlight
		}
	}
}

// series returns the series that each used operation has, of the registry m.
func (s *Series) series(m *metrics.Registry) (in, out *metrics.Counter, time [Phases]*metrics.Counter, seconds *metrics.Histogram, ops *metrics.Counter) {
	in = m.Counter(metrics.OperationReceivedBytes, s.labels...)
	out = m.Counter(metrics.OperationSentBytes, s.labels...)
	for i, name := range phaseNames {
		time[i] = m.Counter(metrics.OperationPhaseSeconds, append(slices.Clip(s.labels), name)...)
	}
	seconds = m.Histogram(metrics.OperationSeconds, s.labels...)
	if s.program == "nfs" && s.version == 4 {
		ops = m.Counter(metrics.OperationCompoundOperations, s.labels...)
	}
	return in, out, time, seconds, ops
}

// reply returns the counter of the Replies of class c.
func (o *Operation) reply(c Class) *metrics.Counter {
	if n := o.replies[c]; n != nil {
		return n
	}
	return o.firstReply(c)
}

// firstReply makes the counter. The client of a slow Call may take its Reply after the upstream has ended, and the
// last Call of a listener is counted after its client has left. Neither may begin a series again.
func (o *Operation) firstReply(c Class) *metrics.Counter {
	o.table.all.mu.Lock()
	defer o.table.all.mu.Unlock()
	if o.ended {
		o.replies[c] = new(metrics.Counter)
		return o.replies[c]
	}
	labels := append(slices.Clip(o.labels), c.String())
	o.replies[c] = o.table.local.Counter(metrics.OperationCalls, labels...)
	if o.Series.replies[c].Load() == nil {
		o.Series.replies[c].Store(o.table.all.root.Counter(metrics.OperationCalls, labels...))
	}
	return o.replies[c]
}

// describe describes an operation, apart from Calls in flight.
func (s *Series) describe() status.Operation {
	d := status.Operation{
		Listener: s.Listener, Upstream: s.Upstream, Program: s.program, Version: s.version, Operation: s.name,
		Statuses: make(map[string]uint64),
		Traffic:  status.Traffic{BytesIn: s.in.Value(), BytesOut: s.out.Value()},
	}
	for c := range Classes {
		if n := s.replies[c].Load().Value(); n > 0 {
			d.Statuses[c.String()] = n
			d.Calls += n
		}
	}
	d.Phases = status.Phases{
		Calls: d.Calls, Admission: s.time[PhaseAdmission].Seconds(), Credit: s.time[PhaseCredit].Seconds(),
		Server: s.time[PhaseServer].Seconds(), Client: s.time[PhaseClient].Seconds(),
	}
	d.Latency.Bounds, d.Latency.Counts = s.seconds.Buckets()
	return d
}

// Status describes all operations that were used, in the order of their names. inFlight are the Calls of each that
// are in flight.
func (o *Operations) Status(inFlight func(*Series) int) []status.Operation {
	o.mu.Lock()
	list := make([]*Series, 0, len(o.all))
	for _, s := range o.all {
		list = append(list, s)
	}
	o.mu.Unlock()
	slices.SortFunc(list, func(a, b *Series) int { return strings.Compare(a.order(), b.order()) })
	all := make([]status.Operation, len(list))
	for i, s := range list {
		all[i] = s.describe()
		all[i].InFlight = inFlight(s)
	}
	return all
}

func (s *Series) order() string { return strings.Join(s.labels, "\x00") }

// Forget drops the operations of a listener or an upstream that has ended: those for whose keys gone is true. The
// caller ends their series afterwards.
func (o *Operations) Forget(gone func(*Key) bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for k, s := range o.all {
		if gone(&k) {
			s.ended = true
			delete(o.all, k)
		}
	}
}
