package rdmaside

import (
	"errors"

	"github.com/rdmabridge/rdmabridge/metrics"
)

// A refusalReason is why a message of the peer was refused. It is a metric label.
type refusalReason uint8

const (
	reasonChunks    refusalReason = iota // its chunks do not match those offered
	reasonPayload                        // the RPC message, or data that came apart from it, is wrong
	reasonHandle                         // it invalidated a handle that is not the Call's
	reasonCredits                        // it exceeds the grant
	reasonUnwritten                      // it claims octets in a chunk that were never written there
	reasonTooLong                        // it is longer than a Receive
	reasonAccess                         // memory of the Call was accessed in a way that its handle does not allow
	refusalReasons
	requesterReasons = reasonTooLong // from here on only a Requester has them
)

var refusalNames = [refusalReasons]string{"chunks", "payload", "handle", "credits", "unwritten", "too_long", "access"}

// A reverseRefusal is why the Requester answered a reverse Call itself. It is a
// metric label.
type reverseRefusal uint8

const (
	reverseProgram   reverseRefusal = iota // the connection has no ReverseHandler
	reverseChunk                           // the Call came with chunks, or in one
	reverseMemory                          // there is no memory for a copy of the Call
	reverseClient                          // the ReverseHandler did not accept the Call
	reverseLong                            // the answer does not fit inline
	reverseMalformed                       // the answer is no RPC Reply
	reverseRefusals
)

var reverseRefusalNames = [reverseRefusals]string{"program", "chunks", "memory", "client", "too_long", "malformed"}

// A callbackRefusal is why a reverse Call got no answer. It is a metric label.
type callbackRefusal uint8

const (
	callbackLong      callbackRefusal = iota // the Call does not fit inline
	callbackBusy                             // too many Calls are waiting
	callbackXID                              // another Call has its XID
	callbackMemory                           // there is no memory for the Call or its answer
	callbackMalformed                        // the answer is no RPC Reply
	callbackError                            // the answer is RDMA_ERROR
	callbackRefusals
)

var callbackRefusalNames = [callbackRefusals]string{"too_long", "busy", "xid", "memory", "malformed", "rdma_error"}

// A refusal is an error with the reason that labels it in metrics.
type refusal struct {
	reason refusalReason
	err    error
}

func (e refusal) Error() string { return refusalNames[e.reason] + ": " + e.err.Error() }

func (e refusal) Unwrap() error { return e.err }

func countRefusal(counters *[refusalReasons]*metrics.Counter, err error) {
	var r refusal
	if errors.As(err, &r) {
		counters[r.reason].Inc()
	}
}
