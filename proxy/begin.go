package proxy

import (
	"errors"
	"net/netip"
	"slices"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
)

// A ledger is what one client owes and is owed, and its place in the queues of
// the upstreams. Owned by the client's loop.
type ledger struct {
	owner pinClient // whose it is
	queues []*clientQueue
	calls int   // read and not yet done with
	owed  int64 // octets of Replies that may come, about, and of those that are here
	held  int64 // of those that are here: the memory they take
	taken int64 // of those that the client has had
	full  bool  // the client is not read from
	large int   // what its Replies without a bound have taken lately, at most
	look  look

	shut    uint8 // gates where the client waits, a bit for each gateKind
	tickets [gates]ticket
	rates   *rates    // of the listener; nil for none
	buckets []*bucket // of them, those that it has to keep
	weight  int       // of its share
	addr    netip.Addr
	slot    uint16 // of its XIDs
}

// open begins the books of s, a client of l from address a.
func (g *ledger) open(s gated, l *listener, a netip.Addr) {
	for i := range g.tickets {
		g.tickets[i] = ticket{s: s, kind: gateKind(i)}
	}
	t := l.settings()
	g.weight = t.weight(a)
	t.rates.join(a, g)
	g.addr, g.slot = a, l.p.xids.slots.take(a, time.Now())
	if us := t.routes.all(); len(us) > 0 && !slices.ContainsFunc(us, (*upstream).hasRoom) {
		us[0].admission.arrive(g)
	}
}

// follow brings the share and the rates of a client of l, from address a, to what the
// terms say now, and lets it have a connection of its own if that has changed. What it
// owed to a rate that has changed is forgotten. Where it waits for one that is not its own
// any more it goes on by rates.end. Its lanes to upstreams that have ended are forgotten,
// too, which have no Calls any more: NFS clients stay for months.
func (g *ledger) follow(l *listener, a netip.Addr) {
	t := l.settings()
	if w := t.weight(a); w != g.weight {
		g.weight = w
		for _, ln := range g.queues {
			ln.reweigh(w)
		}
	}
	g.queues = slices.DeleteFunc(g.queues, func(ln *clientQueue) bool { return l.p.over(ln.u) })
	for _, ln := range g.queues {
		if ln.pin == nil {
			ln.settled = ln.u.pins.most.Load() == 0
		}
	}
	if t.rates != g.rates {
		g.rates.leave(g)
		t.rates.join(a, g)
	}
}

// hasRoom reports whether u has answered enough to be sent any number of Calls.
func (u *upstream) hasRoom() bool { return u.slowStart.Over() }

// A look is what relief saw when it looked at a ledger last.
type look struct {
	round       uint32
	held, taken int64
}

// over reports that the client has as much under way as it may: one greedy
// client must not fill the memory that Replies to all the others need.
func (g *ledger) over(l *listener) bool {
	t := l.settings()
	return g.calls >= t.opts.MaxCalls || g.owed >= t.maxOwed
}

// low reports that there is room again, with hysteresis.
func (g *ledger) low(l *listener) bool {
	t := l.settings()
	return g.calls == 0 || g.calls <= t.opts.MaxCalls/2 && g.owed <= t.maxOwed/2
}

func (g *ledger) charge(c *call) {
	g.calls++
	g.owed += int64(c.expect)
	c.charged = true
}

func (g *ledger) credit(c *call) {
	if c.slowStart {
		c.up.admission.dropped(c)
	}
	if !c.charged {
		return
	}
	g.calls--
	g.owed -= int64(c.expect)
	if c.lent {
		g.held -= int64(c.size)
		g.taken += int64(c.size)
	}
	c.charged, c.lent = false, false
}

// lend charges what the Reply of c takes until the client has it, rather than
// what was expected.
func (g *ledger) lend(c *call) {
	g.owed += int64(c.size - c.expect)
	g.held += int64(c.size)
	c.expect, c.lent = c.size, true
	for _, b := range g.buckets {
		b.leave(c.client.home().Now(), octets(c.out))
	}
	if c.rdma.Analysis.Known {
		return
	}
	if c.size > g.large {
		g.large = c.size
	} else {
		g.large -= (g.large - c.size) / 64
	}
}

// octets is how many the parts of a Reply have.
func octets(parts [][]byte) (n int) {
	for _, p := range parts {
		n += len(p)
	}
	return n
}

// slow is how much memory the client holds, if it has taken less since the last
// round than it held then.
func (g *ledger) slow(round uint32) int64 {
	was := g.look
	g.look = look{round, g.held, g.taken}
	if was.round != round-1 || g.taken-was.taken >= was.held {
		return 0
	}
	return g.held
}

