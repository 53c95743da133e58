package configs

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// A Size is a number of octets: 64KiB, 4MiB, 512.
type Size int64

// Units of Size.
const (
	KiB Size = 1 << 10
	MiB Size = 1 << 20
	GiB Size = 1 << 30
)

var sizeUnits = []struct {
	suffix string
	octets Size
}{
	{"KiB", KiB},
	{"MiB", MiB},
	{"GiB", GiB},
	{"TiB", 1 << 40},
	{"kB", 1e3},
	{"MB", 1e6},
	{"GB", 1e9},
	{"TB", 1e12},
	{"B", 1},
}

// ParseSize reads a whole number of octets, with a unit or without. It is
// positive: no size in the file may be zero.
func ParseSize(s string) (Size, error) {
	number, unit := strings.TrimSpace(s), Size(1)
	for _, u := range sizeUnits {
		if n, ok := strings.CutSuffix(number, u.suffix); ok {
			number, unit = strings.TrimSpace(n), u.octets
			break
		}
	}
	n, err := strconv.ParseInt(number, 10, 64)
	switch {
	case errors.Is(err, strconv.ErrRange) || err == nil && n > math.MaxInt64/int64(unit):
		return 0, fmt.Errorf("%q is too large", s)
	case err != nil:
		return 0, fmt.Errorf("%q is not a size; write 4096, 64KiB, 1MiB or 1GiB", s)
	case n <= 0:
		return 0, fmt.Errorf("%q must be greater than 0", s)
	}
	return Size(n) * unit, nil
}

// String is the size in the largest binary unit that leaves no fraction.
func (s Size) String() string {
	for _, u := range []struct {
		suffix string
		octets Size
	}{{"GiB", GiB}, {"MiB", MiB}, {"KiB", KiB}} {
		if s >= u.octets && s%u.octets == 0 {
			return strconv.FormatInt(int64(s/u.octets), 10) + u.suffix
		}
	}
	return strconv.FormatInt(int64(s), 10) + "B"
}
