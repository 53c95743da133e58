package rdmaside

import (
	"context"
	"time"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
	"github.com/rdmabridge/rdmabridge/rdmaside/regmem"
	"github.com/rdmabridge/rdmabridge/rdmaside/ulb"
)

// RequesterOptions configure one connection of a Requester. Zero is the
// default.
type RequesterOptions struct {
	// Memory is where Receive buffers and Write and Reply chunks are leased. It
	// is not the account that Calls come from, or Calls could starve Replies.
	// Required.
	Memory *regmem.Account
	// Registry plans Calls and rebuilds Replies. Required.
	Registry *ulb.Registry

	// Credits are requested of the Responder, and bound what is outstanding
	// whatever it grants; default 128, at most 16384.
	Credits int
	// CallInline and ReplyInline are the inline thresholds offered, in octets;
	// default 4096, from 1024 to 64 KiB in steps of 1024. The thresholds in effect
	// are the smaller of these and the peer's, 1024 for a peer that names none:
	// RFC 8166 Section 3.3.2, RFC 8797.
	CallInline, ReplyInline int
	// ReceiveSize is the length of a Receive buffer in octets; default 16 KiB, at
	// least ReplyInline. More than ReplyInline is for peers that overrun it.
	ReceiveSize int
	// ReverseReceives are Receives beside those for Replies, for Calls of the
	// reverse direction (RFC 8167); default 4, negative none.
	ReverseReceives int
	// Deadline is how long a Call may stay unanswered before its connection is
	// ended; default 60 s, negative never.
	Deadline time.Duration
	// RemoteInvalidation tells the Responder that it may Send With Invalidate.
	// Set it only for a provider that reports Completion.Invalidated.
	RemoteInvalidation bool

	Log     zerolog.Logger
	Metrics *RequesterMetrics // shared by the connections of an upstream; may be nil
}

// A Watcher is told what becomes of a Requester. All methods run on its loop.
type Watcher interface {
	// Granted is called at every change of the credits in effect, never for the
	// one of the beginning.
	Granted(r *Requester, grant int)
	// Ended is the last call, after every CallDone. err is nil after Close(nil).
	Ended(r *Requester, err error)
}

// A Requester sends Calls on one connection: the Requester role of RFC 8166.
// It belongs to one loop; methods are for that loop unless they say otherwise.
type Requester struct{}

// DialRequester connects to addr and returns when the connection is ready for
// its first Call. It blocks and is called on a goroutine of its own. w may be
// nil. w's methods and, after the first Send, CallDone may run before
// DialRequester has returned.
func DialRequester(ctx context.Context, p fabric.Provider, loop fabric.Loop, addr string, o RequesterOptions, w Watcher) (*Requester, error) {
	return nil, ErrClosed
}

// Send posts c. An error means that nothing was posted and c was not taken:
// ErrNoCredit, ErrBusyXID, ErrNoMemory, ErrClosed, ulb.ErrTooLong, or an error
// about c itself. Otherwise c.Owner.CallDone follows, never before Send has
// returned.
func (r *Requester) Send(c *Call) error { return ErrClosed }

// Flush starts what was posted, now rather than at the end of the loop's pass.
func (r *Requester) Flush() {}

// Free is how many Calls can be sent now. It may be called on any goroutine.
func (r *Requester) Free() int { return 0 }

// Outstanding is how many Calls are unanswered. It may be called on any
// goroutine.
func (r *Requester) Outstanding() int { return 0 }

// Grant is how many Calls may be outstanding: the lower of the credits requested
// and granted. It may be called on any goroutine.
func (r *Requester) Grant() int { return 0 }

// Close ends the connection. Every outstanding Call ends in limbo, then
// Watcher.Ended is called with err, all after Close has returned.
func (r *Requester) Close(err error) {}

// RequesterInfo describes a connection; constant after set-up.
type RequesterInfo struct {
	fabric.Info
	CallInline, ReplyInline int  // thresholds in effect, octets
	RFC8797                 bool // the peer sent private data of RFC 8797
}

// Info describes the connection. It may be called on any goroutine.
func (r *Requester) Info() RequesterInfo { return RequesterInfo{} }

// Loop is the loop that owns r. It may be called on any goroutine.
func (r *Requester) Loop() fabric.Loop { return nil }
