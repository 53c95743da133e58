package proxy

import "net/netip"

// fnvBasis is what FNV-1a of 64 bits begins with.
const fnvBasis = 14695981039346656037

// fnv is FNV-1a of 64 bits, continued from h.
func fnv(h uint64, b []byte) uint64 {
	for _, x := range b {
		h = (h ^ uint64(x)) * 1099511628211
	}
	return h
}

// mix spreads what fnv made of the last octets, which is in its low half, over the
// upper half of the result: that is the half to take.
func mix(h uint64) uint64 {
	h ^= h >> 32
	return h * 0x9e3779b97f4a7c15
}

// addressHash tells which of several slots, seats or ports the client at a has.
func addressHash(a netip.Addr) uint32 {
	b := a.As16()
	return uint32(mix(fnv(fnvBasis, b[:])) >> 32)
}
