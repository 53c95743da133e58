package nfs4test

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/xdr"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
)

// record takes a message of the server.
func (c *Client) record(m []byte) {
	xid, kind, ok := oncrpc.MessageType(m)
	switch {
	case !ok:
		c.fail("a message of %d octets", len(m))
	case kind == oncrpc.TypeCall:
		c.called(m)
	case xid&controlXID == controlXID:
		c.controlled(xid, m)
	default:
		c.answered(xid, m)
	}
}

var errMalformed = errors.New("malformed Reply")

// results returns a cursor behind the number of results of a COMPOUND.
func results(m []byte) (status Status, x xdr.Cursor, err error) {
	var h oncrpc.Reply
	if err := oncrpc.ParseReply(m, &h); err != nil {
		return 0, x, err
	}
	if !h.Succeeded() {
		return 0, x, errors.New("RPC error")
	}
	x = xdr.NewCursor(m, h.Results)
	status = Status(x.Uint32())
	x.Opaque()
	x.Skip(4)
	return status, x, x.Err()
}

// controlled takes the Reply to a Call outside the slots.
func (c *Client) controlled(xid uint32, m []byte) {
	if !c.control.busy || c.control.xid != xid {
		c.fail("Reply to a Call %#x that is not under way", xid)
		return
	}
	kind := c.control.kind
	c.control = control{}
	if kind == 0 {
		var h oncrpc.Reply
		if err := oncrpc.ParseReply(m, &h); err != nil || !h.Succeeded() {
			c.fail("NULL failed: %v", err)
		}
		c.greeted = true
		return
	}
	_, x, err := results(m)
	number, status := x.Uint32(), Status(x.Uint32())
	if err != nil || !x.OK() || number != kind {
		c.fail("Reply to operation %d: %d, %v: %x", kind, number, err, m)
		return
	}
	if status == errDelay {
		c.cs.Delays.Add(1)
		return
	}
	switch kind {
	case opExchangeID:
		c.id, c.created = x.Uint64(), x.Uint32()
		if status != OK {
			c.fail("EXCHANGE_ID: %d", status)
			c.id = 0
		}
	case opCreateSession:
		c.sessionCreated(status, &x)
	case opDestroySession:
		if status != OK && status != errBadSession {
			c.fail("DESTROY_SESSION: %d", status)
		}
		c.has = false
	case opBindConn:
		c.connectionBound(status, &x)
	}
}

func (c *Client) sessionCreated(status Status, x *xdr.Cursor) {
	switch status {
	case OK:
	case errStaleClientID:
		c.id, c.reclaimed = 0, false
		return
	default:
		c.fail("CREATE_SESSION: %d", status)
		c.id, c.reclaimed = 0, false
		return
	}
	for i := range c.session {
		c.session[i] = 0
	}
	hi, lo := x.Uint64(), x.Uint64()
	binary.BigEndian.PutUint64(c.session[:], hi)
	binary.BigEndian.PutUint64(c.session[8:], lo)
	if sequence, flags := x.Uint32(), x.Uint32(); sequence != c.created || flags != createBackChan {
		c.fail("CREATE_SESSION: sequence %d and flags %#x, want %d and %#x", sequence, flags, c.created, createBackChan)
	}
	c.cs.Sessions.Add(1)
	c.created++
	c.has, c.bind, c.reset, c.callback = true, false, false, 0
	for i := range c.slots {
		p := &c.slots[i]
		p.sequence = 0
		p.fresh, p.again, p.waiting = p.busy, false, false
	}
	if c.timer == nil {
		c.scheduleRenewal(true)
	}
}

func (c *Client) connectionBound(status Status, x *xdr.Cursor) {
	c.bind = false
	if status == errBadSession {
		c.has = false
		return
	}
	var id SessionID
	binary.BigEndian.PutUint64(id[:], x.Uint64())
	binary.BigEndian.PutUint64(id[8:], x.Uint64())
	if direction := x.Uint32(); status != OK || id != c.session || direction != bindFore|bindBack {
		c.fail("BIND_CONN_TO_SESSION: %d, session %v, direction %d", status, id, direction)
		return
	}
	c.cs.Binds.Add(1)
}