// close ends the books of a client of l that has gone. Its waiting Calls are taken out of
// every queue, and the connections that are its own end.
func (g *ledger) close(l *listener, err error) {
	g.rates.leave(g)
	l.p.xids.slots.leave(g.addr, g.slot, time.Now())
	for _, ln := range g.queues {
		ln.forget(err)
		if ln.pin != nil {
			ln.pin.release()
		}
	}
	g.queues = nil
}

var (
	errClientGone = errors.New("proxy: client gone")
	errUnread     = errors.New("proxy: the client does not take its replies")
	errSuperseded = errors.New("proxy: the client sent a call again on another connection")
)

// begin takes the Call c.msg that cl, at address peer, has sent, and sees it on
// its way. It runs on the client's loop. c.client, c.msg, c.buf and c.clientXID
// are set. An error is for a message that is no Call: the connection must end,
// and c remains the caller's.
func (l *listener) begin(c *call, g *ledger, peer netip.Addr) error {
	if err := oncrpc.ParseCall(c.msg, &c.h); err != nil {
		c.result = resultMalformed
		return err
	}
	h := &c.h
	c.began = c.client.home().Now()
	for _, b := range g.buckets {
		b.enter(c.began, len(c.msg), g)
	}
	c.rdma.XID, c.clientXID = h.XID, h.XID
	c.rdma.Message = c.msg
	u, mismatch, low, high := l.settings().routes.find(h.Program, h.Version)
	switch {
	case h.TLSProbe():
		// RFC 9289 Section 4.1: a NULL reply without STARTTLS in its verifier says
		// that there is no TLS here. The probe is for this hop and not sent on.
		l.reply(c, g, oncrpc.AppendAccepted(c.local[:0], h.XID, oncrpc.Success))
		return nil
	case h.Program == oncrpc.ProgramCCP, u == nil && !mismatch:
		// CCP negotiates the connection it travels on: RFC 5666 Section 6.
		l.reply(c, g, oncrpc.AppendAccepted(c.local[:0], h.XID, oncrpc.ProgramUnavailable))
		return nil
	case mismatch:
		l.reply(c, g, oncrpc.AppendProgramMismatch(c.local[:0], h.XID, low, high))
		return nil
	case h.Program == oncrpc.ProgramNLM && nlmRefused(h):
		l.reply(c, g, oncrpc.AppendAccepted(c.local[:0], h.XID, oncrpc.ProcedureUnavailable))
		return nil
	}
	if h.Program == oncrpc.ProgramNLM {
		nlmOwner(h, peer)
	}
	ln := g.queueTo(u, peer)
	if !ln.settled {
		var err error
		if ln, err = g.pinned(ln, h, peer); err != nil {
			g.owner.refuse(c, u, err)
			return nil
		}
	}
	a := &c.rdma.Analysis
	here := c.client.home().index // another connection may have adopted c before it is submitted
	c.up = u
	u.under[here].n++
	c.rdma.Binding = l.p.registry.Analyse(h, a)
	if a.Session != 0 {
		u.sessions.Tighten(c.msg, a)
	}
	c.expect = u.expect(a, g.large)
	c.queue = ln
	c.entry.Flow = ln.flowOf(c)
	if c.assignXID(peer, g) {
		c.result = resultAbsorbed
		c.client.dropped(c)
		return nil
	}
	g.charge(c)
	c.entry.Cost = u.cost(len(c.msg), a)
	u.admission.enter(c, g)
	if err := ln.pool.Submit(&c.entry, here); err != nil {
		c.giveUp(err)
	}
	return nil
}

// reply answers c here.
func (l *listener) reply(c *call, g *ledger, b []byte) {
	g.charge(c)
	c.answer(b)
	c.client.deliver(c)
}

// assignXID gives c the XID the upstream will see: see xid.go. It reports true
// when c is a retransmission of a Call still in flight, which needs no second
// one: the Reply to the first goes to the client that asked last.
func (c *call) assignXID(peer netip.Addr, g *ledger) (absorbed bool) {
	x := c.up.p.xids
	switch c.h.Flavor {
	case oncrpc.FlavorNone, oncrpc.FlavorSys, oncrpc.FlavorShort, oncrpc.FlavorDH:
	default:
		c.gss = true
		return false
	}
	if c.rdma.Analysis.Class == ulb.ReadOnly {
		c.setXID(x.fresh())
		return false
	}
	own := ofSlot(g.slot, c.h.XID)
	c.tag = x.tag(peer, c.up.number, &c.h, own)
	cl := x.assign(c, own)
	if !cl.absorbed {
		c.setXID(cl.xid)
		return false
	}
	if cl.old != nil {
		g.calls++
		g.owed += int64(cl.owed)
		if cl.heir != nil {
			abort(cl.heir)
		}
		// It will not be answered there: see xid.go.
		cl.old.close(errSuperseded)
	}
	return true
}
