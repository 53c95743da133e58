package proxy

import (
	"encoding/binary"
	"hash/maphash"
	"math/rand/v2"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
)

// XIDs on the far side
//
// A server's duplicate request cache sees all clients of the bridge at one address, so the
// XIDs of all clients share one name space. The proxy gives each Call with AUTH_NONE or
// AUTH_SYS an XID of its own. A Call that does harm when repeated gets an XID that another
// process of the bridge would give it, too: xid_slot.go. Other Calls get theirs from a counter
// that starts at a random number. If it started at a fixed number, the server might remember
// that XID from the process before and answer a new Call with an old success. Under RPCSEC_GSS
// the XID is signed and stays as it is.
//
// A client that retransmits, on the same connection or on a new one, must get the same XID
// again, or the server executes its Call twice. The table remembers the client's address, the
// upstream, the client's XID, program and procedure, and the beginning of the arguments, of
// each Call that does harm when repeated. It does not remember Calls that only read, because
// reading twice is harmless.
//
// When a client sends a Call again on another connection while the first is in flight, the
// other connection adopts the call: the Reply will go there, and the proxy closes the first
// connection. That connection may still look alive. The proxy does not see its FIN while the
// connection is paused or its loop is busy, and there may never be a FIN. Times do not help
// either, because a loop may read the old connection's octets after the new one's. The
// connection may also belong to another client behind the same address that chose the same XID
// for the same arguments. Such a client sends its Calls again, and they get the same XIDs. The
// mistake costs that client a reconnect, while the opposite mistake would execute a Call twice.
//
// The table is a cache of fixed size: sets of four entries, found by a 64-bit hash with a
// secret key. A full set forgets the Call that was answered longest ago, and a Call that may be
// repeated before one that does harm: there are many WRITEs, and they must not displace
// REMOVEs and RENAMEs. A Call whose set is full of Calls in flight is not remembered.

const (
	// xidMemory is how long an answered Call is remembered: longer than Linux
	// keeps its duplicate request cache entries (120 s), and than a client takes to
	// reconnect and retransmit.
	xidMemory = 180 * time.Second
	xidSets   = 1 << 14
	xidWays   = 4
	// keyOctets is how much of the arguments identifies a Call, as in the Linux
	// server's cache.
	keyOctets = 256
)

type xidEntry struct {
	tag uint64 // the hash; 0: the entry is empty
	c   *call  // the Call while it is in flight
	at  uint32 // when the Call was answered, in seconds of the loops' clock, times two; and harmBit
	xid uint32 // the XID at the server
}

// harmBit marks a Call that is NonIdempotent. The others are idempotent, but better not done
// twice. The bit shares a word with the time because a set fills its two cache lines.
const harmBit = 1

// xidTable is safe for concurrent use.
type xidTable struct {
	slots slots
	next  atomic.Uint32
	seed  maphash.Seed
	sets  []xidSet // xidSets
}

// An xidSet is two cache lines. A Call touches one set, twice; the whole table is too large
// for any cache.
type xidSet struct {
	mu      sync.Mutex // guards entries; a leaf
	entries [xidWays]xidEntry
	_       [24]byte
}

func newXIDTable() *xidTable {
	t := &xidTable{seed: maphash.MakeSeed(), sets: make([]xidSet, xidSets)}
	t.next.Store(rand.Uint32())
	return t
}

// fresh is the next XID of the counter. No slot has it.
func (t *xidTable) fresh() uint32 { return t.next.Add(1) &^ ownXID }

// tag identifies a Call to upstream number up whose XID there would be own. It is never 0.
// Calls that would have the same XID are in the same set.
func (t *xidTable) tag(client netip.Addr, up int, h *oncrpc.Call, own uint32) uint64 {
	args := h.Message[h.Args:]
	var b [40 + keyOctets]byte
	addr := client.As16()
	copy(b[:], addr[:])
	binary.LittleEndian.PutUint32(b[16:], h.XID)
	binary.LittleEndian.PutUint32(b[20:], h.Program)
	binary.LittleEndian.PutUint32(b[24:], h.Version)
	binary.LittleEndian.PutUint32(b[28:], h.Procedure)
	binary.LittleEndian.PutUint32(b[32:], uint32(len(args)))
	binary.LittleEndian.PutUint32(b[36:], uint32(up))
	n := 40 + copy(b[40:], args)
	set := maphash.Comparable(t.seed, own) % xidSets
	return maphash.Bytes(t.seed, b[:n])&^(xidSets<<1-1) | set<<1 | 1
}

