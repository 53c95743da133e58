package oncrpc

import (
	"encoding/binary"
	"fmt"

	"github.com/rdmabridge/rdmabridge/internal/rpc/xdr"
)

// Values of accept_stat. RFC 5531 Section 9.
const (
	Success              = 0
	ProgramUnavailable   = 1
	ProgramMismatch      = 2
	ProcedureUnavailable = 3
	GarbageArguments     = 4
	SystemError          = 5
)

// Values of reject_stat.
const (
	RPCMismatch = 0
	AuthError   = 1
)

// Values of auth_stat that a proxy may send. RFC 5531 Section 9.
const (
	AuthBadCredential      = 1
	AuthRejectedCredential = 2 // "client must begin new session"
	AuthBadVerifier        = 3
	AuthTooWeak            = 5
)

// authStats are the names of auth_stat, RFC 5531 Section 9.
var authStats = [...]string{
	"AUTH_OK", "AUTH_BADCRED", "AUTH_REJECTEDCRED", "AUTH_BADVERF", "AUTH_REJECTEDVERF", "AUTH_TOOWEAK", "AUTH_INVALIDRESP",
	"AUTH_FAILED", "AUTH_KERB_GENERIC", "AUTH_TIMEEXPIRE", "AUTH_TKT_FILE", "AUTH_DECODE", "AUTH_NET_ADDR",
	"RPCSEC_GSS_CREDPROBLEM", "RPCSEC_GSS_CTXPROBLEM",
}

// AuthStatName returns the RFC's name of an auth_stat, or its number.
func AuthStatName(stat uint32) string {
	if uint64(stat) < uint64(len(authStats)) {
		return authStats[stat]
	}
	return fmt.Sprintf("auth_stat %d", stat)
}

// ReplyHeader is the length in octets of an accepted Reply's header whose verifier has
// no body, and so of a whole Reply without results. No denied Reply is longer.
const ReplyHeader = 24

// A Reply is the header of an RPC Reply, filled in place and reused. RFC 5531
// Section 9:
//
//	xid, REPLY(1), MSG_ACCEPTED(0), verf{flavor, body<400>}, accept_stat, results
//	xid, REPLY(1), MSG_DENIED(1), RPC_MISMATCH(0), low, high
//	xid, REPLY(1), MSG_DENIED(1), AUTH_ERROR(1), auth_stat
type Reply struct {
	Message []byte // the whole message, borrowed from the caller of ParseReply
	XID     uint32

	Denied     bool
	RejectStat uint32 // valid when Denied
	AuthStat   uint32 // valid when Denied with AuthError

	AcceptStat               uint32 // valid unless Denied
	VerifierFlavor           uint32
	VerifierPos, VerifierLen int

	Low, High uint32 // versions, when ProgramMismatch or RPCMismatch
	Results   int    // position of the results; valid when Succeeded
}

// Succeeded reports whether the Reply carries the results of the procedure. No other
// Reply can hold a DDP-eligible item.
func (r *Reply) Succeeded() bool { return !r.Denied && r.AcceptStat == Success }

// RefusedWith reports whether r refuses the Call with this auth_stat.
func (r *Reply) RefusedWith(stat uint32) bool {
	return r.Denied && r.RejectStat == AuthError && r.AuthStat == stat
}

// ParseReply fills r from the Reply m, which r then borrows. m may be reduced:
// no header field is eligible. It does not allocate unless it fails. The error
// is an [*Error]. An unknown accept_stat or auth_stat is no error: the client judges it.
func ParseReply(m []byte, r *Reply) error {
	*r = Reply{Message: m}
	if len(m) < 12 {
		if len(m) >= 4 {
			r.XID = binary.BigEndian.Uint32(m)
		}
		return &Error{XID: r.XID, Field: "reply", Position: len(m), Err: ErrShort}
	}
	r.XID = binary.BigEndian.Uint32(m)
	if binary.BigEndian.Uint32(m[4:]) != TypeReply {
		return &Error{XID: r.XID, Field: "mtype", Position: 4, Err: ErrValue}
	}
	switch binary.BigEndian.Uint32(m[8:]) {
	case 0:
		return r.parseAccepted(m)
	case 1:
		return r.parseDenied(m)
	}
	return &Error{XID: r.XID, Field: "reply_stat", Position: 8, Err: ErrValue}
}

