package identity

import (
	"crypto/sha256"
	"encoding/binary"
	"math/bits"
	"math/rand/v2"
	"testing"
)

// testPermutation is a permutation that depends on n alone.
func testPermutation(n uint64) permutation {
	key := sha256.Sum256(binary.LittleEndian.AppendUint64(nil, n))
	return newPermutation(key[:])
}

// inverse returns the number that p maps to y.
func (p permutation) inverse(y uint32) uint32 {
	l, r := y>>16, y&0xffff
	for _, c := range []uint64{roundD, roundC, roundB, roundA} {
		l, r = r^p.round(c, l)&0xffff, l
	}
	return l<<16 | r
}

// width is the same network for the numbers of 2*half bits.
func (p permutation) width(x uint32, half uint) uint32 {
	mask := uint32(1)<<half - 1
	l, r := x>>half&mask, x&mask
	for _, c := range []uint64{roundA, roundB, roundC, roundD} {
		l, r = r, l^p.round(c, r)&mask
	}
	return l<<half | r
}

// TestPermutationIsOne: no two numbers are mapped to one: all numbers of 16 and of 20 bits, and
// samples of 32 bits, each of which has an inverse.
func TestPermutationIsOne(t *testing.T) {
	t.Parallel()
	for n := range uint64(8) {
		p := testPermutation(n)
		for _, half := range []uint{8, 10} {
			seen := make([]bool, 1<<(2*half))
			for x := range uint32(len(seen)) {
				y := p.width(x, half)
				if int(y) >= len(seen) || seen[y] {
					t.Fatalf("key %d: %#x is mapped to %#x of %d bits, which another number has or which is too long", n, x, y, 2*half)
				}
				seen[y] = true
			}
		}
		random := rand.New(rand.NewPCG(n, 1))
		for range 100_000 {
			x := random.Uint32()
			y := p.of(x)
			if p.inverse(y) != x {
				t.Fatalf("key %d: %#x is mapped to %#x, and back to %#x", n, x, y, p.inverse(y))
			}
			if y != p.width(x, 16) {
				t.Fatalf("key %d: %#x is mapped to %#x, want %#x", n, x, y, p.width(x, 16))
			}
		}
	}
}

// TestPermutationAvalanche: each bit of the number, and each bit of the key, changes each bit of
// the result in about half of the cases.
func TestPermutationAvalanche(t *testing.T) {
	t.Parallel()
	const samples = 4_000
	random := rand.New(rand.NewPCG(1, 2))
	check := func(what string, changed *[32]int) {
		t.Helper()
		for out, n := range changed {
			// Six standard deviations.
			if d := n - samples/2; d*d > 36*samples/4 {
				t.Errorf("%s changes bit %d of the result in %d of %d cases", what, out, n, samples)
			}
		}
	}
	for in := range 32 {
		var changed [32]int
		for range samples {
			p, x := permutation{random.Uint64(), random.Uint64()}, random.Uint32()
			count(&changed, p.of(x)^p.of(x^1<<in))
		}
		check("bit "+string(rune('a'+in))+" of the number", &changed)
	}
	for in := range 128 {
		var changed [32]int
		for range samples {
			p, x := permutation{random.Uint64(), random.Uint64()}, random.Uint32()
			q := p
			if in < 64 {
				q.a ^= 1 << in
			} else {
				q.b ^= 1 << (in - 64)
			}
			count(&changed, p.of(x)^q.of(x))
		}
		check("a bit of the key", &changed)
	}
}

// count counts the bits that are set in x.
func count(changed *[32]int, x uint32) {
	for ; x != 0; x &= x - 1 {
		changed[bits.TrailingZeros32(x)]++
	}
}

// TestPermutationsOfTwoKeys: two clients that count their XIDs, from the same number or not, in
// network order or in the other one, meet as often as random numbers do.
func TestPermutationsOfTwoKeys(t *testing.T) {
	t.Parallel()
	orders := []func(uint32) uint32{func(x uint32) uint32 { return x }, bits.ReverseBytes32}
	const calls = 1 << 15
	pairs, met := 0, 0
	for n := range uint64(64) {
		p, q := testPermutation(2*n), testPermutation(2*n+1)
		order := orders[n%2]
		start := uint32(n/2%2) * 0x12345678
		seen := make(map[uint32]bool, calls)
		for i := range uint32(calls) {
			seen[p.of(order(i))] = true
		}
		for i := range uint32(calls) {
			if seen[q.of(order(start+i))] {
				met++
			}
		}
		pairs++
	}
	// One in 2^32 of the pairs of numbers: a quarter for each pair of clients. The sum has the
	// standard deviation 4.
	if met < pairs/4-16 || met > pairs/4+24 {
		t.Errorf("%d clients have %d XIDs in common with another, want about %d", pairs, met, pairs/4)
	}
}

func BenchmarkPermutation(b *testing.B) {
	p := testPermutation(1)
	x := uint32(1)
	b.ReportAllocs()
	for b.Loop() {
		x = p.of(x)
	}
}
