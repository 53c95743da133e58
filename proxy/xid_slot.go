package proxy

import (
	"net/netip"
	"sync"
	"time"
)

const (
	// xidSlots is how many client addresses can have XIDs of their own at the server.
	xidSlots = 1 << 9
	// xidProbes is how far a client's slot may be from the slot that its address hashes to.
	xidProbes = 64
	// ownBits is how many bits of an XID follow from the client's XID.
	ownBits = 22
	// ownXID marks the XIDs of slots. The other XIDs come from a counter.
	ownXID = 1 << 31
)

// Slots
//
// A process that was killed cannot tell the next one which XIDs it gave to the Calls that the
// server still has, and the clients send these Calls again to the next process. If the next
// process gave them other XIDs, the server would execute them twice. So the XID of a Call that
// does harm when repeated follows from facts that the next process knows: the slot, a number
// for the client's address, and bits that follow from the XID that the client chose. Clients
// count their XIDs, but not all in network order: Linux on x86 counts in the first octet, and
// the other octets stay the same for 256 Calls. With either order, the bits of one slot repeat
// only after 900,000 Calls. A slot follows from the address alone, unless two addresses hash
// to the same slot: then the second address has the next slot, and may have another one in
// another process.
//
// This does not promise that XIDs differ. The xidTable does, for the Calls that it remembers.
// Addresses beyond xidSlots share slots and rely on that.
type slots struct {
	mu     sync.Mutex // guards all; a leaf
	all    [xidSlots]slot
	guests map[netip.Addr]*guest // addresses that share the slot of another address
	sweep  int                   // how many guests there must be before old ones are deleted
}

type slot struct {
	addr netip.Addr
	refs int       // connections
	left time.Time // when the last connection ended
}

// A guest is an address that shares the slot of another address. It keeps the slot while it
// has connections and as long as its Calls are remembered, even if the other address leaves.
type guest struct {
	at   uint16
	refs int       // connections
	left time.Time // when the last connection ended
}

// take gives a client at a its slot, until leave.
func (t *slots) take(a netip.Addr, now time.Time) uint16 {
	first := uint16(addressHash(a) % xidSlots)
	t.mu.Lock()
	defer t.mu.Unlock()
	if g := t.guests[a]; g != nil {
		if g.refs > 0 || now.Sub(g.left) <= xidMemory {
			g.refs++
			t.all[g.at].refs++
			return g.at
		}
		delete(t.guests, a)
	}
	at, own, free := first, false, false
	for i := range uint16(xidProbes) {
		n := (first + i) % xidSlots
		s := &t.all[n]
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
		t.all[at].addr = a
	case !own:
		t.invite(a, at, now)
	}
	t.all[at].refs++
	return at
}

// invite makes a, which has one connection, a guest of slot at. t.mu is held.
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

// leave undoes take for a connection from a that has slot n.
func (t *slots) leave(a netip.Addr, n uint16, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if g := t.guests[a]; g != nil {
		if g.refs--; g.refs == 0 {
			g.left = now
		}
	}
	s := &t.all[n]
	if s.refs--; s.refs == 0 {
		s.left = now
	}
}

// ofSlot returns the XID that a Call has at the server, if its client has slot n and gave it the
// XID xid.
func ofSlot(n uint16, xid uint32) uint32 {
	// Every bit of a factor reaches the upper bits of the product. Of the odd numbers that
	// were tried, this one keeps XIDs with equal bits farthest apart, in both orders.
	return ownXID | uint32(n)<<ownBits | xid*0xc2b2ae35>>(32-ownBits)
}
