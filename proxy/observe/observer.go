package observe

import (
	"net/netip"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/status"
)

// An Observer looks at Calls when they are over, for an access log or for traces. Its methods run on
// the loop of the Call's client, and must not block. Several loops call them at the same time.
type Observer interface {
	// Wants reports whether Observe is to be called. It borrows r, as Observe does.
	Wants(r *CallRecord) bool
	Observe(r *CallRecord)
}

// A Watch is who looks at the Calls of a loop, each nil for nobody. Once it is in force, only the loop uses it.
type Watch struct {
	Tap      *LoopTap
	Observer Observer

	record CallRecord // scratch
}

// Record returns a record with what p says of a Call that is over, now. The caller adds the rest, and lends it to the
// Observer.
func (w *Watch) Record(p *Progress, now int64) *CallRecord {
	w.record.set(p, now)
	return &w.record
}

// A CallRecord describes a Call that is over: its client has the Reply, or never will have it. The times
// are on the clock of the loops, in nanoseconds, and 0 if that never came. A Call that was sent several
// times has the Sent of the first time: what follows is the server's time, as the client sees it.
type CallRecord struct {
	// Began is when the Call was read, or could have been read if the bridge had not made its client
	// wait; Asked when it was given to the pool of its upstream; Sent when it was handed to a
	// connection; Replied when its Reply had come or was made; Settled when the client's connection had
	// taken the Reply.
	Times
	Settled int64

	At          time.Time // Settled on the wall clock
	XID         uint32    // the client's
	UpstreamXID uint32    // the upstream's; 0 if the Call was not sent
	Client      netip.AddrPort
	Listener    string
	Transport   string // of the listener: tcp or rdma
	TLS         bool   // the client's connection has TLS
	Identity    string // the first name in the client's certificate, or else its subject; "" without one
	Upstream    string // "" if the bridge answered the Call itself
	Rule        string // that has denied the Call, or has sent it to Upstream; "" for none

	Program, Version, Procedure uint32
	ProgramName                 string // such as nfs, or a number
	Operation                   string // such as READ; as in status.Operation
	Operations                  int    // of a COMPOUND; 0 for others

	Status    string // the class of status, as in status.Operation; "" without a Reply
	NFSStatus uint32 // the number, where the Reply has one
	HasNFS    bool   // NFSStatus was read
	Failed    bool   // the Reply is no success, or there is none

	BytesIn, BytesOut int    // of the Call and of the Reply
	Result            string // what became of the Call, as in rdmabridge_listener_calls_total
	Replays           int    // times it was sent again because a connection was lost
	Shape             string // how the Call travelled to an RDMA upstream: inline, chunks or long; "" for TCP
}

// Phases returns how the time of the Call divides.
func (r *CallRecord) Phases() status.Phases {
	var d [Phases]uint64
	r.Divide(r.Settled, &d)
	return phasesOf(1, &d)
}

// set sets r to what p says of a Call that is over, now.
func (r *CallRecord) set(p *Progress, now int64) {
	*r = CallRecord{
		Times: p.Times, Settled: now, At: time.Now(), XID: p.ClientXID, Operations: int(p.Operations),
		BytesIn: int(p.Size), Result: p.Result.String(), Replays: int(p.Replays), Failed: true,
	}
	if p.op != nil {
		r.ProgramName, r.Operation = p.op.program, p.op.name
	}
	if p.Absorbed {
		r.Result = ResultAbsorbed.String()
	}
	if p.Replied != 0 && p.Octets > 0 {
		r.Status, r.NFSStatus, r.HasNFS, r.BytesOut = p.Class.String(), p.Status, p.HasStatus, int(p.Octets)
		r.Failed = p.Class.Fails() || p.Result == ResultGone || p.Result == ResultAbandoned
	}
	if p.Result == ResultAbsorbed {
		r.Failed = false
	}
}
