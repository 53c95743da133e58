package ibverbs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// A Selector says which RDMA devices, ports and GIDs a Provider uses, where addresses alone do not
// decide. Each field that is not zero must match. The zero value selects everything.
//
// The connection manager has no setting for any of the three: it uses the device, the port and the
// GID of the local address. So a Dial connects from a local address that it has selected, and a
// listener checks its own address, or that of each connection if it listens at all addresses.
type Selector struct {
	Device string     // the name of the device, such as mlx5_0
	Port   int        // the number of the port, from 1
	GID    netip.Addr // an entry of the port's GID table, as an IPv6 address
}

// all reports whether s selects everything.
func (s Selector) all() bool { return s == Selector{} }

// matches reports whether s selects a port and its GID.
func (s Selector) matches(device string, port int, gid netip.Addr) bool {
	return (s.Device == "" || s.Device == device) && (s.Port == 0 || s.Port == port) && (!s.GID.IsValid() || s.GID.As16() == gid.As16())
}

func (s Selector) String() string {
	var parts []string
	if s.Device != "" {
		parts = append(parts, "device "+s.Device)
	}
	if s.Port != 0 {
		parts = append(parts, "port "+strconv.Itoa(s.Port))
	}
	if s.GID.IsValid() {
		parts = append(parts, "GID "+gidText(s.GID))
	}
	return strings.Join(parts, ", ")
}

// gidText returns a GID as the tools of rdma-core write it. A GID of an IPv4 address ends with it.
func gidText(gid netip.Addr) string {
	return netip.AddrFrom16(gid.As16()).String()
}

// check returns an error if this host has nothing that s selects. class is the directory
// /sys/class/infiniband.
func (s Selector) check(class string) error {
	if s.all() {
		return nil
	}
	devices := names(class)
	if len(devices) == 0 {
		return errors.New("the kernel has no RDMA device: load the adapter's module")
	}
	if s.Device != "" {
		if !slices.Contains(devices, s.Device) {
			return fmt.Errorf("there is no RDMA device %s; this host has %s", s.Device, strings.Join(devices, ", "))
		}
		devices = []string{s.Device}
	}
	var ports, gids []string // those that the host has instead
	ported := false          // a port matches, but for its GIDs
	for _, d := range devices {
		dir := filepath.Join(class, d, "ports")
		for _, p := range names(dir) {
			if s.Port != 0 && p != strconv.Itoa(s.Port) {
				ports = append(ports, p)
				continue
			}
			ported = true
			found := gidsOf(filepath.Join(dir, p, "gids"))
			if !s.GID.IsValid() || slices.Contains(found, s.GID.As16()) {
				return nil
			}
			for _, g := range found {
				gids = append(gids, gidText(netip.AddrFrom16(g)))
			}
		}
	}
	slices.Sort(ports)
	slices.Sort(gids)
	part := s
	switch {
	case len(gids) > 0:
		part.GID = netip.Addr{}
		return fmt.Errorf("no port has the GID %s; %s", gidText(s.GID), has(part, "has", gids))
	case ported:
		return errors.New("no port has a GID: is the network interface up?")
	}
	part.Port, part.GID = 0, netip.Addr{}
	return fmt.Errorf("there is no port %d; %s", s.Port, has(part, "has port", ports))
}

// has says what there is of the things that s selects.
func has(s Selector, verb string, things []string) string {
	subject := s.String()
	if s.all() {
		subject = "this host"
	}
	things = slices.Compact(things)
	const most = 8
	if len(things) > most {
		things = append(things[:most:most], "and others")
	}
	return subject + " " + verb + " " + strings.Join(things, ", ")
}

// names returns the names of a directory's entries, in order.
func names(dir string) (s []string) {
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		s = append(s, e.Name())
	}
	return s
}

// gidsOf returns the entries in use of a port's GID table.
func gidsOf(dir string) (gids [][16]byte) {
	for _, name := range names(dir) {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			continue // the kernel gives an error for an entry that is not in use
		}
		a, err := netip.ParseAddr(strings.TrimSpace(string(text)))
		if err != nil || !a.Is6() {
			continue
		}
		g := a.As16()
		if binary.BigEndian.Uint64(g[:]) != 0 || binary.BigEndian.Uint64(g[8:]) != 0 {
			gids = append(gids, g)
		}
	}
	return gids
}
