package tlsconf

import (
	"crypto/x509"
	"encoding/asn1"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/internal/testkit/tlstest"
	"github.com/rdmabridge/rdmabridge/tcpframe"
)

// TestPipe: a file that has become a pipe, to which nobody writes, does not stop Refresh.
func TestPipe(t *testing.T) {
	f := newFiles(t)
	s := f.server(t)
	if err := os.Remove(f.opts.Key); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(f.opts.Key, 0o600); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		_, err := s.Refresh(true)
		done <- err
	}()
	select {
	case err := <-done:
		if err == nil || !strings.Contains(err.Error(), "not a regular file") {
			t.Errorf("the error is %v", err)
		}
	case <-time.After(testkit.Patience):
		t.Error("Refresh waits for somebody to write")
		w, err := os.OpenFile(f.opts.Key, os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		_ = w.Close()
		<-done
	}
}

// TestRefreshTooEarly: a certificate that is not valid yet is put in force when it is, though its file does
// not change again, and is an error once.
func TestRefreshTooEarly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFiles(t)
		s := f.server(t)
		const early = 3 * time.Second
		next := f.servers.Issue(t, tlstest.Subject{Name: "next", Names: []string{"bridge.example.com"}, NotBefore: time.Now().Add(early)})
		f.write(t, "server.pem", next.Cert)
		f.write(t, "server.key", next.Key)
		if _, err := s.Refresh(true); err == nil || !strings.Contains(err.Error(), "not yet valid") {
			t.Fatalf("the certificate of later: %v", err)
		}
		for range early / time.Second {
			if r, err := s.Refresh(false); r.Changed || err != nil {
				t.Fatalf("the same files before their time: %+v, %v", r, err)
			}
			time.Sleep(time.Second)
		}
		if r, err := s.Refresh(false); !r.Changed || err != nil {
			t.Fatalf("the same files in their time: %+v, %v", r, err)
		}
		if got := s.current.Load().leaf.Subject.CommonName; got != "next" {
			t.Errorf("the certificate in force is that of %s", got)
		}
	})
}

// TestRevokedCA: a CA of the configuration that another one has revoked is not trusted.
func TestRevokedCA(t *testing.T) {
	f := newFiles(t)
	middle := f.users.Intermediate(t, "middle")
	below := middle.Issue(t, tlstest.Subject{Name: "below", Names: []string{"below.example.com"}})
	f.opts.CA = f.write(t, "users.pem", f.users.PEM(), middle.PEM())
	f.opts.CRL = f.write(t, "users.crl", f.users.CRL(t), middle.CRL(t))
	s := f.server(t)
	if got, text := reasonOf(s, certs(below)); got != "" {
		t.Fatalf("before: %s, %s", got, text)
	}
	revoked := &tlstest.Pair{}
	revoked.Leaf = middle.Cert
	f.write(t, "users.crl", f.users.CRL(t, revoked), middle.CRL(t))
	if r, err := s.Refresh(true); err != nil || !r.Trust || !strings.Contains(strings.Join(r.Warnings, "\n"), "CN=middle") {
		t.Errorf("%+v, %v", r, err)
	}
	for name, chain := range map[string][]*x509.Certificate{"alone": certs(below), "with its CA": append(certs(below), middle.Cert)} {
		if got, text := reasonOf(s, chain); got == "" {
			t.Errorf("%s: a certificate of a CA that is revoked is trusted", name)
		} else if got != tcpframe.TLSRevoked && got != tcpframe.TLSUnknownAuthority {
			t.Errorf("%s: %s, %s", name, got, text)
		}
	}
}

// TestRenewedCA: a CA that was renewed, with the same key, does not end connections that are older.
func TestRenewedCA(t *testing.T) {
	f := newFiles(t)
	user := f.users.Issue(t, tlstest.Subject{Name: "user", Names: []string{"user.example.com"}, NotBefore: time.Now().Add(-48 * time.Hour)})
	s := f.server(t)
	began := time.Now().Add(-30 * time.Minute)
	if err := s.Recheck(certs(user), began); err != nil {
		t.Fatal(err)
	}
	f.write(t, "users.pem", f.users.Renew(t, time.Now().Add(-time.Minute)).PEM())
	if r, err := s.Refresh(true); err != nil || !r.Trust {
		t.Fatalf("%+v, %v", r, err)
	}
	if err := s.Recheck(certs(user), began); err != nil {
		t.Error(err)
	}
}

