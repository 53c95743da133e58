package proxy

import (
	"crypto/x509"
	"errors"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/internal/status"
	"github.com/rdmabridge/rdmabridge/internal/tlsconf"
	"github.com/rdmabridge/rdmabridge/metrics"
	"github.com/rdmabridge/rdmabridge/tcpframe"
)

// Files of TLS
//
// Certificates, keys, CAs and lists of revoked certificates are files, which others replace while the
// bridge runs. RefreshTLS has later connections use what the files have then, and leaves the connections
// that there are as they are. Only when the CAs or the revoked certificates have changed, or whom a
// listener trusts, it checks the peers of all connections again and closes those that would be refused
// now: "implementations SHOULD reevaluate the certificate originally presented in the context of the new
// configuration and terminate the TLS session if the certificate is no longer trustworthy", RFC 9289
// Section 5.2.1. A certificate that was valid when its connection began, and has expired since, is no
// reason to close.

// tlsFiles are the metrics of a listener's or upstream's files, and whom it has checked.
type tlsFiles struct {
	loaded, refused *metrics.Counter
	checked         *tlsconf.Server // whose trust the clients were checked by last; guarded by Proxy.refreshing
}

// describeTLS makes the series of a listener with TLS.
func (l *listener) describeTLS(t *ListenerTLS) {
	if t == nil || l.tls.loaded != nil {
		return
	}
	m := l.p.metrics
	l.tls.loaded, l.tls.refused = m.Counter(metrics.ListenerTLSReloads, l.name, "loaded"), m.Counter(metrics.ListenerTLSReloads, l.name, "refused")
	// The next listener of the name may have no TLS, and so no gauges that replace these.
	p, name := l.p, l.name
	condition := func() tlsconf.Condition {
		for _, l := range p.currentListeners() {
			if t := l.settings().opts.TLS; t != nil && l.name == name {
				return t.Server.Condition()
			}
		}
		return tlsconf.Condition{}
	}
	describeTLSFiles(m, tlsGauges{metrics.ListenerTLSExpiry, metrics.ListenerTLSRenewBy, metrics.ListenerTLSFilesRefused}, l.name, condition)
}

// countTLS makes the counters of an upstream with TLS.
func (u *upstream) countTLS(m *metrics.Registry) {
	u.tls.loaded, u.tls.refused = m.Counter(metrics.UpstreamTLSReloads, u.name, "loaded"), m.Counter(metrics.UpstreamTLSReloads, u.name, "refused")
	u.tlsMissing.refused, u.tlsMissing.plain = m.Counter(metrics.UpstreamTLSMissing, u.name, "refused"), m.Counter(metrics.UpstreamTLSMissing, u.name, "plain")
}

// describeTLS registers the gauges of an upstream with TLS. The next upstream of the name may have none.
func (u *upstream) describeTLS() {
	p, name := u.p, u.name
	condition := func() tlsconf.Condition {
		if u := p.allUpstreams()[name]; u != nil && u.settings().TLS != nil {
			return u.settings().TLS.Client.Condition()
		}
		return tlsconf.Condition{}
	}
	describeTLSFiles(p.metrics, tlsGauges{metrics.UpstreamTLSExpiry, metrics.UpstreamTLSRenewBy, metrics.UpstreamTLSFilesRefused}, name, condition)
}

// tlsGauges are the gauges of listeners or upstreams that say what becomes of the files.
type tlsGauges struct{ expiry, renewBy, refused metrics.GaugeDef }

// describeTLSFiles makes the series of the files of the listener or upstream name.
func describeTLSFiles(m *metrics.Registry, g tlsGauges, name string, condition func() tlsconf.Condition) {
	at := func(d metrics.GaugeDef, file string, of func(*tlsconf.Condition) time.Time) {
		m.GaugeFunc(d, func() float64 {
			c := condition()
			if t := of(&c); !t.IsZero() {
				return float64(t.Unix())
			}
			return 0
		}, name, file)
	}
	at(g.expiry, "certificate", func(c *tlsconf.Condition) time.Time { return c.Own.End })
	at(g.expiry, "ca", func(c *tlsconf.Condition) time.Time { return c.CA.End })
	at(g.renewBy, "certificate", func(c *tlsconf.Condition) time.Time { return c.Own.Renewal })
	at(g.renewBy, "ca", func(c *tlsconf.Condition) time.Time { return c.CA.Renewal })
	at(g.renewBy, "crl", func(c *tlsconf.Condition) time.Time { return c.CRL.Renewal })
	m.GaugeFunc(g.refused, func() float64 { return float64(metrics.Truth(condition().Fault != "")) }, name)
}

// tlsFilesStatus describes the files of a listener or upstream.
func tlsFilesStatus(c tlsconf.Condition) *status.TLSFiles {
	d := &status.TLSFiles{Refused: c.Fault}
	if c.Own != (tlsconf.Term{}) {
		d.Expires, d.RenewBy = &c.Own.End, &c.Own.Renewal
	}
	d.CA, d.CRL = tlsTerm(c.CA), tlsTerm(c.CRL)
	return d
}

func tlsTerm(t tlsconf.Term) *status.TLSTerm {
	if t == (tlsconf.Term{}) {
		return nil
	}
	return &status.TLSTerm{Name: t.Name, Expires: t.Expiry, RenewBy: t.Renewal, End: t.End}
}

// refresher is a tlsconf.Server or tlsconf.Client.
type refresher interface {
	Refresh(now bool) (tlsconf.Refreshed, error)
}

