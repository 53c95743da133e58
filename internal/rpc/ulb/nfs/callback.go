package nfs

import (
	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
	"github.com/rdmabridge/rdmabridge/internal/rpc/xdr"
)

// The callback program has version 1 in RFC 5662 and in all servers known. RFC 8881 Section 18.36.3
// says 4. Its procedure 1 is CB_COMPOUND:
//
//	CB_COMPOUND4args: tag<>, minorversion, callback_ident, argarray<>{argop, arguments}
//	CB_COMPOUND4res:  status, tag<>, resarray<>{resop, status, results}
//
// RFC 8881 Section 19.2.
const (
	cbVersion      = 1
	cbVersionProse = 4
	cbCompoundProc = 1
	opCBSequence   = 11

	// maxCallbackTag bounds the tag that AppendCallbackStatus returns. Servers send none.
	maxCallbackTag = 256
)

// CallbackProgram returns the number of the program for which the server sends reverse Calls in the
// session that the CREATE_SESSION in the Call m asks for: csa_cb_program. a is the Analysis of m.
// ok is false when m has no CREATE_SESSION. It borrows m and does not allocate. RFC 8881 Section
// 18.36.1.
func CallbackProgram(m []byte, a *ulb.Analysis) (program uint32, ok bool) {
	if a.BackRequest == 0 || uint64(a.BackRequest) > uint64(len(m)) {
		return 0, false
	}
	c := xdr.NewCursor(m, int(a.BackRequest))
	c.Skip(5 * 4) // maxrequestsize to maxrequests
	c.SkipArray(c.Uint32(), 4)
	program = c.Uint32()
	return program, c.OK()
}

// CallbackSession returns the session of the reverse Call c, of whatever program: the session ID in
// the CB_SEQUENCE that begins its CB_COMPOUND. ok is false when c is another Call, such as a CB_NULL
// or one of NFSv4.0, and when its arguments cannot be read. CallbackSession reads no further than
// the session ID and does not allocate. RFC 8881 Sections 19.2 and 20.9.
func CallbackSession(c *oncrpc.Call) (id SessionID, ok bool) {
	_, id, ok = callback(c)
	return id, ok
}

// callback returns what CallbackSession does, and the tag of the CB_COMPOUND.
func callback(c *oncrpc.Call) (tag []byte, id SessionID, ok bool) {
	if c.Procedure != cbCompoundProc || c.Version != cbVersion && c.Version != cbVersionProse {
		return nil, id, false
	}
	start, end, ok := c.Arguments()
	if !ok {
		return nil, id, false
	}
	x := xdr.NewCursor(c.Message[:end], start)
	pos, n := x.Opaque()
	minor := x.Uint32()
	x.Skip(4) // callback_ident
	count, number := x.Uint32(), x.Uint32()
	session := x.Pos()
	x.Skip(len(id))
	// "In each CB_COMPOUND request, CB_SEQUENCE MUST appear once and MUST be the first
	// operation." RFC 8881 Section 20.9.3.
	if !x.OK() || minor == 0 || count == 0 || number != opCBSequence {
		return nil, id, false
	}
	return c.Message[pos : pos+n], SessionID(c.Message[session:]), true
}

// AppendCallbackStatus appends the RPC Reply of a client to the reverse Call c, whose CB_SEQUENCE
// fails with the given nfsstat4, such as [StatusDelay]. The state of the session's slot does not
// change then, and the server may send the same Call again: RFC 8881 Section 20.9.3. The Reply has
// an AUTH_NONE verifier and returns the tag of the Call; a tag longer than 256 octets is left out.
//
// It appends nothing to a Call for which [CallbackSession] finds no session, to one under
// RPCSEC_GSS, whose Reply only the client can sign, and for StatusOK, which needs results. Apart
// from the growth of b it does not allocate.
func AppendCallbackStatus(b []byte, c *oncrpc.Call, status uint32) []byte {
	tag, _, ok := callback(c)
	if !ok || c.Flavor == oncrpc.FlavorGSS || status == StatusOK {
		return b
	}
	if len(tag) > maxCallbackTag {
		tag = nil
	}
	b = oncrpc.AppendAccepted(b, c.XID, oncrpc.Success)
	b = xdr.AppendUint32(b, status)
	b = xdr.AppendOpaque(b, tag)
	b = xdr.AppendUint32(b, 1)
	b = xdr.AppendUint32(b, opCBSequence)
	return xdr.AppendUint32(b, status)
}
