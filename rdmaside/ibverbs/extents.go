//go:build ibverbs

package ibverbs

import (
	"errors"
	"math"
)

// extents finds the extent of the arena that has some memory. The extents follow each other, and all
// but the last have one length.
type extents struct {
	base, end, size uint64
}

func newExtents(memory [][]byte) (x extents, err error) {
	for i, b := range memory {
		switch {
		case len(b) == 0:
			return x, errors.New("ibverbs: Options.Memory has an empty extent")
		case i == 0:
			x = extents{address(b), address(b), uint64(len(b))}
		case address(b) != x.end || x.end != x.base+uint64(i)*x.size || uint64(len(b)) > x.size:
			return x, errors.New("ibverbs: Options.Memory is not one range in extents of one length")
		}
		x.end += uint64(len(b))
	}
	return x, nil
}

// find returns the index of the extent that has all of b, or -1.
func (x *extents) find(b []byte) int {
	at := address(b)
	if at < x.base || at >= x.end {
		return -1
	}
	i := (at - x.base) / x.size
	if at+uint64(len(b)) > min(x.base+(i+1)*x.size, x.end) || i > math.MaxInt32 {
		return -1
	}
	return int(i)
}

func (x *extents) octets() uint64 { return x.end - x.base }
