package iwarp

import (
	"errors"
	"fmt"

	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
	"github.com/rdmabridge/rdmabridge/rdmaside/iwarp/wire"
)

var (
	// ErrStalled ends a connection whose peer, for Options.ProgressTimeout, sent nothing
	// more of an FPDU that it had begun, or accepted none of the octets to be written.
	ErrStalled = errors.New("iwarp: peer makes no progress")
	// errSilent ends a connection whose peer's host acknowledged nothing for about
	// Options.SilentTimeout.
	errSilent = fmt.Errorf("iwarp: %w", fabric.ErrSilent)
	// ErrCloseTimeout ends an orderly close that took longer than
	// Options.CloseTimeout.
	ErrCloseTimeout = errors.New("iwarp: orderly close timed out")
	// ErrNoReads is returned by PostRead when no outbound Reads were negotiated.
	ErrNoReads = errors.New("iwarp: no outbound Reads: ORD is 0")
)

// A TerminateError ends a connection on which one side sent an RDMAP Terminate.
type TerminateError struct {
	Code     wire.Code
	Received bool   // the peer sent it; if false, this side sent it for an error of the peer
	Raw      []byte // the Terminate's payload as on the wire, at most 52 octets
}

func (e *TerminateError) Error() string {
	if e.Received {
		return fmt.Sprintf("iwarp: terminated by peer: %v [% x]", e.Code, e.Raw)
	}
	return fmt.Sprintf("iwarp: terminated peer: %v", e.Code)
}

// A RejectError is Dial's error when the peer's Reply rejects the connection. It wraps
// fabric.ErrRejected.
type RejectError struct {
	Private []byte // the peer's private data, which may say why
}

func (e *RejectError) Error() string {
	return fmt.Sprintf("iwarp: connection rejected [% x]", e.Private[:min(len(e.Private), 32)])
}

func (e *RejectError) Unwrap() error { return fabric.ErrRejected }
