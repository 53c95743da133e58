package iwarp

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/rs/zerolog"
)

// An FPDUPolicy determines how long the FPDUs are that this side sends. With every
// policy it accepts FPDUs of every length.
type FPDUPolicy uint8

const (
	// FPDUMSS keeps an FPDU within one TCP segment: RFC 5044 Section 4.5. Adapters need
	// not accept longer ones.
	FPDUMSS FPDUPolicy = iota
	// FPDUMax sends FPDUs of up to 64 KiB whatever the path. It halves the CPU
	// time at an MTU of 1500. Linux siw accepts them.
	FPDUMax
)

// Options are the settings of a Provider. A negative number means none.
type Options struct {
	// CRCOff leaves the C bit clear. Both sides still use the CRC when the peer asks for it.
	// RFC 5044 Section 4.4 leaves the choice to an administrator.
	CRCOff bool
	// FPDU is the policy for the length of FPDUs sent.
	FPDU FPDUPolicy
	// DialRev1 lets Dial fall back to MPA revision 1, which negotiates neither
	// IRD nor ORD, for a peer that closes the connection on revision 2. Listeners
	// always answer both revisions.
	DialRev1 bool

	// Source is the address of this host that Dial connects from. With the zero Addr the kernel chooses.
	// Dial fails while this host does not have the address.
	Source netip.Addr
	// DialTimeout bounds Dial from the TCP connection to the Reply. It must be set.
	DialTimeout time.Duration
	// AcceptTimeout bounds how long a Listener waits for a Request, and how long
	// sending the Reply may take. It must be set.
	AcceptTimeout time.Duration
	// ProgressTimeout ends a connection whose peer sends nothing inside an FPDU, or
	// accepts none of the octets to be written, for so long. It is TCP_USER_TIMEOUT too.
	// It must be set.
	ProgressTimeout time.Duration
	// SilentTimeout is the time within which Provider notices that the peer's host is
	// gone, because its TCP acknowledges nothing. The connection then ends with an error
	// that is fabric.ErrSilent. KeepAlive becomes a quarter of it at most, and 1 s or
	// more. Values of 4 s or more are kept to exactly. It detects hosts that are gone;
	// ProgressTimeout detects slow processes. It has no effect with Loops whose sockets
	// are no loop.WatchedSocket. 0 means none.
	SilentTimeout time.Duration
	// CloseTimeout bounds an orderly close, in which posted work is written and then the
	// peer's FIN is awaited. 0 means 5 s.
	CloseTimeout time.Duration
	// KeepAlive is the idle time before TCP keepalive probes. 0 means 15 s.
	KeepAlive time.Duration

	// MaxConnections bounds connections of the whole Provider, those starting
	// included. 0 means 16384.
	MaxConnections int
	// MaxHandles bounds live handles of the whole Provider. 0 means 1048576.
	MaxHandles int
	// MaxRegistered bounds the octets behind live handles, each counted as often
	// as it is registered. 0 means no limit: regmem has the budget.
	MaxRegistered int64

	// Log gets one line for each connection that an error ended, at most a few a
	// second.
	Log zerolog.Logger
}

// validate returns an error for each option that must be set and is not.
func (o *Options) validate() error {
	var errs []error
	for _, v := range []struct {
		name string
		d    time.Duration
	}{
		{"DialTimeout", o.DialTimeout},
		{"AcceptTimeout", o.AcceptTimeout},
		{"ProgressTimeout", o.ProgressTimeout},
	} {
		if v.d == 0 {
			errs = append(errs, fmt.Errorf("iwarp: Options.%s is 0: want a duration, or a negative one for no timeout", v.name))
		}
	}
	return errors.Join(errs...)
}

// withDefaults sets the options that no setting of the configuration sets. Timeouts that
// are none become 0.
func (o Options) withDefaults() Options {
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
		*d = max(*d, 0)
	}
	def(&o.DialTimeout, 0)
	def(&o.AcceptTimeout, 0)
	def(&o.ProgressTimeout, 0)
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
