package proxy

import (
	"fmt"

	"github.com/rdmabridge/rdmabridge/pool"
	"github.com/rdmabridge/rdmabridge/proxy/session"
)

// primed is what to call when the server has answered for the first time on a connection of lane, which may be nil.
func primed(lane *session.Conn) func() {
	if lane == nil {
		return nil
	}
	return lane.Answered
}

// dispatch has m send the calls of e and of those behind it, which hold credits of m, on m's loop l. here is the
// number of the calling loop: if that is l, m sends the calls at once.
func dispatch(e *pool.Entry, m upstreamConn, l *eventLoop, here int) {
	for e != nil {
		c := e.Owner.(*call)
		e = e.Unlink()
		c.conn = m
		c.setState(callDispatched)
		if l.number() == here {
			m.send(c)
		} else {
			l.Post(c)
		}
	}
}

// Run continues the call on the loop it was posted to. loop.Task.
func (c *call) Run() {
	switch c.state {
	case callDispatched:
		c.conn.send(c)
	case callWaiting:
		c.resubmit()
	case callHeld:
		c.client().proceed(c)
	case callReplying:
		c.client().deliver(c)
	default:
		panic(fmt.Sprintf("BUG: proxy: a call that is %v was posted", c.state))
	}
}

// Release is called when the client's connection needs the Reply no longer: the Reply is
// written, or the connection has ended.
// tcpframe.Releaser and rdmaside.Releaser.
func (c *call) Release() { c.client().settle(c) }
