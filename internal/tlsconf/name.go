package tlsconf

import (
	"crypto/x509"
	"fmt"
	"net/netip"
	"net/url"
	"strings"
)

// A Pattern matches names in certificates, which are subject alternative names:
//
//	client1.example.com       this DNS name
//	*.clients.example.com     DNS names with one label in place of the star
//	192.0.2.1, 192.0.2.0/24   this IP address, or those of this network
//	spiffe://example.com/nfs  this URI
//	spiffe://example.com/ns/* URIs that begin with what is before the star
//
// The subject of a certificate is no name: RFC 9289 Section 5.2.1 has names in the extension alone.
type Pattern struct {
	text   string
	dns    string // in lower case; begins with "." for one label before it
	net    netip.Prefix
	uri    string
	prefix bool // uri is the beginning
}

// String returns the pattern as it was written.
func (p Pattern) String() string { return p.text }

// ParsePattern returns the pattern that s describes.
func ParsePattern(s string) (Pattern, error) {
	p := Pattern{text: s}
	if a, err := netip.ParseAddr(s); err == nil && a.Zone() == "" {
		a = a.Unmap()
		p.net = netip.PrefixFrom(a, a.BitLen())
		return p, nil
	}
	if n, err := netip.ParsePrefix(s); err == nil {
		p.net = n.Masked()
		return p, nil
	}
	if strings.Contains(s, ":") {
		return p.parseURI(s)
	}
	name := strings.ToLower(s)
	if rest, ok := strings.CutPrefix(name, "*."); ok {
		name = "." + rest
	}
	if !isDNS(strings.TrimPrefix(name, ".")) {
		return p, fmt.Errorf("%q is not a DNS name, an IP address, a network or a URI; write one, such as client1.example.com, *.example.com, 192.0.2.0/24 or spiffe://example.com/nfs/*", s)
	}
	p.dns = name
	return p, nil
}

// parseURI allows a star only behind a slash, as whole path segments: spiffe://example.com* would match
// spiffe://example.com.attacker.
func (p Pattern) parseURI(s string) (Pattern, error) {
	if rest, ok := strings.CutSuffix(s, "*"); ok {
		u, err := url.Parse(rest)
		if err != nil || !strings.HasSuffix(rest, "/") || strings.Contains(rest, "*") || u.Scheme == "" || u.Host != "" && u.Path == "" || u.Host == "" && u.Opaque == "" {
			return p, fmt.Errorf("%q: a star can only be the last segment of a URI's path; write a pattern such as spiffe://example.com/nfs/*", s)
		}
		p.uri, p.prefix = rest, true
		return p, nil
	}
	if u, err := url.Parse(s); err != nil || u.Scheme == "" || strings.Contains(s, "*") {
		return p, fmt.Errorf("%q is not a URI; write one such as spiffe://example.com/nfs", s)
	}
	p.uri = s
	return p, nil
}

func isDNS(s string) bool {
	if s == "" || len(s) > 253 {
		return false
	}
	for label := range strings.SplitSeq(s, ".") {
		if label == "" || len(label) > 63 {
			return false
		}
		for _, c := range []byte(label) {
			if !(c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '-' || c == '_') {
				return false
			}
		}
	}
	return true
}

// Matches reports whether a name of i matches.
func (p Pattern) Matches(i *Identity) bool {
	if i == nil {
		return false
	}
	for _, n := range i.DNS {
		if p.matchesDNS(n) {
			return true
		}
	}
	for _, a := range i.IPs {
		if p.matchesIP(a) {
			return true
		}
	}
	for _, u := range i.URIs {
		if p.matchesURI(u) {
			return true
		}
	}
	return false
}

// matchesCertificate reports whether a name of c matches. An Identity has perhaps not all names of c.
func (p Pattern) matchesCertificate(c *x509.Certificate) bool {
	for _, n := range c.DNSNames {
		if p.matchesDNS(n) {
			return true
		}
	}
	for _, b := range c.IPAddresses {
		if a, ok := netip.AddrFromSlice(b); ok && p.matchesIP(a.Unmap()) {
			return true
		}
	}
	for _, u := range c.URIs {
		if p.matchesURI(u.String()) {
			return true
		}
	}
	return false
}

// matchesDNS matches no name with a star: "DNS domain names in RPC-with-TLS certificates MUST NOT contain
// the wildcard character", RFC 9289 Section 5.2.1.
func (p Pattern) matchesDNS(name string) bool {
	name = strings.ToLower(strings.TrimSuffix(name, "."))
	if p.dns == "" || strings.Contains(name, "*") {
		return false
	}
	if p.dns[0] != '.' {
		return name == p.dns
	}
	label, ok := strings.CutSuffix(name, p.dns)
	return ok && label != "" && !strings.Contains(label, ".")
}

func (p Pattern) matchesIP(a netip.Addr) bool { return p.net.IsValid() && p.net.Contains(a) }

// matchesURI matches no prefix of a URI that leaves it again by dot segments.
func (p Pattern) matchesURI(u string) bool {
	if !p.prefix {
		return p.uri != "" && u == p.uri
	}
	rest, ok := strings.CutPrefix(u, p.uri)
	return ok && rest != "" && !strings.Contains(strings.ReplaceAll(strings.ToLower(rest), "%2e", "."), "..")
}
