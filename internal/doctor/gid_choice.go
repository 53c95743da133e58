package doctor

import (
	"fmt"
	"net/netip"
)

// A GIDChoice says which GID connections of a port use, and why.
type GIDChoice struct {
	Index int    `json:"index"`
	Why   string `json:"why"`
}

// choose says which GID a connection uses that goes out through p's network interface.
//
// rdma_cm has no setting for an index. The kernel chooses the source address by its routes, and
// then the GID of that address and of the port's default type: RoCE v2 wherever the table has it,
// unless configfs says otherwise (cma_acquire_dev and cma_validate_port in drivers/infiniband/core/cma.c).
func (p *Port) choose(iwarp bool) {
	p.Choice = nil
	if iwarp || len(p.GIDs) == 0 {
		return
	}
	if p.protocol(false) == ProtocolIB {
		p.Choice = &GIDChoice{p.GIDs[0].Index, "InfiniBand addresses a port by the first GID of its table, which has its subnet and GUID"}
		return
	}
	best := -1
	for i := range p.GIDs {
		if best < 0 || p.better(p.GIDs[i], p.GIDs[best]) {
			best = i
		}
	}
	g := p.GIDs[best]
	p.Choice = &GIDChoice{g.Index, fmt.Sprintf("connections from %s use the GID of this address, and of type %s, %s", g.IP(), g.Type, p.typeReason(g))}
}

// typeReason says why g has the type that is used.
func (p *Port) typeReason(g GID) string {
	switch {
	case p.defaultType == g.Type:
		return "which is the default_roce_mode of the port"
	case g.Type == gidRoCE2:
		return "which the kernel prefers"
	}
	return "because the table has no other"
}

// For returns the GID that a connection from the address source uses.
func (p *Port) For(source netip.Addr) (g GID, ok bool) {
	for _, c := range p.GIDs {
		if c.IP() == source.Unmap().WithZone("") && (!ok || p.better(c, g)) {
			g, ok = c, true
		}
	}
	return g, ok
}

// better reports whether a connection that could use a or b is likelier to use a. First comes the
// type, then the kind of address: most endpoints have IPv4 addresses, and link-local addresses are
// used only by those who ask for them.
func (p *Port) better(a, b GID) bool {
	preferred := p.defaultType
	if preferred == "" {
		preferred = gidRoCE2
	}
	rank := func(g GID) (n int) {
		ip := g.IP()
		switch {
		case ip.Is4():
		case !ip.IsLinkLocalUnicast():
			n = 1
		default:
			n = 4
		}
		if g.Type != preferred {
			n += 2
		}
		return n
	}
	return rank(a) < rank(b)
}
