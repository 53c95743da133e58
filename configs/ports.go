package configs

import (
	"fmt"
	"strconv"
	"strings"
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
