package proxy

import (
	"errors"
	"net/netip"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb/nfs"
	"github.com/rdmabridge/rdmabridge/internal/rules"
	"github.com/rdmabridge/rdmabridge/proxy/authorise"
	"github.com/rdmabridge/rdmabridge/proxy/listener"
	"github.com/rdmabridge/rdmabridge/proxy/observe"
	"github.com/rdmabridge/rdmabridge/proxy/upstream"
)

var errDenied = errors.New("proxy: a rule denies the Call")

// authorise refuses c if its client must have TLS and has none, and applies the policy of s to it. ruled is the
// upstream that a rule has chosen, or nil.
func (f *front) authorise(c *call, s *listener.Settings) (ruled *upstream.Upstream, ok bool) {
	if !f.secured && s.Opts.TLS.Requires() && !c.h.TLSProbe() {
		f.refusePlain(c)
		return nil, false
	}
	p := s.Policy
	if p == nil || f.cache.decisions.Passes(p, f.cache.user.Number(), &c.h, c.rdma.Analysis.Changes, f.seen.Active) {
		return nil, true
	}
	return f.decide(c, s)
}

// decide does what authorise does for a Call that is not like one before.
func (f *front) decide(c *call, s *listener.Settings) (ruled *upstream.Upstream, ok bool) {
	h, a, d := &c.h, &c.rdma.Analysis, &f.cache.decisions
	if h.TLSProbe() {
		return nil, true
	}
	if !d.Bound(s.Policy) {
		f.bindRules(s.Policy)
	}
	x := d.Decide(f.cache.user.Number(), h, a.Changes, f.seen.Active)
	if x.Malformed {
		f.answer(c, oncrpc.AppendAuthError(c.local[:0], h.XID, oncrpc.AuthBadCredential))
		return nil, false
	}
	if x.Limits > 0 {
		f.account().limited(c, s.Rates.Rule(x.Limits-1))
	}
	if (x.Denied || x.Routed) && f.account().observed() {
		c.rule, c.usesSeldom = x.Rule, true
	}
	if x.Denied {
		if x.Always || !f.cut(c, x.Rule) {
			f.deny(c, x.Rule)
			return nil, false
		}
		// What is left of it changes nothing.
		if x = d.DecideAgain(h, a.Changes); x.Denied {
			f.deny(c, x.Rule)
			return nil, false
		}
	}
	mapped, stat := d.Squash(&x, h)
	if stat != 0 {
		f.answer(c, oncrpc.AppendAuthError(c.local[:0], h.XID, stat))
		return nil, false
	}
	if mapped {
		f.cache.user.Forget() // it is about the user as the client has sent it
	}
	if x.Routed {
		return s.Ruled[x.Index], true
	}
	return nil, true
}

// bindRules finds the rules of p that can match the Calls of f.
func (f *front) bindRules(p *authorise.Policy) {
	c := rules.Client{Address: f.addr(), Port: f.peer.Port(), Identity: f.identity}
	if via := f.client.proxy(); via != (netip.AddrPort{}) {
		c.Proxy = via.Addr()
	}
	f.cache.decisions.Bind(p, f.loop.number(), &c)
}

// deny answers c as r has it, or closes the connection.
func (f *front) deny(c *call, r *rules.Rule) {
	f.logDenied(c, r)
	b := authorise.AppendDenial(c.local[:0], &c.h, r, c.rdma.Analysis.Session != 0)
	if b != nil {
		f.answer(c, b)
		return
	}
	c.progress.Result = observe.ResultAbandoned
	f.fail(errDenied)
	f.settle(c)
}

// cut removes from c the operation that r denies, and what follows it, if r answers with an error for
// read-only that only the server can give. c goes to the server then, as a Call that changes nothing.
func (f *front) cut(c *call, r *rules.Rule) bool {
	if r.Answer != rules.AnswerReadOnly || !c.cut(nfs.ReadOnly) {
		return false
	}
	f.logDenied(c, r)
	return true
}

// cut removes from c its first operation that changes something, and what follows it, if only the server can give the
// error that refuses c.
func (c *call) cut(why nfs.Refusal) bool {
	a, h := &c.rdma.Analysis, &c.h
	if !authorise.Cuts(h, a.Session != 0) {
		return false
	}
	s, ok := nfs.Cut(h, why)
	if !ok {
		return false
	}
	operation, operations := a.Operation, a.Operations
	c.rdma.Message = h.Message
	c.rdma.Binding = c.client().listener.Registry.Analyse(h, a)
	a.Operation, a.Operations = operation, operations // as the client has called it
	c.stump = s
	return true
}

// logDenied logs that r denies c.
func (f *front) logDenied(c *call, r *rules.Rule) {
	e := f.listener.DeniedLine(f.peer, r.Name).Uint32("xid", c.progress.ClientXID).
		Str("operation", c.operation()).Uint32("program", c.h.Program).Uint32("version", c.h.Version)
	if s, ok := c.h.Sys(); ok {
		e = e.Uint32("uid", s.UID())
	}
	e.Msg("a rule denies a call")
}
