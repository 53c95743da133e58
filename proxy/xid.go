package proxy

import (
	"hash/crc32"
	"math/rand/v2"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rdmabridge/rdmabridge/rdmaside/oncrpc"
)

// XIDs on the far side
//
// A server's duplicate request cache sees all clients of the bridge at one
// address, so the XIDs of all of them share one name space. Calls with AUTH_NONE
// or AUTH_SYS get an XID of our own, from a counter with a random start: a fixed
// start would meet the server's memory of the process before, which would answer
// a new Call with an old success. Under RPCSEC_GSS the XID is signed and stays.
//
// A client that retransmits, on the same connection or on a new one, must get the
// same XID again, or the server executes its Call twice. The table remembers
// (client address, client's XID, program, procedure, checksum of the arguments)
// of Calls whose repetition would do harm. Calls that only read are not
// remembered: reading twice is harmless.

const (
	// xidMemory is how long an answered Call is remembered: as long as Linux
	// keeps its duplicate request cache entries, and more than a client takes to
	// reconnect and retransmit.
	xidMemory = 180 * time.Second
	// xidEntries bounds what each shard remembers; the oldest answered are
	// forgotten first.
	xidEntries = 4096
	xidShards  = 16
	// checksumOctets is how much of the arguments identifies a Call, as in the
	// Linux server's cache.
	checksumOctets = 256
)

type xidKey struct {
	client    netip.Addr
	xid       uint32
	sum       uint32
	program   uint32
	procedure uint32
	length    uint32
}

type xidEntry struct {
	xid uint32
	c   *call // while it is in flight
	at  int64 // when it was answered, Unix nanoseconds
}

// xidTable is safe for concurrent use.
type xidTable struct {
	next   atomic.Uint32
	shards [xidShards]xidShard
}

type xidShard struct {
	mu    sync.Mutex // guards all below; a leaf
	known map[xidKey]xidEntry
	ring  []xidKey // in the order they were answered; a ring once it is full
	head  int
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func newXIDTable() *xidTable {
	t := &xidTable{}
	t.next.Store(rand.Uint32())
	for i := range t.shards {
		t.shards[i].known = make(map[xidKey]xidEntry)
	}
	return t
}

// fresh is the next XID.
func (t *xidTable) fresh() uint32 { return t.next.Add(1) }

func newXIDKey(client netip.Addr, h *oncrpc.Call) xidKey {
	args := h.Message[h.Args:]
	return xidKey{
		client: client, xid: h.XID, program: h.Program, procedure: h.Procedure, length: uint32(len(args)),
		sum: crc32.Checksum(args[:min(len(args), checksumOctets)], castagnoli),
	}
}

func (t *xidTable) shard(k *xidKey) *xidShard { return &t.shards[(k.xid^k.sum)%xidShards] }

// assign remembers c, whose key is set, and gives the XID it had before if it
// is a retransmission. While the first transmission is in flight it is returned
// as twin, and c has not been remembered: adopt then decides.
func (t *xidTable) assign(c *call) (xid uint32, twin *call) {
	s := t.shard(&c.key)
	s.mu.Lock()
	defer s.mu.Unlock()
	e, ok := s.known[c.key]
	switch {
	case ok && e.c != nil:
		return e.xid, e.c
	case ok && time.Now().UnixNano()-e.at < int64(xidMemory):
		e.c = c
	default:
		e = xidEntry{xid: t.fresh(), c: c}
	}
	s.known[c.key] = e
	return e.xid, nil
}

// adopt gives twin, the call in flight under c's key, the client of c, which
// retransmitted it, unless the one it has is still there or it has just been
// answered. same reports that c's client had it already.
func (t *xidTable) adopt(twin, c *call) (adopted, same bool) {
	k, cl := &c.key, c.client
	s := t.shard(k)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.known[*k].c != twin {
		return false, false
	}
	if twin.client == cl {
		return false, true
	}
	if !twin.client.gone() {
		return false, false
	}
	twin.client = cl
	cl.adopt(twin, c)
	return true, false
}

// clientOf is c's client now. c is in flight.
func (t *xidTable) clientOf(c *call) client {
	s := t.shard(&c.key)
	s.mu.Lock()
	defer s.mu.Unlock()
	return c.client
}

// settle ends c's time in flight. After it c.client changes no more. The XID
// stays known for xidMemory.
func (t *xidTable) settle(c *call) {
	s := t.shard(&c.key)
	s.mu.Lock()
	defer s.mu.Unlock()
	e, ok := s.known[c.key]
	if !ok || e.c != c {
		return
	}
	e.c = nil
	e.at = time.Now().UnixNano()
	s.known[c.key] = e
	if len(s.ring) < xidEntries {
		s.ring = append(s.ring, c.key)
		return
	}
	old := s.ring[s.head]
	s.ring[s.head] = c.key
	s.head = (s.head + 1) % xidEntries
	// The oldest may be in flight again, or have been answered again later; in
	// both cases it has another place in the ring, or will get one.
	if o, ok := s.known[old]; ok && o.c == nil && old != c.key {
		delete(s.known, old)
	}
}
