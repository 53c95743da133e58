//go:build ibverbs

package ibverbs

import (
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
)

// flushTimeout bounds how long the end of a connection waits for the device to flush its work.
// Destroying the QP takes the work from the device in any case. Tests shorten it.
var flushTimeout = time.Second

// eventTimeout is how long the end of a connection waits for the event that explains it. Tests
// shorten it.
var eventTimeout = 200 * time.Millisecond

// Close implements fabric.Conn.
func (c *conn) Close(err error) {
	switch c.state {
	case stateStarting, stateOpen:
		c.asked = true
		if err != nil || c.state == stateStarting {
			c.end(err)
			return
		}
		c.state = stateClosing
		c.startTimer(c.p.opts.CloseTimeout, errCloseTimeout)
		c.wake() // there may be no work to wait for
		c.flush()
	case stateClosing:
		if err != nil {
			c.end(err)
		}
	}
}

// fail ends the connection because of an error.
func (c *conn) fail(err error) {
	if c.state < stateEnding {
		c.end(err)
	}
}

// end begins the end of the connection. The blocking steps are on a goroutine of their own; what
// came from the peer before is still delivered meanwhile.
func (c *conn) end(reason error) {
	c.reason = reason
	c.stopTimer()
	c.state = stateEnding
	if !c.settingUp {
		go c.takeDown(reason)
	}
}

// takeDown ends the connection up to its Closed.
func (c *conn) takeDown(reason error) {
	closed := false // by the peer
	if reason == errGone {
		// The event that says why may be on its way; the connection manager sends none when a
		// port goes down.
		select {
		case <-c.peerClosedc:
			closed = true
		case <-time.After(eventTimeout):
		}
	}
	if c.hushed = !closed && c.mustHush(reason); !c.hushed {
		_ = disconnectID(c.id.handle) // an error means that it is disconnected
	}
	c.wake()
	select {
	case <-c.drainedc:
	case <-time.After(flushTimeout):
	}
	c.destroyQP()
	c.loop.Post((*connFinish)(c))
}

// connFinish is the task that follows the destruction of the QP.
type connFinish conn

func (t *connFinish) Run() {
	c := (*conn)(t)
	for c.take() > 0 {
		c.deliver()
	}
	c.flushWork()
	c.deliver()
	c.revoke()
	c.state = stateGone
	if !c.asked && c.reason != nil && !errors.Is(c.reason, io.EOF) {
		c.p.logEnd(c, c.reason)
	}
	h := c.h
	c.h = nil
	h.Closed(c.reason)
	go c.destroy()
}

// flushWork completes all work that is left.
func (c *conn) flushWork() {
	err := fabric.ErrFlushed
	if c.reason != nil {
		err = fmt.Errorf("%w: %w", fabric.ErrFlushed, c.reason)
	}
	for ; c.sends.n > 0; c.sends.pop() {
		w := c.sends.at(0)
		w.release()
		if w.op != bindWork {
			c.batch = append(c.batch, fabric.Completion{ID: w.id, Op: w.op, Err: err})
		}
	}
	for _, w := range c.idle {
		c.batch = append(c.batch, fabric.Completion{ID: w.id, Op: w.op, Err: err})
	}
	for ; c.receives.n > 0; c.receives.pop() {
		r := c.receives.at(0)
		if r.mr != 0 {
			_ = deregisterMR(r.mr)
		}
		c.batch = append(c.batch, fabric.Completion{ID: r.id, Op: fabric.OpReceive, Err: err})
		*r = receiveWork{}
	}
	c.idle, c.sendN, c.invalidateN = nil, 0, 0
}

// revoke ends what the peer may access. The windows are gone.
func (c *conn) revoke() {
	for _, x := range c.handles {
		x.deregister()
	}
	clear(c.handles)
}

// dropWork forgets all work of a connection that has no Handler, and its handles.
func (c *conn) dropWork() {
	c.flushWork()
	c.batch = nil
	c.revoke()
}

// startTimer ends the connection with err after d.
func (c *conn) startTimer(d time.Duration, err error) {
	state := c.state
	c.deadline = time.AfterFunc(d, func() {
		c.loop.Post(loop.TaskFunc(func() {
			if c.state == state {
				c.fail(err)
			}
		}))
	})
}

func (c *conn) stopTimer() {
	if c.deadline != nil {
		c.deadline.Stop()
		c.deadline = nil
	}
}

// Register implements fabric.Conn.
func (c *conn) Register(buf []byte, a fabric.Access) (fabric.Region, error) {
	if err := c.postable(); err != nil {
		return fabric.Region{}, err
	}
	if len(c.handles) >= c.opts.Handles {
		return fabric.Region{}, fmt.Errorf("ibverbs: %w: %d handles of this connection", fabric.ErrLimit, c.opts.Handles)
	}
	if c.windows.on {
		r, x, err := c.bind(buf, a)
		if err == nil {
			c.handles[r.Handle] = x
		}
		return r, err
	}
	r, offset, err := c.d.expose(buf, a)
	if err != nil {
		return fabric.Region{}, err
	}
	c.handles[fabric.Handle(r.rkey)] = exposed{mr: r.mr, buf: buf}
	return fabric.Region{Handle: fabric.Handle(r.rkey), Offset: offset, Length: uint32(len(buf))}, nil
}

// Invalidate implements fabric.Conn. Deregistering is synchronous: when it returns, the device does
// not know the key any more. A window is invalidated by a Work Request.
func (c *conn) Invalidate(id uint64, h fabric.Handle) (done bool, err error) {
	x, ok := c.handles[h]
	switch {
	case !ok:
		return true, nil
	case x.window != nil:
		return c.unbind(id, h, x)
	}
	if err := deregisterMR(x.mr); err != nil {
		return false, fmt.Errorf("ibverbs: deregister memory: %w", err) // the end of the connection tries again
	}
	delete(c.handles, h)
	return true, nil
}