// answered takes the Reply to a COMPOUND in a slot, which is checked octet for octet.
func (c *Client) answered(xid uint32, m []byte) {
	n := xid & controlXID
	if int(n) >= len(c.slots) || !c.slots[n].busy || c.slots[n].xid != xid {
		c.fail("Reply %#x to no Call", xid)
		return
	}
	p := &c.slots[n]
	if !p.underWay() {
		c.fail("second Reply %#x", xid)
		return
	}
	status, x, err := results(m)
	if number := x.Uint32(); err != nil || number != opSequence {
		c.fail("slot %d: operation %d instead of SEQUENCE, %v", n, number, err)
		c.done(p)
		return
	}
	if first := Status(x.Uint32()); first != OK {
		c.refused(n, p, first)
		return
	}
	var id SessionID
	binary.BigEndian.PutUint64(id[:], x.Uint64())
	binary.BigEndian.PutUint64(id[8:], x.Uint64())
	sequence, slot := x.Uint32(), x.Uint32()
	x.Skip(8)
	flags := x.Uint32()
	if !x.OK() || id != c.session || sequence != p.sequence || slot != n {
		c.fail("Reply for session %v, slot %d, sequence %d; want %v, %d, %d", id, slot, sequence, c.session, n, p.sequence)
	}
	if flags&(flagCallbackPathDown|flagCallbackPathDownSession) != 0 {
		c.bind = true
	}
	if flags&flagBackChannelFault != 0 && !c.reset {
		c.reset = true
		c.cs.Resets.Add(1)
	}
	if status == errRetryUncached {
		c.cs.Uncached.Add(1)
		p.fresh = true // the operations do no harm when they are repeated
		return
	}
	if err := p.check(n, status, &x, m); err != nil {
		c.fail("%v in slot %d, sequence %d: %w", p.op, n, p.sequence, err)
	}
	if p.op == opReclaim {
		c.reclaimed = true
	}
	c.done(p)
}

// done frees the slot p.
func (c *Client) done(p *clientSlot) {
	p.busy = false
	c.cs.Replies.Add(1)
	if p.load == nil && p.op == OpSequence {
		c.renewed.Add(1)
	}
	if l := p.load; l != nil {
		l.Replies.Add(1)
		if d := c.cs.o.Think; d > 0 {
			p.rests = true
			c.later(d, func() {
				p.rests = false
				c.step()
			})
		}
	}
	if cap(p.record) > 1024 {
		p.record = nil
	}
	c.leave()
}

// refused handles the error of a SEQUENCE, which has executed nothing.
func (c *Client) refused(n uint32, p *clientSlot, status Status) {
	switch status {
	case errBadSession:
		c.has = false
		p.again = true
	case errConnNotBound:
		c.bind = true
		p.again = true
	case errDelay:
		c.cs.Delays.Add(1)
		p.waiting = true
		c.later(c.cs.o.Retry, func() {
			if p.waiting {
				p.waiting, p.again = false, true
				c.step()
			}
		})
	default:
		c.fail("SEQUENCE %d in slot %d: %d", p.sequence, n, status)
		c.done(p)
	}
}

// check checks the results behind SEQUENCE.
func (p *clientSlot) check(n uint32, status Status, x *xdr.Cursor, m []byte) error {
	if p.op == opReclaim && status == errCompleteAlready {
		return nil // its first Reply was lost
	}
	if status != OK {
		return fmt.Errorf("status %d", status)
	}
	switch p.op {
	case OpSequence:
	case opReclaim:
		if x.Uint32() != opReclaimComplete || x.Uint32() != 0 {
			return errMalformed
		}
	case OpGetattr:
		if x.Uint32() != opPutrootfh || x.Uint32() != 0 || x.Uint32() != opGetattr || x.Uint32() != 0 ||
			x.Uint32() != 1 || x.Uint32() != 1<<20 || x.Uint32() != 8 {
			return errMalformed
		}
		if got, want := x.Uint64(), attributesOf(n, p.sequence); got != want {
			return errors.New("attributes of another Reply")
		}
	default:
		if x.Uint32() != opPutrootfh || x.Uint32() != 0 || x.Uint32() != opRead || x.Uint32() != 0 || x.Uint32() != 0 {
			return errMalformed
		}
		at, k := x.Opaque()
		if k != int(p.op) {
			return errMalformed
		}
		if string(m[at:at+k]) != string(testkit.Pattern(k, uint32(p.offset))) {
			return errors.New("wrong data")
		}
	}
	if !x.OK() || x.Len() != 0 {
		return errMalformed
	}
	return nil
}
