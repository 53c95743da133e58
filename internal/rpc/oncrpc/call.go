// Package oncrpc reads the headers of ONC RPC version 2 messages, RFC 5531. It tells
// which procedure a Call is for, whether its arguments can be read, and where arguments
// and results begin. It also writes the few Replies that a proxy sends on its own.
//
// Messages are whole: no record mark, no RPC-over-RDMA Transport header. All
// positions count from the first octet of the message, its XID.
package oncrpc

import (
	"encoding/binary"

	"github.com/rdmabridge/rdmabridge/internal/rpc/xdr"
)

// The message types. The message type follows the XID.
const (
	TypeCall  = 0
	TypeReply = 1
)

// RPCVersion is the only version of the RPC protocol in use.
const RPCVersion = 2

// MaxAuth is the greatest length of the body of a credential or verifier, in octets: RFC
// 5531 Section 8.2, "opaque body<400>".
const MaxAuth = 400

// CallHeaderMin is the length of a Call header without credential and verifier
// bodies.
const CallHeaderMin = 40

// MessageType returns the XID and the message type at the start of the message m. ok is
// false when m is shorter than that. RFC 5531 Section 9.
func MessageType(m []byte) (xid, mtype uint32, ok bool) {
	if len(m) < 8 {
		return 0, 0, false
	}
	return binary.BigEndian.Uint32(m), binary.BigEndian.Uint32(m[4:]), true
}

// A Protection is the way in which a security flavor wraps arguments and results.
type Protection uint8

// The protections.
const (
	// ProtectNone: arguments and results are plain XDR and may be reduced.
	ProtectNone Protection = iota
	// ProtectIntegrity: plain XDR inside rpc_gss_integ_data. A proxy may read it to
	// learn sizes but must not reduce it: the checksum covers the roundup octets too.
	// RFC 2203 Section 5.3.2.2, RFC 8166 Section 8.2.2.3.
	ProtectIntegrity
	// ProtectPrivacy: encrypted. RFC 2203 Section 5.3.2.3.
	ProtectPrivacy
	// ProtectControl: a GSS control procedure. The arguments are not those of
	// the procedure in the header, which is NULL. RFC 2203 Section 5.2.
	ProtectControl
	// ProtectUnknown: a flavor, version or service that this package does not know,
	// or a credential that it cannot walk. Nothing is known about the arguments.
	ProtectUnknown
)

func (p Protection) String() string {
	switch p {
	case ProtectNone:
		return "none"
	case ProtectIntegrity:
		return "integrity"
	case ProtectPrivacy:
		return "privacy"
	case ProtectControl:
		return "control"
	}
	return "unknown"
}

// A Call is the header of an RPC Call, filled in place and reused. RFC 5531
// Section 9:
//
//	xid, CALL(0), rpcvers(2), prog, vers, proc, cred{flavor, body<400>},
//	verf{flavor, body<400>}, arguments
type Call struct {
	XID, Program, Version, Procedure uint32

	Flavor     uint32     // of the credential
	Protection Protection // of the arguments, from Flavor and GSS
	Args       int        // position of the procedure's arguments, wrapped or not

	Message []byte // the whole message, borrowed from the caller of ParseCall
	GSS     GSS    // valid when Flavor is FlavorGSS and the credential could be walked

	VerifierFlavor uint32

	// The bodies of credential and verifier are Message[pos : pos+len], pos being CredentialPos and VerifierPos().
	CredentialLen, VerifierLen int
}

// CredentialPos is the position of a credential's body in a Call.
const CredentialPos = 32

// VerifierPos is the position of the verifier's body.
func (c *Call) VerifierPos() int { return CredentialPos + xdr.Roundup(c.CredentialLen) + 8 }

