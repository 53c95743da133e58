package oncrpc

import (
	"encoding/binary"

	"github.com/rdmabridge/rdmabridge/internal/rpc/xdr"
)

// Authentication flavors. RFC 5531 Section 8.2 and the IANA registry.
const (
	FlavorNone  = 0
	FlavorSys   = 1
	FlavorShort = 2
	FlavorDH    = 3
	FlavorGSS   = 6 // RFC 2203, 5403, 7861
	FlavorTLS   = 7 // RFC 9289: a probe, not a credential
)

// GSS procedures, gss_proc of the credential. RFC 2203 Section 5, RFC 5403
// Section 3, RFC 7861 Section 2.4.
const (
	GSSData         = 0
	GSSInit         = 1
	GSSContinueInit = 2
	GSSDestroy      = 3
	GSSBindChannel  = 4 // version 2
	GSSCreate       = 5 // version 3
	GSSList         = 6 // version 3
)

// GSS services.
const (
	GSSServiceNone      = 1
	GSSServiceIntegrity = 2
	GSSServicePrivacy   = 3
	GSSServiceChannel   = 4 // channel protection, versions 2 and 3
)

// A GSS is an RPCSEC_GSS credential, which looks the same in versions 1, 2 and
// 3: vers, gss_proc, seq_num, service, handle<>. RFC 2203 Section 5.
type GSS struct {
	Version, Procedure, Sequence, Service uint32

	HandleLen uint32 // octets of the context handle
}

// parse fills g from a credential body and returns the protection that the credential
// gives to the arguments.
func (g *GSS) parse(body []byte) Protection {
	if len(body) < 20 {
		return ProtectUnknown
	}
	g.Version = binary.BigEndian.Uint32(body)
	g.Procedure = binary.BigEndian.Uint32(body[4:])
	g.Sequence = binary.BigEndian.Uint32(body[8:])
	g.Service = binary.BigEndian.Uint32(body[12:])
	c := xdr.NewCursor(body, 16)
	_, n := c.Opaque()
	g.HandleLen = uint32(n)
	if !c.OK() || c.Len() != 0 || g.Version < 1 || g.Version > 3 {
		return ProtectUnknown
	}
	switch g.Procedure {
	case GSSData:
	case GSSInit, GSSContinueInit, GSSDestroy:
		// With any service, these carry elements of the GSS protocol. RFC 8166
		// Section 8.2.2 forbids reducing them.
		return ProtectControl
	case GSSBindChannel:
		if g.Version < 2 {
			return ProtectUnknown
		}
		return ProtectControl
	case GSSCreate, GSSList:
		if g.Version < 3 {
			return ProtectUnknown
		}
		return ProtectControl
	default:
		return ProtectUnknown
	}
	switch g.Service {
	case GSSServiceNone:
		return ProtectNone
	case GSSServiceIntegrity:
		return ProtectIntegrity
	case GSSServicePrivacy:
		return ProtectPrivacy
	case GSSServiceChannel:
		// "the RPC requests and replies are similar to those of
		// rpc_gss_svc_none": RFC 5403 Section 3.4. Version 2 added this service.
		if g.Version >= 2 {
			return ProtectNone
		}
	}
	return ProtectUnknown
}
