package iwarp

import (
	"errors"
	"fmt"

	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
	"github.com/rdmabridge/rdmabridge/rdmaside/iwarp/wire"
)

var (
	// errStalled ends a connection whose peer, for Options.ProgressTimeout, sent nothing
	// more of an FPDU that it had begun, or accepted none of the octets to be written.
	errStalled = errors.New("iwarp: peer makes no progress")
	// errSilent ends a connection whose peer's host acknowledged nothing for about
	// Options.SilentTimeout.
	errSilent = fmt.Errorf("iwarp: %w", fabric.ErrSilent)
	// errCloseTimeout ends an orderly close that took longer than
	// Options.CloseTimeout.
	errCloseTimeout = errors.New("iwarp: orderly close timed out")
	// errNoReads is returned by PostRead when no outbound Reads were negotiated.
	errNoReads = errors.New("iwarp: no outbound Reads: ORD is 0")
)

// A terminateError ends a connection on which one side sent an RDMAP Terminate.
type terminateError struct {
	Code     wire.Code
	Received bool   // the peer sent it; if false, this side sent it for an error of the peer
	Raw      []byte // the Terminate's payload as on the wire, at most 52 octets
}

func (e *terminateError) Error() string {
	if e.Received {
		return fmt.Sprintf("iwarp: terminated by peer: %v [% x]", e.Code, e.Raw)
	}
	return fmt.Sprintf("iwarp: terminated peer: %v", e.Code)
}

// A rejectError is Dial's error when the peer's Reply rejects the connection. It wraps
// fabric.ErrRejected.
type rejectError struct {
	Private []byte // the peer's private data, which may say why
}

func (e *rejectError) Error() string {
	return fmt.Sprintf("iwarp: connection rejected [% x]", e.Private[:min(len(e.Private), 32)])
}

func (e *rejectError) Unwrap() error { return fabric.ErrRejected }
