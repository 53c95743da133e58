package reach

import (
	"fmt"
	"strconv"
	"strings"
)

// A portSpan is a range of ports, both ends included.
type portSpan struct{ low, high uint16 }

// kernelPorts is the range of ports that the kernel chooses from for connections that name
// none, and the spans in it that are reserved. low is 0 if the range is unknown.
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

// A portOrder is the order in which a seat tries the ports of a range. Each shared seat begins
// with one of the first ports, and lanes and pinned connections begin behind these. So no seat uses a
// port that another seat begins with, unless the range is small.
type portOrder struct {
	base, size uint64 // of the range
	shared     uint64 // how many shared seats there are; at most size
	own        bool   // for a lane or a pinned connection
	number     uint64 // the number of the shared seat, or a hash of the client's origin
}

// port is the n-th port to try, counted from 0. The first 2*size include every port of the
// range.
func (p *portOrder) port(n uint64) uint64 {
	rest := p.size - p.shared
	at := p.number%p.shared + n*p.shared
	switch {
	case p.own && n < rest:
		at = p.shared + (p.number+n)%rest
	case p.own || at >= p.size: // the rest of the range
		at = p.number + n
	}
	return (p.base + at) % p.size
}
