package rdmaside

import (
	"encoding/binary"
	"fmt"

	"github.com/rdmabridge/rdmabridge/rdmaside/rpcrdma"
)

// Calls beyond the grant.
//
// A Requester that has given up on a Call may send another in its place while the Responder
// still works on the first: Linux does so when a process is killed, and so Ctrl-C of a parallel
// build sends as many Calls as were granted once again. "If the granted value is exceeded, the
// RDMA layer may signal an error, possibly terminating the connection": RFC 8166 Section 3.3.1.
// That would take the connection from all other processes of the host. So a connection keeps
// Receives for as many Calls again as it has had outstanding, but no more than it was granted,
// and only while memory for Receives is plentiful. A Call beyond the grant stays in its Receive
// buffer until an earlier one is answered. The Responder closes the connection of a Requester
// that goes on and exceeds these Receives, too.

// seeOverrun is how many Receives stay free for the Call that exceeds all others, so that this
// package sees it before the provider does.
const seeOverrun = 1

// beyond returns how many Calls beyond the grant may wait.
func (c *ResponderConn) beyond() int {
	n := int(c.grants.Needed())
	return max(0, min(c.recvs.owned()-seeOverrun-c.reverse.receives-n, n))
}

// keepExtra posts a Receive for a Call beyond the grant, if the Requester has more Calls
// outstanding than it has such Receives, the spare ones included.
func (c *ResponderConn) keepExtra() {
	g := &c.grants
	if c.extra+spareReceives-seeOverrun >= int(min(g.Outstanding, g.Needed())) || !c.responder.opts.Receives.plenty(c.block) {
		return
	}
	c.extra++
	c.recvs.extend(c.receives() + c.extra)
	if err := c.recvs.own(c.recvs.owned() + 1); err != nil {
		c.extra-- // no memory; a connection that is closing says so itself
	}
	c.countReceives()
}

// dropExtra gives up the Receives for Calls beyond the grant that are not in use. repostBuffer
// releases them.
func (c *ResponderConn) dropExtra() { c.extra = min(c.extra, len(c.parked)) }

// isCall reports whether b, a message of the Requester, counts against the grant: all do, except
// for RDMA_DONE and RDMA_ERROR.
func isCall(b []byte) bool {
	if len(b) < 16 || binary.BigEndian.Uint32(b[4:]) != rpcrdma.Version {
		return true
	}
	p := rpcrdma.Proc(binary.BigEndian.Uint32(b[12:]))
	return p != rpcrdma.Done && p != rpcrdma.Error
}

// exceed parks the Call of b, in Receive buffer i, which has come while others wait or while all
// credits are in use. It closes the connection when the Requester has gone too far.
func (c *ResponderConn) exceed(i int, b []byte) {
	g := &c.grants
	if int(g.Outstanding)+len(c.parked) >= int(g.Needed())+c.beyond() {
		var xid uint32
		if len(b) >= 4 {
			xid = binary.BigEndian.Uint32(b)
		}
		c.overrun(xid)
		c.repostBuffer(i)
		return
	}
	if g.Full() {
		c.responder.metrics.excess.Inc()
	}
	c.park(i, len(b))
}

// overrun closes the connection of a Requester that has exceeded its grant by too much.
func (c *ResponderConn) overrun(xid uint32) {
	err := fmt.Errorf("%w: %d outstanding, %d waiting", errOverrun, c.grants.Outstanding, len(c.parked))
	c.refuse(xid, refusal{reasonCredits, err})
}
