package rpcbind

import (
	"net/netip"
	"slices"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
)

// A Service is a listener of the bridge and the programs that it takes.
type Service struct {
	Address  netip.AddrPort // of its socket: :: is every address of both families
	RDMA     bool
	Programs []Program
}

// A Program is one version of an RPC program.
type Program struct{ Number, Version uint32 }

// The versions of program 100000 that are answered.
const (
	version2 = 2
	version4 = 4
)

// An entry is one row: a mapping of RFC 1833, with its address.
type entry struct {
	Program
	netid netid
	addr  netip.AddrPort // of the netid's family, unmapped; 0.0.0.0 or :: is every address
}

// A table is what is advertised, in the order in which it is told. It is never
// changed once it is made.
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
		if s.RDMA {
			four, six = netRDMA, netRDMA6
		}
		for _, p := range s.Programs {
			t.add(p, s.Address, four, six)
		}
	}
	return t
}

// add lists p at addr under one netid or both.
func (t *table) add(p Program, addr netip.AddrPort, four, six netid) {
	a := addr.Addr().Unmap().WithZone("") // universal addresses have none
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
	// The port mapper, version 2, is a thing of IPv4.
	if a.Is6() && p != (Program{oncrpc.ProgramRPCBind, version2}) {
		put(six, a)
	}
}

// A reach says how good an address is for who asked at some other one.
type reach uint8

const (
	unreachable reach = iota // loopback, asked from outside
	elsewhere                // another address of this host, or of the other family
	everywhere               // listens on all addresses, so also where it was asked
	same                     // listens on the address that was asked
)

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

// merged is the entry's address for who asked at local. One that listens on all
// addresses of the other family stays 0.0.0.0 or ::, as rpcbind has it: clients
// take the port and know the host.
func (e *entry) merged(local netip.Addr) netip.AddrPort {
	if e.reach(local) == everywhere {
		return netip.AddrPortFrom(local, e.addr.Port())
	}
	return e.addr
}

// find returns the best entry of p under n for who asked at local, reached at
// least so well. Another version will do unless exact: RFC 1833 Section 2.2.2 has
// GETVERSADDR for who insists.
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
