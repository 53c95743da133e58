package oncrpc

import (
	"bytes"

	"github.com/rdmabridge/rdmabridge/internal/rpc/xdr"
)

// startTLS is the body of the verifier with which a server says that it has TLS. RFC 9289 Section 4.1.
const startTLS = "STARTTLS"

// TLSProbe reports whether the Call has the flavor that asks if the peer speaks RPC-with-TLS.
// The question is about its own connection, so a proxy answers it and does not pass it on. A
// Call of another procedure than NULL is denied. RFC 9289 Section 4.1.
func (c *Call) TLSProbe() bool { return c.Flavor == FlavorTLS }

// EmptyAuth reports whether the credential is empty and the verifier an empty AUTH_NONE, as those of a
// probe must be.
func (c *Call) EmptyAuth() bool {
	return c.CredentialLen == 0 && c.VerifierFlavor == FlavorNone && c.VerifierLen == 0
}

// AppendTLSProbe appends the Call that asks a server for TLS: 40 octets.
func AppendTLSProbe(b []byte, xid, program, version uint32) []byte {
	for _, w := range [10]uint32{xid, TypeCall, RPCVersion, program, version, 0, FlavorTLS, 0, FlavorNone, 0} {
		b = xdr.AppendUint32(b, w)
	}
	return b
}

// AppendStartTLS appends the Reply to a probe that says that this side has TLS: 32 octets.
func AppendStartTLS(b []byte, xid uint32) []byte {
	b = xdr.AppendUint32(b, xid)
	b = xdr.AppendUint32(b, TypeReply)
	b = xdr.AppendUint32(b, 0) // MSG_ACCEPTED
	b = xdr.AppendUint32(b, FlavorNone)
	b = xdr.AppendUint32(b, uint32(len(startTLS)))
	b = append(b, startTLS...)
	return xdr.AppendUint32(b, Success)
}

// StartsTLS reports whether the Reply to a probe says that the server has TLS. Its accept_stat says
// nothing about that.
func (r *Reply) StartsTLS() bool {
	return !r.Denied && r.VerifierFlavor == FlavorNone && r.VerifierLen == len(startTLS) &&
		bytes.Equal(r.Message[r.VerifierPos:r.VerifierPos+r.VerifierLen], []byte(startTLS))
}
