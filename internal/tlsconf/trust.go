package tlsconf

import (
	"bytes"
	"crypto/sha256"
	"crypto/x509"
	"encoding/asn1"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/rdmabridge/rdmabridge/tcpframe"
)

// The purposes of a certificate that RFC 9289 Section 7.3 adds to those of package x509.
var (
	rpcTLSClient = asn1.ObjectIdentifier{1, 3, 6, 1, 5, 5, 7, 3, 33}
	rpcTLSServer = asn1.ObjectIdentifier{1, 3, 6, 1, 5, 5, 7, 3, 34}
)

// A role is what a peer's certificate has to be for.
type role struct {
	usage x509.ExtKeyUsage
	rpc   asn1.ObjectIdentifier
	what  string
	named bool // rules and tenants ask for the names in the certificate
}

var (
	clients = role{x509.ExtKeyUsageClientAuth, rpcTLSClient, "clients", true}
	servers = role{x509.ExtKeyUsageServerAuth, rpcTLSServer, "servers", false}
)

// A trust is whom a configuration trusts. It never changes.
type trust struct {
	roots   *x509.CertPool // nil: those of the system
	digest  [sha256.Size]byte
	revoked map[string]map[string]struct{} // serial numbers, by the issuer's subject and key
	names   []Pattern                      // at least one has to match; empty: any name
	cas     Term                           // zero for the roots of the system
	lists   Term
}

// newTrust makes a trust of the CAs in the file ca and the revoked certificates in the file crl; crl may be
// "". It returns warnings, too.
func newTrust(c content, ca, crl string, names []Pattern) (*trust, []string, error) {
	t := &trust{names: names}
	switch {
	case ca == "" && crl != "":
		return nil, nil, fmt.Errorf("%s: a list of revoked certificates needs the CA that has signed it; write the path of that CA as ca", crl)
	case ca == "":
		return t, nil, nil
	}
	all, err := certificates(ca, c[ca])
	if err != nil {
		return nil, nil, err
	}
	t.roots = x509.NewCertPool()
	var warnings, late []string
	if crl != "" {
		if late, err = t.revoke(crl, c[crl], all); err != nil {
			return nil, nil, err
		}
	}
	trusted := slices.DeleteFunc(slices.Clone(all), func(x *x509.Certificate) bool {
		if !t.isRevokedCA(x, all) {
			return false
		}
		warnings = append(warnings, fmt.Sprintf("%s: another CA of the file has revoked the CA %s, which is not trusted; remove it", ca, describe(x)))
		return true
	})
	good := false
	now := time.Now()
	for _, x := range trusted {
		t.roots.AddCert(x)
		t.cas.addCA(x, trusted)
		good = good || invalid(ca, x, now) == nil
		if !succeeded(x, trusted) {
			warnings = append(warnings, ending(ca, x, now, soonCA)...)
		}
	}
	if !good {
		return nil, nil, fmt.Errorf("%s: no certificate of the file is valid now: %s", ca, warnings[0])
	}
	warnings = append(warnings, late...)
	t.digest = sha256.Sum256(slices.Concat(c[ca], []byte{0}, c[crl]))
	return t, warnings, nil
}

// revoke reads the lists in the file crl. Each has to be signed by one of the CAs, so that a list that was
// made for others does not go unnoticed.
func (t *trust) revoke(name string, b []byte, cas []*x509.Certificate) (warnings []string, err error) {
	t.revoked = make(map[string]map[string]struct{})
	var lists []*x509.RevocationList
	n := 0
	for block, rest := pem.Decode(b); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "X509 CRL" {
			continue
		}
		n++
		list, err := x509.ParseRevocationList(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("%s: list %d of the file cannot be read: %w; it must be of version 2, which openssl ca makes if its configuration has crlnumber", name, n, err)
		}
		known := false
		for _, ca := range cas {
			if list.CheckSignatureFrom(ca) != nil {
				continue
			}
			known = true
			k := issuerKey(ca)
			if t.revoked[k] == nil {
				t.revoked[k] = make(map[string]struct{})
			}
			for _, e := range list.RevokedCertificateEntries {
				t.revoked[k][e.SerialNumber.String()] = struct{}{}
			}
		}
		if !known {
			return nil, fmt.Errorf("%s: no CA of the configuration has signed list %d, whose issuer is %s; add that CA, or remove the list", name, n, list.Issuer)
		}
		lists = append(lists, list)
	}
	if n == 0 {
		return nil, fmt.Errorf("%s: the file has no list of revoked certificates in the format PEM; %s", name, convert(b, "openssl crl -inform der"))
	}
	for _, l := range youngest(lists) {
		t.lists.addList(l)
		if time.Now().After(l.NextUpdate) {
			warnings = append(warnings, fmt.Sprintf("%s: the list of revoked certificates of %s should have been replaced on %s; it stays in force, and does not know what was revoked since", name, l.Issuer, l.NextUpdate.UTC().Format(time.RFC3339)))
		}
	}
	return warnings, nil
}

// issuerKey tells CAs apart. Two may have one subject.
func issuerKey(ca *x509.Certificate) string {
	return string(ca.RawSubject) + "\x00" + string(ca.RawSubjectPublicKeyInfo)
}

