package rdmaside

import (
	"errors"
	"fmt"

	"github.com/rdmabridge/rdmabridge/internal/regmem"
)

// The credits of a ResponderConn. It begins with few and gets more by using them:
// whenever it has sent as many Calls as its limit, or has that many here, the
// limit doubles, up to what is configured and the ReceivePool allows. When the
// pool is tight the limit falls to the connection's share, with the next Reply,
// and Receives go once credit.Grantor is certain that the Requester knows. What
// an idle Requester has it keeps.
//
// A Requester whose Calls are answered at once never has all of them here, and may
// be held up by its limit all the same. So use is counted in Calls, as long as
// there is plenty of memory. When there is not, it must have had all of them here.

// A creditLoad is what a connection does with its credits.
type creditLoad struct {
	calls   uint32 // since the limit changed, or could not
	spent   bool   // of these, one came when all credits were used
	denied  bool   // the limit could not rise since
	starved bool   // spent and denied in the last window; counted in a metric

	granted, receives int64 // as counted in metrics
}

// spare is how many Receives there are beyond those for Calls.
func (c *ResponderConn) spare() int { return c.responder.opts.SpareReceives + c.reverse.receives }

// setLimit posts Receives for n credits and grants them from now on, or as many
// as there is memory for, the error then being regmem.ErrBudget.
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

// start posts the first Receives.
func (c *ResponderConn) start() error {
	o := &c.responder.opts
	o.Receives.conns.Add(1)
	c.joined = true
	n := min(o.Receives.first(c.block)-c.spare(), o.FirstCredits)
	err := c.setLimit(max(n, 1))
	if errors.Is(err, regmem.ErrBudget) && c.recvs.owned() > c.spare() {
		err = nil // fewer, but enough
	}
	c.countGranted(int64(c.grants.Granted))
	return err
}

// part ends what start began, when all Receives are back.
func (c *ResponderConn) part() {
	if !c.joined {
		return
	}
	c.joined = false
	c.responder.opts.Receives.conns.Add(-1)
	c.countReceives()
	c.countGranted(0)
	c.starve(false)
}

// use counts the Call that has come.
func (c *ResponderConn) use() {
	g, u := &c.grants, &c.load
	u.calls++
	// Before the first Reply there is one credit, whatever the limit.
	spent := g.Spent() && g.Granted >= g.Limit
	if spent {
		u.spent = true
		c.responder.metrics.lastCredit.Inc()
	}
	if u.calls < g.Limit && (!spent || u.denied) {
		return
	}
	u.denied = !c.grow()
	c.starve(u.denied && u.spent)
	u.calls, u.spent = 0, false
}

// grow raises the limit, if it is not what is configured or asked for already. It
// reports false when memory forbids.
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

// yield lowers the limit to the connection's share when memory is wanted. It
// comes before each Reply, while the Call is still counted.
func (c *ResponderConn) yield() {
	g, p := &c.grants, c.responder.opts.Receives
	if c.load.starved && g.Outstanding <= 1 {
		c.starve(false) // it has nothing left to wait for
	}
	if g.Limit <= 1 || !p.tight() {
		return
	}
	if n := uint32(max(1, p.share(c.block)-c.spare())); n < g.Limit {
		g.Limit = n
		c.load.calls, c.load.spent = 0, false
		c.responder.metrics.creditsTaken.Inc()
	}
}

// Hoards reports whether the connection has more than twice its share of the memory
// for Receives. One that is used gives them back when they are wanted.
func (c *ResponderConn) Hoards() bool {
	return c.recvs.owned() > 2*max(c.responder.opts.Receives.share(c.block), 1+c.spare())
}

// surplus reports whether the Receive buffer that came free is one too many.
func (c *ResponderConn) surplus() bool {
	g := &c.grants
	return c.recvs.owned() > int(max(g.Needed(), g.Limit))+c.spare()
}

// shrink gives the free Receive buffer i away.
func (c *ResponderConn) shrink(i int) {
	c.recvs.drop(i)
	c.grants.Receives = uint32(c.recvs.owned() - c.spare())
	c.countReceives()
}

func (c *ResponderConn) starve(starved bool) {
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
