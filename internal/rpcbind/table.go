package rpcbind

import (
	"net/netip"
	"slices"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
)

// A Service is a listener of the bridge with its programs.
type Service struct {
	Address  netip.AddrPort // of its socket: :: is every address of both families
	RDMA     bool           // in place of TCP
	UDP      bool           // in place of TCP
	Programs []Program
}

// A Program is one version of an RPC program.
type Program struct{ Number, Version uint32 }

// The lowest and the highest version of program 100000 that the Server answers.
const (
	version2 = 2
	version4 = 4
)

// An entry is one row of a table: a mapping of RFC 1833 with its address.
type entry struct {
	Program
	netid netid
	addr  netip.AddrPort // of the netid's family, unmapped; 0.0.0.0 or :: is every address
}

// A table lists the advertised services in the order of DUMP. It is immutable.
type table []entry

// makeTable lists the Server at self, if that is valid, and then services.
func makeTable(self netip.AddrPort, services []Service) table {
	var t table
	for v := uint32(version2); self.IsValid() && v <= version4; v++ {
		t.add(Program{oncrpc.ProgramRPCBind, v}, self, netTCP, netTCP6)
		t.add(Program{oncrpc.ProgramRPCBind, v}, self, netUDP, netUDP6)
	}
	for _, s := range services {
		four, six := netTCP, netTCP6
		switch {
		case s.RDMA:
			four, six = netRDMA, netRDMA6
		case s.UDP:
			four, six = netUDP, netUDP6
		}
		for _, p := range s.Programs {
			t.add(p, s.Address, four, six)
		}
	}
	return t
}

// add adds p at addr under one netid or both.
func (t *table) add(p Program, addr netip.AddrPort, four, six netid) {
	a := addr.Addr().Unmap().WithZone("") // universal addresses have no zone
	port := addr.Port()
	put := func(n netid, a netip.Addr) {
		e := entry{p, n, netip.AddrPortFrom(a, port)}
		if !slices.Contains(*t, e) {
			*t = append(*t, e)
		}
	}
	if a.Is4() || a == netip.IPv6Unspecified() {
		v4 := a
		if a.Is6() {
			v4 = netip.IPv4Unspecified()
		}
		put(four, v4)
	}
	// The port mapper, version 2, exists only for IPv4.
	if a.Is6() && p != (Program{oncrpc.ProgramRPCBind, version2}) {
		put(six, a)
	}
}

// A reach says how well an entry suits a question that was sent to some address of this
// host.
type reach uint8

const (
	unreachable reach = iota // a loopback address; the question was sent to another one
	elsewhere                // another address of this host, or an address of the other family
	everywhere               // all addresses, the question's included
	same                     // the address of the question
)

// reach compares the entry's address with local, the address of a question.
func (e *entry) reach(local netip.Addr) reach {
	a := e.addr.Addr()
	switch {
	case a == local:
		return same
	case a.IsUnspecified() && a.Is4() == local.Is4():
		return everywhere
	case a.IsLoopback() && !local.IsLoopback():
		return unreachable
	}
	return elsewhere
}

// merged returns the entry's address for a question that was sent to local. For a listener
// on all addresses of the other family it returns 0.0.0.0 or ::, like other rpcbinds:
// clients use the port and know the host.
func (e *entry) merged(local netip.Addr) netip.AddrPort {
	if e.reach(local) == everywhere {
		return netip.AddrPortFrom(local, e.addr.Port())
	}
	return e.addr
}

// find returns the best entry of program p and netid n for a question that was sent to
// local, if its reach is at least least. Unless exact is set it may have another version:
// a client that needs the version asks by GETVERSADDR, RFC 1833 Section 2.2.2.
func (t table) find(p Program, n netid, local netip.Addr, least reach, exact bool) *entry {
	var best *entry
	score := -1
	for i := range t {
		e := &t[i]
		r := e.reach(local)
		if e.Number != p.Number || e.netid != n || r < least || exact && e.Version != p.Version {
			continue
		}
		this := int(r)
		if e.Version == p.Version {
			this += int(same) + 1
		}
		if this > score {
			best, score = e, this
		}
	}
	return best
}
