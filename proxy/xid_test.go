package proxy

import (
	"fmt"
	"math/bits"
	"net/netip"
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
	"github.com/rdmabridge/rdmabridge/rdmaside"
)

// remembered makes a call of f with the client's XID and arguments.
func remembered(t *xidTable, f *front, xid uint32, args string) (*call, claim) {
	c := &call{owner: owner{front: f}}
	c.h = oncrpc.Call{Message: []byte(args), XID: xid, Program: oncrpc.ProgramNFS, Procedure: 9}
	own := ofSlot(5, xid)
	c.xid.tag = t.tag(netip.MustParseAddr("192.0.2.1"), 0, &c.h, own)
	return c, t.assign(c, own)
}

func TestXIDStaysForARetransmission(t *testing.T) {
	x := newXIDTable()
	cl := &front{}
	a, first := remembered(x, cl, 7, "mkdir a")
	if _, again := remembered(x, cl, 7, "mkdir a"); !again.absorbed || again.old.front != nil {
		t.Errorf("sent again on the same connection while in flight: %+v, want it absorbed", again)
	}
	x.settle(a, 0)
	b, again := remembered(x, cl, 7, "mkdir a")
	if again.absorbed || again.xid != first.xid {
		t.Errorf("after the answer: %+v, want XID %#x as before", again, first.xid)
	}
	x.settle(b, 0)
	if _, other := remembered(x, cl, 7, "mkdir b"); other.xid == first.xid {
		t.Error("the same XID for other arguments: the server would answer the one with the other")
	}
	own := ofSlot(5, 7)
	c := &call{owner: owner{front: cl}, xid: xidKey{tag: x.tag(netip.MustParseAddr("192.0.2.1"), 1, &b.h, own)}}
	if other := x.assign(c, own); other.xid == first.xid {
		t.Error("the same XID for another upstream, which knows nothing of the first Call")
	}
}

// TestXIDOfAnotherProcess: a Call that comes again to the process that follows has the
// XID that it had.
func TestXIDOfAnotherProcess(t *testing.T) {
	t.Parallel()
	a, b := newXIDTable(), newXIDTable()
	for xid := range uint32(1000) {
		_, first := remembered(a, &front{}, xid*3, "mkdir")
		if _, again := remembered(b, &front{}, xid*3, "mkdir"); again.xid != first.xid {
			t.Fatalf("XID %#x, then %#x", first.xid, again.xid)
		}
	}
	for range 1000 {
		if x := a.fresh(); x&ownXID != 0 {
			t.Fatalf("%#x counts, and is a slot's", x)
		}
	}
}

// TestXIDsOfACount: clients count their XIDs, in network order or, as Linux does on x86, in the
// other one. None of their Calls takes the place of another, neither in the name space on the
// far side nor in the table.
func TestXIDsOfACount(t *testing.T) {
	t.Parallel()
	for name, order := range map[string]func(uint32) uint32{
		"network order": func(n uint32) uint32 { return n },
		"host order":    bits.ReverseBytes32,
	} {
		const start, calls = 0xfffffc00, 900_000
		last := make(map[uint32]uint32)
		for n := range uint32(calls) {
			own := ofSlot(5, order(start+n))
			if before, ok := last[own]; ok {
				t.Fatalf("%s: %#x is XID %d and %d", name, own, before, n)
			}
			last[own] = n
			if own&ownXID == 0 || own>>ownBits&(xidSlots-1) != 5 {
				t.Fatalf("%s: XID %d is %#x, which is not of slot 5", name, n, own)
			}
		}
		x := newXIDTable()
		for n := range uint32(300) {
			if _, c := remembered(x, &front{}, order(start+n), "mkdir"); c.xid != ofSlot(5, order(start+n)) {
				t.Fatalf("%s: XID %d is another's, %#x", name, n, c.xid)
			}
		}
		for n := range uint32(300) {
			if _, c := remembered(x, &front{}, order(start+n), "mkdir"); !c.absorbed {
				t.Fatalf("%s: XID %d is forgotten while it is in flight", name, n)
			}
		}
	}
}

