package bench

import (
	"bytes"
	"math/bits"
	"sync"
)

const (
	// maxData is the most data of one message in octets.
	maxData = 4 << 20
	// patternShifts is the number of offsets in the pattern at which data may begin, 8
	// octets apart.
	patternShifts = 1 << shiftBits
	shiftBits     = 12
	patternLen    = maxData + 8*patternShifts

	// probe is the number of octets compared at each end of data. Data of at most two
	// probes are compared completely.
	probe = 64
)

// pattern returns the octets of which all data are slices.
var pattern = sync.OnceValue(func() []byte {
	b := make([]byte, patternLen)
	for i := 0; i < len(b); i += 8 {
		// splitmix64: neighbouring words have nothing in common.
		x := uint64(i+8) * 0x9e3779b97f4a7c15
		x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
		x = (x ^ x>>27) * 0x94d049bb133111eb
		x = bits.ReverseBytes64(x ^ x>>31)
		for j := range 8 {
			b[i+j] = byte(x >> (8 * j))
		}
	}
	return b
})

// dataOf returns the n octets of the pattern p that belong to tag. n is at most maxData.
func dataOf(p []byte, tag uint32, n int) []byte {
	at := int(tag%patternShifts) * 8
	return p[at : at+n : at+n]
}

// matches reports whether got equals want. Unless full is set it compares only the
// lengths and a probe at each end: comparing 1 MiB costs as much as moving it.
func matches(got, want []byte, full bool) bool {
	if len(got) != len(want) {
		return false
	}
	if full || len(got) <= 2*probe {
		return bytes.Equal(got, want)
	}
	end := len(got) - probe
	return bytes.Equal(got[:probe], want[:probe]) && bytes.Equal(got[end:], want[end:])
}
