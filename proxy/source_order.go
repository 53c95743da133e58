package proxy

import (
	"fmt"
	"strconv"
	"strings"
)

// A portSpan is ports that follow each other, both ends included.
type portSpan struct{ low, high uint16 }

// kernelPorts are those that the kernel gives to connections that ask for none, and those
// of them that it does not. low is 0 if it does not say.
func kernelPorts(read func(string) ([]byte, error)) (low, high uint16, not []portSpan) {
	const dir = "/proc/sys/net/ipv4/"
	text, err := read(dir + "ip_local_port_range")
	if err != nil {
		return 0, 0, nil
	}
	if n, err := fmt.Sscan(string(text), &low, &high); n != 2 || err != nil || low == 0 || low > high {
		return 0, 0, nil
	}
	text, _ = read(dir + "ip_local_reserved_ports") // there may be none
	for span := range strings.SplitSeq(strings.TrimSpace(string(text)), ",") {
		first, last, ranged := strings.Cut(span, "-")
		if !ranged {
			last = first
		}
		l, err := strconv.ParseUint(first, 10, 16)
		h, err2 := strconv.ParseUint(last, 10, 16)
		if err == nil && err2 == nil {
			not = append(not, portSpan{uint16(l), uint16(h)})
		}
	}
	return low, high, not
}

// A portOrder is the order in which a seat tries the ports of a range. The shared seats
// have the first ones for themselves, each one of them, and the clients' own connections
// what follows: nobody is where another one's order begins, unless the range is small.
type portOrder struct {
	base, size uint64 // of the range
	shared     uint64 // seats that are not a client's own; at most size
	own        bool   // a client's own connection
	number     uint64 // of the seat, or the client's hash
}

// port is the n-th to be tried, counted from 0; all of the range come among the first
// 2*size.
func (p *portOrder) port(n uint64) uint64 {
	rest := p.size - p.shared
	at := p.number%p.shared + n*p.shared
	switch {
	case p.own && n < rest:
		at = p.shared + (p.number+n)%rest
	case p.own || at >= p.size: // what is left
		at = p.number + n
	}
	return (p.base + at) % p.size
}
