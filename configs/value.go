package configs

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"strconv"
	"strings"
	"time"
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

// A Duration is a time span: 5s, 100ms, 1h30m. noDuration is the word none.
type Duration time.Duration

// noDuration switches a timeout off.
const noDuration Duration = -1

// parseDuration reads what time.ParseDuration does, greater than 0, or none.
func parseDuration(s string) (Duration, error) {
	if s == none {
		return noDuration, nil
	}
	d, err := time.ParseDuration(s)
	if err != nil {
		return 0, fmt.Errorf("%q is not a duration; write 500ms, 5s or 1m30s", s)
	}
	if d <= 0 {
		return 0, fmt.Errorf("%q must be greater than 0", s)
	}
	return Duration(d), nil
}

// Value is the time span; negative for none.
func (d Duration) Value() time.Duration { return time.Duration(d) }

// String is the duration as the file would have it.
func (d Duration) String() string {
	if d < 0 {
		return none
	}
	return time.Duration(d).String()
}

// A Switch is on or off. The zero Switch is neither: the default holds.
type Switch uint8

// The positions of a Switch.
const (
	On Switch = iota + 1
	Off
)

// String is the switch as the file would have it.
func (s Switch) String() string {
	switch s {
	case On:
		return "on"
	case Off:
		return "off"
	}
	return ""
}

func parseSwitch(s string) (Switch, error) {
	switch s {
	case "on", "true", "yes":
		return On, nil
	case "off", "false", "no":
		return Off, nil
	}
	return 0, fmt.Errorf("%q is neither on nor off", s)
}

// A Transport is how the peer is spoken to.
type Transport string

// The transports.
const (
	TransportTCP  Transport = "tcp"  // RFC 5531 Section 11, record marking
	TransportRDMA Transport = "rdma" // RFC 8166
)

// Ports is a range of TCP ports, both ends in it. AnyPort is the word any.
type Ports struct{ Low, High uint16 }

// The ranges that have names.
var (
	// AnyPort is those that the kernel chooses from.
	AnyPort = Ports{0, 65535}
	// reservedPorts are those from which the Linux client connects: only privileged
	// processes can, which some servers want to see.
	reservedPorts = Ports{665, 1023}
)

// parsePorts reads any, reserved, or LOW-HIGH.
func parsePorts(s string) (Ports, error) {
	switch s {
	case "any":
		return AnyPort, nil
	case "reserved":
		return reservedPorts, nil
	}
	first, last, ok := strings.Cut(s, "-")
	low, err := strconv.ParseUint(strings.TrimSpace(first), 10, 16)
	high, err2 := strconv.ParseUint(strings.TrimSpace(last), 10, 16)
	switch {
	case !ok || err != nil || err2 != nil || low == 0:
		return Ports{}, fmt.Errorf("%q is no range of ports; write any, reserved or 700-999", s)
	case low > high:
		return Ports{}, fmt.Errorf("%q ends before it begins", s)
	}
	return Ports{uint16(low), uint16(high)}, nil
}

// count is how many ports there are.
func (p Ports) count() int { return int(p.High) - int(p.Low) + 1 }

// String is the range as the file would have it.
func (p Ports) String() string {
	switch p {
	case AnyPort:
		return "any"
	case reservedPorts:
		return "reserved"
	}
	return fmt.Sprintf("%d-%d", p.Low, p.High)
}

// A Program is an RPC program by name or number, as written.
type Program string

// A Prefix is a network, 10.0.0.0/8, or one address.
type Prefix struct{ netip.Prefix }

// parsePrefix reads a network or an address. Bits behind the prefix length are
// refused: 10.1.2.3/8 is more often a slip than a wish.
func parsePrefix(s string) (Prefix, error) {
	if a, err := netip.ParseAddr(s); err == nil && a.Zone() == "" {
		return Prefix{netip.PrefixFrom(a, a.BitLen())}, nil
	}
	p, err := netip.ParsePrefix(s)
	if err != nil {
		return Prefix{}, fmt.Errorf("%q is neither a network nor an address; write 10.0.0.0/8 or 192.0.2.7", s)
	}
	if m := p.Masked(); m != p {
		return Prefix{}, fmt.Errorf("%q has bits set behind its length; write %s", s, m)
	}
	return Prefix{p}, nil
}
