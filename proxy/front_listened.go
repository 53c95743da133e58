package proxy

import (
	"crypto/x509"
	"errors"
	"net/netip"
	"time"

	"github.com/rdmabridge/rdmabridge/proxy/listener"
	"github.com/rdmabridge/rdmabridge/rdmaside"
	"github.com/rdmabridge/rdmabridge/tcpframe"
)

// This file is a front as its listener sees it: the rest of listener.Client.

var errEvicted = errors.New("proxy: closed for a client of an address with fewer connections")

// Peer is part of listener.Client.
func (f *front) Peer() netip.AddrPort { return f.peer }

// LoopNumber is part of listener.Client.
func (f *front) LoopNumber() int { return f.loop.number() }

// Idle is part of listener.Client.
func (f *front) Idle() bool { return f.client.idle() }

// Evicted is part of listener.Client.
func (f *front) Evicted() bool { return f.evicted }

// Evict is part of listener.Client.
func (f *front) Evict() {
	f.evicted = true
	f.Close(errEvicted)
}

// Outstanding is part of listener.Client.
func (f *front) Outstanding() int {
	if s, ok := f.client.(*rdmaClient); ok {
		return s.conn.Outstanding()
	}
	return 0
}

// CloseIfUnused is part of listener.Client.
func (f *front) CloseIfUnused(idle time.Duration) {
	if s, ok := f.client.(*rdmaClient); ok {
		s.closeIfUnused(idle)
	}
}

// CloseIfHoarding is part of listener.Client.
func (f *front) CloseIfHoarding() {
	if s, ok := f.client.(*rdmaClient); ok {
		s.closeIfHoarding()
	}
}

// Certificates is part of listener.Client.
func (f *front) Certificates() (certs []*x509.Certificate, at time.Time, ok bool) {
	if s, ok := f.client.(*tcpClient); ok && s.secured {
		return s.conn.TLS().PeerCertificates, s.securedAt, true
	}
	return nil, time.Time{}, false
}

// Distrust is part of listener.Client.
func (f *front) Distrust(err error) {
	if s, ok := f.client.(*tcpClient); ok {
		s.distrust(err)
	}
}

// serveTCP returns what serves the connection c of a TCP client of l.
func (p *Proxy) serveTCP(l *listener.Listener, c *tcpframe.Conn) tcpframe.RecordHandler {
	return newTCPClient(l, p.loops[c.Loop().Index()])
}

// serveRDMA returns what serves the RDMA clients of l.
func (p *Proxy) serveRDMA(l *listener.Listener) rdmaside.CallHandler { return (*rdmaHandler)(l) }
