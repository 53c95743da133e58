//go:build ibverbs

package ibverbs

import (
	"errors"
	"time"
)

// The end of a connection on InfiniBand or RoCE sends the peer a message of the connection manager,
// through a queue pair that all connections of the port share. While the port is down the message
// reaches nobody, and with rxe of Linux 6.1 it breaks that queue pair: it receives nothing any more,
// so that no connection can be made until the device is made anew. Therefore no connection says
// farewell before its port is up. What the kernel says then tells the peer that the old connection
// is gone, which it would not learn otherwise.

// portPoll is how often a connection that is gone looks whether its port is up. Tests shorten it.
var portPoll = 100 * time.Millisecond

// portDown says whether messages of the connection manager must wait.
func (c *conn) portDown() bool {
	if c.d.dev.iwarp { // TCP carries the messages
		return false
	}
	_, port := idContext(c.id.handle)
	return portDown(c.d.context, port)
}

// mustHush says whether a connection that ends for reason must end without a farewell for now. The
// device has put the queue pair into its error state where its work failed, and may do so before it
// says that the port is down.
func (c *conn) mustHush(reason error) bool {
	if c.d.dev.iwarp {
		return false
	}
	var w *workError
	return reason == errGone || errors.As(reason, &w) || c.portDown()
}

// awaitPort returns when the farewell may be sent, or when the device goes away.
func (c *conn) awaitPort() {
	if c.hushed {
		time.Sleep(eventTimeout)
	}
	for c.portDown() && !c.removed.Load() && !c.d.dead.Load() {
		time.Sleep(portPoll)
	}
}

// outlive returns a function that calls ended when the connection has gone, which may be long after
// its Dial has returned. The engine exists until then.
func (c *conn) outlive(ended func()) func() {
	e := c.d.e
	c.p.hold(e) // it succeeds, because the Dial or the connection holds it too
	return func() {
		ended()
		c.p.release(e)
	}
}
