package rdmaside

import (
	"errors"
	"fmt"
	"time"

	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
)

// Close closes the connection. If err is nil, what was posted is sent first,
// which is every Reply unless the send queue was full. ConnHandler.Ended is
// called with err after Close has returned.
func (c *ResponderConn) Close(err error) {
	if c.state == up {
		c.state, c.asked, c.reason = ending, true, err
		c.conn.Close(err)
	}
}

// end closes the connection for a reason found here. fabric.ErrClosed is not such
// a reason: the provider is about to call Closed with a better one.
func (c *ResponderConn) end(err error) {
	if errors.Is(err, fabric.ErrClosed) && c.state == up {
		c.state = ending
		return
	}
	c.Close(err)
}

// refuse closes the connection because of a message that the peer sent.
func (c *ResponderConn) refuse(xid uint32, err error) {
	if c.state != up {
		return
	}
	if ok, suppressed := c.responder.lines.Allow(time.Now()); ok {
		c.responder.opts.Log.Warn().Stringer("peer", c.info.Peer).Uint32("xid", xid).Err(err).Uint64("suppressed", suppressed).
			Msg("invalid message from the requester; connection closed")
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
	defer c.part() // after the Calls have released their Receives
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
			// Owned by the handler until it completes the Call.
		}
	}
	c.idle = nil
	c.closeReverse()
	c.responder.conns.Ended(c, c.reason)
}
