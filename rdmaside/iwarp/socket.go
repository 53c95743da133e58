package iwarp

import (
	"net"
	"net/netip"
)

// localSendBuffer is SO_SNDBUF towards a peer on this host, where a longer queue
// is only more to push other things out of the cache: measured, a quarter with
// four connections of 1 MiB Calls. The kernel doubles it.
const localSendBuffer = 256 << 10

// onThisHost reports whether the peer is at an address of this host, as far as one
// socket tells.
func onThisHost(c *net.TCPConn) bool {
	peer, ok := c.RemoteAddr().(*net.TCPAddr)
	self, ok2 := c.LocalAddr().(*net.TCPAddr)
	return ok && ok2 && (peer.IP.IsLoopback() || peer.IP.Equal(self.IP))
}

// tune sets the options of a connected socket.
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

// addrPort is the address in netip's words, the zero value if it has none.
func addrPort(a net.Addr) netip.AddrPort {
	t, ok := a.(*net.TCPAddr)
	if !ok {
		return netip.AddrPort{}
	}
	ap := t.AddrPort()
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
}