func (t *xidTable) set(tag uint64) *xidSet { return &t.sets[tag>>1%xidSets] }

// free reports whether no Call that s remembers has xid. s.mu is held.
func (s *xidSet) free(xid, now uint32) bool {
	for i := range s.entries {
		if e := &s.entries[i]; e.tag != 0 && e.xid == xid && (e.c != nil || !e.over(now)) {
			return false
		}
	}
	return true
}

// find returns the entry of tag, or nil. s.mu is held.
func (s *xidSet) find(tag uint64) *xidEntry {
	for i := range s.entries {
		if e := &s.entries[i]; e.tag == tag {
			return e
		}
	}
	return nil
}

// room returns an entry to overwrite: an empty one or one whose time is over; or else, of the
// Calls that may be repeated, the one that was answered longest ago; or else the one of all
// Calls. It returns nil when all are in flight. s.mu is held.
func (s *xidSet) room(now uint32) *xidEntry {
	var old *xidEntry
	for i := range s.entries {
		e := &s.entries[i]
		switch {
		case e.c != nil:
		case e.tag == 0 || e.over(now):
			return e
		case old == nil, old.harmful() && !e.harmful(), old.harmful() == e.harmful() && e.at < old.at:
			old = e
		}
	}
	return old
}

func (e *xidEntry) harmful() bool { return e.at&harmBit != 0 }

// over reports whether e, which is answered, need not be remembered any more. now may be
// earlier than the time in e, which is from another loop's pass.
func (e *xidEntry) over(now uint32) bool { return int32(now-e.at>>1) > int32(xidMemory/time.Second) }

// seconds converts nanoseconds of the loops' clock to the seconds of an xidEntry.
func seconds(now int64) uint32 { return uint32(now/int64(time.Second)) + 1 }

// A claim is what assign did for a Call.
type claim struct {
	xid      uint32
	absorbed bool // the Call is a retransmission, and the Call in flight will answer it

	// The owner that the Call in flight had until now, when that was another connection.
	// Its exchange is nil if the Call in flight still needs it.
	old      owner
	expected int // octets that the old owner's ledger counts for the Reply
}

// assign remembers c, whose tag and owner are set. The claim has the XID that c had before if
// it is a retransmission, and otherwise own, unless another Call has that. While the first
// transmission is in flight, c is not remembered but absorbed by it.
func (t *xidTable) assign(c *call, own uint32) claim {
	now := seconds(c.began)
	s := t.set(c.xid.tag)
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.find(c.xid.tag)
	switch {
	case e == nil:
		if e = s.room(now); e == nil {
			// The XID own is no choice: another Call that is not remembered may have it.
			return claim{xid: t.fresh()}
		}
		if !s.free(own, now) {
			own = t.fresh()
		}
		*e = xidEntry{tag: c.xid.tag, xid: own}
		if c.rdma.Analysis.Class >= ulb.NonIdempotent {
			e.at = harmBit
		}
	case e.c != nil:
		return e.c.absorb(c)
	}
	e.c = c
	c.xid.remembered = true
	return claim{xid: e.xid}
}

// absorb makes the Reply to c, which is in flight, the Reply to resent as well, which is the
// same Call: c gets the owner of resent, and keeps its own message. The lock of c's set is held.
func (c *call) absorb(resent *call) claim {
	if c.owner.front == resent.owner.front {
		return claim{absorbed: true}
	}
	cl := claim{absorbed: true, old: c.owner, expected: c.charge.expected}
	if cl.old.exchange == c.message.exchange {
		cl.old.exchange = nil // it holds c's message
	}
	c.owner = resent.owner
	resent.owner.exchange, resent.message.exchange = nil, nil
	return cl
}

// ownerOf is the owner that c, which is remembered, has now.
func (t *xidTable) ownerOf(c *call) owner {
	s := t.set(c.xid.tag)
	s.mu.Lock()
	defer s.mu.Unlock()
	return c.owner
}

// settle ends c's time in flight at now, on the loops' clock. After it c.owner
// changes no more. The XID stays known for xidMemory.
func (t *xidTable) settle(c *call, now int64) {
	s := t.set(c.xid.tag)
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.find(c.xid.tag); e != nil && e.c == c {
		e.c = nil
		e.at = seconds(now)<<1 | e.at&harmBit
	}
}
