package proxy

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

// A phase is a part of the time of a Call: status.Phases.
type phase uint8

const (
	phaseAdmission phase = iota
	phaseCredit
	phaseServer
	phaseClient
	phases
)

var phaseNames = [phases]string{"admission", "credit", "server", "client"}

// callTimes are when a call got how far, on the clock of the loops, in nanoseconds; 0 for not yet. The pass
// of the loop in which it happened counts.
type callTimes struct {
	began   int64 // when the Call was read, or could have been: front.readable; the client's loop's
	asked   int64 // when it was given to its pool
	sent    int64 // when a connection sent it for the first time
	replied int64 // when its Reply had come, or was made
}

// divide sets d to the phases of a Call whose client had the Reply at settled. They add up to its time. Loops
// look at the clock once in a pass, so that a time may lie before the one that came before it.
func (t *callTimes) divide(settled int64, d *[phases]uint64) {
	replied := t.replied
	if replied == 0 {
		replied = settled
	}
	sent := t.sent
	if sent == 0 {
		sent = replied
	}
	asked := t.asked
	if asked == 0 {
		asked = sent
	}
	asked = max(asked, t.began)
	sent = max(sent, asked)
	replied = max(replied, sent)
	d[phaseAdmission] = uint64(asked - t.began)
	d[phaseCredit] = uint64(sent - asked)
	d[phaseServer] = uint64(replied - sent)
	d[phaseClient] = uint64(max(settled, replied) - replied)
}

// An operationTable counts the Calls of one loop's clients from one listener to one upstream. It belongs
// to the loop.
type operationTable struct {
	listener *listener
	up       *upstream // nil for Calls that the bridge answers itself
	loop     *eventLoop
	rows     []*operation // by ulb.Analysis.Operation; nil for those that were not used
	strange  []*operation // of programs without a binding
}

// An operation is one row of an operationTable. It belongs to the loop.
type operation struct {
	*operationSeries
	strange    uint32 // the program, if it has no binding
	inFlight   int
	replies    [classes]*metrics.Counter // nil for those that were not used
	in, out    *metrics.Counter
	time       [phases]*metrics.Counter
	seconds    *metrics.Histogram
	operations *metrics.Counter
	local      *metrics.Registry // the loop's
	counts     *upstreamCounts   // of the loop; nil for Calls that the bridge answers itself
	all        *operations       // the Proxy's
}

// operationSeries are the rows of all loops for one operation.
type operationSeries struct {
	operationKey
	status ulb.StatusKind
	labels []string          // their values
	root   *metrics.Registry // the Proxy's
	ended  bool              // its listener or upstream has ended, and with it its series; guarded by operations.mu

	replies    [classes]atomic.Pointer[metrics.Counter] // nil for those that were not used
	in, out    *metrics.Counter
	time       [phases]*metrics.Counter
	seconds    *metrics.Histogram
	operations *metrics.Counter
}

// operations are the rows of all tables. They are safe for concurrent use.
type operations struct {
	mu  sync.Mutex // guards all; held while series are made
	all map[operationKey]*operationSeries
}

// An operationKey names an operation.
type operationKey struct {
	listener, upstream string // names; upstream is "" for Calls that the bridge answers itself
	program            string // such as nfs, or a number
	version            uint32
	name               string // such as READ
}

// programNames are the names of programs in labels.
var programNames = map[uint32]string{
	oncrpc.ProgramNFS: "nfs", oncrpc.ProgramNFSACL: "nfsacl", oncrpc.ProgramNLM: "nlm", oncrpc.ProgramNSM: "nsm",
	oncrpc.ProgramMount: "mount", oncrpc.ProgramRPCBind: "rpcbind", oncrpc.ProgramRQuota: "rquota",
}

func programName(n uint32) string {
	if name := programNames[n]; name != "" {
		return name
	}
	return strconv.FormatUint(uint64(n), 10)
}

// table returns the table of the loop's clients for u, a new one at the first Call. On the loop.
func (l *listener) table(on *eventLoop, u *upstream) *operationTable {
	n := &l.counts[on.index]
	for _, t := range n.tables {
		if t.up == u {
			return t
		}
	}
	t := &operationTable{listener: l, up: u, loop: on, rows: make([]*operation, len(l.p.registry.Operations()))}
	n.tables = append(n.tables, t)
	return t
}

// dropTables forgets the tables of upstreams that have ended. On the loop.
func (l *listener) dropTables(on *eventLoop) {
	n := &l.counts[on.index]
	n.tables = slices.DeleteFunc(n.tables, func(t *operationTable) bool { return t.up != nil && l.p.removed(t.up) })
}

