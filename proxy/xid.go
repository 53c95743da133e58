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
// A server's duplicate request cache sees all clients of the bridge at one
// address, so the XIDs of all of them share one name space. Calls with AUTH_NONE
// or AUTH_SYS get an XID of our own. Those whose repetition would do harm have one that
// another process of ours would give them, too: xid_slot.go. The others have theirs from
// a counter with a random start: a fixed start would meet the server's memory of the
// process before, which would answer a new Call with an old success. Under RPCSEC_GSS
// the XID is signed and stays.
//
// A client that retransmits, on the same connection or on a new one, must get the
// same XID again, or the server executes its Call twice. The table remembers
// (client address, upstream, client's XID, program, procedure, beginning of the
// arguments) of Calls whose repetition would do harm. Calls that only read are not
// remembered: reading twice is harmless.
//
// A Call that comes again on another connection while the first is in flight is
// adopted: the one in flight will answer the connection it came on last. The
// connection before may look alive still. Its FIN is not seen while it is paused,
// or its loop has not got to it, or there never was one; and what a client sent on
// it before it gave up may be read after what it sent on the next. Times tell
// nothing. So it is closed: a client that is there after all, another one behind
// the same address that chose the same XID for the same arguments, sends what it
// is owed again, under the same XIDs. That costs it a reconnect; the other mistake
// would execute a Call twice.
//
// The table is a cache of fixed size: sets of four entries, found by a hash of 64
// bits whose key nobody outside knows. Of a full set the Call answered longest ago
// is forgotten, one that may be repeated before one that does harm: WRITEs are
// many, and must not take the memory of what is removed and renamed. A Call that
// finds its set full of Calls in flight is not remembered.

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
	tag uint64 // the hash; 0: empty
	c   *call  // while it is in flight
	at  uint32 // when it was answered, in seconds of the loops' clock, times two; and harmBit
	xid uint32
}

// harmBit marks what is NonIdempotent rather than only better not done twice. It
// shares a word with the time because a set fills its two cache lines.
const harmBit = 1

// xidTable is safe for concurrent use.
type xidTable struct {
	slots slots
	next  atomic.Uint32
	seed  maphash.Seed
	sets  []xidSet // xidSets
}

// An xidSet is two cache lines: what a Call touches of the table, which is too
// large for any cache, twice.
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

// fresh is the next XID that is no slot's.
func (t *xidTable) fresh() uint32 { return t.next.Add(1) &^ ownXID }

// tag is what a Call to upstream number up is known by, whose XID there would be own:
// never 0. Calls that would have the same XID are in the same set.
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

// free reports that no Call remembered in s has xid. s.mu is held.
func (s *xidSet) free(xid, now uint32) bool {
	for i := range s.entries {
		if e := &s.entries[i]; e.tag != 0 && e.xid == xid && (e.c != nil || !e.over(now)) {
			return false
		}
	}
	return true
}

// find is the entry of tag, or nil. s.mu is held.
func (s *xidSet) find(tag uint64) *xidEntry {
	for i := range s.entries {
		if e := &s.entries[i]; e.tag == tag {
			return e
		}
	}
	return nil
}

// room is an entry to overwrite: an empty one or one whose time is over, else the
// one answered longest ago of those that may be repeated, else of all; nil when
// all are in flight. s.mu is held.
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

// over reports that e, answered, need not be remembered any more. The clock of
// another loop's pass may be behind the one e was answered in.
func (e *xidEntry) over(now uint32) bool { return int32(now-e.at>>1) > int32(xidMemory/time.Second) }

// seconds are those of the loops' clock, in nanoseconds, as xidEntry has them.
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
			// Another that is not remembered either may have own.
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

// absorb makes c, which is in flight, answer again, a retransmission of it, too: the owner of
// again becomes c's. c's message stays where it is. The XID table is locked.
func (c *call) absorb(again *call) claim {
	if c.owner.front == again.owner.front {
		return claim{absorbed: true}
	}
	cl := claim{absorbed: true, old: c.owner, expected: c.charge.expected}
	if cl.old.exchange == c.message.exchange {
		cl.old.exchange = nil // it holds c's message
	}
	c.owner = again.owner
	again.owner.exchange, again.message.exchange = nil, nil
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
