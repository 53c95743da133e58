package nfs

import (
	"encoding/binary"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
	"github.com/rdmabridge/rdmabridge/internal/rpc/xdr"
)

// The values of channel_dir_from_client4 that the proxy knows. RFC 8881 Section 18.34.1.
const (
	dirFore       = 1 // CDFC4_FORE, and CDFS4_FORE of the Reply
	dirForeOrBoth = 3 // CDFC4_FORE_OR_BOTH
)

// BindForeOrBoth changes a BIND_CONN_TO_SESSION in the Call c that asks for the fore channel alone, so
// that it asks for the back channel, too, if bound reports true for its session. It reports whether it
// has changed the Call, which it never does under RPCSEC_GSS integrity or privacy. The caller calls
// [ForeAlone] for the Reply.
//
// A client with several connections binds one of them for both channels and the others for the fore
// channel. The proxy may carry all of them on one connection of the server, and the server refuses
// (NFS4ERR_INVAL) to bind that one for the fore channel alone. RFC 8881 Section 18.34.3.
func BindForeOrBoth(c *oncrpc.Call, a *ulb.Analysis, bound func(SessionID) bool) bool {
	if a.SessionOps&ulb.BindConnToSession == 0 || !a.Reduce {
		return false
	}
	start, end, ok := c.Arguments()
	if !ok {
		return false
	}
	m := c.Message[:end]
	w := xdr.NewCursor(m, start)
	w.Opaque()
	w.Skip(4)
	count, number, at := w.Uint32(), w.Uint32(), w.Pos()
	w.Skip(16)
	dir := w.Uint32()
	// "If it appears in a COMPOUND, it MUST be the only operation": RFC 8881 Section 18.34.3.
	if !w.OK() || count != 1 || number != opBindConnToSession || dir != dirFore || !bound(SessionID(m[at:])) {
		return false
	}
	binary.BigEndian.PutUint32(m[at+16:], dirForeOrBoth)
	return true
}

// ForeAlone changes the whole plain RPC Reply to a Call that [BindForeOrBoth] has changed: it says that
// the server uses the connection for the fore channel alone, which is what the client asked for.
func ForeAlone(reply []byte, a *ulb.Analysis) {
	if _, at, ok := walkReply4(reply, a, opBindConnToSession); ok && at != 0 && be(reply, at+16) == dirBoth {
		binary.BigEndian.PutUint32(reply[at+16:], dirFore)
	}
}
