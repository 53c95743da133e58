package proxy

import (
	"net/netip"
	"sync"
	"time"
)

const (
	// xidSlots is how many client addresses have XIDs of their own on the far side.
	xidSlots = 1 << 9
	// xidProbes is how far from where its address hashes to a client's slot may be.
	xidProbes = 64
	// ownBits are how many the client's XID leaves behind.
	ownBits = 22
	// ownXID marks the XIDs of slots; the others count.
	ownXID = 1 << 31
)

// Slots
//
// A process that was killed has told nobody which XIDs it gave to the Calls that are
// under way at the server, and their clients send them again to the next process. If
// that gives them other XIDs, the server executes them twice. So the XID of a Call that
// does harm is made of what the next process knows as well: a number for the client's
// address, its slot, and bits that follow from the XID that the client chose. Clients count
// their XIDs, but not all in network order: Linux on x86 counts in the first octet, and what
// the last ones hold stays for 256 Calls. Of either count the bits of one slot are others for
// the next 900,000 Calls. Slots follow from the
// address alone, unless two addresses hash to the same one: then the second has the
// next, and may have another one in another process.
//
// What this does not promise, xidTable checks: of Calls that it remembers no two have
// one XID. Addresses beyond xidSlots share slots and rely on that.
type slots struct {
	mu     sync.Mutex // guards all; a leaf
	who    [xidSlots]slot
	guests map[netip.Addr]*guest // addresses that have somebody else's slot
	sweep  int                   // of guests, when there are that many
}

type slot struct {
	addr netip.Addr
	refs int       // connections
	left time.Time // when there were none any more
}

// A guest has the slot of another address, and keeps it while it has connections and as
// long as its Calls are remembered, whoever goes meanwhile.
type guest struct {
	at   uint16
	refs int       // connections
	left time.Time // when there were none any more
}

// take is the slot of a client at a, until leave.
func (t *slots) take(a netip.Addr, now time.Time) uint16 {
	first := uint16(addressHash(a) % xidSlots)
	t.mu.Lock()
	defer t.mu.Unlock()
	if g := t.guests[a]; g != nil {
		if g.refs > 0 || now.Sub(g.left) <= xidMemory {
			g.refs++
			t.who[g.at].refs++
			return g.at
		}
		delete(t.guests, a)
	}
	at, own, free := first, false, false
	for i := range uint16(xidProbes) {
		n := (first + i) % xidSlots
		s := &t.who[n]
		if s.addr == a {
			at, own, free = n, true, false
			break
		}
		if !free && s.refs == 0 && (!s.addr.IsValid() || now.Sub(s.left) > xidMemory) {
			at, free = n, true
		}
	}
	switch {
	case free:
		t.who[at].addr = a
	case !own:
		t.invite(a, at, now)
	}
	t.who[at].refs++
	return at
}

// invite makes a, which has a connection, a guest. t.mu is held.
func (t *slots) invite(a netip.Addr, at uint16, now time.Time) {
	if len(t.guests) >= t.sweep {
		for a, g := range t.guests {
			if g.refs == 0 && now.Sub(g.left) > xidMemory {
				delete(t.guests, a)
			}
		}
		t.sweep = max(2*len(t.guests), xidSlots)
	}
	if t.guests == nil {
		t.guests = make(map[netip.Addr]*guest)
	}
	t.guests[a] = &guest{at: at, refs: 1}
}

// leave ends a connection from a, which has taken n.
func (t *slots) leave(a netip.Addr, n uint16, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if g := t.guests[a]; g != nil {
		if g.refs--; g.refs == 0 {
			g.left = now
		}
	}
	s := &t.who[n]
	if s.refs--; s.refs == 0 {
		s.left = now
	}
}

// ofSlot is the XID on the far side of the Call that a client of slot n calls xid.
func ofSlot(n uint16, xid uint32) uint32 {
	// Every bit of a factor of a product reaches the upper ones. Of some odd numbers this one
	// has the longest way from one XID to another with the same bits, in both orders.
	return ownXID | uint32(n)<<ownBits | xid*0xc2b2ae35>>(32-ownBits)
}
