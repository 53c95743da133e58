package rdmaside

import (
	"errors"
	"fmt"
	"time"

	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
)

// Close ends the connection. A nil err lets what was posted go out first, which
// is every Reply unless the send queue was full. err is what ConnHandler.Ended is
// given, after Close has returned.
func (c *ResponderConn) Close(err error) {
	if c.state == up {
		c.state, c.asked, c.reason = ending, true, err
		c.conn.Close(err)
	}
}

// end ends the connection for a reason found here. fabric.ErrClosed is none: the
// provider is about to call Closed and knows a better one.
func (c *ResponderConn) end(err error) {
	if errors.Is(err, fabric.ErrClosed) && c.state == up {
		c.state = ending
		return
	}
	c.Close(err)
}

// refuse ends the connection because of what the peer sent.
func (c *ResponderConn) refuse(xid uint32, err error) {
	if c.state != up {
		return
	}
	if ok, suppressed := c.responder.lines.Allow(time.Now()); ok {
		c.responder.opts.Log.Warn().Stringer("peer", c.info.Peer).Uint32("xid", xid).Err(err).Uint64("suppressed", suppressed).
			Msg("invalid message from the requester ends its connection")
	}
	c.responder.metrics.refused(err)
	c.end(fmt.Errorf("rdmaside: %w", err))
}

// closed is the last call of the provider. Every Work Request has completed.
func (c *ResponderConn) closed(err error) {
	if c.state == ended {
		return
	}
	if !c.asked {
		c.reason = err
	}
	c.state = ended
	c.watch.stop()
	if c.recvs.posted != 0 || c.reads != 0 {
		panic(fmt.Sprintf("BUG: fabric: %s closed with %d Receives and %d Reads posted", c.info.Provider, c.recvs.posted, c.reads))
	}
	c.starved, c.pulling, c.queued = exchangeQueue{}, exchangeQueue{}, exchangeQueue{}
	c.dropParked()
	defer c.part() // when Calls have given back what they held
	for _, x := range c.exchanges {
		switch x.state {
		case exchangeIdle:
			x.buffer.Release()
			x.buffer = nil
		case exchangePulling:
			x.pulled.Unpost()
			c.drop(x)
		case exchangeStarved, exchangeQueued:
			c.drop(x)
		case exchangeLost:
			c.recycle(x)
		case exchangeSending:
			panic(fmt.Sprintf("BUG: fabric: %s closed with a Send posted", c.info.Provider))
		case exchangeHanded, exchangeBusy:
			// The handler's, until it ends it.
		}
	}
	c.idle = nil
	c.closeReverse()
	c.responder.conns.Ended(c, c.reason)
}
