package configs

import (
	"errors"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
)

// A Size is a number of octets, such as 64KiB, 4MiB or 512.
type Size int64

// Units of Size.
const (
	KiB Size = 1 << 10
	MiB Size = 1 << 20
	GiB Size = 1 << 30
)

type sizeUnit struct {
	suffix string
	octets Size
}

// sizeUnits are in the order in which ParseSize tries them: B ends them all.
var sizeUnits = []sizeUnit{
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

// shortUnit matches what is perhaps meant for a binary unit.
var shortUnit = regexp.MustCompile(`(?i)^(\d+)\s*([KMGT])(?:B|I)?$`)

// ParseSize parses a whole number of octets, with or without a unit. The number is
// positive, because no size in a file may be zero.
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
		return 0, fmt.Errorf("%q is too large for a size; write one such as 64KiB, 1MiB or 1GiB", s)
	case err != nil && shortUnit.MatchString(s):
		return 0, fmt.Errorf("%q has no unit of a size; write %s", s, shortUnit.ReplaceAllString(strings.ToUpper(s), "${1}${2}iB"))
	case err != nil:
		return 0, fmt.Errorf("%q is not a size; write one such as 4096, 64KiB, 1MiB or 1GiB", s)
	case n <= 0:
		return 0, fmt.Errorf("%q is not greater than 0; write a size such as 4096, 64KiB, 1MiB or 1GiB", s)
	}
	return Size(n) * unit, nil
}

// String returns the size in the largest binary unit up to GiB that leaves no fraction.
func (s Size) String() string {
	for _, u := range []sizeUnit{{"GiB", GiB}, {"MiB", MiB}, {"KiB", KiB}} {
		if s >= u.octets && s%u.octets == 0 {
			return strconv.FormatInt(int64(s/u.octets), 10) + u.suffix
		}
	}
	return strconv.FormatInt(int64(s), 10) + "B"
}
