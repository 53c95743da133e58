//go:build ibverbs

package ibverbs

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"syscall"
)

// sysClass is where the kernel lists RDMA devices. Tests change it.
var sysClass = filepath.Join("/sys", "class", "infiniband")

// A place is where an id is bound: a port of a device, and the GID of the address there.
type place struct {
	device string
	iwarp  bool
	port   int
	gid    netip.Addr
}

// placeOf returns the place of an id. ok is false for an id at all addresses, which has none.
func placeOf(id uint64) (p place, ok bool, err error) {
	context, port := idContext(id)
	if context == 0 {
		return p, false, nil
	}
	d, err := queryDevice(context, port)
	if err != nil {
		return p, false, fmt.Errorf("query device: %w", err)
	}
	return place{d.name, d.iwarp, port, idGID(id)}, true, nil
}

// selects returns an error if the Provider is not to use the place of an id.
func (p *Provider) selects(id uint64) error {
	if p.opts.Select.all() {
		return nil
	}
	at, ok, err := placeOf(id)
	if err != nil || !ok {
		return err
	}
	if !p.opts.Select.matches(at.device, at.port, at.gid) {
		return fmt.Errorf("the address is at device %s, port %d, GID %s, and %s is configured", at.device, at.port, gidText(at.gid), p.opts.Select)
	}
	return nil
}

// mayListen returns an error if the Provider is not to listen with an id, which is bound.
func (p *Provider) mayListen(id uint64) error {
	if err := p.selects(id); err != nil || p.opts.TOS == 0 {
		return err
	}
	at, ok, err := placeOf(id)
	if err == nil && ok && !at.iwarp {
		err = fmt.Errorf("a listener on InfiniBand or RoCE, as device %s is, has no traffic class of its own: connections have that of the client's request", at.device)
	}
	return err
}

// A hostAddr is an address of this host.
type hostAddr struct {
	addr    netip.Addr
	network netip.Prefix
}

// hostAddrs returns the addresses of the network interfaces that are up.
var hostAddrs = func() (addrs []hostAddr, err error) {
	interfaces, err := net.Interfaces()
	if err != nil {
		return nil, err
	}
	for _, i := range interfaces {
		if i.Flags&net.FlagUp == 0 {
			continue
		}
		list, err := i.Addrs()
		if err != nil {
			continue // the interface is gone
		}
		for _, a := range list {
			n, ok := a.(*net.IPNet)
			if !ok {
				continue
			}
			ip, ok := netip.AddrFromSlice(n.IP)
			if !ok {
				continue
			}
			ip = ip.Unmap()
			ones, _ := n.Mask.Size()
			network := netip.PrefixFrom(ip, ones)
			if ip.IsLinkLocalUnicast() && ip.Is6() {
				ip = ip.WithZone(i.Name)
			}
			addrs = append(addrs, hostAddr{ip, network})
		}
	}
	return addrs, nil
}

// sourceFor returns the address from which to connect to an address, so that the connection uses what
// Options.Select has. The connection manager itself says where an address of this host is. The zero
// Addr leaves the choice to the kernel's routes. Options.Source has the choice made.
func (e *engine) sourceFor(to netip.Addr) (netip.Addr, error) {
	if from := e.p.opts.Source; from.IsValid() {
		if from.Unmap().Is4() != to.Unmap().Is4() {
			return netip.Addr{}, fmt.Errorf("ibverbs: connect to %v: the source address %v is of another family", to, from)
		}
		if err := e.probe(from, e.p.selects); err != nil {
			return netip.Addr{}, fmt.Errorf("ibverbs: connect to %v: source: %w", to, sourceError(err))
		}
		return from, nil
	}
	if e.p.opts.Select.all() {
		return netip.Addr{}, nil
	}
	addrs, err := hostAddrs()
	if err != nil {
		return netip.Addr{}, fmt.Errorf("ibverbs: addresses of this host: %w", err)
	}
	to = to.Unmap()
	var found netip.Addr
	for _, a := range addrs {
		near := a.network.Contains(to.WithZone(""))
		switch {
		case a.addr.IsLoopback() && !to.IsLoopback():
			// With siw the kernel says that 127.0.0.1 is at its device, and a connection from there
			// to another address sends its SYN for two minutes.
			continue
		case a.addr.Is4() != to.Is4(), a.addr.IsLinkLocalUnicast() != to.IsLinkLocalUnicast() && a.addr.Is6(),
			a.addr.Zone() != "" && zoneIndex(a.addr.Zone()) != zoneIndex(to.Zone()), found.IsValid() && !near:
			continue
		}
		err := e.probe(a.addr, e.p.selects)
		switch {
		case err == nil && near:
			return a.addr, nil
		case err == nil:
			found = a.addr
		}
	}
	if !found.IsValid() {
		family := "IPv4"
		if to.Is6() {
			family = "IPv6"
		}
		return found, fmt.Errorf("ibverbs: no %s address of this host is at %s: give its network interface one", family, e.p.opts.Select)
	}
	return found, nil
}

// sourceError says of an address that this host does not have that it is so.
func sourceError(err error) error {
	if errors.Is(err, syscall.EADDRNOTAVAIL) {
		return fmt.Errorf("this host does not have the %w", err)
	}
	return err
}

// probe binds an id to an address of this host, and returns what suits says of it.
func (e *engine) probe(a netip.Addr, suits func(id uint64) error) error {
	id, err := createID(e.events)
	if err != nil {
		return err
	}
	defer destroyID(id)
	switch err := bindAddr(id, netip.AddrPortFrom(a, 0)); {
	case errors.Is(err, syscall.ENODEV):
		return fmt.Errorf("address %v belongs to no RDMA device", a)
	case err != nil:
		return fmt.Errorf("address %v: %w", a, err)
	}
	return suits(id)
}

// Check returns why a Provider with these options cannot be used on this host: the host has no device,
// port or GID that Options.Select names, or the address listen is at another one. listen is "" for a
// Provider that only dials.
func Check(o Options, listen string) error {
	if err := o.Select.check(sysClass); err != nil || listen == "" || o.Select.all() && o.TOS == 0 {
		return err
	}
	at, err := resolveListen(listen)
	if err != nil || at.Addr().IsUnspecified() {
		return nil // Listen says what is wrong with an address
	}
	if err := load(); err != nil {
		return err
	}
	p := &Provider{opts: o}
	e, err := p.acquire()
	if err != nil {
		return err
	}
	defer p.release(e)
	return e.probe(at.Addr(), p.mayListen)
}
