package tlsconf

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"strings"
	"time"
)

// most bounds the certificates of one file.
const most = 4096

// certificates parses the certificates of a file.
func certificates(name string, b []byte) ([]*x509.Certificate, error) {
	var all []*x509.Certificate
	for block, rest := pem.Decode(b); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" && block.Type != "TRUSTED CERTIFICATE" {
			continue
		}
		if len(all) == most {
			return nil, fmt.Errorf("%s: the file has more than %d certificates", name, most)
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("%s: certificate %d of the file is malformed: %w", name, len(all)+1, err)
		}
		all = append(all, c)
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("%s: the file has no certificate in the format PEM; %s", name, convert(b, "openssl x509 -inform der"))
	}
	return all, nil
}

// convert says what to do about a file without the wanted PEM block.
func convert(b []byte, command string) string {
	if len(b) > 0 && b[0] == 0x30 {
		return "it looks like DER, which " + command + " converts"
	}
	return "write the path of another file, or put it there"
}

// privateKey parses the private key of a file.
func privateKey(name string, b []byte) (crypto.Signer, error) {
	for block, rest := pem.Decode(b); block != nil; block, rest = pem.Decode(rest) {
		if !strings.HasSuffix(block.Type, "PRIVATE KEY") {
			continue
		}
		if block.Type == "ENCRYPTED PRIVATE KEY" || strings.Contains(block.Headers["Proc-Type"], "ENCRYPTED") {
			return nil, fmt.Errorf("%s: the private key is encrypted; decrypt it with openssl pkey, and protect the file by its permissions", name)
		}
		k, err := parseKey(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("%s: the private key is malformed: %w", name, err)
		}
		return k, nil
	}
	return nil, fmt.Errorf("%s: the file has no private key in the format PEM; %s", name, convert(b, "openssl pkey -inform der"))
}

func parseKey(der []byte) (crypto.Signer, error) {
	k, err := x509.ParsePKCS8PrivateKey(der)
	if err != nil {
		if r, e := x509.ParsePKCS1PrivateKey(der); e == nil {
			return r, nil
		}
		if e, e2 := x509.ParseECPrivateKey(der); e2 == nil {
			return e, nil
		}
		return nil, err
	}
	switch k := k.(type) {
	case *rsa.PrivateKey:
		return k, nil
	case *ecdsa.PrivateKey:
		return k, nil
	case ed25519.PrivateKey:
		return k, nil
	}
	return nil, errors.New("its algorithm is not RSA, ECDSA or Ed25519")
}

// pair makes a certificate for TLS of the files certificate and key, which may be one. The chain begins
// with the own certificate, and each certificate is followed by the one of its issuer.
func pair(c content, certificate, key string) (*tls.Certificate, error) {
	chain, err := certificates(certificate, c[certificate])
	if err != nil {
		return nil, err
	}
	k, err := privateKey(key, c[key])
	if err != nil {
		return nil, err
	}
	for i, x := range chain {
		if !belongs(k, x) {
			continue
		}
		if i > 0 {
			return nil, fmt.Errorf("%s: the certificates are in the wrong order: the private key belongs to number %d, %s; write that one first, and then that of its issuer", certificate, i+1, x.Subject)
		}
		if n, ok := ordered(chain); !ok {
			return nil, fmt.Errorf("%s: the certificates are in the wrong order: number %d, %s, has not issued number %d, %s; write each certificate before that of its issuer, and no other", certificate, n+2, chain[n+1].Subject, n+1, chain[n].Subject)
		}
		t := &tls.Certificate{PrivateKey: k, Leaf: chain[0]}
		for _, x := range chain {
			t.Certificate = append(t.Certificate, x.Raw)
		}
		return t, nil
	}
	return nil, fmt.Errorf("%s: the private key does not belong to the certificate in %s, %s; replace both files together", key, certificate, describe(chain[0]))
}

// belongs reports whether the certificate is for the key.
func belongs(k crypto.Signer, c *x509.Certificate) bool {
	p, ok := k.Public().(interface{ Equal(crypto.PublicKey) bool })
	return ok && p.Equal(c.PublicKey)
}

// ordered reports whether each certificate is followed by its issuer's, or else which is not.
func ordered(chain []*x509.Certificate) (wrong int, ok bool) {
	for i := range len(chain) - 1 {
		if !bytes.Equal(chain[i].RawIssuer, chain[i+1].RawSubject) || chain[i].CheckSignatureFrom(chain[i+1]) != nil {
			return i, false
		}
	}
	return 0, true
}

// invalid returns why the certificate of the file is not valid at t; nil if it is valid.
func invalid(name string, c *x509.Certificate, t time.Time) error {
	switch {
	case t.After(c.NotAfter):
		return fmt.Errorf("%s: the certificate %s has expired: it was valid until %s; renew it", name, describe(c), c.NotAfter.UTC().Format(time.RFC3339))
	case t.Before(c.NotBefore):
		return fmt.Errorf("%s: the certificate %s is not yet valid: it will be from %s on; look at the clock of this host, or at that of its CA", name, describe(c), c.NotBefore.UTC().Format(time.RFC3339))
	}
	return nil
}

// ending returns a warning if the certificate of the file is not valid at t, or must be renewed: see renewal.
func ending(name string, c *x509.Certificate, t time.Time, lead time.Duration) []string {
	if err := invalid(name, c, t); err != nil {
		return []string{err.Error()}
	}
	if t.After(renewal(c, lead)) {
		return []string{fmt.Sprintf("%s: the certificate %s expires soon: it is valid until %s; renew it", name, describe(c), c.NotAfter.UTC().Format(time.RFC3339))}
	}
	return nil
}

// describe names a certificate as logs and errors have it.
func describe(c *x509.Certificate) string {
	return fmt.Sprintf("%q (serial %x, issuer %q)", subject(c), c.SerialNumber, bounded(c.Issuer.String(), maxName))
}
