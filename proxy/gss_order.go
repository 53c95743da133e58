package proxy

import (
	"github.com/rdmabridge/rdmabridge/internal/fnv"
	"github.com/rdmabridge/rdmabridge/pool"
	"github.com/rdmabridge/rdmabridge/proxy/identity"
	"github.com/rdmabridge/rdmabridge/proxy/upstream"
)

// This file is how the Calls of a GSS context, which keep their order (package identity), get to their pool.

// A gssFlow is where the Calls of one GSS context wait, if their clients are on no lanes.
// identity.Flow.
type gssFlow struct {
	pool *pool.Pool // the shared one; constant
	flow pool.Flow
}

// Follow is part of identity.Flow, as are Unbind and Kick.
func (x *gssFlow) Follow(last identity.OrderedCall) {
	if last == nil {
		x.flow.Follow(nil)
		return
	}
	x.flow.Follow(&last.(*call).entry)
}

// Unbind lets the Call that waits use any connection.
func (x *gssFlow) Unbind() bool { return x.pool.Unbind(&x.flow) }

// Kick dispatches what Unbind has moved.
func (x *gssFlow) Kick(here int) { x.pool.Kick(here) }

// OpenFlow is part of identity.OrderedCall, as are Join and Submit.
func (c *call) OpenFlow(old identity.Flow) identity.Flow {
	f, u := c.client(), c.up
	p := u.PoolFor(f.addr())
	h := u.Hosts.At(f.host(), p, nil)
	x, _ := old.(*gssFlow)
	if x == nil || x.pool != p || x.flow.Host != h { // a flow belongs to one pool and one host
		x = &gssFlow{pool: p, flow: pool.Flow{Host: h, Ordered: true}}
	}
	// Where the upstream is on TCP, the server's duplicate request cache looks at the port.
	x.flow.Weight, x.flow.Sticky, x.flow.Hash = f.weight(), !u.IsRDMA, fnv.Address(f.addr())
	return x
}

// Join has c wait in the flow of its context, unless its client is on a lane.
func (c *call) Join(f identity.Flow) bool {
	x := f.(*gssFlow)
	if w := c.client().weight(); x.flow.Weight != w { // it has changed since
		x.pool.Reweigh(&x.flow, w)
	}
	if c.queue.pool != x.pool {
		return false
	}
	c.entry.Flow = &x.flow
	return true
}

// Submit gives c to its pool.
func (c *call) Submit(here int) {
	if c.client().Gone() {
		c.finish(here)
		return
	}
	c.setState(callQueued)
	if c.progress.Asked == 0 {
		c.progress.Asked = c.up.Engine.Now()
	}
	if err := c.queue.pool.Submit(&c.entry, here); err != nil {
		c.giveUp(here, err)
	}
}

// order returns the place of c in its GSS context, or nil. Only a Call that is signed has one,
// so that other Calls do not touch the cache line of gss.
func (c *call) order() *identity.GSSCall {
	if !c.signed || !c.gss.InOrder() {
		return nil
	}
	return &c.gss
}

// forgetOrdered ends the Calls of f, whose client has gone, that are in GSS contexts of u and have not been sent.
func (f *front) forgetOrdered(u *upstream.Upstream) {
	ended, flows := u.GSSContexts.Forget(f.origin(), f)
	for ended != nil {
		c := ended.Owner.(*call)
		ended = ended.Unlink()
		c.finish(pool.Elsewhere)
	}
	for _, o := range flows {
		x := o.(*gssFlow)
		x.pool.Forget(&x.flow, errClientGone) // Expired queues a Call again that is another client's
	}
}
