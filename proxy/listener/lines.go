package listener

import (
	"net/netip"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/internal/loglimit"
	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
)

// clientLines bound the lines that the clients of one listener can cause.
type clientLines struct {
	unanswered loglimit.Limit // a Call cannot be answered
	malformed  loglimit.Limit // a message is no Call
	refused    loglimit.Limit // the header of a Call is not valid
	denied     loglimit.Limit // a rule denies a Call
	strays     loglimit.Limit // too many Replies answer no reverse Call
	plain      loglimit.Limit // a Call came without TLS, which the listener requires
}

// Unanswered logs that the connection of the client at peer is closed, because its Call xid cannot be answered.
func (l *Listener) Unanswered(peer netip.AddrPort, xid uint32, why error) {
	l.lines.unanswered.Line(&l.Log, zerolog.WarnLevel, "client_closed").Stringer("peer", peer).
		Str("reason", "unanswered").Uint32("xid", xid).Err(why).
		Msg("call cannot be answered; client connection closed")
}

// Malformed logs that the client at peer has sent a message that is no RPC Call.
func (l *Listener) Malformed(peer netip.AddrPort, err error) {
	l.lines.malformed.Line(&l.Log, zerolog.WarnLevel, "client_closed").Stringer("peer", peer).
		Str("reason", "malformed").Err(err).
		Msg("not an RPC Call; connection closed")
}

// RefusedHeader counts and logs a Call whose header cannot be walked because of err.
func (l *Listener) RefusedHeader(peer netip.AddrPort, xid uint32, why oncrpc.Refusal, err error) {
	l.refusedCalls[why].Inc()
	l.lines.refused.Line(&l.Log, zerolog.WarnLevel, "call_header_refused").Stringer("peer", peer).
		Str("reason", oncrpc.RefusalNames[why]).Uint32("xid", xid).Err(err).
		Msg("the header of a Call is not valid; call refused")
}

// DeniedLine begins the line about a Call of the client at peer that the rule denies.
func (l *Listener) DeniedLine(peer netip.AddrPort, rule string) *zerolog.Event {
	return l.lines.denied.Line(&l.Log, zerolog.WarnLevel, "call_denied").Stringer("peer", peer).
		Str("rule", rule)
}

// StrayReply counts a Reply of a client that answers no reverse Call.
func (l *Listener) StrayReply() { l.stray.Inc() }

// StrayReplies logs that the client at peer is closed for its stray Replies.
func (l *Listener) StrayReplies(peer netip.AddrPort, n int) {
	l.lines.strays.Line(&l.Log, zerolog.WarnLevel, "client_closed").Stringer("peer", peer).
		Str("reason", "stray_replies").Int("replies", n).
		Msg("the client sends replies that answer no call; connection closed")
}

// PlainCall counts and logs a Call that came without TLS, which the listener requires.
func (l *Listener) PlainCall(peer netip.AddrPort, h *oncrpc.Call) {
	l.plainCalls.Inc()
	l.lines.plain.Line(&l.Log, zerolog.WarnLevel, "call_without_tls").Stringer("peer", peer).
		Uint32("xid", h.XID).
		Uint32("program", h.Program).Uint32("procedure", h.Procedure).
		Msg("the listener requires TLS, and the client has not started it; call refused with AUTH_TOOWEAK")
}
