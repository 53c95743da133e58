package rdmaside

import (
	"errors"
	"fmt"

	"github.com/rdmabridge/rdmabridge/internal/regmem"
)

// The credits of a ResponderConn.
//
// A connection begins with few credits and gets more by using them. Whenever it
// has sent as many Calls as its limit, or has that many outstanding here, the
// limit doubles, up to what is configured and what the ReceivePool allows. When
// the pool is tight, the limit falls to the connection's share with the next
// Reply; surplus Receives are released once credit.Grantor is certain that the
// Requester knows. An idle Requester keeps its credits.
//
// A Requester whose Calls are answered at once never has all its credits in use
// here, yet its limit may hold it up. So the Responder counts Calls to measure
// use as long as memory is plentiful. When memory is short, only a Requester
// that has had all its credits in use here counts as using them.

// A creditLoad says how a connection uses its credits. The Calls of one limit are
// a window: it begins when the limit changes, or when it should have changed and
// could not.
type creditLoad struct {
	calls   uint32 // Calls in this window
	spent   bool   // a Call in this window used the last credit
	denied  bool   // the limit could not rise at the end of the last window
	starved bool   // spent and denied in the last window; counted in metrics.starved

	granted, receives int64 // the connection's share in the gauges of metrics
}

// spare returns how many Receives there are beyond those for the Calls that are granted.
func (c *ResponderConn) spare() int { return spareReceives + c.reverse.receives + c.extra }

// setLimit posts Receives for n credits and makes n the limit. If there is memory
// for fewer only, it makes that the limit and returns regmem.ErrBudget.
func (c *ResponderConn) setLimit(n int) error {
	err := c.recvs.own(n + c.spare())
	if err == nil || errors.Is(err, regmem.ErrBudget) {
		g := &c.grants
		g.Receives = uint32(max(1, c.recvs.owned()-c.spare()))
		g.Limit = min(uint32(n), g.Receives)
	}
	c.countReceives()
	return err
}

// joinPool joins the ReceivePool and posts the first Receives.
func (c *ResponderConn) joinPool() error {
	o := &c.responder.opts
	o.Receives.conns.Add(1)
	c.joined = true
	n := min(o.Receives.first(c.block)-c.spare(), o.FirstCredits)
	err := c.setLimit(max(n, 1))
	if errors.Is(err, regmem.ErrBudget) && c.recvs.owned() > c.spare() {
		err = nil // fewer than n, but enough to work
	}
	c.countGranted(int64(c.grants.Granted))
	return err
}

// leavePool undoes joinPool, when all Receives are released.
func (c *ResponderConn) leavePool() {
	if !c.joined {
		return
	}
	c.joined = false
	c.responder.opts.Receives.conns.Add(-1)
	c.countReceives()
	c.countGranted(0)
	c.setStarved(false)
}

// use counts the Call that has come.
func (c *ResponderConn) use() {
	g, u := &c.grants, &c.load
	u.calls++
	// Before the first Reply there is one credit, whatever the limit is.
	spent := g.Spent() && g.Granted >= g.Limit
	if spent {
		u.spent = true
		c.responder.metrics.lastCredit.Inc()
	}
	if u.calls < g.Limit && (!spent || u.denied) {
		return
	}
	u.denied = !c.grow()
	c.setStarved(u.denied && u.spent)
	u.calls, u.spent = 0, false
}

// grow raises the limit, unless the limit has reached the configured or the
// requested number. It returns false when memory is too short for a higher
// limit.
func (c *ResponderConn) grow() bool {
	o, g := &c.responder.opts, &c.grants
	have := int(g.Limit)
	want := min(2*have, o.Credits, int(min(g.Requested, uint32(o.Credits))))
	if want <= have {
		return true
	}
	n := o.Receives.allow(have+c.spare(), want+c.spare(), c.block, c.load.spent) - c.spare()
	if n > have {
		switch err := c.setLimit(n); {
		case err == nil:
		case errors.Is(err, regmem.ErrBudget):
		default:
			c.end(fmt.Errorf("rdmaside: post receive: %w", err))
			return true
		}
	}
	if int(g.Limit) > have {
		return true
	}
	if c.load.spent {
		c.responder.metrics.creditsDenied.Inc()
	}
	return false
}

// yield lowers the limit to the connection's share when other connections need
// memory, and gives up Receives for Calls beyond the grant. It is called before each Reply, while the Call is still counted as
// outstanding.
func (c *ResponderConn) yield() {
	g, p := &c.grants, c.responder.opts.Receives
	if c.load.starved && g.Outstanding <= 1 {
		c.setStarved(false) // it waits for nothing any more
	}
	if !p.tight() {
		return
	}
	c.dropExtra()
	if g.Limit <= 1 {
		return
	}
	if n := uint32(max(1, p.share(c.block)-c.spare())); n < g.Limit {
		g.Limit = n
		c.load.calls, c.load.spent = 0, false
		c.responder.metrics.creditsTaken.Inc()
	}
}

// Hoards reports whether the connection has more than twice its share of the
// memory for Receives. Connections in use give up their surplus by themselves
// when memory is short.
func (c *ResponderConn) Hoards() bool {
	return c.recvs.owned() > 2*max(c.responder.opts.Receives.share(c.block), 1+c.spare())
}

// repostBuffer returns Receive buffer i to the provider, or releases it when it
// is not needed any more.
func (c *ResponderConn) repostBuffer(i int) {
	if c.state != up {
		c.recvs.drop(i)
		c.countReceives()
		return
	}
	if c.surplus() {
		c.shrink(i)
		return
	}
	if err := c.recvs.post(i); err != nil {
		c.end(fmt.Errorf("rdmaside: post receive: %w", err))
	}
}

// surplus reports whether the Receive buffer that became free is not needed any
// more.
func (c *ResponderConn) surplus() bool {
	g := &c.grants
	return c.recvs.owned() > int(max(g.Needed(), g.Limit))+c.spare()
}

// shrink releases the free Receive buffer i.
func (c *ResponderConn) shrink(i int) {
	c.recvs.drop(i)
	c.grants.Receives = uint32(c.recvs.owned() - c.spare())
	c.countReceives()
}

func (c *ResponderConn) setStarved(starved bool) {
	if starved != c.load.starved {
		c.load.starved = starved
		n := int64(1)
		if !starved {
			n = -1
		}
		c.responder.metrics.starved.Add(n)
	}
}

func (c *ResponderConn) countReceives() {
	n := int64(c.recvs.owned())
	c.responder.metrics.receives.Add(n - c.load.receives)
	c.load.receives = n
}

func (c *ResponderConn) countGranted(n int64) {
	if n != c.load.granted {
		c.responder.metrics.granted.Add(n - c.load.granted)
		c.load.granted = n
	}
}
