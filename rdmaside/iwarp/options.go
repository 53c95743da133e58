package iwarp

import (
	"time"

	"github.com/rs/zerolog"
)

// An FPDUPolicy says how long the FPDUs are that this side sends. Whatever it
// is, every length is accepted.
type FPDUPolicy uint8

const (
	// FPDUMSS keeps an FPDU within one TCP segment: RFC 5044 Section 4.5, and all
	// that an adapter is obliged to take.
	FPDUMSS FPDUPolicy = iota
	// FPDUMax sends FPDUs of up to 64 KiB whatever the path. It halves the CPU
	// time at an MTU of 1500; Linux siw takes them.
	FPDUMax
)

// Options are the settings of a Provider. Zero is the documented default and a
// negative number means none.
type Options struct {
	// CRCOff leaves the C bit clear. The CRC is used all the same when the peer
	// asks for it. RFC 5044 Section 4.4 leaves that to an administrator.
	CRCOff bool
	// FPDU is the policy for the length of FPDUs sent.
	FPDU FPDUPolicy
	// DialRev1 lets Dial fall back to MPA revision 1, which negotiates neither
	// IRD nor ORD, for a peer that hung up on revision 2. Listeners always answer
	// both revisions.
	DialRev1 bool

	// DialTimeout bounds Dial from the TCP connection to the Reply. 10 s.
	DialTimeout time.Duration
	// AcceptTimeout bounds how long a Listener waits for a Request, and how long
	// sending the Reply may take. 5 s.
	AcceptTimeout time.Duration
	// ProgressTimeout ends a connection whose peer stays silent inside an FPDU, or
	// takes nothing of what is written. It is TCP_USER_TIMEOUT too. 30 s.
	ProgressTimeout time.Duration
	// SilentTimeout is within what time it is found out that the peer's host is gone:
	// its TCP acknowledges nothing of what it was sent. The connection ends with an
	// error that is fabric.ErrSilent. KeepAlive is a quarter of it at most, and 1 s or
	// more; from 4 s on the time is kept. It is for hosts that are gone: slow processes have
	// ProgressTimeout. Loops whose sockets cannot tell (loop.WatchedSocket) leave it
	// without effect. None.
	SilentTimeout time.Duration
	// CloseTimeout bounds an orderly close: what was posted is written, then the
	// peer's FIN is awaited. 5 s.
	CloseTimeout time.Duration
	// KeepAlive is the idle time before TCP keepalive probes. 15 s.
	KeepAlive time.Duration

	// MaxConnections bounds connections of the whole Provider, those starting
	// included. 16384.
	MaxConnections int
	// MaxHandles bounds live handles of the whole Provider. 1048576.
	MaxHandles int
	// MaxRegistered bounds the octets behind live handles, each counted as often
	// as it is registered. No limit: regmem has the budget.
	MaxRegistered int64

	// Log gets one line for each connection that a peer's error ended, at most a
	// few a second.
	Log zerolog.Logger
}

func (o Options) withDefaults() Options {
	def := func(d *time.Duration, v time.Duration) {
		switch {
		case *d == 0:
			*d = v
		case *d < 0:
			*d = 0
		}
	}
	def(&o.DialTimeout, 10*time.Second)
	def(&o.AcceptTimeout, 5*time.Second)
	def(&o.ProgressTimeout, 30*time.Second)
	def(&o.CloseTimeout, 5*time.Second)
	def(&o.KeepAlive, 15*time.Second)
	if s := max(o.SilentTimeout, 0); s > 0 {
		o.KeepAlive = max(min(o.KeepAlive, s/4), time.Second)
	}
	if o.MaxConnections == 0 {
		o.MaxConnections = 16384
	}
	if o.MaxHandles == 0 {
		o.MaxHandles = 1 << 20
	}
	return o
}
