package rdmaside

import (
	"errors"
	"fmt"
)

// A Fate is how far a Call got before it failed. It decides whether the Call may
// be retransmitted: a transport error does not say whether the server ran the
// Call (RFC 8267 Section 4).
type Fate uint8

// The fates, from harmless to final.
const (
	NotSent  Fate = iota // nothing left this host: resend on any connection
	InLimbo              // may have executed: resend only with the same XID
	Answered             // a Reply or RDMA_ERROR arrived; never resend unchanged
)

// String returns the fate as it appears in logs and metric labels.
func (f Fate) String() string {
	switch f {
	case NotSent:
		return "not_sent"
	case InLimbo:
		return "in_limbo"
	case Answered:
		return "answered"
	}
	return "unknown"
}

// A CallError reports a Call that did not complete.
type CallError struct {
	XID   uint32
	Fate  Fate
	Local bool // detected here, not reported by the peer; with the Fate Answered, the Reply was refused
	Err   error
}

// Error returns the XID, the fate and the cause.
func (e *CallError) Error() string {
	return fmt.Sprintf("rdmaside: call %#08x %s: %v", e.XID, e.Fate, e.Err)
}

// Unwrap returns the cause.
func (e *CallError) Unwrap() error { return e.Err }

var (
	// ErrNoCredit is returned by Send when every granted credit is in use.
	ErrNoCredit = errors.New("rdmaside: no credit")
	// ErrBusyXID is returned by Send when a Call with the same XID is outstanding
	// on the connection.
	ErrBusyXID = errors.New("rdmaside: xid in use")
	// ErrNoMemory is returned by Send when there is no memory for the Reply now.
	// Requester.Wait says when to try again.
	ErrNoMemory = errors.New("rdmaside: no memory for the reply")
	// ErrProviderBusy is wrapped by the error of a Send that reached a limit of
	// the provider, such as a full work queue or handle table. The condition is
	// temporary: retrying may succeed.
	ErrProviderBusy = errors.New("rdmaside: provider at its limit")
	// ErrClosed is returned by Send on a connection that is closed or closing.
	ErrClosed = errors.New("rdmaside: connection closed")

	// errChunk is wrapped by the CallError of a Call that the Responder answered
	// with RDMA_ERROR and ERR_CHUNK: no RPC Reply is possible for the Call with
	// the chunks that it offered. RFC 8166 Section 4.5. The Call's Fate is
	// Answered.
	errChunk = errors.New("rdmaside: peer answered ERR_CHUNK")
	// errVersion is wrapped by the CallError of a Call that the peer answered with ERR_VERS. It
	// is also wrapped by the error that closes the connection when that was the peer's first
	// answer: the peer does not speak RPC-over-RDMA version 1.
	errVersion = errors.New("rdmaside: peer answered ERR_VERS")
	// ErrDeadline is wrapped by the error that closes a connection on which the
	// Responder did not answer a Call in time.
	ErrDeadline = errors.New("rdmaside: call not answered in time")
	// ErrDropped is wrapped by the error that closes a connection whose Responder
	// dropped Calls: see DropWatcher.
	ErrDropped = errors.New("rdmaside: call never answered though later ones were")
	// errInvalidReply is wrapped by the CallError of a Call that the peer answered in a way that
	// RFC 8166 does not allow. The Call's Fate is Answered. It is also wrapped by the error that
	// closes a connection whose peer invalidated a handle of another Call.
	errInvalidReply = errors.New("rdmaside: invalid reply")
	// errReplyTooLong is wrapped by the CallError of a Call whose Reply did not fit a Receive, so that the connection
	// ended. The Call's Fate is Answered: it would end the next one, too.
	errReplyTooLong = errors.New("rdmaside: reply longer than the inline threshold")
	// errOverrun is wrapped by the error that closes a connection whose Requester
	// sent more Calls than it was granted.
	errOverrun = errors.New("rdmaside: calls exceed the credits granted")
	// ErrNoReceives is wrapped by the error of Accept when there is no memory for
	// the Receives of one more connection.
	ErrNoReceives = errors.New("rdmaside: no memory for the receives of another connection")
	// errAborted is wrapped by the error that closes a connection when its
	// CallHandler aborted a Call.
	errAborted = errors.New("rdmaside: call aborted")
)
