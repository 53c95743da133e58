package rdmaside

// A refusalReason is why a peer's message was refused; a metric label.
type refusalReason uint8

const (
	reasonChunks  refusalReason = iota // chunks that do not fit what was offered
	reasonPayload                      // the RPC message, or what was moved apart from it
	reasonHandle                       // an invalidated handle that is not the Call's
	reasonCredits                      // more than was granted
	refusalReasons
)

var refusalNames = [refusalReasons]string{"chunks", "payload", "handle", "credits"}

// A reverseRefusal is why a Call of the reverse direction was answered here; a
// metric label.
type reverseRefusal uint8

const (
	reverseProgram   reverseRefusal = iota // nobody takes them on this connection
	reverseChunk                           // it came with chunks, or in one
	reverseMemory                          // none for a copy of it
	reverseClient                          // who it is for does not take it
	reverseLong                            // its answer does not fit inline
	reverseMalformed                       // its answer is no RPC Reply
	reverseRefusals
)

var reverseRefusalNames = [reverseRefusals]string{"program", "chunks", "memory", "client", "too_long", "malformed"}

// A refusal is an error with its label.
type refusal struct {
	reason refusalReason
	err    error
}

func (e refusal) Error() string { return refusalNames[e.reason] + ": " + e.err.Error() }

func (e refusal) Unwrap() error { return e.err }
