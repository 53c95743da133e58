package explain

import (
	"fmt"
	"strings"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/xdr"
)

// A credential describes the credential of a Call.
type credential struct {
	Flavor  uint32   `json:"flavor"`
	Name    string   `json:"name"`
	Length  int      `json:"length"`
	Machine string   `json:"machine,omitempty"` // of AUTH_SYS, as are the next three
	UID     *uint32  `json:"uid,omitempty"`
	GID     *uint32  `json:"gid,omitempty"`
	GIDs    []uint32 `json:"gids,omitempty"`
	GSS     *gss     `json:"gss,omitempty"`
	Means   string   `json:"means"` // says whether the credential allows direct placement
}

// A gss describes a credential of RPCSEC_GSS.
type gss struct {
	Version   uint32 `json:"version"`
	Procedure string `json:"procedure"`
	Service   string `json:"service,omitempty"` // only of procedure DATA
	Sequence  uint32 `json:"sequence"`
	Context   int    `json:"context"` // octets of the context handle
}

// A verifier describes the verifier of a Call or Reply.
type verifier struct {
	Flavor uint32 `json:"flavor"`
	Name   string `json:"name"`
	Length int    `json:"length"`
}

func newCredential(h *oncrpc.Call) credential {
	d := credential{Flavor: h.Flavor, Name: flavorName(h.Flavor), Length: h.CredentialLen}
	body := h.Message[oncrpc.CredentialPos : oncrpc.CredentialPos+h.CredentialLen]
	switch h.Flavor {
	case oncrpc.FlavorSys:
		// stamp, machinename<255>, uid, gid, gids<16>: RFC 5531 Appendix A.
		x := xdr.NewCursor(body, 4)
		pos, n := x.Opaque()
		uid, gid, count := x.Uint32(), x.Uint32(), x.Uint32()
		at := x.Pos()
		if x.SkipArray(count, 4); x.OK() {
			d.Machine, d.UID, d.GID = printable(body[pos:pos+n]), &uid, &gid
			for x = xdr.NewCursor(body, at); count > 0; count-- {
				d.GIDs = append(d.GIDs, x.Uint32())
			}
		}
	case oncrpc.FlavorGSS:
		g := &h.GSS
		if h.Protection == oncrpc.ProtectUnknown && len(body) < 20 {
			break
		}
		d.GSS = &gss{Version: g.Version, Procedure: gssProcedure(g.Procedure), Sequence: g.Sequence, Context: int(g.HandleLen)}
		if g.Procedure == oncrpc.GSSData {
			d.GSS.Service = gssService(g.Service)
		}
	}
	d.Means = means(h)
	return d
}

// means says what the credential allows, and why.
func means(h *oncrpc.Call) string {
	switch h.Protection {
	case oncrpc.ProtectIntegrity:
		return "no data are placed directly: the checksum covers every octet, roundup included (RFC 8166 Section 8.2.2.3); the arguments are readable, so the Reply has a bound"
	case oncrpc.ProtectPrivacy:
		return "no data are placed directly: arguments and results are encrypted, and only chunks.reply bounds the Reply (RFC 8166 Section 8.2.2.3)"
	case oncrpc.ProtectControl:
		return "no data are placed directly: the arguments belong to the GSS protocol (RFC 2203 Section 5.2, RFC 8166 Section 8.2.2)"
	case oncrpc.ProtectUnknown:
		if h.TLSProbe() {
			return "not a credential: the client asks whether the server supports TLS"
		}
		return "no data are placed directly: the bridge does not know whether this flavor protects the arguments"
	}
	if h.Flavor == oncrpc.FlavorGSS {
		return "plain: data may be placed directly; the XID is signed, so the bridge keeps it and never sends the Call twice"
	}
	return "plain: data may be placed directly"
}

func (c *credential) String() string {
	s := c.Name
	switch {
	case c.UID != nil:
		s += fmt.Sprintf(" uid %d gid %d", *c.UID, *c.GID)
		if len(c.GIDs) > 0 {
			s += " groups " + strings.Trim(fmt.Sprint(c.GIDs), "[]")
		}
		if c.Machine != "" {
			s += " at " + c.Machine
		}
	case c.GSS != nil:
		s += fmt.Sprintf(" version %d %s", c.GSS.Version, c.GSS.Procedure)
		if c.GSS.Service != "" {
			s += ", service " + c.GSS.Service
		}
		s += fmt.Sprintf(", sequence %d, context of %d octets", c.GSS.Sequence, c.GSS.Context)
	}
	if c.Length > 0 {
		s += fmt.Sprintf(", %d octets", c.Length)
	}
	return s
}
