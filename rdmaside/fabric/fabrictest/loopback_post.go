package fabrictest

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
)

// postable returns the error of posting when nothing can be posted.
func (c *loopbackConn) postable() error {
	if c.closing || c.state != open && c.state != setting || c.link.dead {
		return fabric.ErrClosed
	}
	return nil
}

// PostReceive posts buf for the next message.
func (c *loopbackConn) PostReceive(id uint64, buf []byte) error {
	c.link.mu.Lock()
	defer c.link.mu.Unlock()
	if err := c.postable(); err != nil {
		return err
	}
	if c.receives.len() >= c.opts.Receives {
		return fabric.ErrQueueFull
	}
	*c.receives.add() = receive{id, buf}
	c.counts.PostedReceives++
	if c.counts.PostedReceives == 1 {
		c.counts.LowReceives = int(^uint(0) >> 1)
	}
	return nil
}

// post queues work for the end of the pass.
func (c *loopbackConn) post(id uint64, op fabric.Op, parts [][]byte) (*work, error) {
	if err := c.postable(); err != nil {
		return nil, err
	}
	if c.posted >= c.opts.Sends {
		return nil, fabric.ErrQueueFull
	}
	c.posted++
	w := c.work.add()
	w.id, w.op = id, op
	w.parts = append(w.parts[:0], parts...)
	w.into, w.at, w.invalidate, w.copied = nil, fabric.Region{}, 0, false
	return w, nil
}

// later makes the loop run c at the end of the pass. It unlocks link.mu.
func (c *loopbackConn) later() {
	c.due = true
	wake := c.link.wakes()
	c.link.mu.Unlock()
	wake.post()
}

// PostSend posts a message.
func (c *loopbackConn) PostSend(id uint64, s fabric.Send) error {
	c.link.mu.Lock()
	w, err := c.post(id, fabric.OpSend, s.Parts)
	if err != nil {
		c.link.mu.Unlock()
		return err
	}
	w.invalidate = s.Invalidate
	c.later()
	return nil
}

// SendCopy posts a copy of a message: of every other one that is short.
func (c *loopbackConn) SendCopy(parts [][]byte) bool {
	c.link.mu.Lock()
	n := 0
	for _, p := range parts {
		n += len(p)
	}
	c.copies++
	if n > copyMost || c.copies%2 == 0 {
		c.link.mu.Unlock()
		return false
	}
	w, err := c.post(0, fabric.OpSend, [][]byte{bytes.Join(parts, nil)})
	if err != nil {
		c.link.mu.Unlock()
		return false
	}
	c.posted--
	w.copied, c.copied = true, true
	c.later()
	return true
}

// Unwritten reports whether a copied message has not been sent.
func (c *loopbackConn) Unwritten() bool {
	c.link.mu.Lock()
	defer c.link.mu.Unlock()
	return slices.ContainsFunc(c.work.slots[c.work.next:], func(w work) bool { return w.copied })
}

// copyMost is the length of the longest message that SendCopy copies.
const copyMost = 1024

// PostWrite posts an RDMA Write.
func (c *loopbackConn) PostWrite(id uint64, wr fabric.Write) error {
	c.link.mu.Lock()
	w, err := c.post(id, fabric.OpWrite, wr.Parts)
	if err != nil {
		c.link.mu.Unlock()
		return err
	}
	w.at = wr.To
	c.later()
	return nil
}

// PostRead posts an RDMA Read.
func (c *loopbackConn) PostRead(id uint64, r fabric.Read) error {
	if uint64(len(r.Into)) < uint64(r.From.Length) {
		return fmt.Errorf("fabrictest: read of %d octets into %d", r.From.Length, len(r.Into))
	}
	c.link.mu.Lock()
	err := c.postable()
	if err == nil && c.info.ORD == 0 {
		err = fmt.Errorf("fabrictest: ORD is 0: %w", fabric.ErrLimit)
	}
	var w *work
	if err == nil {
		w, err = c.post(id, fabric.OpRead, nil)
	}
	if err != nil {
		c.link.mu.Unlock()
		return err
	}
	w.into, w.at = r.Into, r.From
	c.later()
	return nil
}

// Flush carries out posted work.
func (c *loopbackConn) Flush() {
	c.link.mu.Lock()
	if c.state == open {
		c.carryOut()
	}
	wake := c.link.wakes()
	c.link.mu.Unlock()
	wake.post()
}

// Register makes buf reachable under a random handle at a random offset.
func (c *loopbackConn) Register(buf []byte, a fabric.Access) (fabric.Region, error) {
	c.link.mu.Lock()
	defer c.link.mu.Unlock()
	if err := c.postable(); err != nil {
		return fabric.Region{}, err
	}
	if len(c.regions) >= c.opts.Handles {
		return fabric.Region{}, fmt.Errorf("fabrictest: handles: %w", fabric.ErrLimit)
	}
	if uint64(len(buf)) > 1<<32-1 {
		return fabric.Region{}, fmt.Errorf("fabrictest: region of %d octets: %w", len(buf), fabric.ErrLimit)
	}
	h := newHandle(c.regions)
	r := region{buf: buf, offset: rand.Uint64() >> 1, access: a}
	c.regions[h] = r
	c.counts.Registered++
	return fabric.Region{Handle: h, Offset: r.offset, Length: uint32(len(buf))}, nil
}

// Invalidate invalidates h: at once, or, after AsyncInvalidate(true), some time before
// the Completion.
func (c *loopbackConn) Invalidate(id uint64, h fabric.Handle) (done bool, err error) {
	k := c.link
	k.mu.Lock()
	r, ok := c.regions[h]
	if !ok || r.dying || c.state != open || !k.p.asynchronous() {
		delete(c.regions, h)
		k.mu.Unlock()
		return true, nil
	}
	r.dying = true
	c.regions[h] = r
	w := c.work.add()
	w.id, w.op, w.parts, w.into, w.invalidate, w.copied = id, fabric.OpInvalidate, w.parts[:0], nil, 0, false
	w.at = fabric.Region{Handle: h}
	c.later()
	return false, nil
}

// Placed returns how many octets from the first on the peer has written to the memory of h.
func (c *loopbackConn) Placed(h fabric.Handle) uint32 {
	c.link.mu.Lock()
	defer c.link.mu.Unlock()
	r, ok := c.regions[h]
	if !ok {
		r = c.graves[h]
	}
	return uint32(r.placed())
}

// Info describes the connection.
func (c *loopbackConn) Info() fabric.Info { return c.info }

// RemoteInvalidation implements fabric.RemoteInvalidator.
func (c *loopbackConn) RemoteInvalidation() bool {
	c.link.p.mu.Lock()
	defer c.link.p.mu.Unlock()
	return !c.link.p.kept
}

// LastActivity is the time at which work of the peer last reached this end.
func (c *loopbackConn) LastActivity() time.Time {
	c.link.mu.Lock()
	defer c.link.mu.Unlock()
	return c.active
}

// Close ends the connection. With a nil err it first carries out posted work up to an
// injected Hold.
func (c *loopbackConn) Close(err error) {
	k := c.link
	k.mu.Lock()
	if c.closing || k.dead || c.state == gone {
		k.mu.Unlock()
		return
	}
	if err == nil && c.state == open {
		c.carryOut()
	}
	if !k.dead {
		c.closing = true
		if c.dialed {
			k.die(err, nil)
		} else {
			k.die(nil, err)
		}
	}
	wake := k.wakes()
	k.mu.Unlock()
	wake.post()
}
