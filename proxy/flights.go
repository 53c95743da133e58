package proxy

import (
	"bytes"
	"encoding/binary"
	"hash/maphash"
	"sync"

	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
)

// Calls in flight
//
// A client sends a Call again when it has waited too long for the Reply, on the same connection
// or, when it has lost that, on the next one. A server that is still executing the first
// transmission drops the second without an answer, if it has a duplicate request cache, and the
// credit is lost with it. Otherwise it executes the Call twice. So the proxy remembers each Call
// that does harm when repeated from the time it is read until its Reply has come or it has
// failed. It does not remember Calls that only read, because reading twice is harmless.
//
// A Call repeats one in flight if both are the same to the last octet, apart from the stamp of
// AUTH_SYS and the verifier, and come from the same origin for the same upstream: from one address
// and port over TCP, from one address over RDMA (origin.go). 64 bits of a hash find the Call in
// flight; after that the octets count. In particular, the user is the same.
//
//   - A repeat on the same TCP connection is dropped: the one Reply answers both.
//   - A repeat on another connection, or on the same RDMA connection, where it has a credit until it is
//     answered, is held. It gets a copy of the Reply. If there is no Reply,
//     because the connection to the upstream or the first client connection was lost, the
//     repeat is sent in its own right, with the same XID, as if it had come at that time.
//   - A COMPOUND of NFSv4.1 that begins with SEQUENCE is not held: the server executes it once,
//     whatever connection it comes on (pin.go). It is sent at once, on the pinned connection of the
//     client connection that it came on. The pinned connection that carries the first transmission
//     may be dead.
//
// The proxy closes no connection because of a repeat. The second connection may be the client's
// next one. The first connection may still look alive then: the proxy does not see its end while
// its loop is busy, and a proxy that names the client's port in a header may have lost the client
// and not closed its connection yet. Over RDMA the second may as well be the connection of another
// client at the same address that chose the same XID for the same Call as the same user. Nothing
// tells these two cases apart, and nothing would tell a server on RDMA. Copies of the Reply suit both.

const (
	// flightLists is how many lists there are. Where 16,000 Calls are in flight, a list has
	// one of them.
	flightLists = 1 << 14
	// longestSearch bounds how many Calls a search looks at, in a list and among the repeats
	// of a Call. Chance does not make a list as long as that, and a client that does gains
	// nothing but repeats that are not found.
	longestSearch = 64
)

// flights are the Calls in flight that do harm when repeated. They are safe for concurrent use.
type flights struct {
	seed  maphash.Seed
	lists []flightList // flightLists
}

// A flightList has the Calls whose tags are the same in their low bits.
type flightList struct {
	mu    sync.Mutex // guards first and the fields that link calls; a leaf
	first *call
}

// A flight is a call's place among the Calls in flight. The lock of the list guards it, apart from
// tag.
type flight struct {
	tag        uint64 // a hash of the XID, the upstream and the origin; constant after flights.enter
	prev, next *call  // neighbours in the list; next also links the repeats of a Call
	repeats    *call  // the first of the Calls that repeat this one and are held, the latest first
	original   *call  // the Call that this one repeats while it is held
}

func newFlights() *flights {
	return &flights{seed: maphash.MakeSeed(), lists: make([]flightList, flightLists)}
}

// An entry is what flights.enter did with a Call.
type entry uint8

const (
	entryFlying  entry = iota // it is remembered, and is to be sent
	entryDropped              // it repeats a Call of the same TCP connection
	entryHeld                 // it repeats a Call otherwise, and is held
)

// enter remembers c, which has its far XID, or finds out that it is a repeat. If enter holds c, c
// belongs to the Call that it repeats from then on.
func (t *flights) enter(c *call) entry {
	c.usesSeldom = true
	c.flight.tag = t.tag(c)
	l := t.list(c)
	l.mu.Lock()
	defer l.mu.Unlock()
	first := l.find(c)
	if first == nil || first.owner.front != c.owner.front && c.rdma.Analysis.Session != 0 {
		l.push(c)
		c.flying = true
		return entryFlying
	}
	if c.owner.exchange == nil && first.answers(c.owner.front) {
		return entryDropped
	}
	c.setState(callHeld)
	c.flight.original = first
	c.flight.next, first.flight.repeats = first.flight.repeats, c
	return entryHeld
}

// answers reports whether c, or one of the Calls that repeat it, is of f's connection.
func (c *call) answers(f *front) bool {
	if c.owner.front == f {
		return true
	}
	n := 0
	for r := c.flight.repeats; r != nil && n < longestSearch; r, n = r.flight.next, n+1 {
		if r.owner.front == f {
			return true
		}
	}
	return false
}

// rewritten reports whether the connection that a Call gets to its upstream may change it, so that it
// cannot be compared with others any more. It is a CREATE_SESSION or a BIND_CONN_TO_SESSION, which the
// server recognises when they come again: RFC 8881 Sections 18.36.4 and 18.34.
func rewritten(a *ulb.Analysis) bool {
	return a.BackRequest != 0 || a.SessionOps&ulb.BindConnToSession != 0
}

