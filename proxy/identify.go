package proxy

import (
	"encoding/binary"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
	"github.com/rdmabridge/rdmabridge/proxy/identity"
	"github.com/rdmabridge/rdmabridge/proxy/observe"
)

// identify makes c the same Call to the server as any other transmission of it, and another one than those of other
// clients: it gives c the lock owner and the XID that the upstream sees. It reports false if c repeats a Call in
// flight, and has dropped or held c then.
func (f *front) identify(c *call) bool {
	h := &c.h
	if h.Program == oncrpc.ProgramNLM {
		c.up.Identity.LockOwner(h, f.addr())
	}
	if c.signed = identity.SignsXID(h); !c.signed {
		c.setXID(f.cache.user.XID(f.loop.users, &c.queue.key, h))
	}
	c.entry.Repeatable = c.replayable()
	return !f.repeats(c)
}

// repeats reports whether c repeats a Call in flight, and drops or holds c then. Otherwise c is in flight, unless it
// does no harm when repeated.
func (f *front) repeats(c *call) bool {
	a := &c.rdma.Analysis
	if c.signed || a.Class == ulb.ReadOnly || isRewritten(a) {
		return false
	}
	switch c.up.Flights.Enter(&c.flight, c, c.rdma.XID) {
	case identity.Dropped:
		c.progress.Result = observe.ResultAbsorbed
		f.settle(c)
		return true
	case identity.Held:
		f.hold(c)
		return true
	}
	c.flying = true
	return false
}

// isRewritten reports whether the connection that a Call gets to its upstream may change it, so that it
// cannot be compared with others any more. It is a CREATE_SESSION or a BIND_CONN_TO_SESSION, which the
// server recognises when they come again: RFC 8881 Sections 18.36.4 and 18.34.
func isRewritten(a *ulb.Analysis) bool {
	return a.BackRequest != 0 || a.SessionOps&ulb.BindConnToSession != 0
}

// Transmission says what the client has sent. Any goroutine, while c is in flight or held. identity.Transmitted.
func (c *call) Transmission() identity.Transmission {
	f := c.owner.front
	return identity.Transmission{
		Header: &c.h, Upstream: uint32(c.up.Number), Origin: f.origin(), Client: f,
		Credited: c.owner.exchange != nil, Session: c.rdma.Analysis.Session != 0,
	}
}

// Hold is called when c is held, because another Call goes first. identity.Transmitted.
func (c *call) Hold() { c.setState(callHeld) }

// land ends c's time in flight. Calls that repeat c get a copy of its Reply. If c has none, the
// latest of them goes in its place. here is the number of the calling loop, or pool.Elsewhere.
func (c *call) land(here int) {
	t := c.up.Flights
	c.flying = false
	if c.reply.parts == nil {
		if f := t.Replace(&c.flight); f != nil {
			next := f.Owner.(*call)
			c.tap.PassOn(&next.tap)
			next.flying = true
			next.client().Post(next)
		}
		return
	}
	for f := t.Leave(&c.flight); f != nil; {
		r := f.Owner.(*call)
		f = f.Unlink() // before r may be used for another Call
		r.copyReply(c, here)
	}
}

// landAlone does what land does, unless Calls repeat c, and reports whether c is not in flight now.
func (c *call) landAlone() bool {
	if c.flying && c.up.Flights.LeaveAlone(&c.flight) {
		c.flying = false
	}
	return !c.flying
}

// copyReply gives c a copy of the Reply to of, which c repeats. If there is no memory for the copy,
// the connection of c's client is closed, and the client sends the Call again.
func (c *call) copyReply(of *call, here int) {
	l := c.client().loopAt(here)
	if err := c.setReply(l, of.reply.parts, 0); err != nil {
		c.giveUp(here, err)
		return
	}
	binary.BigEndian.PutUint32(c.reply.parts[0], c.progress.ClientXID)
	c.rdma.XID = c.progress.ClientXID
	c.releaseMessage(l)
	c.finish(here)
}
