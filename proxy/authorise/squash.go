package authorise

import (
	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rules"
)

// Squash
//
// A server that trusts the bridge's address trusts the users that the bridge's clients claim to be, root among
// them. An export that squashes root does so for all clients, or none. So a listener can do it: it
// writes other numbers over the user and the groups of an AUTH_SYS credential. The credential keeps its
// length. Of a user that is mapped to one number all groups are mapped, too, as in an export with
// all_squash.
//
// The credential is mapped before anything else looks at the Call. So the XID that the server sees, which
// depends on the credential, is that of the user that the server sees (identity.ClientKey), and Calls in flight are
// compared by that user (identity.Flights). A retransmission is mapped to the same user, on any connection and in
// the next process.
//
// RPCSEC_GSS has no numbers and signs its credentials, and AUTH_NONE has no user. Credentials that stand for
// a user in another way, such as AUTH_SHORT, are rejected: the client then sends the user itself.

// A Squash says which users of AUTH_SYS a listener maps, and to whom.
type Squash struct {
	Mode     rules.Squash
	UID, GID uint32
}

// apply maps the user of h. It returns the auth_stat to reject h with, or 0.
func (s *Squash) apply(h *oncrpc.Call, mode rules.Squash) (mapped bool, stat uint32) {
	switch h.Flavor {
	case oncrpc.FlavorNone, oncrpc.FlavorGSS:
		return false, 0
	case oncrpc.FlavorSys:
	default:
		return false, oncrpc.AuthRejectedCredential
	}
	user, ok := h.Sys()
	if !ok {
		return false, oncrpc.AuthBadCredential
	}
	all := mode == rules.SquashAll
	if (all || user.UID() == 0) && user.UID() != s.UID {
		user.SetUID(s.UID)
		mapped = true
	}
	for i := range user.Groups() {
		if g := user.Group(i); (all || g == 0) && g != s.GID {
			user.SetGroup(i, s.GID)
			mapped = true
		}
	}
	return mapped, 0
}
