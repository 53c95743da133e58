package nfs4test

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
)

// A Client is a host with one connection and one session. All of it belongs to its loop.
type Client struct {
	cs    *Clients        // constant, as the next three
	index int             // among cs
	on    loop.SocketLoop // its loop
	owner string

	sock     loop.Socket // nil when there is no connection
	dialling bool
	mine     bool // the client closes the connection itself
	closing  func()
	in       []byte // octets of a record that is not complete
	out      []byte // octets that wait for room in the socket
	blocked  bool

	greeted   bool   // a NULL Call was answered
	id        uint64 // clientid4; 0 for none
	created   uint32 // sequence number of the next CREATE_SESSION
	session   SessionID
	has       bool // there is a session
	reclaimed bool
	bind      bool // the connection must be bound
	reset     bool // the session must be replaced
	counted   bool // in Clients.up

	control control
	xid     uint32 // counts Calls
	slots   []clientSlot
	load    *Load
	renewal bool         // a SEQUENCE is due
	renewed atomic.Int64 // SEQUENCEs for the lease that were answered; read by all
	idle    bool         // its load has sent nothing since the timer's latest event
	timer   *time.Timer

	callback uint32 // sequence number of the latest callback
	silent   bool
}

// A control is a Call outside the slots: at most one at a time. Kind is the number of its
// operation, 0 for NULL.
type control struct {
	busy   bool
	kind   uint32
	xid    uint32
	record []byte
}

// A clientSlot is a slot of the session.
type clientSlot struct {
	sequence uint32
	busy     bool // a COMPOUND is under way
	again    bool // it must be sent again: its SEQUENCE has failed
	fresh    bool // it must be sent again with the next sequence number
	waiting  bool // it is sent again after a time: the server has answered NFS4ERR_DELAY
	rests    bool // no COMPOUND of a Load may begin yet
	op       Op
	offset   uint64
	load     *Load // nil for renewals and RECLAIM_COMPLETE
	xid      uint32
	record   []byte
}

// underWay reports whether the server has to answer the COMPOUND in p.
func (p *clientSlot) underWay() bool { return p.busy && !p.again && !p.fresh && !p.waiting }

// controlXID is what XIDs of controls have in their low bits. Others have the number of a slot.
const (
	slotBits   = 6
	controlXID = 1<<slotBits - 1
)

func newClient(cs *Clients, i int) *Client {
	// All clients have the same XIDs, as hosts that were started together may have.
	return &Client{
		cs: cs, index: i, on: cs.o.Loops[i%len(cs.o.Loops)], owner: fmt.Sprintf("%s-%d", cs.o.Prefix, i),
		slots: make([]clientSlot, min(cs.o.Slots, controlXID)),
	}
}

func (c *Client) post(f func()) { c.on.Post(loop.TaskFunc(f)) }

// later calls f on the loop after d.
func (c *Client) later(d time.Duration, f func()) { time.AfterFunc(d, func() { c.post(f) }) }

// fail reports what must not happen.
func (c *Client) fail(format string, a ...any) {
	c.cs.fail(fmt.Errorf("nfs4test: client %d: %w", c.index, fmt.Errorf(format, a...)))
}

// connect makes a connection, unless there is one.
func (c *Client) connect() {
	if c.sock != nil || c.dialling || c.closing != nil {
		return
	}
	c.dialling = true
	c.cs.dials <- c
}

// close ends c and calls done.
func (c *Client) close(done func()) {
	c.closing = done
	if c.timer != nil {
		c.timer.Stop()
	}
	if c.sock == nil {
		done()
		return
	}
	c.sock.Close()
}

// A stream is one connection of a client.
type stream struct{ c *Client }

// Attached is part of loop.Stream.
func (s *stream) Attached(sock loop.Socket) {
	c := s.c
	c.sock, c.dialling, c.mine, c.blocked = sock, false, false, false
	c.in, c.out = nil, nil
	if c.closing != nil {
		sock.Close()
		return
	}
	c.cs.Connects.Add(1)
	if c.control.busy {
		c.send(c.control.record)
	}
	for i := range c.slots {
		if p := &c.slots[i]; p.underWay() {
			c.cs.Resent.Add(1)
			c.send(p.record)
		}
	}
	c.step()
}

// Detached is part of loop.Stream.
func (s *stream) Detached(error) {
	c := s.c
	c.sock = nil
	c.count()
	if c.closing != nil {
		c.closing()
		return
	}
	if !c.mine {
		c.cs.Lost.Add(1)
	}
	// Linux connects when it has something to send.
	if c.mine || c.wanted() {
		c.connect()
	}
}

// wanted reports whether c needs a connection.
func (c *Client) wanted() bool {
	if c.control.busy || !c.has || !c.reclaimed || c.load != nil || c.renewal || c.bind || c.reset {
		return true
	}
	return c.busy()
}

// busy reports whether a slot is in use.
func (c *Client) busy() bool {
	for i := range c.slots {
		if c.slots[i].busy {
			return true
		}
	}
	return false
}

// count keeps Clients.up right.
func (c *Client) count() {
	if up := c.sock != nil && c.has && c.reclaimed; up != c.counted {
		c.counted = up
		if up {
			c.cs.up.Add(1)
		} else {
			c.cs.up.Add(-1)
		}
	}
}

