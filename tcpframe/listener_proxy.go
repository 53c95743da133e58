package tcpframe

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/netip"

	"github.com/rdmabridge/rdmabridge/internal/crowd"
	"github.com/rdmabridge/rdmabridge/internal/proxyheader"
)

// enterProxy counts a connection of a proxy that is to send a header, or returns the limit that it would
// exceed.
func (l *Listener) enterProxy(peer netip.AddrPort, o *ListenOptions) (reason, error) {
	host := crowd.HostOf(peer.Addr())
	l.mu.Lock()
	all, ofHost := l.starts.All(), l.starts.Of(host)
	l.mu.Unlock()
	if ofHost >= mostStartsPerProxy || o.MaxConns > 0 && all >= max(o.MaxConns, spareSockets) {
		return reasonProxyStarting, fmt.Errorf("tcpframe: %d connections of the proxy have no PROXY header yet, %d of all proxies", ofHost, all)
	}
	if q := &l.engine.sockets; !q.Take(all < spareSockets) {
		return reasonTotal, tooManySockets(q)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.starts.Add(host)
	return "", nil
}

// announced handles b, which belongs to the header. It returns the octets behind the header, which are the
// client's; none if the header is not there in full, or if the connection is refused.
func (c *Conn) announced(b []byte) []byte {
	a := c.proxy
	had := len(a.begun)
	if had > 0 {
		a.begun = append(a.begun, b[:min(len(b), proxyheader.MaxLen-had)]...)
		c.copied += len(a.begun) - had
	}
	whole := b
	if had > 0 {
		whole = a.begun
	}
	client, n, err := proxyheader.Parse(whole)
	if err != nil {
		why := reasonProxyHeader
		switch {
		case errors.Is(err, proxyheader.ErrMissing):
			why = reasonProxyMissing
		case errors.Is(err, proxyheader.ErrVersion1):
			why = reasonProxyV1
		}
		c.notAnnounced(why, err)
		return nil
	}
	if n == 0 {
		if had == 0 {
			a.begun = bytes.Clone(b)
			c.copied += len(b)
		}
		return nil
	}
	a.begun = nil
	if client.Addr().IsLoopback() && !c.WireAddr().Addr().IsLoopback() {
		client = netip.AddrPort{} // a client on the proxy's host, whose address is the proxy's here
	}
	if !c.admitAnnounced(client) {
		return nil
	}
	return b[n-had:]
}

// admitAnnounced makes the connection that of client, or of the proxy if client is the zero AddrPort. It
// reports false when a limit of the Listener refuses it.
func (c *Conn) admitAnnounced(client netip.AddrPort) bool {
	l, a := c.listener, c.proxy
	o := l.opts.Load()
	a.client = client
	who := c.RemoteAddr()
	why, err := o.admits(who)
	if err == nil {
		_, why, err = l.enterClient(who.Addr(), o)
	}
	if q := &l.engine.sockets; err == nil && q.Open() > q.Limit() && !o.makeRoom(who.Addr()) {
		l.uncount(&l.clients, who.Addr())
		why, err = reasonTotal, tooManySockets(q)
	}
	switch {
	case err == errAdmit:
		c.Abort(err)
		return false
	case err != nil:
		c.notAnnounced(why, err)
		return false
	}
	a.admitted = true
	l.uncount(&l.starts, c.WireAddr().Addr())
	p := c.counters.proxies.Load()
	p.waiting.Add(-1)
	if client.IsValid() {
		p.named.Inc()
	} else {
		p.unnamed.Inc()
	}
	c.setHandler(l.open(c))
	c.state = open
	c.handler.Opened(c)
	return true
}

// notAnnounced refuses the connection.
func (c *Conn) notAnnounced(why reason, err error) {
	c.countRefused(why, err)
	c.Abort(err)
}

// countRefused counts and logs that the connection, which is not a client's, is refused.
func (c *Conn) countRefused(why reason, err error) {
	var proxy netip.AddrPort
	if c.proxy.client.IsValid() {
		proxy = c.WireAddr()
	}
	c.counters.refuse(c.RemoteAddr(), proxy, why, err)
}

// unannounced ends a connection that was not a client's: it was refused, or has ended with err.
func (c *Conn) unannounced(err error) {
	a := c.proxy
	c.listener.leave(&c.listener.starts, c.WireAddr().Addr())
	c.counters.proxies.Load().waiting.Add(-1)
	if errors.Is(err, io.EOF) && len(a.begun) > 0 {
		c.countRefused(reasonProxyHeader, io.ErrUnexpectedEOF)
	}
	a.begun = nil
}
