package identity

import (
	"encoding/binary"
	"net/netip"

	"github.com/rdmabridge/rdmabridge/internal/fnv"
)

// An Origin is what a server would know a client by if there were no bridge between them, as far as its
// duplicate request cache asks. Over TCP that is the client's address and port: two processes of one host are
// two clients, and so are two hosts behind one NAT gateway. A client that wants to be known again after it has
// lost its connection keeps its port, as Linux does. Over RDMA it is the address alone.
//
// The XIDs of a client's Calls follow from its origin (bridge.go), and two Calls in flight with different origins
// are never one Call.
type Origin struct {
	addr netip.Addr
	port uint16 // over TCP; 0 if it is not known
	rdma bool
}

// OriginOf returns the origin of a client connection from peer. For a connection that a proxy has made, peer is what
// its PROXY header names.
func OriginOf(peer netip.AddrPort, rdma bool) Origin {
	o := Origin{addr: peer.Addr().Unmap(), port: peer.Port(), rdma: rdma}
	if rdma {
		o.port = 0
	}
	return o
}

// parts are what a key of o is made of. Two origins never have the same parts.
func (o Origin) parts() [][]byte {
	addr := o.addr.As16()
	all := [][]byte{addr[:]}
	if z := o.addr.Zone(); z != "" {
		all = append(all, []byte("%"+z))
	}
	if !o.rdma {
		all = append(all, binary.BigEndian.AppendUint16([]byte("tcp"), o.port))
	}
	return all
}

// Hash is the hash of o that decides which source port the client's pinned connection has. Where the port is not
// known, or does not count, it is that of fnv.Address.
func (o Origin) Hash() uint32 {
	b := o.addr.As16()
	h := fnv.Add(fnv.Basis, b[:])
	if o.port != 0 {
		h = fnv.Add(h, []byte{byte(o.port >> 8), byte(o.port)})
	}
	return fnv.Spread(h)
}
