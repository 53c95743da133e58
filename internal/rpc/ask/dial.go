package ask

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"
)

// Privileged ports that no well-known service has, as the Linux client uses them.
const (
	lowPort  = 665
	highPort = 1023
)

// Dial connects with d, from the address local; an invalid one lets the kernel choose. The port is a privileged one if that is asked for
// and possible: servers may ask for one. The network is tcp or udp.
func Dial(ctx context.Context, d net.Dialer, network string, local netip.Addr, remote string, privileged bool) (net.Conn, error) {
	from := func(port uint16) {
		d.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(local, port))
		if network == "udp" {
			d.LocalAddr = net.UDPAddrFromAddrPort(netip.AddrPortFrom(local, port))
		}
	}
	for range 16 {
		if !privileged {
			break
		}
		from(uint16(lowPort + rand.IntN(highPort-lowPort+1)))
		c, err := d.DialContext(ctx, network, remote)
		switch {
		case errors.Is(err, unix.EACCES):
			privileged = false
		case !errors.Is(err, unix.EADDRINUSE) && !errors.Is(err, unix.EADDRNOTAVAIL):
			return c, err
		}
	}
	from(0)
	return d.DialContext(ctx, network, remote)
}
