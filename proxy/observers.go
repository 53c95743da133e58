package proxy

import (
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
	"github.com/rdmabridge/rdmabridge/proxy/observe"
)

// tapView is c as a Tap sees it.
func (c *call) tapView() observe.TapView {
	v := observe.TapView{
		Registry: c.owner.front.listener.Registry, Header: &c.h, Binding: c.rdma.Binding, Analysis: &c.rdma.Analysis,
		Message: c.rdma.Message, Reply: c.reply.parts,
	}
	if c.up != nil && c.up.IsRDMA {
		v.Shape = &c.rdma.Shape
	}
	return v
}

// tapUpstream is c as a Tap sees it on its connection to the upstream.
func (c *call) tapUpstream() observe.TapView {
	v := c.tapView()
	v.Granted, v.Outstanding = c.conn.Credits(), c.conn.outstanding()
	return v
}

// operation is the name of the operation of c.
func (c *call) operation() string {
	return c.owner.front.listener.Registry.Operations()[c.rdma.Analysis.Operation].Name
}

// tap is the Tap; nil for none.
func (a *account) tap() *observe.LoopTap {
	if w := a.watch.Load(); w != nil {
		return w.Tap
	}
	return nil
}

// looks reports whether the Tap t is to be asked about c.
func (a *account) looks(t *observe.LoopTap, c *call) bool {
	return t.Looks(a.tcp.Now(), &c.owner.front.listener.Registry.Operations()[c.rdma.Analysis.Operation])
}

// showBegun asks the Tap t about c, and has it see c.
func (a *account) showBegun(c *call, t *observe.LoopTap) {
	f := c.owner.front
	l := f.listener
	q := observe.TapCall{Client: f.peer, Listener: l.Name, Identity: f.identity.Name()}
	if u, _, _, _ := l.Settings().Routes.Find(c.h.Program, c.h.Version); u != nil {
		q.Upstream = u.Name
	}
	v := c.tapView()
	if k := t.Begun(f, q, &v); k.Seen() {
		c.usesSeldom, c.tap = true, k
	}
}

// tapped reports whether the Tap sees c.
func (c *call) tapped() bool { return c.usesSeldom && c.tap.Seen() }

// showSent has the Tap see c on its connection to the upstream.
func (a *account) showSent(c *call) {
	if t := a.tap(); t != nil && c.tap.SeenUpstream() {
		v := c.tapUpstream()
		t.Sent(c.conn, c.tap, &v)
	}
}

// showReplied has the Tap see the Reply of c, which has just come.
func (a *account) showReplied(c *call) {
	if t := a.tap(); t != nil && c.tap.SeenUpstream() {
		v := c.tapUpstream()
		t.Replied(c.conn, c.tap, &v, false)
	}
}

// showDelivered has the Tap see the Reply of c on its way to the client.
func (a *account) showDelivered(c *call) {
	if t := a.tap(); t != nil {
		v := c.tapView()
		t.Replied(c.owner.front, c.tap, &v, true)
	}
}

// showSettled shows c, which is over, to all who watch.
func (a *account) showSettled(c *call) {
	w := a.watch.Load()
	if w == nil {
		return // nobody watches any more
	}
	if w.Observer != nil {
		a.record(c, w)
	}
	if w.Tap != nil && c.tapped() {
		w.Tap.Settled(c.tap, &c.progress)
	}
}

// record shows c to the Observer of w.
func (a *account) record(c *call, w *observe.Watch) {
	f, r := c.owner.front, w.Record(&c.progress, a.tcp.Now())
	r.Client, r.Listener, r.Transport = f.peer, f.listener.Name, observe.Transport(f.listener.IsRDMA)
	r.Program, r.Version, r.Procedure = c.h.Program, c.h.Version, c.h.Procedure
	r.TLS, r.Identity = f.secured, f.identity.Name()
	if c.rule != nil {
		r.Rule = c.rule.Name
	}
	if c.up != nil {
		r.Upstream = c.up.Name
	}
	if c.progress.Sent != 0 {
		r.UpstreamXID = c.rdma.XID
		if c.up.IsRDMA {
			r.Shape = shapeName(c.rdma.Shape)
		}
	}
	if w.Observer.Wants(r) {
		w.Observer.Observe(r)
	}
}

// shapeName is a word for how a Call and its Reply travelled over RDMA.
func shapeName(s ulb.Shape) string {
	switch {
	case s.Call == ulb.CallLong || s.Reply == ulb.ReplyChunk:
		return "long"
	case s.Call == ulb.CallReadChunk || s.Reply == ulb.ReplyWriteChunk:
		return "chunks"
	}
	return "inline"
}

// connEnded tells the Tap that a connection of the loop has ended with err.
func (a *account) connEnded(from observe.Tapped, err error) {
	if t := a.tap(); t != nil {
		t.ConnEnded(from, err)
	}
}

// reverse has the Tap see a message of the reverse direction, on a connection of the loop.
func (a *account) reverse(from observe.Tapped, m []byte, out, reply bool) {
	if t := a.tap(); t != nil {
		t.Reverse(from, m, out, reply)
	}
}