func (r *Reply) parseAccepted(m []byte) error {
	if len(m) < ReplyHeader {
		return &Error{XID: r.XID, Field: "verf", Position: 12, Err: ErrShort}
	}
	r.VerifierFlavor = binary.BigEndian.Uint32(m[12:])
	n := binary.BigEndian.Uint32(m[16:])
	if n > MaxAuth {
		return &Error{XID: r.XID, Field: "verf", Position: 16, Err: ErrBound}
	}
	r.VerifierPos, r.VerifierLen = 20, int(n)
	o := 20 + xdr.Roundup(int(n))
	if o > len(m) {
		return &Error{XID: r.XID, Field: "verf", Position: 16, Err: ErrShort}
	}
	if o+4 > len(m) {
		return &Error{XID: r.XID, Field: "accept_stat", Position: o, Err: ErrShort}
	}
	r.AcceptStat = binary.BigEndian.Uint32(m[o:])
	r.Results = o + 4
	if r.AcceptStat == ProgramMismatch {
		if o+12 > len(m) {
			return &Error{XID: r.XID, Field: "mismatch_info", Position: o + 4, Err: ErrShort}
		}
		r.Low = binary.BigEndian.Uint32(m[o+4:])
		r.High = binary.BigEndian.Uint32(m[o+8:])
	}
	return nil
}

func (r *Reply) parseDenied(m []byte) error {
	r.Denied = true
	c := xdr.NewCursor(m, 12)
	r.RejectStat = c.Uint32()
	if c.OK() {
		switch r.RejectStat {
		case RPCMismatch:
			r.Low = c.Uint32()
			r.High = c.Uint32()
		case AuthError:
			r.AuthStat = c.Uint32()
		default:
			return &Error{XID: r.XID, Field: "reject_stat", Position: 12, Err: ErrValue}
		}
	}
	if !c.OK() {
		return &Error{XID: r.XID, Field: "rejected_reply", Position: c.Pos(), Err: ErrShort}
	}
	return nil
}

// AppendAccepted appends an accepted Reply without results and with an
// AUTH_NONE verifier: 24 octets. acceptStat must not be ProgramMismatch: use
// [AppendProgramMismatch] for that. A client that uses RPCSEC_GSS does not accept this
// Reply, because it has no verifier over the sequence number.
func AppendAccepted(b []byte, xid, acceptStat uint32) []byte {
	b = xdr.AppendUint32(b, xid)
	b = xdr.AppendUint32(b, TypeReply)
	b = xdr.AppendUint32(b, 0) // MSG_ACCEPTED
	b = xdr.AppendUint32(b, FlavorNone)
	b = xdr.AppendUint32(b, 0)
	return xdr.AppendUint32(b, acceptStat)
}

// AppendProgramMismatch appends an accepted Reply that names the lowest and the highest
// version of the program: 32 octets.
func AppendProgramMismatch(b []byte, xid, low, high uint32) []byte {
	b = AppendAccepted(b, xid, ProgramMismatch)
	b = xdr.AppendUint32(b, low)
	return xdr.AppendUint32(b, high)
}

// AppendRPCMismatch appends a denied Reply that says this side speaks RPC
// version 2: 24 octets.
func AppendRPCMismatch(b []byte, xid uint32) []byte {
	b = appendDenied(b, xid, RPCMismatch)
	b = xdr.AppendUint32(b, RPCVersion)
	return xdr.AppendUint32(b, RPCVersion)
}

// AppendAuthError appends a denied Reply with an auth_stat: 20 octets. Denied
// Replies have no verifier, so this is the only Reply of a proxy's own that a client
// accepts when it uses RPCSEC_GSS.
func AppendAuthError(b []byte, xid, authStat uint32) []byte {
	return xdr.AppendUint32(appendDenied(b, xid, AuthError), authStat)
}

func appendDenied(b []byte, xid, rejectStat uint32) []byte {
	b = xdr.AppendUint32(b, xid)
	b = xdr.AppendUint32(b, TypeReply)
	b = xdr.AppendUint32(b, 1) // MSG_DENIED
	return xdr.AppendUint32(b, rejectStat)
}

// CheckReply returns why the header of the Reply m cannot be read, or nil. It does not allocate unless it fails.
func CheckReply(m []byte) error {
	if len(m) >= ReplyHeader && binary.BigEndian.Uint64(m[4:]) == TypeReply<<32 && binary.BigEndian.Uint64(m[16:]) == Success {
		return nil // accepted and executed, with a verifier that has no body: nearly every Reply
	}
	var r Reply
	return ParseReply(m, &r)
}

// MinReply is the shortest RPC Reply in octets: MSG_DENIED, AUTH_ERROR.
const MinReply = 20

// IsReply reports whether the whole message m can be the Reply to the Call with this
// XID, by the first words of its header and by its length. RFC 5531 Section 9.
func IsReply(m []byte, xid uint32) bool {
	x, mtype, _ := MessageType(m)
	return len(m) >= MinReply && len(m)%4 == 0 && x == xid && mtype == TypeReply
}