// TestSlots: clients keep theirs, those who come later have others, and those of clients
// that have gone are used again in the end.
func TestSlots(t *testing.T) {
	t.Parallel()
	addr := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{192, 0, byte(i >> 8), byte(i)}) }
	var x, y slots
	now := time.Now()
	seen := make(map[uint16]int)
	for i := range xidSlots / 4 {
		n := x.take(addr(i), now)
		if n != x.take(addr(i), now) {
			t.Errorf("client %d has two slots", i)
		}
		seen[n]++
	}
	if len(seen) != xidSlots/4 {
		t.Errorf("%d slots for %d clients", len(seen), xidSlots/4)
	}
	same := 0
	for i := range xidSlots / 4 {
		if y.take(addr(xidSlots/4-1-i), now) == x.take(addr(xidSlots/4-1-i), now) {
			same++
		}
	}
	if same < xidSlots/4*3/4 {
		t.Errorf("%d of %d clients have the same slot in another process", same, xidSlots/4)
	}
	var z slots
	first := z.take(addr(0), now)
	for i := range 4 * xidSlots {
		z.leave(addr(i+1), z.take(addr(i+1), now), now)
	}
	if z.take(addr(0), now) != first {
		t.Error("a client that is there lost its slot")
	}
	later := now.Add(xidMemory + time.Second)
	used := make(map[uint16]bool)
	for i := range xidSlots / 4 {
		used[z.take(addr(10000+i), later)] = true
	}
	if len(used) != xidSlots/4 || used[first] {
		t.Errorf("%d slots for %d clients that came when the others had gone", len(used), xidSlots/4)
	}
}

// TestXIDAdoption: a Call in flight answers the connection it came on last,
// whatever the one before looks like, and one that has just been answered is a
// retransmission still.
func TestXIDAdoption(t *testing.T) {
	x := newXIDTable()
	old, young, third := &front{}, &front{}, &front{}
	a, first := remembered(x, old, 7, "mkdir a")
	a.charge.expected = 1234
	exchanges := [2]rdmaside.Exchange{}
	adopt := func(f *front, e *rdmaside.Exchange) claim {
		c := &call{owner: owner{front: f, queue: &clientQueue{}, exchange: e}, xid: xidKey{tag: a.xid.tag}}
		c.message.exchange = e
		want := c.owner
		got := x.assign(c, first.xid)
		if c.owner.exchange != nil || c.message.exchange != nil {
			t.Error("the exchange of a Call that was adopted is left with what is dropped")
		}
		if x.ownerOf(a) != want {
			t.Error("the Call in flight is not the last connection's")
		}
		return got
	}
	if cl := adopt(young, &exchanges[0]); !cl.absorbed || cl.old != (owner{front: old}) || cl.expected != 1234 {
		t.Errorf("adopted by the second connection: %+v, want the first to be closed", cl)
	}
	if cl := adopt(third, &exchanges[1]); cl.old.front != young || cl.old.exchange != &exchanges[0] {
		t.Errorf("adopted by the third connection: %+v, want the second closed and its exchange ended", cl)
	}
	if cl := adopt(old, nil); cl.old.exchange != &exchanges[1] {
		t.Errorf("adopted by a TCP connection: %+v, want the third's exchange ended", cl)
	}
	x.settle(a, 0)
	if _, cl := remembered(x, young, 7, "mkdir a"); cl.absorbed || cl.xid != first.xid {
		t.Errorf("sent again after the answer: %+v, want XID %#x", cl, first.xid)
	}
}

// TestXIDMemoryIsBounded: what was answered is forgotten, what is in flight
// never, and a set full of Calls in flight costs the next one its memory only.
func TestXIDMemoryIsBounded(t *testing.T) {
	t.Parallel()
	x := newXIDTable()
	cl := &front{}
	remembered(x, cl, 1, "held")
	for i := range uint32(xidSets * xidWays * 3) {
		c, _ := remembered(x, cl, i+2, "x")
		if !c.xid.remembered {
			t.Fatal("a call was not remembered though its set had room")
		}
		x.settle(c, 0)
	}
	if _, got := remembered(x, cl, 1, "held"); !got.absorbed {
		t.Error("a call in flight was forgotten")
	}
	seen := map[uint32]bool{}
	forgot := 0
	for i := range uint32(xidSets * xidWays) {
		c, cl := remembered(x, cl, i, "y")
		if seen[cl.xid] {
			t.Fatalf("XID %#x was given to two calls in flight", cl.xid)
		}
		seen[cl.xid] = true
		if !c.xid.remembered {
			forgot++
		}
	}
	if forgot == 0 {
		t.Error("the table has no bound")
	}
}

