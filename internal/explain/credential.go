package explain

import (
	"fmt"
	"strings"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/xdr"
)

// A credential is that of a Call.
type credential struct {
	Flavor  uint32   `json:"flavor"`
	Name    string   `json:"name"`
	Length  int      `json:"length"`
	Machine string   `json:"machine,omitempty"` // AUTH_SYS
	UID     *uint32  `json:"uid,omitempty"`
	GID     *uint32  `json:"gid,omitempty"`
	GIDs    []uint32 `json:"gids,omitempty"`
	GSS     *gss     `json:"gss,omitempty"`
	Means   string   `json:"means"` // for what may be placed directly
}

type gss struct {
	Version   uint32 `json:"version"`
	Procedure string `json:"procedure"`
	Service   string `json:"service,omitempty"` // of DATA
	Sequence  uint32 `json:"sequence"`
	Context   int    `json:"context"` // octets of the handle
}

type verifier struct {
	Flavor uint32 `json:"flavor"`
	Name   string `json:"name"`
	Length int    `json:"length"`
}

func newCredential(h *oncrpc.Call) credential {
	d := credential{Flavor: h.Flavor, Name: flavorName(h.Flavor), Length: h.CredentialLen}
	body := h.Message[h.CredentialPos : h.CredentialPos+h.CredentialLen]
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
		d.GSS = &gss{Version: g.Version, Procedure: gssProcedure(g.Procedure), Sequence: g.Sequence, Context: g.HandleLen}
		if g.Procedure == oncrpc.GSSData {
			d.GSS.Service = gssService(g.Service)
		}
	}
	d.Means = means(h)
	return d
}

// means is what the credential allows, and why.
func means(h *oncrpc.Call) string {
	switch h.Protection {
	case oncrpc.ProtectIntegrity:
		return "nothing is placed directly: the checksum covers every octet, roundup included (RFC 8166 Section 8.2.2.3); arguments are readable, so that the Reply has a bound"
	case oncrpc.ProtectPrivacy:
		return "nothing is placed directly: arguments and results are encrypted, and nothing bounds the Reply but chunks.reply (RFC 8166 Section 8.2.2.3)"
	case oncrpc.ProtectControl:
		return "nothing is placed directly: the arguments are the GSS protocol's and not those of NULL (RFC 2203 Section 5.2, RFC 8166 Section 8.2.2)"
	case oncrpc.ProtectUnknown:
		if h.TLSProbe() {
			return "a question whether this side speaks TLS, and no credential"
		}
		return "nothing is placed directly: what this credential does to the arguments is not known"
	}
	if h.Flavor == oncrpc.FlavorGSS {
		return "plain: data may be placed directly; the XID is signed and stays, and the bridge never sends the Call twice"
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
