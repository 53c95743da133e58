package proxy

import "net/netip"

// fnvBasis is the start value of the 64-bit FNV-1a hash.
const fnvBasis = 14695981039346656037

// fnv continues the 64-bit FNV-1a hash h with b.
func fnv(h uint64, b []byte) uint64 {
	for _, x := range b {
		h = (h ^ uint64(x)) * 1099511628211
	}
	return h
}

// mix spreads the last octets that fnv hashed, which changed only its low half, over the upper
// half of the result. Callers use the upper half.
func mix(h uint64) uint64 {
	h ^= h >> 32
	return h * 0x9e3779b97f4a7c15
}

// addressHash is the hash of a client's address that decides which seat or port it has.
func addressHash(a netip.Addr) uint32 {
	b := a.As16()
	return uint32(mix(fnv(fnvBasis, b[:])) >> 32)
}
