package configs

import (
	"fmt"
	"strconv"
	"strings"
)

// Ports is a range of TCP ports that includes both ends.
type Ports struct{ Low, High uint16 }

// The ranges that a file can name by a word.
var (
	// AnyPort lets the kernel choose the ports.
	AnyPort = Ports{0, 65535}
	// reservedPorts are the ports that the Linux client connects from. Only privileged
	// processes can use them, which some servers require.
	reservedPorts = Ports{665, 1023}
)

// privilegedPorts is where the ports end that only privileged processes can use.
const privilegedPorts = 1024

// parsePorts parses any, reserved, or LOW-HIGH.
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
		return Ports{}, fmt.Errorf("%q is not a range of ports; write any, reserved, or a range such as 700-999", s)
	case low > high:
		return Ports{}, fmt.Errorf("%q ends before it begins; write the lower port first", s)
	}
	return Ports{uint16(low), uint16(high)}, nil
}

// privileged reports whether the range has ports that only privileged processes can use.
func (p Ports) privileged() bool { return p != AnyPort && p.Low < privilegedPorts }

// count returns how many ports the range has.
func (p Ports) count() int { return int(p.High) - int(p.Low) + 1 }

// String returns the range in the format of a file.
func (p Ports) String() string {
	switch p {
	case AnyPort:
		return "any"
	case reservedPorts:
		return "reserved"
	}
	return fmt.Sprintf("%d-%d", p.Low, p.High)
}
