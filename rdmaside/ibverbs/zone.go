//go:build ibverbs

package ibverbs

import (
	"net"
	"strconv"
)

// zoneIndex returns the interface index of an IPv6 zone, or 0.
func zoneIndex(zone string) uint32 {
	if zone == "" {
		return 0
	}
	if n, err := strconv.ParseUint(zone, 10, 32); err == nil {
		return uint32(n)
	}
	i, err := net.InterfaceByName(zone)
	if err != nil {
		return 0
	}
	return uint32(i.Index)
}

// zoneName returns the zone of an interface index.
func zoneName(index uint32) string {
	if index == 0 {
		return ""
	}
	return strconv.FormatUint(uint64(index), 10)
}