// verify returns why a peer with these certificates is not trusted at t: a tcpframe.TLSError, which says
// which certificate is meant.
func (t *trust) verify(certs []*x509.Certificate, as role, at time.Time) error {
	if len(certs) == 0 {
		return refuse(tcpframe.TLSNoCertificate, errors.New("the peer has sent no certificate"))
	}
	if why, err := t.check(certs, as, at); err != nil {
		return refuse(why, fmt.Errorf("certificate %s: %w", describe(certs[0]), err))
	}
	return nil
}

// recheck returns why a peer that was trusted at a time is not trusted by t. A CA that was renewed since is
// valid only from then on, so it is enough that the peer is trusted now.
func (t *trust) recheck(certs []*x509.Certificate, as role, at time.Time) error {
	err := t.verify(certs, as, at)
	if err != nil && t.verify(certs, as, time.Now()) == nil {
		return nil
	}
	return err
}

func (t *trust) check(certs []*x509.Certificate, as role, at time.Time) (tcpframe.TLSReason, error) {
	leaf := certs[0]
	o := x509.VerifyOptions{Roots: t.roots, Intermediates: x509.NewCertPool(), CurrentTime: at, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}}
	for _, c := range certs[1:] {
		o.Intermediates.AddCert(c)
	}
	chains, err := leaf.Verify(o)
	if err != nil {
		return t.explain(leaf, as, at, err)
	}
	chains = slices.DeleteFunc(chains, func(chain []*x509.Certificate) bool {
		return slices.ContainsFunc(chain, func(c *x509.Certificate) bool { return !as.allows(c) })
	})
	switch {
	case !as.allows(leaf):
		return tcpframe.TLSBadCertificate, fmt.Errorf("its extended key usage does not allow it for %s", as.what)
	case len(chains) == 0:
		return tcpframe.TLSBadCertificate, fmt.Errorf("the extended key usage of its issuer does not allow it for %s", as.what)
	case as.named && !fits(leaf):
		return tcpframe.TLSBadCertificate, fmt.Errorf("it has more names than the %d, or longer ones, that rules and tenants can tell apart", maxNames)
	}
	// One chain of certificates that are not revoked is enough.
	if !slices.ContainsFunc(chains, func(chain []*x509.Certificate) bool { return !t.isRevoked(chain) }) {
		return tcpframe.TLSRevoked, errors.New("its CA has revoked it")
	}
	if len(t.names) > 0 && !slices.ContainsFunc(t.names, func(p Pattern) bool { return p.matchesCertificate(leaf) }) {
		return tcpframe.TLSForbidden, fmt.Errorf("none of its names is allowed here; it has %s", listNames(leaf))
	}
	return "", nil
}

// allows reports whether c, a peer's certificate or that of a CA above it, is for the role, as far as it says.
func (as role) allows(c *x509.Certificate) bool {
	if len(c.ExtKeyUsage)+len(c.UnknownExtKeyUsage) == 0 {
		return true
	}
	return slices.Contains(c.ExtKeyUsage, as.usage) || slices.Contains(c.ExtKeyUsage, x509.ExtKeyUsageAny) ||
		slices.ContainsFunc(c.UnknownExtKeyUsage, as.rpc.Equal)
}

// explain says what err, of x509.Certificate.Verify, means for the certificate leaf.
func (t *trust) explain(leaf *x509.Certificate, as role, at time.Time, err error) (tcpframe.TLSReason, error) {
	var unknown x509.UnknownAuthorityError
	var invalid x509.CertificateInvalidError
	switch {
	case errors.As(err, &unknown):
		return tcpframe.TLSUnknownAuthority, fmt.Errorf("no CA of the configuration has signed it: %w", err)
	case !errors.As(err, &invalid):
	case invalid.Reason == x509.Expired && at.Before(leaf.NotBefore):
		return tcpframe.TLSExpired, fmt.Errorf("it is not yet valid, but from %s on", leaf.NotBefore.UTC().Format(time.RFC3339))
	case invalid.Reason == x509.Expired && at.After(leaf.NotAfter):
		return tcpframe.TLSExpired, fmt.Errorf("it has expired: it was valid until %s", leaf.NotAfter.UTC().Format(time.RFC3339))
	case invalid.Reason == x509.Expired:
		return tcpframe.TLSExpired, fmt.Errorf("the certificate of its issuer is not valid now: %w", err)
	}
	return tcpframe.TLSBadCertificate, err
}

// isRevokedCA reports whether one of the CAs in all has revoked ca.
func (t *trust) isRevokedCA(ca *x509.Certificate, all []*x509.Certificate) bool {
	return slices.ContainsFunc(all, func(by *x509.Certificate) bool {
		_, revoked := t.revoked[issuerKey(by)][ca.SerialNumber.String()]
		return revoked && bytes.Equal(ca.RawIssuer, by.RawSubject) && ca.CheckSignatureFrom(by) == nil
	})
}

// isRevoked reports whether a certificate of the chain is revoked. The root is trusted because it is
// configured.
func (t *trust) isRevoked(chain []*x509.Certificate) bool {
	if t.revoked == nil {
		return false
	}
	for i := range len(chain) - 1 {
		if _, revoked := t.revoked[issuerKey(chain[i+1])][chain[i].SerialNumber.String()]; revoked {
			return true
		}
	}
	return false
}