// Received is part of loop.Stream.
func (s *stream) Received(b []byte) {
	c := s.c
	if len(c.in) > 0 {
		c.in = append(c.in, b...)
		b = c.in
	}
	for len(b) >= 4 {
		mark := binary.BigEndian.Uint32(b)
		n := int(mark &^ (1 << 31))
		if mark>>31 == 0 || n > 4<<20 {
			c.fail("record mark %#x", mark)
			c.sock.Abort()
			return
		}
		if len(b) < 4+n {
			break
		}
		c.record(b[4 : 4+n])
		b = b[4+n:]
		if c.sock == nil {
			return
		}
	}
	c.in = append(c.in[:0], b...)
	c.step()
}

// Writable is part of loop.Stream.
func (s *stream) Writable() {
	s.c.blocked = false
	s.Flush()
}

// Flush is part of loop.Stream.
func (s *stream) Flush() {
	c := s.c
	if c.sock == nil || c.blocked || len(c.out) == 0 {
		return
	}
	n, err := c.sock.Writev([][]byte{c.out})
	if err != nil {
		return // Detached follows
	}
	c.blocked = n < len(c.out)
	c.out = append(c.out[:0], c.out[n:]...)
	if len(c.out) == 0 && cap(c.out) > 4096 {
		c.out = nil
	}
}

// send sends a record.
func (c *Client) send(record []byte) {
	if c.sock == nil {
		return
	}
	c.out = append(c.out, record...)
	c.sock.FlushSoon()
}

// nextXID returns an XID with these low bits.
func (c *Client) nextXID(low uint32) uint32 {
	c.xid++
	return c.xid<<slotBits | low
}

// step does what is next: it sends the Call that the client's state needs, or those of its load.
func (c *Client) step() {
	if c.closing != nil {
		return
	}
	c.count()
	if c.sock == nil {
		if c.wanted() {
			c.connect()
		}
		return
	}
	if c.control.busy {
		return
	}
	switch {
	case !c.greeted:
		c.start(0)
	case c.id == 0:
		c.start(opExchangeID)
	case c.reset && c.has:
		if !c.underWay() {
			c.start(opDestroySession)
		}
	case !c.has:
		if !c.underWay() {
			c.start(opCreateSession)
		}
	case c.bind:
		if !c.underWay() {
			c.start(opBindConn)
		}
	default:
		c.pump()
	}
}

// underWay reports whether the server still has to answer a COMPOUND in a slot. Linux drains its
// session before it repairs it.
func (c *Client) underWay() bool {
	for i := range c.slots {
		if c.slots[i].underWay() {
			return true
		}
	}
	return false
}

// start sends a Call outside the slots.
func (c *Client) start(kind uint32) {
	xid := c.nextXID(controlXID)
	var m []byte
	if kind == 0 {
		m = callHeader(xid, 100003, 4, 0)
	} else {
		m = testkit.AppendWords(compoundCall(xid, c.cs.o.Minor, 1), kind)
	}
	switch kind {
	case opExchangeID:
		m = append(m, "verifier"...)
		m = testkit.AppendOpaque(m, []byte(c.owner))
		m = testkit.AppendWords(m, 0)
		if c.cs.o.Machine {
			// Linux asks for these operations: BIND_CONN_TO_SESSION, EXCHANGE_ID and those that
			// end sessions and clients.
			m = testkit.AppendWords(m, 1, 2, 0, 1<<(opBindConn-32)|1<<(opExchangeID-32)|1<<(opCreateSession-32)|1<<(opDestroySession-32)|1<<(opDestroyClientID-32), 0)
		} else {
			m = testkit.AppendWords(m, 0)
		}
		m = testkit.AppendWords(m, 0)
	case opCreateSession:
		m = binary.BigEndian.AppendUint64(m, c.id)
		m = testkit.AppendWords(m, c.created, createPersist|createBackChan)
		m = testkit.AppendWords(m, 0, 1<<20+4096, 1<<20+4096, 3428, 8, uint32(len(c.slots)), 0)
		m = testkit.AppendWords(m, 0, 4096, 4096, 0, 2, 16, 0)
		m = testkit.AppendWords(m, callbackProgram, 1, 1, 0)
		m = testkit.AppendOpaque(m, []byte("nfs4test"))
		m = testkit.AppendWords(m, 0, 0, 0)
	case opDestroySession:
		m = append(m, c.session[:]...)
	case opBindConn:
		m = append(m, c.session[:]...)
		m = testkit.AppendWords(m, bindForeOrBoth, 0)
	}
	c.control = control{busy: true, kind: kind, xid: xid, record: testkit.Record(m)}
	c.send(c.control.record)
}

// scheduleRenewal sets the timer of the lease. Clients that begin together do not renew together.
func (c *Client) scheduleRenewal(first bool) {
	d := c.cs.o.Renew
	if d < 0 || c.closing != nil {
		return
	}
	if first {
		d = rand.N(d)
	}
	if c.timer == nil {
		c.timer = time.AfterFunc(d, func() { c.post(c.renewalDue) })
		return
	}
	c.timer.Reset(d)
}

// renewalDue renews the lease if nothing else has.
func (c *Client) renewalDue() {
	if c.idle {
		c.renew()
	}
	c.idle = true
	c.scheduleRenewal(false)
}

// renew sends a SEQUENCE.
func (c *Client) renew() {
	c.renewal = true
	c.step()
}