// RefreshTLS looks at the files of all listeners and upstreams with TLS. A file that has changed must be the
// same at two calls before it is read, unless now is true. RefreshTLS reads files and waits for the loops.
func (p *Proxy) RefreshTLS(now bool) {
	p.refreshing.Lock()
	defer p.refreshing.Unlock()
	for _, l := range p.currentListeners() {
		t := l.settings().opts.TLS
		if t == nil {
			continue
		}
		trust := l.tls.refresh(&l.log, t.Server, now)
		if trust || l.tls.checked != t.Server {
			l.recheck(t.Server)
			l.tls.checked = t.Server
		}
	}
	for _, u := range p.allUpstreams() {
		if t := u.settings().TLS; t != nil && u.tls.refresh(&u.log, t.Client, now) {
			u.recheck(t.Client)
		}
	}
}

// refresh looks at the files of r, and reports whether it trusts others than before.
func (x *tlsFiles) refresh(log *zerolog.Logger, r refresher, now bool) (trust bool) {
	done, err := r.Refresh(now)
	switch {
	case err != nil:
		x.refused.Inc()
		log.Error().Str("event", "tls_files_refused").Err(err).Msg("the files of TLS have changed and cannot be used; what they had before stays in force")
	case done.Changed:
		x.loaded.Inc()
		log.Info().Str("event", "tls_files_loaded").Bool("trust", done.Trust).Msg("the files of TLS have changed; later connections use them")
		for _, w := range done.Warnings {
			log.Warn().Str("event", "tls_files_warning").Str("warning", w).Msg("the files of TLS are in force, and have a fault")
		}
	}
	return done.Trust
}

// A checkedPeer is a connection whose peer is checked again.
type checkedPeer struct {
	certs    []*x509.Certificate
	at       time.Time // when it was checked first
	distrust func(error)
	on       *eventLoop
}

// recheck closes the clients that s would refuse now.
func (l *listener) recheck(s *tlsconf.Server) {
	all := l.p.byLoop(l.snapshot(false))
	peers := l.p.peersOf(func(on *eventLoop) (ps []checkedPeer) {
		for _, f := range all[on.index] {
			if c, ok := f.client.(*tcpClient); ok && c.secured && !c.ended.get() {
				ps = append(ps, checkedPeer{c.conn.TLS().PeerCertificates, c.securedAt, c.distrust, on})
			}
		}
		return ps
	})
	distrust(peers, func(x *checkedPeer) error { return s.Recheck(x.certs, x.at) })
}

// secureConns are the connections of an upstream with TLS, from the time before they choose whom they trust. The
// pools know a connection only when its handshake is done, which is too late to find those whose trust has
// changed meanwhile.
type secureConns struct {
	mu  sync.Mutex // guards all
	all map[*tcpConn]struct{}
}

func (s *secureConns) add(c *tcpConn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all == nil {
		s.all = make(map[*tcpConn]struct{})
	}
	s.all[c] = struct{}{}
}

func (s *secureConns) remove(c *tcpConn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.all, c)
}

// byLoop returns the connections by the index of their loop.
func (s *secureConns) byLoop(loops int) [][]*tcpConn {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([][]*tcpConn, loops)
	for c := range s.all {
		all[c.loop.index] = append(all[c.loop.index], c)
	}
	return all
}

// recheck closes the connections to servers that x would refuse now.
func (u *upstream) recheck(x *tlsconf.Client) {
	all := u.secure.byLoop(len(u.p.loops))
	peers := u.p.peersOf(func(on *eventLoop) (ps []checkedPeer) {
		for _, c := range all[on.index] {
			// Before TLS has begun, Secured will see that the files have changed.
			if c.conn == nil || c.start != nil || c.ending {
				continue
			}
			if s := c.conn.TLS(); s != nil {
				ps = append(ps, checkedPeer{s.PeerCertificates, c.securedAt, c.distrust, on})
			}
		}
		return ps
	})
	// All endpoints of an upstream with a server name have that. Otherwise each connection has checked the
	// name of its own, which does not change.
	distrust(peers, func(p *checkedPeer) error { return x.Recheck(p.certs, p.at) })
}

// peersOf asks each loop.
func (p *Proxy) peersOf(ask func(*eventLoop) []checkedPeer) (all []checkedPeer) {
	found := make(chan []checkedPeer, len(p.loops))
	for _, on := range p.loops {
		on.Post(loop.TaskFunc(func() { found <- ask(on) }))
	}
	for range p.loops {
		select {
		case ps := <-found:
			all = append(all, ps...)
		case <-p.quit:
			return nil
		}
	}
	return all
}

// distrust closes the connections for which check fails. It checks on the calling goroutine, because a
// signature takes longer than a loop has.
func distrust(peers []checkedPeer, check func(*checkedPeer) error) {
	for i := range peers {
		x := &peers[i]
		if err := check(x); err != nil {
			x.on.Post(loop.TaskFunc(func() { x.distrust(err) }))
		}
	}
}

// distrust closes the connection, because err has the client's certificate refused now.
func (s *tcpClient) distrust(err error) {
	if s.ended.get() {
		return
	}
	why := tcpframe.TLSBadCertificate
	if e, ok := errors.AsType[*tcpframe.TLSError](err); ok {
		why, err = e.Reason, e.Err
	}
	s.conn.RefuseTLS(why, err)
	s.ended.set()
}
