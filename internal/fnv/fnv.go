// Package fnv hashes what tells clients, servers and lock owners apart: 64-bit FNV-1a, with its end spread.
// The results are the same in every process and release, because source ports, endpoints and XIDs follow from them.
package fnv

import "net/netip"

// Basis is the hash of nothing, with which each hash begins.
const Basis = 14695981039346656037

// Add continues the hash h with b.
func Add(h uint64, b []byte) uint64 {
	for _, x := range b {
		h = (h ^ uint64(x)) * 1099511628211
	}
	return h
}

// Spread spreads the last octets that Add hashed, which changed only the low half of h, over all of the result.
func Spread(h uint64) uint32 {
	h ^= h >> 32
	return uint32(h * 0x9e3779b97f4a7c15 >> 32)
}

// Address is the hash of a client's address. It decides which seat, source port and loop the client has.
func Address(a netip.Addr) uint32 {
	b := a.As16()
	return Spread(Add(Basis, b[:]))
}
