package identity

import (
	"encoding/binary"
	"math/bits"
)

// A permutation maps the 32-bit numbers one to one, in a way that depends on a key of 128
// bits: a Feistel network. It needs no table and no memory.
type permutation struct{ a, b uint64 }

// The constants make the rounds differ. They are the first digits of the fractional part of pi, which hide nothing.
const (
	roundA = 0x243f6a8885a308d3
	roundB = 0x13198a2e03707344
	roundC = 0xa4093822299f31d0
	roundD = 0x082efa98ec4e6c89
)

// newPermutation makes a permutation of a key of at least 16 octets.
func newPermutation(key []byte) permutation {
	return permutation{binary.LittleEndian.Uint64(key), binary.LittleEndian.Uint64(key[8:])}
}

// of returns the number that p maps x to. It has four rounds, each of which changes one half of the number: after four,
// every bit of the input changes every bit of the output in half of the cases.
func (p permutation) of(x uint32) uint32 {
	l, r := x>>16, x&0xffff
	l ^= p.round(roundA, r) & 0xffff
	r ^= p.round(roundB, l) & 0xffff
	l ^= p.round(roundC, r) & 0xffff
	r ^= p.round(roundD, l) & 0xffff
	return l<<16 | r
}

// round is what the round with constant c adds to one half of the number because the other half is x.
func (p permutation) round(c uint64, x uint32) uint32 {
	return uint32(fold(p.a+uint64(x)^c, p.b^c))
}

// fold multiplies x and y, and folds the product of 128 bits to 64, so that each bit of either
// number changes all of them.
func fold(x, y uint64) uint64 {
	hi, lo := bits.Mul64(x, y)
	return hi ^ lo
}