// tag hashes the XID, the upstream and the origin of c. The XID depends on the arguments.
func (t *flights) tag(c *call) uint64 {
	return maphash.Comparable(t.seed, struct {
		xid, upstream uint32
		origin        origin
	}{c.rdma.XID, uint32(c.up.number), c.owner.front.ledger.origin()})
}

func (t *flights) list(c *call) *flightList { return &t.lists[c.flight.tag%flightLists] }

// leave forgets c, which is not in flight any more, and returns the Calls that repeat it, linked by
// flight.next.
func (t *flights) leave(c *call) (repeats *call) {
	l := t.list(c)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.remove(c)
	repeats, c.flight.repeats = c.flight.repeats, nil
	for r := repeats; r != nil; r = r.flight.next {
		r.flight.original = nil
	}
	return repeats
}

// replace puts the latest repeat of c in the place of c, which has ended without a Reply. The
// repeat is in flight from now on, and has the other repeats. replace returns nil if there is none.
func (t *flights) replace(c *call) *call {
	l := t.list(c)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.remove(c)
	next := c.flight.repeats
	if next == nil {
		return nil
	}
	next.flight.repeats, c.flight.repeats = next.flight.next, nil
	next.flight.original, next.flight.next = nil, nil
	for r := next.flight.repeats; r != nil; r = r.flight.next {
		r.flight.original = next
	}
	l.push(next)
	next.flying = true
	return next
}

// withdraw takes c, which is held, from the Call that it repeats, because its client has gone. It
// reports false if that Call has ended meanwhile and somebody else decides about c.
func (t *flights) withdraw(c *call) bool {
	l := t.list(c)
	l.mu.Lock()
	defer l.mu.Unlock()
	first := c.flight.original
	if first == nil {
		return false
	}
	c.flight.original = nil
	at := &first.flight.repeats
	for *at != c {
		at = &(*at).flight.next
	}
	*at, c.flight.next = c.flight.next, nil
	return true
}

// find returns the Call in flight that c repeats, or nil. l.mu is held.
func (l *flightList) find(c *call) *call {
	n := 0
	for o := l.first; o != nil && n < longestSearch; o, n = o.flight.next, n+1 {
		if o.flight.tag == c.flight.tag && o.same(c) {
			return o
		}
	}
	return nil
}

// push adds c. l.mu is held.
func (l *flightList) push(c *call) {
	c.flight.prev, c.flight.next = nil, l.first
	if l.first != nil {
		l.first.flight.prev = c
	}
	l.first = c
}

// remove removes c. l.mu is held.
func (l *flightList) remove(c *call) {
	prev, next := c.flight.prev, c.flight.next
	if prev != nil {
		prev.flight.next = next
	} else {
		l.first = next
	}
	if next != nil {
		next.flight.prev = prev
	}
	c.flight.prev, c.flight.next, c.flying = nil, nil, false
}

// same reports whether c and o, which is in flight, are one Call that was sent twice. Both have
// their messages as long as they are in flight or held.
func (c *call) same(o *call) bool {
	a, b := &c.h, &o.h
	if c.up.number != o.up.number || c.clientXID != o.clientXID || c.owner.front.ledger.origin() != o.owner.front.ledger.origin() ||
		a.Program != b.Program || a.Version != b.Version || a.Procedure != b.Procedure || a.Flavor != b.Flavor {
		return false
	}
	_, ua := user(a)
	_, ub := user(b)
	return bytes.Equal(ua, ub) && bytes.Equal(a.Message[a.Args:], b.Message[b.Args:])
}

// land ends c's time in flight. Calls that repeat c get a copy of its Reply. If c has none, the
// latest of them goes in its place. here is the number of the calling loop, or pool.Elsewhere.
func (c *call) land(here int) {
	t := c.up.p.flights
	if c.reply.parts == nil {
		if next := t.replace(c); next != nil {
			next.owner.front.loop.Post(next)
		}
		return
	}
	for r := t.leave(c); r != nil; {
		next := r.flight.next
		r.flight.next = nil
		r.copyReply(c, here)
		r = next
	}
}

// copyReply gives c a copy of the Reply to of, which c repeats. If there is no memory for the copy,
// the connection of c's client is closed, and the client sends the Call again.
func (c *call) copyReply(of *call, here int) {
	l := c.up.p.loop(here)
	if err := c.setReply(l, of.reply.parts, 0); err != nil {
		c.giveUp(here, err)
		return
	}
	binary.BigEndian.PutUint32(c.reply.parts[0], c.clientXID)
	c.rdma.XID = c.clientXID
	c.releaseMessage(l)
	c.finish(here)
}

// setReply makes a copy of parts, with so many zeros behind it, the Reply to c. It does not release the Reply
// before. l is the calling loop; nil for none.
func (c *call) setReply(l *eventLoop, parts [][]byte, more int) error {
	account := c.up.p.replies
	if l != nil {
		account = l.replies
	}
	b, err := account.Lease(octets(parts) + more)
	if err != nil {
		return err
	}
	n := 0
	for _, p := range parts {
		n += copy(b.Bytes()[n:], p)
	}
	clear(b.Bytes()[n:])
	c.one[0] = b.Bytes()
	c.reply.parts, c.reply.lease, c.reply.memory = c.one[:], b, b.Cap()
	return nil
}
