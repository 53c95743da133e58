package doctor

import (
	"math"
	"strconv"
)

// An Amount is a limit that the kernel sets, or how much of something there may be.
type Amount uint64

// noLimit means that there is no limit. In JSON it is null.
const noLimit Amount = math.MaxUint64

// String returns a, or unlimited.
func (a Amount) String() string {
	if a == noLimit {
		return "unlimited"
	}
	return strconv.FormatUint(uint64(a), 10)
}

// octets formats a as a size.
func (a Amount) octets() string {
	if a == noLimit {
		return "unlimited"
	}
	return size(uint64(a))
}

// MarshalJSON implements json.Marshaler.
func (a Amount) MarshalJSON() ([]byte, error) {
	if a == noLimit {
		return []byte("null"), nil
	}
	return strconv.AppendUint(nil, uint64(a), 10), nil
}
