package oncrpc

import (
	"errors"
	"fmt"

	"github.com/rdmabridge/rdmabridge/internal/rpc/xdr"
)

var (
	// ErrShort is wrapped when a message ends inside its header.
	ErrShort = xdr.ErrShort
	// ErrBound is wrapped when a length is greater than RFC 5531 allows.
	ErrBound = errors.New("length out of bounds")
	// ErrValue is wrapped when a field has a value that its type does not have.
	ErrValue = errors.New("value out of range")
	// ErrVersion is wrapped when a Call is of another version of RPC. It has an answer:
	// [AppendRPCMismatch].
	ErrVersion = errors.New("not RPC version 2")
)

// An Error reports a header that cannot be walked.
type Error struct {
	XID      uint32 // 0 when the message is too short to hold one
	Field    string // the RFC's name of the field: "cred", "rpcvers"
	Position int    // octets from the XID to the field
	Err      error  // ErrShort, ErrBound, ErrValue or ErrVersion
}

func (e *Error) Error() string {
	return fmt.Sprintf("oncrpc: %s at octet %d: %v", e.Field, e.Position, e.Err)
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }
