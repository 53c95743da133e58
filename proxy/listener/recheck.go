package listener

import (
	"crypto/x509"
	"slices"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/internal/tlsconf"
)

// Files of TLS
//
// Certificates, keys, CAs and lists of revoked certificates are files, which others replace while the
// bridge runs. Proxy.RefreshTLS has later connections use what the files have then, and leaves the connections
// that there are as they are. Only when the CAs or the revoked certificates have changed, or whom a
// listener trusts, it checks the peers of all connections again and closes those that would be refused
// now: "implementations SHOULD reevaluate the certificate originally presented in the context of the new
// configuration and terminate the TLS session if the certificate is no longer trustworthy", RFC 9289
// Section 5.2.1. A certificate that was valid when its connection began, and has expired since, is no
// reason to close.

// RefreshTLS looks at the files of l, if it has TLS. One goroutine at a time.
func (l *Listener) RefreshTLS(now bool) {
	t := l.Settings().TLS()
	if t == nil {
		return
	}
	if trust := l.tls.Refresh(&l.Log, t.Server, now); trust || l.checked != t.Server {
		l.recheck(t.Server)
		l.checked = t.Server
	}
}

// A checkedPeer is a connection whose peer is checked again.
type checkedPeer struct {
	client Client
	certs  []*x509.Certificate
	at     time.Time // when it was checked first
}

// recheck closes the clients that s would refuse now. It checks on the calling goroutine, because a signature takes
// longer than a loop has.
func (l *Listener) recheck(s *tlsconf.Server) {
	all := l.byLoop()
	peers, _ := loop.Gather(l.Loops, l.Quit, func(here int) (ps []checkedPeer) {
		for _, c := range all[here] {
			if certs, at, ok := c.Certificates(); ok && !c.Gone() {
				ps = append(ps, checkedPeer{c, certs, at})
			}
		}
		return ps
	})
	for _, x := range slices.Concat(peers...) {
		if err := s.Recheck(x.certs, x.at); err != nil {
			x.client.Post(loop.TaskFunc(func() { x.client.Distrust(err) }))
		}
	}
}
