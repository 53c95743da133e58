package rpcrdma

import (
	"errors"
	"fmt"
)

// The reasons that a HeaderError wraps.
var (
	errShort       = errors.New("message ends inside the header")
	errVersion     = errors.New("version not supported")
	errProcedure   = errors.New("unknown procedure")
	errBoolean     = errors.New("list discriminator is neither 0 nor 1")
	errPosition    = errors.New("position is not a multiple of four")
	errTooMany     = errors.New("more list entries than allowed")
	errNoChunks    = errors.New("RDMA_NOMSG without any chunk")
	errUnknownCode = errors.New("unknown error code")
)

// An Answer is how a Responder must answer a header that it cannot decode. A
// Requester never answers: "If errors are detected in the RPC-over-RDMA header of
// an RPC Reply message, a Requester MUST silently discard the message." RFC 8166
// Section 4.5.
type Answer uint8

// The answers.
const (
	Silence        Answer = iota // discard the message
	AnswerErrVers                // RDMA_ERROR, ERR_VERS
	AnswerErrChunk               // RDMA_ERROR, ERR_CHUNK
)

// String returns the answer as it appears in logs.
func (a Answer) String() string {
	switch a {
	case Silence:
		return "silence"
	case AnswerErrVers:
		return "ERR_VERS"
	case AnswerErrChunk:
		return "ERR_CHUNK"
	}
	return "unknown answer"
}

// A HeaderError reports a Transport header that could not be decoded.
type HeaderError struct {
	XID     uint32 // 0 when the message is too short to trust it
	Version uint32 // as received
	Field   string // the field that is wrong, such as "rdma_reads"
	Answer  Answer
	Err     error // one of the reasons above
}

// Error returns the XID, the field and the reason.
func (e *HeaderError) Error() string {
	return fmt.Sprintf("rpcrdma: xid %#08x: %s: %v", e.XID, e.Field, e.Err)
}

// Unwrap returns the reason.
func (e *HeaderError) Unwrap() error { return e.Err }

// Reply makes h the RDMA_ERROR that answers e, with the given credits. It returns
// false when the answer is silence.
func (e *HeaderError) Reply(h *Header, credits uint32) bool {
	switch e.Answer {
	case AnswerErrVers:
		h.SetError(e.XID, e.Version, credits, ErrVers)
	case AnswerErrChunk:
		h.SetError(e.XID, e.Version, credits, ErrChunk)
	default:
		return false
	}
	return true
}
