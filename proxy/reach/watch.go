package reach

import (
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/internal/loglimit"
	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/metrics"
	"github.com/rdmabridge/rdmabridge/pool/slowstart"
)

// A Watch is what the probes of one upstream's connections share. It is safe for concurrent use.
type Watch struct {
	log       *zerolog.Logger // constant, as the next two
	newXID    func() uint32
	slowStart *slowstart.Window

	every, idle atomic.Int64 // the settings, in nanoseconds

	// spoken is the program, in the upper half, and the version of the Call that the upstream answered first; 0 before.
	spoken atomic.Uint64

	tooWeak atomic.Bool // the server has refused the latest NULL Call, without TLS, with AUTH_TOOWEAK

	answered, failed, unable *metrics.Counter
	stalled                  *metrics.Gauge
	quiet                    loglimit.Seldom
}

// NewWatch makes the watch over the connections of the upstream that has this name. Each NULL Call has an XID of
// newXID, and those that prime connections count for the slow start. Set has to follow.
func NewWatch(
	m *metrics.Registry, upstream string, log *zerolog.Logger, newXID func() uint32, slowStart *slowstart.Window,
) *Watch {
	probes := func(result string) *metrics.Counter { return m.Counter(metrics.UpstreamProbes, upstream, result) }
	return &Watch{
		log: log, newXID: newXID, slowStart: slowStart,
		answered: probes("answered"), failed: probes("failed"), unable: probes("unsent"),
		stalled: m.Gauge(metrics.UpstreamStalledConnections, upstream),
	}
}

// Set puts settings in force. every is how long a connection with Calls may be silent before it is probed; not
// positive: for ever, with or without Calls. idle is how long one without Calls may be; if it is less, every counts.
func (w *Watch) Set(every, idle time.Duration) {
	w.every.Store(int64(every))
	w.idle.Store(int64(idle))
}

func (w *Watch) settings() (every, idle time.Duration) {
	return time.Duration(w.every.Load()), time.Duration(w.idle.Load())
}

// Spoke notes that the upstream has answered a Call of program and version.
func (w *Watch) Spoke(program, version uint32) {
	if w.spoken.Load() == 0 {
		w.spoken.Store(uint64(program)<<32 | uint64(version))
	}
}

// TooWeak notes whether the server has refused a NULL Call with AUTH_TOOWEAK on a connection without TLS. A server does so
// that requires TLS (RFC 9289 Section 4.1), and one with rules that want Kerberos for everything.
func (w *Watch) TooWeak(is bool) {
	if w.tooWeak.Load() != is {
		w.tooWeak.Store(is)
	}
}

// IsTooWeak reports what TooWeak has noted last.
func (w *Watch) IsTooWeak() bool { return w.tooWeak.Load() }

// spokenTo returns what the upstream has answered a Call of.
func (w *Watch) spokenTo() (program, version uint32, ok bool) {
	x := w.spoken.Load()
	return uint32(x >> 32), uint32(x), x != 0
}

// Program returns whose NULL Call any server of the upstream answers. Before it has answered a Call that is one of NFS
// version 3: a server without that program answers that it has none.
func (w *Watch) Program() (program, version uint32) {
	if program, version, ok := w.spokenTo(); ok {
		return program, version
	}
	return oncrpc.ProgramNFS, 3
}
