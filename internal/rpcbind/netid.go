package rpcbind

import "net/netip"

// A netid names a transport and the family of its addresses. RFC 5665 Section 5.1,
// RFC 8166 Section 9 for the two of RDMA.
type netid uint8

const (
	netTCP netid = iota
	netTCP6
	netUDP
	netUDP6
	netRDMA
	netRDMA6
	netids // how many there are
)

// Values of r_nc_semantics. RFC 1833 Section 2.1.
const (
	connectionless    = 1 // NC_TPI_CLTS
	connections       = 2 // NC_TPI_COTS
	connectionsClosed = 3 // NC_TPI_COTS_ORD: with graceful close
)

// netConfig has the properties of each netid, in the words of rpcb_entry.
var netConfig = [netids]struct {
	name             string
	protocol         uint32 // of the port mapper: IPPROTO_TCP, IPPROTO_UDP; 0 has none
	semantics        uint32
	family, protoent string
}{
	netTCP:   {"tcp", 6, connectionsClosed, "inet", "tcp"},
	netTCP6:  {"tcp6", 6, connectionsClosed, "inet6", "tcp"},
	netUDP:   {"udp", 17, connectionless, "inet", "udp"},
	netUDP6:  {"udp6", 17, connectionless, "inet6", "udp"},
	netRDMA:  {"rdma", 0, connections, "inet", "rdma"},
	netRDMA6: {"rdma6", 0, connections, "inet6", "rdma"},
}

func (n netid) String() string { return netConfig[n].name }

// netidByName returns the netid with this name. It reports false for an unknown name.
func netidByName(name []byte) (netid, bool) {
	for n := range netids {
		if netConfig[n].name == string(name) {
			return n, true
		}
	}
	return 0, false
}

// netidByProtocol returns the netid of a port mapper's protocol for addresses of a's
// family. Version 2 was made for IPv4. A client that uses it over IPv6 asks for ports
// there.
func netidByProtocol(protocol uint32, a netip.Addr) (netid, bool) {
	for n := range netids {
		if protocol != 0 && netConfig[n].protocol == protocol && n.family(a) {
			return n, true
		}
	}
	return 0, false
}

// family reports whether a is an address of the netid's family.
func (n netid) family(a netip.Addr) bool {
	return a.Is4() == (netConfig[n].family == "inet")
}