// ParseCall fills c from the Call m, which c then borrows. It does not
// allocate unless it fails. The error is an [*Error]; the XID and the fields before
// the failing one are set then. A credential of a correct length with an unknown body is
// no error: Protection is ProtectUnknown then, and the server may deny the Call.
func ParseCall(m []byte, c *Call) error {
	*c = Call{Message: m}
	if len(m) < CallHeaderMin {
		return c.short(m)
	}
	c.XID = binary.BigEndian.Uint32(m)
	if binary.BigEndian.Uint32(m[4:]) != TypeCall {
		return &Error{XID: c.XID, Field: "mtype", Position: 4, Err: ErrValue}
	}
	if binary.BigEndian.Uint32(m[8:]) != RPCVersion {
		return &Error{XID: c.XID, Field: "rpcvers", Position: 8, Err: ErrVersion}
	}
	c.Program = binary.BigEndian.Uint32(m[12:])
	c.Version = binary.BigEndian.Uint32(m[16:])
	c.Procedure = binary.BigEndian.Uint32(m[20:])
	c.Flavor = binary.BigEndian.Uint32(m[24:])

	n := binary.BigEndian.Uint32(m[28:])
	if n > MaxAuth {
		return &Error{XID: c.XID, Field: "cred", Position: 28, Err: ErrBound}
	}
	c.CredentialLen = int(n)
	o := CredentialPos + xdr.Roundup(int(n))
	if o+8 > len(m) {
		return &Error{XID: c.XID, Field: "cred", Position: 28, Err: ErrShort}
	}
	c.VerifierFlavor = binary.BigEndian.Uint32(m[o:])
	n = binary.BigEndian.Uint32(m[o+4:])
	if n > MaxAuth {
		return &Error{XID: c.XID, Field: "verf", Position: o + 4, Err: ErrBound}
	}
	c.VerifierLen = int(n)
	args := o + 8 + xdr.Roundup(int(n))
	if args > len(m) {
		return &Error{XID: c.XID, Field: "verf", Position: o + 4, Err: ErrShort}
	}
	c.Args = args

	switch c.Flavor {
	case FlavorNone, FlavorSys, FlavorShort:
	case FlavorGSS:
		c.Protection = c.GSS.parse(m[CredentialPos:][:c.CredentialLen])
	default:
		c.Protection = ProtectUnknown
	}
	return nil
}

// short returns the error of a message shorter than a Call header. A Call of another version
// of RPC may be so short: RFC 5531 says nothing of what follows its version.
func (c *Call) short(m []byte) error {
	if len(m) >= 4 {
		c.XID = binary.BigEndian.Uint32(m)
	}
	if len(m) >= 8 && binary.BigEndian.Uint32(m[4:]) != TypeCall {
		return &Error{XID: c.XID, Field: "mtype", Position: 4, Err: ErrValue}
	}
	if len(m) >= 12 && binary.BigEndian.Uint32(m[8:]) != RPCVersion {
		return &Error{XID: c.XID, Field: "rpcvers", Position: 8, Err: ErrVersion}
	}
	return &Error{XID: c.XID, Field: "call", Position: len(m), Err: ErrShort}
}

// Reducible reports whether the arguments and results may be reduced at all, because
// they are plain XDR without a checksum. It looks at the credential and not at the
// procedure, since the Calls that create a GSS context name procedure NULL. RFC 8166
// Section 8.2.2.
func (c *Call) Reducible() bool { return c.Protection == ProtectNone }

// Arguments returns the position of the plain XDR arguments, Message[start:end]. ok is false
// when they cannot be read: under privacy, in a control procedure, or with an unknown flavor.
// Under integrity they are inside the databody, after its sequence number, which must equal the
// credential's: RFC 2203 Section 5.3.2.2.
func (c *Call) Arguments() (start, end int, ok bool) {
	switch c.Protection {
	case ProtectNone:
		return c.Args, len(c.Message), true
	case ProtectIntegrity:
		m := c.Message[c.Args:]
		if len(m) < 8 {
			return 0, 0, false
		}
		n := binary.BigEndian.Uint32(m)
		if n < 4 || uint64(n) > uint64(len(m)-4) || binary.BigEndian.Uint32(m[4:]) != c.GSS.Sequence {
			return 0, 0, false
		}
		return c.Args + 8, c.Args + 4 + int(n), true
	}
	return 0, 0, false
}