// row returns the row of a Call with the header h, whose operation has the number i.
func (t *operationTable) row(h *oncrpc.Call, i uint16) *operation {
	if o := t.rows[i]; o != nil && i != 0 {
		return o
	}
	return t.other(h, i)
}

// other returns a row that is not used yet, or one for a program without a binding.
func (t *operationTable) other(h *oncrpc.Call, i uint16) *operation {
	if i != 0 {
		op := &t.listener.p.registry.Operations()[i]
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
func (t *operationTable) make(program string, version uint32, name string, kind ulb.StatusKind) *operation {
	p := t.listener.p
	key := operationKey{listener: t.listener.name, program: program, version: version, name: name}
	if t.up != nil {
		key.upstream = t.up.name
	}
	m := t.loop.metrics
	p.operations.mu.Lock()
	defer p.operations.mu.Unlock()
	s := p.operations.all[key]
	if s == nil {
		s = &operationSeries{operationKey: key, status: kind, root: p.metrics}
		s.labels = []string{s.listener, s.upstream, program, strconv.FormatUint(uint64(version), 10), name}
		s.in, s.out, s.time, s.seconds, s.operations = s.series(p.metrics)
		p.operations.all[key] = s
	}
	o := &operation{operationSeries: s, local: m, all: &p.operations}
	if t.up != nil {
		o.counts = &t.up.counts[t.loop.index]
	}
	o.in, o.out, o.time, o.seconds, o.operations = s.series(m)
	return o
}

// series returns the series that each used operation has, of the registry m.
func (s *operationSeries) series(m *metrics.Registry) (in, out *metrics.Counter, time [phases]*metrics.Counter, seconds *metrics.Histogram, ops *metrics.Counter) {
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
func (o *operation) reply(c class) *metrics.Counter {
	if n := o.replies[c]; n != nil {
		return n
	}
	return o.firstReply(c)
}

// firstReply makes the counter. The client of a slow Call may take its Reply after the upstream has ended, and the
// last Call of a listener is counted after its client has left. Neither may begin a series again.
func (o *operation) firstReply(c class) *metrics.Counter {
	o.all.mu.Lock()
	defer o.all.mu.Unlock()
	if o.ended {
		o.replies[c] = new(metrics.Counter)
		return o.replies[c]
	}
	labels := append(slices.Clip(o.labels), classNames[c])
	o.replies[c] = o.local.Counter(metrics.OperationCalls, labels...)
	if o.operationSeries.replies[c].Load() == nil {
		o.operationSeries.replies[c].Store(o.root.Counter(metrics.OperationCalls, labels...))
	}
	return o.replies[c]
}

// status describes an operation, apart from Calls in flight.
func (s *operationSeries) describe() status.Operation {
	d := status.Operation{
		Listener: s.listener, Upstream: s.upstream, Program: s.program, Version: s.version, Operation: s.name,
		Statuses: make(map[string]uint64),
		Traffic:  status.Traffic{BytesIn: s.in.Value(), BytesOut: s.out.Value()},
	}
	for c := range classes {
		if n := s.replies[c].Load().Value(); n > 0 {
			d.Statuses[classNames[c]] = n
			d.Calls += n
		}
	}
	d.Phases = status.Phases{
		Calls: d.Calls, Admission: s.time[phaseAdmission].Seconds(), Credit: s.time[phaseCredit].Seconds(),
		Server: s.time[phaseServer].Seconds(), Client: s.time[phaseClient].Seconds(),
	}
	d.Latency.Bounds, d.Latency.Counts = s.seconds.Buckets()
	return d
}

// list returns all operations in the order of their names.
func (o *operations) list() []*operationSeries {
	o.mu.Lock()
	all := make([]*operationSeries, 0, len(o.all))
	for _, s := range o.all {
		all = append(all, s)
	}
	o.mu.Unlock()
	slices.SortFunc(all, func(a, b *operationSeries) int { return strings.Compare(a.order(), b.order()) })
	return all
}

func (s *operationSeries) order() string { return strings.Join(s.labels, "\x00") }

// forget drops the operations of a listener or an upstream that has ended: those for whose keys gone is true. The
// caller ends their series afterwards.
func (o *operations) forget(gone func(*operationKey) bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for k, s := range o.all {
		if gone(&k) {
			s.ended = true
			delete(o.all, k)
		}
	}
}