// TestPurposeOfIssuer: an intermediate CA that may not sign for clients cannot do so with the purpose of
// RFC 9289 either.
func TestPurposeOfIssuer(t *testing.T) {
	f := newFiles(t)
	mail := f.users.Limited(t, "mail", x509.ExtKeyUsageEmailProtection)
	user := mail.Issue(t, tlstest.Subject{Name: "user", Names: []string{"user.example.com"}, OtherUsage: []asn1.ObjectIdentifier{rpcTLSClient}})
	s := f.server(t)
	if got, _ := reasonOf(s, append(certs(user), mail.Cert)); got != tcpframe.TLSBadCertificate {
		t.Errorf("a CA for mail has signed for a client: %q", got)
	}
	clientCA := f.users.Limited(t, "clients", x509.ExtKeyUsageClientAuth)
	user = clientCA.Issue(t, tlstest.Subject{Name: "user", Names: []string{"user.example.com"}, OtherUsage: []asn1.ObjectIdentifier{rpcTLSClient}})
	if got, text := reasonOf(s, append(certs(user), clientCA.Cert)); got != "" {
		t.Errorf("a CA for clients has signed for one: %q, %s", got, text)
	}
}

// TestManyNames: rules and tenants see every name of a certificate that is trusted. So a client cannot hide
// one behind others.
func TestManyNames(t *testing.T) {
	f := newFiles(t)
	s := f.server(t)
	names := func(n int) (all []string) {
		for i := range n {
			all = append(all, fmt.Sprintf("n%d.example.com", i))
		}
		return append(all, "last.example.com")
	}
	last, err := ParsePattern("last.example.com")
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range []int{0, 31, 32, 100, 255, 256, 400} {
		c := certs(f.users.Issue(t, tlstest.Subject{Name: "many", Names: names(n)}))
		got, _ := reasonOf(s, c)
		if n+1 <= maxNames != (got == "") {
			t.Errorf("%d names: %q", n+1, got)
		}
		if got == "" && !last.Matches(IdentityOf(c)) {
			t.Errorf("%d names: the last one is not seen", n+1)
		}
	}
	long := certs(f.users.Issue(t, tlstest.Subject{Name: "long", Names: []string{"spiffe://example.com/" + strings.Repeat("x", 2*maxURI)}}))
	if got, _ := reasonOf(s, long); got != tcpframe.TLSBadCertificate {
		t.Errorf("a name that is too long: %q", got)
	}
}

// TestClientCRL: a server whose certificate is revoked is not trusted, and the list is read again.
func TestClientCRL(t *testing.T) {
	f := newFiles(t)
	good := f.servers.Issue(t, tlstest.Subject{Name: "good", Names: []string{"good.example.com"}})
	o := ClientOptions{CA: f.write(t, "servers.pem", f.servers.PEM()), CRL: f.write(t, "servers.crl", f.servers.CRL(t))}
	x, err := NewClient(o)
	if err != nil {
		t.Fatal(err)
	}
	if err := x.Recheck(certs(good), time.Now()); err != nil {
		t.Fatal(err)
	}
	f.write(t, "servers.crl", f.servers.CRL(t, good))
	if r, err := x.Refresh(true); err != nil || !r.Trust {
		t.Errorf("%+v, %v", r, err)
	}
	if err := x.Recheck(certs(good), time.Now()); err == nil || !strings.Contains(err.Error(), "revoked") {
		t.Errorf("the revoked certificate: %v", err)
	}
	f.write(t, "servers.crl", tlstest.NewCA(t, "others").CRL(t))
	if _, err := x.Refresh(true); err == nil || !strings.Contains(err.Error(), filepath.Base(o.CRL)) {
		t.Errorf("the list of another CA: %v", err)
	}
	if _, err := NewClient(ClientOptions{CRL: o.CRL}); err == nil || !strings.Contains(err.Error(), "needs the CA") {
		t.Errorf("a list without a CA: %v", err)
	}
}
