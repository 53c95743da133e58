package proxy

import (
	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/proxy/identity"
	"github.com/rdmabridge/rdmabridge/proxy/listener"
	"github.com/rdmabridge/rdmabridge/proxy/upstream"
)

// route returns the upstream that c goes to, or nil after it has answered c itself. A rule sends c to an
// upstream that is not nil; otherwise the routes of s decide.
func (f *front) route(c *call, s *listener.Settings, to *upstream.Upstream) *upstream.Upstream {
	h, local := &c.h, c.local[:0]
	u, mismatch, low, high := to, false, uint32(0), uint32(0)
	if to == nil {
		var only bool
		if u, only = s.Routes.Only(); !only {
			u, mismatch, low, high = s.Routes.Find(h.Program, h.Version)
		}
	}
	switch {
	case h.TLSProbe():
		f.answerProbe(c, s.TLS())
	case h.Program == oncrpc.ProgramCCP, u == nil && !mismatch:
		// CCP negotiates the connection it travels on: RFC 5666 Section 6.
		f.answer(c, oncrpc.AppendAccepted(local, h.XID, oncrpc.ProgramUnavailable))
	case mismatch:
		f.answer(c, oncrpc.AppendProgramMismatch(local, h.XID, low, high))
	case h.Program == oncrpc.ProgramNLM && identity.RefusesNLM(h):
		f.answer(c, oncrpc.AppendAccepted(local, h.XID, oncrpc.ProcedureUnavailable))
	default:
		f.plain = f.plain || !f.secured && h.Procedure != 0
		return u
	}
	return nil
}