// TestXIDsOfTwins: clients of one address whose XIDs are the same, more than a set
// remembers, have XIDs of their own as long as they are in flight.
func TestXIDsOfTwins(t *testing.T) {
	x := newXIDTable()
	twin := func(i int) (*call, claim) { return remembered(x, &front{}, 7, fmt.Sprint("mkdir ", i)) }
	flying := make(map[uint32]int)
	first, cl := twin(0)
	for i := range xidWays - 1 {
		_, cl := twin(1 + i)
		flying[cl.xid]++
	}
	x.settle(first, 0)
	for i := range 2 * xidWays { // the first of them takes the place of the one that was answered
		_, got := twin(100 + i)
		if got.xid == cl.xid || flying[got.xid] > 0 {
			t.Errorf("twin %d has XID %#x, which another has or had", i, got.xid)
		}
		flying[got.xid]++
	}
}

// TestXIDOutlivesWrites: however many WRITEs are answered, what must not be done
// twice keeps its XID.
func TestXIDOutlivesWrites(t *testing.T) {
	t.Parallel()
	x := newXIDTable()
	cl := &front{}
	add := func(xid uint32, class ulb.Class) claim {
		c := &call{owner: owner{front: cl}}
		c.h = oncrpc.Call{Message: []byte("args"), XID: xid}
		c.rdma.Analysis.Class = class
		own := ofSlot(5, xid)
		c.xid.tag = x.tag(netip.Addr{}, 0, &c.h, own)
		got := x.assign(c, own)
		x.settle(c, 0)
		return got
	}
	first := add(1, ulb.NonIdempotent)
	for i := range uint32(xidSets * xidWays * 3) {
		add(i+2, ulb.Idempotent)
	}
	if again := add(1, ulb.NonIdempotent); again.xid != first.xid {
		t.Error("WRITEs took the place of a Call that must not be executed twice")
	}
}

func BenchmarkXIDRemember(b *testing.B) {
	x := newXIDTable()
	c := &call{owner: owner{front: &front{}}}
	msg := make([]byte, 200)
	b.ReportAllocs()
	for i := uint32(0); b.Loop(); i++ {
		c.h = oncrpc.Call{Message: msg, XID: i, Program: oncrpc.ProgramNFS, Procedure: 9}
		own := ofSlot(5, i)
		c.xid.tag = x.tag(netip.Addr{}, 0, &c.h, own)
		x.assign(c, own)
		x.settle(c, 0)
	}
}

// TestSharedSlotStays: a client whose address shares a slot keeps it for as long as its
// Calls are remembered, whoever goes meanwhile.
func TestSharedSlotStays(t *testing.T) {
	t.Parallel()
	var s slots
	now := time.Now()
	addr := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}) }
	var held []uint16
	const others = 4000 // every slot has an address
	for i := range others {
		held = append(held, s.take(addr(i), now))
	}
	x := addr(others)
	n := s.take(x, now) // shares
	if s.all[n].addr == x {
		t.Fatal("x has a slot of its own")
	}
	// Clients other than x go, for longer than their Calls are remembered.
	for i, h := range held {
		s.leave(addr(i), h, now)
	}
	later := now.Add(xidMemory + time.Second)
	// x has a Call under way on its first connection, and sends it again on another.
	if m := s.take(x, later); m != n {
		t.Errorf("x had slot %d and has slot %d: its Call has XID %#x and then %#x", n, m, ofSlot(n, 77), ofSlot(m, 77))
	}
}

// TestSharedSlotsEnd: who has shared a slot is forgotten, and may have one of its own.
func TestSharedSlotsEnd(t *testing.T) {
	t.Parallel()
	var s slots
	now := time.Now()
	addr := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}) }
	held := make(map[netip.Addr]uint16)
	for i := range 20000 {
		a := addr(i)
		held[a] = s.take(a, now)
		if i >= 2*xidSlots { // a thousand at a time
			old := addr(i - 2*xidSlots)
			s.leave(old, held[old], now)
		}
		now = now.Add(xidMemory / xidSlots)
	}
	if n := len(s.guests); n > 8*xidSlots {
		t.Errorf("%d guests are remembered", n)
	}
	for i := 20000 - 2*xidSlots; i < 20000; i++ {
		s.leave(addr(i), held[addr(i)], now)
	}
	for n, w := range s.all {
		if w.refs != 0 {
			t.Errorf("slot %d: %d connections", n, w.refs)
		}
	}
	a := addr(20000 - 1)
	now = now.Add(2 * xidMemory)
	if n := s.take(a, now); s.all[n].addr != a || s.guests[a] != nil {
		t.Error("no slot of its own, though all are free")
	}
}
