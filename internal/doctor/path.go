package doctor

import (
	"fmt"
	"net"
	"net/netip"
	"time"
)

// JudgePath reports which device, port and GID a provider over verbs would use for t, or that there
// is none. The kernel's routes decide, by the source address that they give.
func (h *Host) JudgePath(t *Target, fs *Findings) {
	source, err := sourceFor(t.Address)
	if err != nil {
		fs.Add("endpoint-path", Error, t.subject(), fmt.Sprintf("There is no route to the endpoint: %v.", err), "ip route")
		return
	}
	h.judgePath(t, source, interfaceWith(source), fs)
}

// routeWait bounds the questions to name servers.
const routeWait = 5 * time.Second

// interfaceWith returns the name of the network interface with an address, or "".
func interfaceWith(a netip.Addr) string {
	interfaces, _ := net.Interfaces()
	for _, i := range interfaces {
		addresses, _ := i.Addrs()
		for _, address := range addresses {
			if p, err := netip.ParsePrefix(address.String()); err == nil && p.Addr().Unmap() == a {
				return i.Name
			}
		}
	}
	return ""
}

// sourceFor returns the address from which this host would connect to an endpoint. It sends nothing
// but questions to name servers.
func sourceFor(endpoint string) (netip.Addr, error) {
	c, err := net.DialTimeout("udp", endpoint, routeWait)
	if err != nil {
		return netip.Addr{}, err
	}
	defer c.Close()
	return c.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap().WithZone(""), nil
}

// judgePath is JudgePath for a source address, which a network interface has.
func (h *Host) judgePath(t *Target, source netip.Addr, netdev string, fs *Findings) {
	for i := range h.Devices {
		d := &h.Devices[i]
		for j := range d.Ports {
			p := &d.Ports[j]
			g, ok := p.For(source)
			iwarp := d.Protocol == ProtocolIWARP && p.Netdev != nil && p.Netdev.Name == netdev
			if !ok && !iwarp {
				continue
			}
			subject := fmt.Sprintf("%s port %d", d.Name, p.Number)
			if !p.Active() {
				fs.Add("endpoint-path", Error, t.subject(), fmt.Sprintf("The route to the endpoint leads through %s, which is not active.", subject), "rdma link show")
				return
			}
			if iwarp {
				fs.addf("endpoint-path", Note, t.subject(), "Connections leave from %s, through %s. iWARP needs no GID.", source, subject)
				return
			}
			fs.addf("endpoint-path", Note, t.subject(), "Connections leave from %s, through %s with GID %d (%s), %s.", source, subject, g.Index, g.Type, p.typeReason(g))
			return
		}
	}
	fs.Add("endpoint-path", Error, t.subject(),
		fmt.Sprintf("The route to the endpoint leads out from %s, and no RDMA device has this address: give the endpoint's network to the device's interface, or change the route.", source),
		"ip route", "rdma link show")
}
