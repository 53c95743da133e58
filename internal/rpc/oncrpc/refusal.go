package oncrpc

import "errors"

// A Refusal is why a Call is refused whose header cannot be walked. It decides the Reply.
type Refusal uint8

const (
	RefusedNot        Refusal = iota // there is no Reply: the message is no Call, or too short to tell
	RefusedVersion                   // of RPC: RPC_MISMATCH
	RefusedCredential                // it is longer than RFC 5531 allows: AUTH_BADCRED
	RefusedVerifier                  // it is longer than RFC 5531 allows: AUTH_BADVERF
	RefusedShort                     // the message ends inside its header: GARBAGE_ARGS
	Refusals                         // how many there are
)

// RefusalNames are the reasons as metrics have them.
var RefusalNames = [Refusals]string{"none", "rpc_version", "credential", "verifier", "short"}

// AppendRefusal appends the Reply to a Call that [ParseCall] could not walk because of err: at most 24 octets. It
// appends nothing when the reason is RefusedNot.
func (c *Call) AppendRefusal(b []byte, err error) ([]byte, Refusal) {
	var e *Error
	switch {
	case !errors.As(err, &e), e.Err == ErrValue, e.Field == "call" && e.Position < 8:
		return b, RefusedNot
	case e.Err == ErrVersion:
		return AppendRPCMismatch(b, e.XID), RefusedVersion
	case e.Err == ErrBound && e.Field == "verf":
		return AppendAuthError(b, e.XID, AuthBadVerifier), RefusedVerifier
	case e.Err == ErrBound:
		return AppendAuthError(b, e.XID, AuthBadCredential), RefusedCredential
	case c.Flavor == FlavorGSS:
		// Such a client accepts no other Reply without the server's verifier.
		return AppendAuthError(b, e.XID, AuthBadCredential), RefusedShort
	}
	return AppendAccepted(b, e.XID, GarbageArguments), RefusedShort
}
