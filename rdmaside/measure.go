package rdmaside

import (
	"time"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
)

// Measure tells what the kernel knows of the TCP connection below, if there is one.
func (r *Requester) Measure() (loop.TCP, bool) { return fabric.Measure(r.conn) }

// Oldest is for how long the Call that was sent first has been outstanding; 0 if none is.
func (r *Requester) Oldest() time.Duration {
	if r.oldest < 0 {
		return 0
	}
	return r.since() - r.slots[r.oldest].sent
}

// Measure tells what the kernel knows of the TCP connection below, if there is one.
func (c *ResponderConn) Measure() (loop.TCP, bool) { return fabric.Measure(c.conn) }

// Credits are how many Calls the peer may have outstanding, by the latest Reply, and how many it has.
func (c *ResponderConn) Credits() (granted, used int) {
	return int(c.grants.Granted), int(c.grants.Outstanding)
}
