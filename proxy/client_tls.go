package proxy

import (
	"crypto/tls"
	"errors"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/tlsconf"
	"github.com/rdmabridge/rdmabridge/proxy/settings"
	"github.com/rdmabridge/rdmabridge/tcpframe"
)

// RPC-with-TLS for clients, RFC 9289
//
// A client asks for TLS with a NULL Call of flavor AUTH_TLS, the probe. The bridge answers it itself, as
// the question is about this connection, and package tcpframe does the handshake behind the Reply. Until
// that is done no Call is read.
//
// A client's Calls that came before the handshake are in plain text, and anybody on the path may have
// put them there. So the probe must come before any of them has reached an upstream, except NULL Calls,
// which change nothing. Otherwise the bridge answers that it has no TLS. The NULL Calls must have been
// answered, too: a Reply that came inside TLS could be taken for that to a Call of the client with this XID.

// answerProbe answers the probe c. t is nil if the listener has no TLS.
func (f *front) answerProbe(c *call, t *settings.ListenerTLS) {
	h, local := &c.h, c.local[:0]
	switch {
	case h.Procedure != 0, f.secured, t != nil && !h.EmptyAuth():
		// "If an RPC client uses the AUTH_TLS authentication flavor on any procedure other
		// than the NULL procedure, or an RPC client sends an RPC AUTH_TLS probe within an
		// existing (D)TLS session, the RPC server MUST reject that RPC Call by returning a
		// reply_stat of MSG_DENIED with a reject_stat of AUTH_ERROR and an auth_stat of
		// AUTH_BADCRED." RFC 9289 Section 4.1.
		f.answer(c, oncrpc.AppendAuthError(local, h.XID, oncrpc.AuthBadCredential))
	case t == nil || f.plain:
		// A NULL reply without STARTTLS in its verifier says that there is no TLS here.
		f.answer(c, oncrpc.AppendAccepted(local, h.XID, oncrpc.Success))
	default:
		f.startTLS = t.Server.TLS()
		f.answer(c, oncrpc.AppendStartTLS(local, h.XID))
	}
}

// mayStartTLS reports whether m is a probe that TLS may follow. It says nothing of whether the listener has TLS.
func mayStartTLS(m []byte) bool {
	var h oncrpc.Call
	return oncrpc.ParseCall(m, &h) == nil && h.TLSProbe() && h.Procedure == 0 && h.EmptyAuth()
}

// refusePlain refuses c, which came without TLS to a listener that requires it.
func (f *front) refusePlain(c *call) {
	f.listener.PlainCall(f.peer, &c.h)
	f.answer(c, oncrpc.AppendAuthError(c.local[:0], c.h.XID, oncrpc.AuthTooWeak))
}

var errUnanswered = errors.New("proxy: a Call that came in plain text before the probe for TLS was not answered yet")

// secure starts the handshake, behind the Reply to the probe, if that is the Call which has just begun.
func (s *tcpClient) secure() {
	if !s.conn.Open() {
		return
	}
	s.conn.StartTLS(s.startTLS)
	if s.ledger.UnderWay() > 1 { // the probe itself is one
		s.conn.RefuseTLS(tcpframe.TLSInjected, errUnanswered)
	}
}

// Secured is part of tcpframe.TLSHandler.
func (s *tcpClient) Secured(c *tcpframe.Conn, cs *tls.ConnectionState) {
	began := s.startTLS
	s.secured, s.securedAt, s.startTLS = true, time.Now(), nil
	s.identity = tlsconf.IdentityOf(cs.PeerCertificates)
	if s.cache != nil { // Calls in plain text may have come before, and been judged without the identity
		s.cache.decisions.Forget()
	}
	if t := s.listener.Settings().TLS(); t != nil && t.Server.TLS() != began {
		// The files have changed since the handshake began, and recheck has not seen this client.
		if err := t.Server.Recheck(cs.PeerCertificates, s.securedAt); err != nil {
			s.distrust(err)
			return
		}
	}
	s.enrollLate()
	s.listener.Log.Debug().Str("event", "client_secured").Stringer("peer", s.peer).Str("identity", s.identity.Name()).
		Bool("resumed", cs.DidResume).
		Msg("client connection has TLS")
}

// distrust closes the connection, because err has the client's certificate refused now.
func (s *tcpClient) distrust(err error) {
	if s.ended.get() {
		return
	}
	why := tcpframe.TLSBadCertificate
	if e, ok := errors.AsType[*tcpframe.TLSError](err); ok {
		why, err = e.Reason, e.Err
	}
	s.conn.RefuseTLS(why, err)
	s.ended.set()
}
