package configs

import "fmt"

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

// A Program is an RPC program by name or number, as written.
type Program string
