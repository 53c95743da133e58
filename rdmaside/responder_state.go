package rdmaside

import (
	"errors"
	"fmt"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
)

// Close closes the connection. If err is nil, the Sends and Writes already posted
// complete first, which includes every Reply unless the send queue was full.
// ConnHandler.Ended is called with err after Close has returned.
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
	c.responder.lines.refused.Line(&c.responder.opts.Log, zerolog.WarnLevel, "client_closed").Str("reason", "invalid_message").
		Stringer("peer", c.info.Peer).Uint32("xid", xid).Err(err).Msg("invalid message from the requester; connection closed")
	c.responder.metrics.refused(err)
	c.end(fmt.Errorf("rdmaside: %w", err))
}

// broken closes the connection because a Work Request failed. A flushed Work
// Request is no such failure: the connection is closing already.
func (c *ResponderConn) broken(what string, err error) {
	if !errors.Is(err, fabric.ErrFlushed) {
		c.end(fmt.Errorf("rdmaside: %s: %w", what, err))
	}
}

func (c *ResponderConn) publish() { c.outstanding.Store(int32(c.grants.Outstanding)) }
