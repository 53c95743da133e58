package proxy

import (
	"encoding/binary"
	"math/bits"
)

// A permutation maps the 32-bit numbers one to one, in a way that depends on a key of 128
// bits: a Feistel network. It needs no table and no memory.
type permutation struct{ a, b uint64 }

// permutationRounds is how many rounds the network has. After four, every bit of the input
// changes every bit of the output in half of the cases.
const permutationRounds = 4

// roundConstants make the rounds differ. They are the first digits of the fractional part of
// pi, which hide nothing.
var roundConstants = [permutationRounds]uint64{0x243f6a8885a308d3, 0x13198a2e03707344, 0xa4093822299f31d0, 0x082efa98ec4e6c89}

// newPermutation makes a permutation of a key of at least 16 octets.
func newPermutation(key []byte) permutation {
	return permutation{binary.LittleEndian.Uint64(key), binary.LittleEndian.Uint64(key[8:])}
}

// of returns the number that p maps x to.
func (p permutation) of(x uint32) uint32 { return p.width(x, 16) }

// width permutes the numbers of 2*half bits.
func (p permutation) width(x uint32, half uint) uint32 {
	mask := uint32(1)<<half - 1
	l, r := x>>half&mask, x&mask
	for i := range permutationRounds {
		l, r = r, l^p.round(i, r)&mask
	}
	return l<<half | r
}

// round is what round i adds to one half of the number because the other half is r.
func (p permutation) round(i int, r uint32) uint32 {
	return uint32(fold(p.a+uint64(r)^roundConstants[i], p.b^roundConstants[i]))
}

// fold multiplies x and y, and folds the product of 128 bits to 64, so that each bit of either
// number changes all of them.
func fold(x, y uint64) uint64 {
	hi, lo := bits.Mul64(x, y)
	return hi ^ lo
}
