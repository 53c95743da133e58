package rdmaside

import (
	"errors"
	"fmt"
	"time"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/internal/regmem"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
	"github.com/rdmabridge/rdmabridge/rdmaside/credit"
	"github.com/rdmabridge/rdmabridge/rdmaside/rpcrdma"
)

// Bounds and defaults of RequesterOptions and ResponderOptions.
const (
	minInline   = rpcrdma.DefaultInline
	maxInline   = 64 << 10
	maxReceives = 1024 // for the reverse direction

	defaultReceiveSize = 16 << 10
	defaultReverse     = 4

	// extraReceives are posted beyond what credits and the reverse direction
	// need, so that the Receive of a Reply may be replaced a little late.
	extraReceives = 2
)

// RequesterOptions configure one connection of a Requester. A field may be zero
// only where its comment says what that means.
type RequesterOptions struct {
	// Memory is the account for Receive buffers and Write and Reply chunks. It
	// must not be the account that Calls are leased from, or Calls could starve
	// Replies.
	Memory *regmem.Account
	// Registry plans Calls and rebuilds Replies.
	Registry *ulb.Registry

	// Credits are requested of the Responder and bound the Calls outstanding,
	// whatever it grants; from 1 to 16384.
	Credits int
	// CallInline and ReplyInline are the inline thresholds offered, in octets;
	// from 1024 to 64 KiB in steps of 1024. The smaller of this side's and the
	// peer's threshold is in effect in each direction. A peer that announces
	// none has thresholds of 1024: RFC 8166 Section 3.3.2, RFC 8797.
	CallInline, ReplyInline int
	// ReceiveSize is the length of a Receive buffer in octets; at least
	// ReplyInline, at most 1 MiB; 0 means 16 KiB, or ReplyInline if that is more.
	// More than ReplyInline is for peers that overrun it: the Linux server sends
	// Replies of any length when no Reply chunk was offered.
	ReceiveSize int
	// IdleReceives are posted when no Call is outstanding. Calls post more as
	// they need them, and their Replies release them. 0 means, and the most is,
	// all: Credits + ReverseReceives + 2. Set fewer for connections that are many
	// and mostly idle.
	IdleReceives int
	// ReverseReceives are the credits granted in the reverse direction (RFC 8167),
	// and the additional Receives for its Calls; 0 means 4, negative none.
	ReverseReceives int
	// Reverse handles reverse Calls. When it is nil, they are answered
	// PROG_UNAVAIL.
	Reverse ReverseHandler
	// Deadline is how long a Call may stay unanswered before its connection is
	// closed; negative means forever.
	Deadline time.Duration
	// RemoteInvalidation tells the Responder that it may use Send With Invalidate, if the
	// connection is a fabric.RemoteInvalidator that lets it.
	RemoteInvalidation bool

	// Take lends reply, the short Reply to c, which has no chunks, until c.Owner.CallDone returns. If it reports true,
	// the owner needs it no longer than that, and c.Reply stays empty; the octets may have been changed then. nil
	// takes none.
	Take func(c *Call, reply []byte) bool
	Took func() // follows the last of the Replies that have come together; not nil if Take is not

	// Warm reads an octet of each cache line of c and what belongs to it that its Reply needs, and returns
	// something that depends on all of them. nil does nothing. While Cold reports that the memory of Calls has mostly
	// left the caches before their Replies come, a Requester calls Warm for several Calls at a time before it handles
	// their Replies, so that the processor fetches the lines together. Warm is also called for Calls whose Replies are
	// then refused.
	Warm func(c *Call) uint8
	Cold func() bool // on the loop; not nil if Warm is not

	Log     zerolog.Logger
	Lines   *RequesterLines   // bounds the log; shared by the connections of an upstream; nil means one for this connection
	Metrics *RequesterMetrics // shared by the connections of an upstream; may be nil
}

// validated returns o with what zero fields mean, or an error that reports every
// problem of o.
func (o RequesterOptions) validated() (RequesterOptions, error) {
	if o.ReceiveSize == 0 {
		o.ReceiveSize = max(defaultReceiveSize, o.ReplyInline)
	}
	if o.ReverseReceives == 0 {
		o.ReverseReceives = defaultReverse
	}
	o.ReverseReceives = max(o.ReverseReceives, 0)
	all := o.Credits + o.ReverseReceives + extraReceives
	if o.IdleReceives == 0 {
		o.IdleReceives = all
	}
	if o.Lines == nil {
		o.Lines = new(RequesterLines)
	}
	// Never fewer than the first Call needs.
	o.IdleReceives = min(max(o.IdleReceives, o.ReverseReceives+1+extraReceives), all)
	errs := []error{
		checkInline("CallInline", o.CallInline),
		checkInline("ReplyInline", o.ReplyInline),
		checkRange("Credits", o.Credits, 1, credit.Max),
		checkRange("ReceiveSize", o.ReceiveSize, o.ReplyInline, 1<<20),
		checkRange("ReverseReceives", o.ReverseReceives, 0, maxReceives),
		checkSet("Memory", o.Memory != nil),
		checkSet("Registry", o.Registry != nil),
		checkSet("Deadline", o.Deadline != 0),
	}
	return o, errors.Join(errs...)
}

func checkSet(name string, set bool) error {
	if !set {
		return fmt.Errorf("rdmaside: %s is missing", name)
	}
	return nil
}

func checkRange(name string, v, least, most int) error {
	if v < least || v > most {
		return fmt.Errorf("rdmaside: %s %d is not from %d to %d", name, v, least, most)
	}
	return nil
}

func checkInline(name string, v int) error {
	if v%1024 != 0 {
		return fmt.Errorf("rdmaside: %s %d is not a multiple of 1024", name, v)
	}
	return checkRange(name, v, minInline, maxInline)
}
