package session

import (
	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb/nfs"
)

// A Record is what the package keeps of a client at one upstream, whether it has a lane or not. Its zero value is ready
// for use. It belongs to the client's loop.
type Record struct {
	session *session // of the last Call that named one, so that few Calls search the table; nil if it is not known there
	minor0  bool     // the client has spoken NFSv4.0
}

// MayNeedLane reports whether NeedsLane may ever be true of a Call like h, which is for NFSv4.
func MayNeedLane(h *oncrpc.Call) bool { return h.Program == oncrpc.ProgramNFS && h.Version == 4 }

// NeedsLane reports whether the Calls of the client have to stay on one connection: h is a COMPOUND of
// NFSv4.1 or later. A COMPOUND that cannot be read, as under RPCSEC_GSS privacy, may be one, unless the
// client has spoken NFSv4.0.
func (r *Record) NeedsLane(h *oncrpc.Call) bool {
	if !MayNeedLane(h) || h.Procedure == 0 || h.Protection == oncrpc.ProtectControl {
		return false
	}
	minor, ok := nfs.MinorVersion(h)
	if ok && minor == 0 {
		r.minor0 = true
	}
	return ok && minor > 0 || !ok && !r.minor0
}
