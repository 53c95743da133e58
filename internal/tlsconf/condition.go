package tlsconf

import (
	"bytes"
	"crypto/x509"
	"slices"
	"time"
)

// A Condition is what operators must know of the files of a Server or Client.
type Condition struct {
	Own   Term   // of the certificate and those of its issuers in the same file
	CA    Term   // of the CAs that sign the certificates of peers; zero for those of the system
	CRL   Term   // of the lists of revoked certificates
	Fault string // why the files as they are now cannot be used; "" if they are in force
}

// Condition returns the Condition of the files of the listener. It does not read them.
func (s *Server) Condition() Condition {
	t := s.current.Load()
	return Condition{t.own, t.trust.cas, t.trust.lists, s.files.whyRefused()}
}

// Condition returns the Condition of the files of the upstream. It does not read them.
func (x *Client) Condition() Condition {
	t := x.current.Load()
	return Condition{t.term, t.trust.cas, t.trust.lists, x.files.whyRefused()}
}

// A Term says until when the certificates or lists of a file can be used. It is zero if there are none.
type Term struct {
	Name    string    // the subject of what must be renewed first, or the issuer of such a list
	Expiry  time.Time // when that expires; of a list, when its successor is due
	Renewal time.Time // when it must be renewed at the latest, to leave time for mending what prevents it
	End     time.Time // from when the other side refuses the chain, or no CA is trusted any more; zero for lists, which stay in force
}

const (
	// soon is how long before its end the own certificate must be renewed, unless its life is short: see renewal.
	soon = 14 * 24 * time.Hour
	// soonCA is the same for a CA, whose successor has to reach others before it can be used.
	soonCA = 30 * 24 * time.Hour
)

// renewal returns when c must be renewed at the latest: at most lead before it expires, or a fifth of its life
// if that is less. ACME clients and cert-manager renew when a third is left.
func renewal(c *x509.Certificate, lead time.Duration) time.Time {
	return c.NotAfter.Add(-min(lead, c.NotAfter.Sub(c.NotBefore)/5))
}

// add counts another of those that are in the same file.
func (t *Term) add(name string, expiry, renewal time.Time) {
	if t.Renewal.IsZero() || renewal.Before(t.Renewal) {
		t.Name, t.Expiry, t.Renewal = name, expiry, renewal
	}
}

// termOf returns the Term of the own chain, which ends with the first of its certificates.
func termOf(chain [][]byte) (t Term) {
	for _, der := range chain {
		c, err := x509.ParseCertificate(der)
		if err != nil {
			continue
		}
		t.add(subject(c), c.NotAfter, renewal(c, soon))
		if t.End.IsZero() || c.NotAfter.Before(t.End) {
			t.End = c.NotAfter
		}
	}
	return t
}

// addCA counts a CA among all those of the file, of which the last to expire is the end.
func (t *Term) addCA(c *x509.Certificate, all []*x509.Certificate) {
	if c.NotAfter.After(t.End) {
		t.End = c.NotAfter
	}
	if !succeeded(c, all) {
		t.add(subject(c), c.NotAfter, renewal(c, soonCA))
	}
}

// succeeded reports whether the CA c has been renewed: another one of the same name takes over before it expires.
// Nobody needs to hear when it does.
func succeeded(c *x509.Certificate, all []*x509.Certificate) bool {
	return slices.ContainsFunc(all, func(x *x509.Certificate) bool {
		return bytes.Equal(x.RawSubject, c.RawSubject) && x.NotAfter.After(c.NotAfter) && !x.NotBefore.After(c.NotAfter)
	})
}

// addList counts a list of revoked certificates. "The next CRL could be issued before the indicated date, but
// it will not be issued any later" (RFC 5280 Section 5.1.2.5), so a list is due then and not before.
func (t *Term) addList(l *x509.RevocationList) {
	t.add(bounded(l.Issuer.String(), maxName), l.NextUpdate, l.NextUpdate)
}

// youngest returns the last list of each issuer, if it says when the next one is due.
func youngest(lists []*x509.RevocationList) (last []*x509.RevocationList) {
	for _, l := range lists {
		older := slices.ContainsFunc(lists, func(x *x509.RevocationList) bool {
			return bytes.Equal(x.RawIssuer, l.RawIssuer) && x.ThisUpdate.After(l.ThisUpdate)
		})
		if !older && !l.NextUpdate.IsZero() {
			last = append(last, l)
		}
	}
	return last
}

// subject names a certificate.
func subject(c *x509.Certificate) string {
	if s := bounded(c.Subject.String(), maxName); s != "" {
		return s
	}
	return "without a subject"
}
