package tlsconf

import (
	"crypto/x509"
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"
)

// An Identity is who a peer is, as its certificate says, which a CA of the configuration has signed. It
// never changes.
type Identity struct {
	Subject string // distinguished name
	Issuer  string // distinguished name. With Serial it "uniquely identifies the RPC client", RFC 9289 Section 5.2.1
	Serial  string // in hexadecimal digits

	DNS  []string     // subject alternative names, in lower case
	IPs  []netip.Addr // the same
	URIs []string     // the same

	NotAfter time.Time

	name string // what Name returns; the access log wants it for each Call
}

// Bounds of an Identity. What a certificate has beyond them is left out. No client is trusted whose certificate
// has more names, or longer ones: a rule that denies one of them would not see it.
const (
	maxNames = 256  // of each kind
	maxName  = 256  // octets of a DNS name, which has 253 at most, and of others
	maxURI   = 2048 // octets of a URI: SPIFFE IDs may have as many
)

// fits reports whether an Identity has all names of the certificate.
func fits(c *x509.Certificate) bool {
	return len(c.DNSNames) <= maxNames && len(c.IPAddresses) <= maxNames && len(c.URIs) <= maxNames &&
		!slices.ContainsFunc(c.DNSNames, func(n string) bool { return len(n) > maxName }) &&
		!slices.ContainsFunc(c.URIs, func(u *url.URL) bool { return len(u.String()) > maxURI })
}

// IdentityOf returns the identity of a peer that has sent the certificates certs, which were verified. It
// is nil if there are none.
func IdentityOf(certs []*x509.Certificate) *Identity {
	if len(certs) == 0 {
		return nil
	}
	c := certs[0]
	i := &Identity{
		Subject: bounded(c.Subject.String(), maxName), Issuer: bounded(c.Issuer.String(), maxName),
		Serial: fmt.Sprintf("%x", c.SerialNumber), NotAfter: c.NotAfter,
	}
	for _, n := range c.DNSNames {
		if len(n) <= maxName && len(i.DNS) < maxNames {
			i.DNS = append(i.DNS, strings.ToLower(n))
		}
	}
	for _, b := range c.IPAddresses {
		if a, ok := netip.AddrFromSlice(b); ok && len(i.IPs) < maxNames {
			i.IPs = append(i.IPs, a.Unmap())
		}
	}
	for _, u := range c.URIs {
		if s := u.String(); len(s) <= maxURI && len(i.URIs) < maxNames {
			i.URIs = append(i.URIs, s)
		}
	}
	i.name = i.Name()
	return i
}

// Name returns the name that logs and pages show: the first URI, DNS name or IP address, or else the
// subject, or the serial number. It is "" for nil.
func (i *Identity) Name() string {
	switch {
	case i == nil:
		return ""
	case i.name != "":
		return i.name
	case len(i.URIs) > 0:
		return i.URIs[0]
	case len(i.DNS) > 0:
		return i.DNS[0]
	case len(i.IPs) > 0:
		return i.IPs[0].String()
	case i.Subject != "":
		return i.Subject
	}
	return "serial " + i.Serial
}

// Names returns the URIs, the DNS names and the IP addresses. There are none for nil.
func (i *Identity) Names() []string {
	if i == nil {
		return nil
	}
	all := slices.Concat(i.URIs, i.DNS)
	for _, a := range i.IPs {
		all = append(all, a.String())
	}
	return all
}

// listNames lists the names of a certificate for an error.
func listNames(c *x509.Certificate) string {
	all := IdentityOf([]*x509.Certificate{c}).Names()
	if len(all) == 0 {
		return "no names: they belong into its subject alternative names"
	}
	return "the names " + bounded(strings.Join(all, ", "), 2*maxName)
}

// bounded cuts s to n octets.
func bounded(s string, n int) string {
	if len(s) > n {
		return strings.ToValidUTF8(s[:n], "") + "..."
	}
	return s
}
