package proxy

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

// A CallRecord describes a Call that is over: its client has the Reply, or never will have it. The times
// are on the clock of the loops, in nanoseconds, and 0 if that never came. A Call that was sent several
// times has the Sent of the first time: what follows is the server's time, as the client sees it.
type CallRecord struct {
	// Read is when the Call was read, or could have been read if the bridge had not made its client
	// wait; Asked when it was given to the pool of its upstream; Sent when it was handed to a
	// connection; Replied when its Reply had come or was made; Settled when the client's connection had
	// taken the Reply.
	Read, Asked, Sent, Replied, Settled int64

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
	asked, sent, replied := r.Asked, r.Sent, r.Replied
	if replied == 0 {
		replied = r.Settled
	}
	if sent == 0 {
		sent = replied
	}
	if asked == 0 {
		asked = sent
	}
	d := func(from, to int64) float64 { return float64(max(0, to-from)) / 1e9 }
	return status.Phases{Calls: 1, Admission: d(r.Read, asked), Credit: d(asked, sent), Server: d(sent, replied), Client: d(replied, r.Settled)}
}

// SetObserver makes o the Observer from now on; nil for none. Any goroutine.
func (p *Proxy) SetObserver(o Observer) {
	if o == nil {
		p.observer.Store(nil)
		return
	}
	p.observer.Store(&o)
}
