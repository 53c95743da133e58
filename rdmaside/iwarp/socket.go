package iwarp

import (
	"net"
	"net/netip"
)

// localSendBuffer is SO_SNDBUF towards a peer on this host. A longer queue gains
// nothing there and displaces other data from the CPU's cache: it cost a quarter of the
// throughput of four connections with Calls of 1 MiB. The kernel doubles the value.
const localSendBuffer = 256 << 10

// onThisHost reports whether c is recognisably a connection within this host: its peer
// has a loopback address, or the address of the local end.
func onThisHost(c *net.TCPConn) bool {
	peer, ok := c.RemoteAddr().(*net.TCPAddr)
	self, ok2 := c.LocalAddr().(*net.TCPAddr)
	return ok && ok2 && (peer.IP.IsLoopback() || peer.IP.Equal(self.IP))
}

// tune sets the TCP options of a connected socket.
func (p *Provider) tune(nc net.Conn) {
	c, ok := nc.(*net.TCPConn)
	if !ok {
		return
	}
	_ = c.SetNoDelay(true)
	if onThisHost(c) {
		_ = c.SetWriteBuffer(localSendBuffer)
	}
	if p.opts.KeepAlive > 0 {
		_ = c.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: p.opts.KeepAlive, Interval: p.opts.KeepAlive / 3, Count: 3})
	}
	if raw, err := c.SyscallConn(); err == nil && p.opts.ProgressTimeout > 0 {
		_ = setUserTimeout(raw, int(p.opts.ProgressTimeout.Milliseconds()))
	}
}

// addrPort converts a TCP address. Other addresses become the zero value.
func addrPort(a net.Addr) netip.AddrPort {
	t, ok := a.(*net.TCPAddr)
	if !ok {
		return netip.AddrPort{}
	}
	ap := t.AddrPort()
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
}
