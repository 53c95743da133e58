package tlsconf

import (
	"crypto/x509"
	"time"
)

// A Condition is what operators must know of the files of a Server or Client.
type Condition struct {
	Expiry  time.Time // when the first certificate of the own chain expires; zero for no certificate
	Renewal time.Time // when it must be renewed at the latest, to leave time for mending what prevents it; zero for no certificate
	Fault   string    // why the files as they are now cannot be used; "" if they are in force
}

// Condition returns the Condition of the files of the listener. It does not read them.
func (s *Server) Condition() Condition {
	return Condition{s.current.Load().life.expiry, s.current.Load().life.renewal, s.files.whyRefused()}
}

// Condition returns the Condition of the files of the upstream. It does not read them.
func (x *Client) Condition() Condition {
	return Condition{x.current.Load().life.expiry, x.current.Load().life.renewal, x.files.whyRefused()}
}

// A life says until when a chain of certificates can be used.
type life struct {
	expiry  time.Time // of the first certificate of the chain
	renewal time.Time // of the one that must be renewed first
}

func lifeOf(chain [][]byte) (l life) {
	for _, der := range chain {
		c, err := x509.ParseCertificate(der)
		if err != nil {
			continue
		}
		if l.expiry.IsZero() || c.NotAfter.Before(l.expiry) {
			l.expiry = c.NotAfter
		}
		if r := renewal(c); l.renewal.IsZero() || r.Before(l.renewal) {
			l.renewal = r
		}
	}
	return l
}

// renewal returns when c must be renewed at the latest: two weeks before it expires, or a fifth of its life
// if that is less. ACME clients and cert-manager renew when a third is left.
func renewal(c *x509.Certificate) time.Time {
	return c.NotAfter.Add(-min(soon, c.NotAfter.Sub(c.NotBefore)/5))
}
