// Package tlstest has certificates for tests.
package tlstest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"
)

// A CA signs certificates.
type CA struct {
	Cert *x509.Certificate
	Key  *ecdsa.PrivateKey
}

var serial atomic.Int64

// NewCA makes a CA, which is a root.
func NewCA(t testing.TB, name string) *CA {
	t.Helper()
	return newCA(t, name, nil, nil)
}

// Intermediate makes a CA that ca has signed.
func (ca *CA) Intermediate(t testing.TB, name string) *CA {
	t.Helper()
	return newCA(t, name, ca, nil)
}

// Limited makes a CA that ca has signed and that may sign for these purposes only.
func (ca *CA) Limited(t testing.TB, name string, usage ...x509.ExtKeyUsage) *CA {
	t.Helper()
	return newCA(t, name, ca, func(c *x509.Certificate) { c.ExtKeyUsage = usage })
}

// Renew makes the root ca anew, with the same key, valid from a time on.
func (ca *CA) Renew(t testing.TB, from time.Time) *CA {
	t.Helper()
	return ca.Until(t, from, ca.Cert.NotAfter)
}

// Until makes the root ca anew, with the same key, valid between two times.
func (ca *CA) Until(t testing.TB, from, to time.Time) *CA {
	t.Helper()
	c := *ca.Cert
	c.SerialNumber, c.NotBefore, c.NotAfter = big.NewInt(serial.Add(1)), from, to
	return &CA{sign(t, &c, &c, ca.Key, ca.Key), ca.Key}
}

// Pair is the CA as what others can revoke.
func (ca *CA) Pair() *Pair { return &Pair{Certificate: tls.Certificate{Leaf: ca.Cert}} }

func newCA(t testing.TB, name string, parent *CA, change func(*x509.Certificate)) *CA {
	t.Helper()
	c := &x509.Certificate{
		SerialNumber: big.NewInt(serial.Add(1)), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(1000 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
	if change != nil {
		change(c)
	}
	key := newKey(t)
	by, byKey := c, key
	if parent != nil {
		by, byKey = parent.Cert, parent.Key
	}
	return &CA{sign(t, c, by, key, byKey), key}
}

// sign makes the certificate c of a CA with this key, signed by another.
func sign(t testing.TB, c, by *x509.Certificate, key, byKey *ecdsa.PrivateKey) *x509.Certificate {
	t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, c, by, key.Public(), byKey)
	if err != nil {
		t.Fatal(err)
	}
	if c, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	return c
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// PEM is the certificate of the CA.
func (ca *CA) PEM() []byte { return encode("CERTIFICATE", ca.Cert.Raw) }

// Pool has the CA alone.
func (ca *CA) Pool() *x509.CertPool {
	p := x509.NewCertPool()
	p.AddCert(ca.Cert)
	return p
}

// CRL is a list of the revoked certificates.
func (ca *CA) CRL(t testing.TB, revoked ...*Pair) []byte {
	t.Helper()
	return ca.List(t, time.Now().Add(-time.Hour), time.Now().Add(time.Hour), revoked...)
}

// List is a list of the revoked certificates, made at one time and to be replaced at another.
func (ca *CA) List(t testing.TB, made, next time.Time, revoked ...*Pair) []byte {
	t.Helper()
	list := &x509.RevocationList{Number: big.NewInt(serial.Add(1)), ThisUpdate: made, NextUpdate: next}
	for _, p := range revoked {
		list.RevokedCertificateEntries = append(list.RevokedCertificateEntries, x509.RevocationListEntry{SerialNumber: p.Leaf.SerialNumber, RevocationTime: time.Now()})
	}
	der, err := x509.CreateRevocationList(rand.Reader, list, ca.Cert, ca.Key)
	if err != nil {
		t.Fatal(err)
	}
	return encode("X509 CRL", der)
}

// A Subject is what a certificate says. The zero times mean that it is valid now.
type Subject struct {
	Name                string   // common name
	Names               []string // DNS names, IP addresses and URIs
	NotBefore, NotAfter time.Time
	Usage               []x509.ExtKeyUsage
	OtherUsage          []asn1.ObjectIdentifier
}

// A Pair is a certificate and its key.
type Pair struct {
	tls.Certificate
	Cert, Key []byte // PEM
}

// Issue signs a certificate.
func (ca *CA) Issue(t testing.TB, s Subject) *Pair {
	t.Helper()
	c := &x509.Certificate{
		SerialNumber: big.NewInt(serial.Add(1)), Subject: pkix.Name{CommonName: s.Name},
		NotBefore: s.NotBefore, NotAfter: s.NotAfter, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: s.Usage, UnknownExtKeyUsage: s.OtherUsage,
	}
	if c.NotBefore.IsZero() {
		c.NotBefore = time.Now().Add(-time.Hour)
	}
	if c.NotAfter.IsZero() {
		c.NotAfter = time.Now().Add(1000 * time.Hour)
	}
	for _, n := range s.Names {
		if ip := net.ParseIP(n); ip != nil {
			c.IPAddresses = append(c.IPAddresses, ip)
		} else if u, err := url.Parse(n); err == nil && u.Scheme != "" {
			c.URIs = append(c.URIs, u)
		} else {
			c.DNSNames = append(c.DNSNames, n)
		}
	}
	key := newKey(t)
	der, err := x509.CreateCertificate(rand.Reader, c, ca.Cert, key.Public(), ca.Key)
	if err != nil {
		t.Fatal(err)
	}
	k, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	p := &Pair{Cert: encode("CERTIFICATE", der), Key: encode("PRIVATE KEY", k)}
	if p.Certificate, err = tls.X509KeyPair(p.Cert, p.Key); err != nil {
		t.Fatal(err)
	}
	return p
}

func encode(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

// Write writes a file of dir that only the user can read, as programs that renew certificates do: under
// another name, and then renamed. It returns the file's path.
func Write(t testing.TB, dir, name string, content ...[]byte) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path+".new", slices.Concat(content...), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
	return path
}
