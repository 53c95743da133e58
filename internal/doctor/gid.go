package doctor

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// The types of GIDs, as sysfs names them.
const (
	gidRoCE1 = "IB/RoCE v1"
	gidRoCE2 = "RoCE v2"
)

// maxGIDs bounds the GIDs of a port in a report. Tables have up to a thousand entries, of which
// few are in use.
const maxGIDs = 256

// A GID is an address of a port: an entry of its GID table.
type GID struct {
	Index   int        `json:"index"`
	Address netip.Addr `json:"gid"`
	Type    string     `json:"type"`   // "RoCE v2", or "IB/RoCE v1" on RoCE v1, InfiniBand and iWARP
	Netdev  string     `json:"netdev"` // the network interface with the address
}

// IP returns the IP address that the GID stands for.
func (g GID) IP() netip.Addr { return g.Address.Unmap() }

// examineGIDs reads the entries in use of the table of the port whose directory is dir.
func examineGIDs(t *tree, dir string) []GID {
	gids := []GID{}
	var indexes []int
	for _, name := range t.list(dir + "/gids") {
		if n, err := strconv.ParseUint(name, 10, 16); err == nil {
			indexes = append(indexes, int(n))
		}
	}
	slices.Sort(indexes)
	for _, i := range slices.Compact(indexes) {
		name := strconv.Itoa(i)
		a, ok := parseGID(t.text(dir + "/gids/" + name))
		if !ok || a == netip.IPv6Unspecified() {
			continue // the kernel has zeros, or an error, in entries that are not in use
		}
		if len(gids) == maxGIDs {
			break
		}
		gids = append(gids, GID{i, a, t.text(dir + "/gid_attrs/types/" + name), t.text(dir + "/gid_attrs/ndevs/" + name)})
	}
	return gids
}

// parseGID parses a GID as sysfs has it: eight groups of four hexadecimal digits.
func parseGID(s string) (netip.Addr, bool) {
	var b [16]byte
	groups := strings.Split(s, ":")
	if len(groups) != 8 {
		return netip.Addr{}, false
	}
	for i, g := range groups {
		n, err := strconv.ParseUint(g, 16, 16)
		if err != nil || len(g) != 4 {
			return netip.Addr{}, false
		}
		binary.BigEndian.PutUint16(b[2*i:], uint16(n))
	}
	return netip.AddrFrom16(b), true
}
