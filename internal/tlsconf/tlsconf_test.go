package tlsconf

import (
	"crypto/x509"
	"encoding/asn1"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/testkit/tlstest"
	"github.com/rdmabridge/rdmabridge/tcpframe"
)

// files are the files of a Server that clients with certificates can use.
type files struct {
	dir            string
	servers, users *tlstest.CA
	own            *tlstest.Pair
	opts           ServerOptions
}

func newFiles(t *testing.T) *files {
	t.Helper()
	f := &files{dir: t.TempDir(), servers: tlstest.NewCA(t, "servers"), users: tlstest.NewCA(t, "users")}
	f.own = f.servers.Issue(t, tlstest.Subject{Name: "bridge", Names: []string{"bridge.example.com"}})
	f.opts = ServerOptions{
		Certificate: f.write(t, "server.pem", f.own.Cert), Key: f.write(t, "server.key", f.own.Key),
		Client: ClientRequire, CA: f.write(t, "users.pem", f.users.PEM()), Timeout: time.Second,
	}
	return f
}

func (f *files) write(t *testing.T, name string, content ...[]byte) string {
	t.Helper()
	return tlstest.Write(t, f.dir, name, content...)
}

func (f *files) server(t *testing.T) *Server {
	t.Helper()
	s, err := NewServer(f.opts)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func certs(ps ...*tlstest.Pair) (all []*x509.Certificate) {
	for _, p := range ps {
		all = append(all, p.Leaf)
	}
	return all
}

// reasonOf is why the client with these certificates is refused; "" if it is not.
func reasonOf(s *Server, c []*x509.Certificate) (tcpframe.TLSReason, string) {
	err := s.Recheck(c, time.Now())
	if err == nil {
		return "", ""
	}
	var e *tcpframe.TLSError
	if !errors.As(err, &e) {
		return "no reason", err.Error()
	}
	return e.Reason, err.Error()
}

// versionOne is a list of revoked certificates as openssl ca makes it without crlnumber.
const versionOne = `-----BEGIN X509 CRL-----
MIG+MGUwCgYIKoZIzj0EAwIwEDEOMAwGA1UEAwwFbXkgQ0EXDTI2MTEyNTIwMjYz
MFoXDTM2MTEyMjIwMjYzMFowJzAlAhQNX8zuCy0e0dWj0iAo8UtztdVtOhcNMjYx
MTI1MjAyNTU0WjAKBggqhkjOPQQDAgNJADBGAiEAtgMLrFMrK4nRAOcWId62cQNJ
4mZ58tnMCnJZigmNJIkCIQDCkcJy0JVYnPOOUV/9jqY7f5CABfzzrO3+KZH2KvjT
CQ==
-----END X509 CRL-----
`

// TestFaults: each fault of a file has an error that names the file and says what to do.
func TestFaults(t *testing.T) {
	f := newFiles(t)
	other := f.servers.Issue(t, tlstest.Subject{Name: "other"})
	middle := f.servers.Intermediate(t, "middle")
	below := middle.Issue(t, tlstest.Subject{Name: "below", Names: []string{"below.example.com"}})
	old := f.users
	der := []byte{0x30, 0x82, 1, 2}
	for _, tt := range []struct {
		name string
		set  func(*ServerOptions)
		file string
		want string // "" for no error
	}{
		{"good", func(*ServerOptions) {}, "", ""},
		{"one file for both", func(o *ServerOptions) { o.Certificate, o.Key = f.write(t, "both.pem", f.own.Cert, f.own.Key), "" }, "", ""},
		{"chain", func(o *ServerOptions) {
			o.Certificate, o.Key = f.write(t, "chain.pem", below.Cert, middle.PEM(), f.servers.PEM()), f.write(t, "below.key", below.Key)
		}, "", ""},
		{"no file", func(o *ServerOptions) { o.Certificate = filepath.Join(f.dir, "none.pem") }, "none.pem", "there is no such file"},
		{"directory", func(o *ServerOptions) { o.Key = f.dir }, f.dir, "not a regular file"},
		{"empty", func(o *ServerOptions) { o.Certificate = f.write(t, "empty.pem") }, "empty.pem", "has no certificate"},
		{"DER", func(o *ServerOptions) { o.Certificate = f.write(t, "der.pem", der) }, "der.pem", "openssl x509 -inform der"},
		{"DER key", func(o *ServerOptions) { o.Key = f.write(t, "der.key", der) }, "der.key", "openssl pkey -inform der"},
		{"malformed", func(o *ServerOptions) {
			o.Certificate = f.write(t, "bad.pem", []byte("-----BEGIN CERTIFICATE-----\nMAMC\n-----END CERTIFICATE-----\n"))
		}, "bad.pem", "certificate 1 of the file is malformed"},
		{"encrypted key", func(o *ServerOptions) {
			o.Key = f.write(t, "enc.key", []byte("-----BEGIN ENCRYPTED PRIVATE KEY-----\nMAMC\n-----END ENCRYPTED PRIVATE KEY-----\n"))
		}, "enc.key", "openssl pkey"},
		{"malformed key", func(o *ServerOptions) {
			o.Key = f.write(t, "bad.key", []byte("-----BEGIN PRIVATE KEY-----\nMAMC\n-----END PRIVATE KEY-----\n"))
		}, "bad.key", "the private key is malformed"},
		{"key of another", func(o *ServerOptions) { o.Key = f.write(t, "other.key", other.Key) }, "other.key", "does not belong to the certificate"},
		{"issuer first", func(o *ServerOptions) {
			o.Certificate, o.Key = f.write(t, "order.pem", middle.PEM(), below.Cert), f.write(t, "below.key", below.Key)
		}, "order.pem", "wrong order: the private key belongs to number 2"},
		{"wrong issuer behind", func(o *ServerOptions) {
			o.Certificate = f.write(t, "order.pem", f.own.Cert, other.Cert)
		}, "order.pem", "wrong order: number 2"},
		{"no CA", func(o *ServerOptions) { o.CA = f.write(t, "noca.pem", []byte("hello\n")) }, "noca.pem", "has no certificate"},
		{"CRL of another CA", func(o *ServerOptions) { o.CRL = f.write(t, "other.crl", f.servers.CRL(t)) }, "other.crl", "no CA of the configuration has signed list 1"},
		{"no CRL", func(o *ServerOptions) { o.CRL = f.write(t, "none.crl", old.PEM()) }, "none.crl", "has no list of revoked certificates"},
		{"CRL of version 1", func(o *ServerOptions) { o.CRL = f.write(t, "v1.crl", []byte(versionOne)) }, "v1.crl", "if its configuration has crlnumber"},
		{"name", func(o *ServerOptions) { o.Names = []string{"*.*.example.com"} }, "", "is not a DNS name"},
		{"too long", func(o *ServerOptions) { o.CA = f.write(t, "long.pem", make([]byte, maxFile+1)) }, "long.pem", "more than 1024 KiB"},
	} {
		o := f.opts
		tt.set(&o)
		_, err := NewServer(o)
		switch {
		case tt.want == "" && err != nil:
			t.Errorf("%s: %v", tt.name, err)
		case tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), tt.file)):
			t.Errorf("%s: %v, want an error about %s with %q", tt.name, err, tt.file, tt.want)
		}
	}
	if os.Geteuid() != 0 {
		if err := os.Chmod(f.opts.Key, 0); err != nil {
			t.Fatal(err)
		}
		if _, err := NewServer(f.opts); err == nil || !strings.Contains(err.Error(), "may not read it") {
			t.Errorf("no permission: %v", err)
		}
	}
}

// TestWarnings: files that can be used and have a fault have a warning.
func TestWarnings(t *testing.T) {
	f := newFiles(t)
	past := tlstest.Subject{Name: "past", Names: []string{"past.example.com"}, NotBefore: time.Now().Add(-3 * time.Hour), NotAfter: time.Now().Add(-time.Hour)}
	for _, tt := range []struct {
		name string
		s    tlstest.Subject
		mode os.FileMode
		want string
	}{
		{"good", tlstest.Subject{Names: []string{"a.example.com"}}, 0o640, ""},
		{"expired", past, 0o600, "has expired: it was valid until"},
		{"not yet", tlstest.Subject{Names: []string{"a.example.com"}, NotBefore: time.Now().Add(time.Hour)}, 0o600, "is not yet valid"},
		{"soon", tlstest.Subject{Names: []string{"a.example.com"}, NotBefore: time.Now().Add(-1000 * time.Hour), NotAfter: time.Now().Add(72*time.Hour + time.Minute)}, 0o600, "expires soon"},
		{"no name", tlstest.Subject{Name: "a.example.com"}, 0o600, "has no DNS name and no IP address"},
		{"world-readable", tlstest.Subject{Names: []string{"a.example.com"}}, 0o644, "every user of this host can read this private key (mode 0644)"},
	} {
		p := f.servers.Issue(t, tt.s)
		o := f.opts
		o.Certificate, o.Key = f.write(t, "w.pem", p.Cert), f.write(t, "w.key", p.Key)
		if err := os.Chmod(o.Key, tt.mode); err != nil {
			t.Fatal(err)
		}
		s, err := NewServer(o)
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		got := strings.Join(s.Warnings(), "\n")
		if tt.want == "" && got != "" || !strings.Contains(got, tt.want) {
			t.Errorf("%s: warnings %q, want %q", tt.name, got, tt.want)
		}
	}
}

// TestClients: who is let in, and why others are not.
func TestClients(t *testing.T) {
	f := newFiles(t)
	middle := f.users.Intermediate(t, "middle")
	good := f.users.Issue(t, tlstest.Subject{Name: "good", Names: []string{"one.clients.example.com"}})
	revoked := f.users.Issue(t, tlstest.Subject{Name: "revoked", Names: []string{"two.clients.example.com"}})
	below := middle.Issue(t, tlstest.Subject{Name: "below", Names: []string{"three.clients.example.com"}})
	f.opts.CRL = f.write(t, "users.crl", f.users.CRL(t, revoked))
	f.opts.Names = []string{"*.clients.example.com", "10.0.0.0/8", "spiffe://example.com/ns/*"}
	s := f.server(t)
	issue := func(x tlstest.Subject) []*x509.Certificate {
		if x.Names == nil {
			x.Names = []string{"x.clients.example.com"}
		}
		return certs(f.users.Issue(t, x))
	}
	for _, tt := range []struct {
		name  string
		certs []*x509.Certificate
		want  tcpframe.TLSReason
		text  string
	}{
		{"good", certs(good), "", ""},
		{"none", nil, tcpframe.TLSNoCertificate, "no certificate"},
		{"another CA", certs(f.own), tcpframe.TLSUnknownAuthority, `"CN=bridge"`},
		{"below an intermediate", append(certs(below), middle.Cert), "", ""},
		{"without the intermediate", certs(below), tcpframe.TLSUnknownAuthority, `"CN=below"`},
		{"revoked", certs(revoked), tcpframe.TLSRevoked, `"CN=revoked"`},
		{"expired", issue(tlstest.Subject{Name: "late", NotAfter: time.Now().Add(-time.Minute)}), tcpframe.TLSExpired, "it was valid until"},
		{"early", issue(tlstest.Subject{Name: "early", NotBefore: time.Now().Add(time.Hour)}), tcpframe.TLSExpired, "not yet valid"},
		{"of a server", issue(tlstest.Subject{Usage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}), tcpframe.TLSBadCertificate, "extended key usage does not allow it for clients"},
		{"of an RPC client", issue(tlstest.Subject{OtherUsage: []asn1.ObjectIdentifier{rpcTLSClient}}), "", ""},
		{"of an RPC server", issue(tlstest.Subject{OtherUsage: []asn1.ObjectIdentifier{rpcTLSServer}}), tcpframe.TLSBadCertificate, "extended key usage"},
		{"two labels", issue(tlstest.Subject{Names: []string{"a.b.clients.example.com"}}), tcpframe.TLSForbidden, "a.b.clients.example.com"},
		{"common name", issue(tlstest.Subject{Name: "one.clients.example.com", Names: []string{"else.example.com"}}), tcpframe.TLSForbidden, "else.example.com"},
		{"network", issue(tlstest.Subject{Names: []string{"10.1.2.3"}}), "", ""},
		{"other network", issue(tlstest.Subject{Names: []string{"192.0.2.1"}}), tcpframe.TLSForbidden, "192.0.2.1"},
		{"URI", issue(tlstest.Subject{Names: []string{"spiffe://example.com/ns/nfs"}}), "", ""},
		{"URI of another", issue(tlstest.Subject{Names: []string{"spiffe://example.com/other"}}), tcpframe.TLSForbidden, "spiffe://example.com/other"},
	} {
		got, text := reasonOf(s, tt.certs)
		if got != tt.want || !strings.Contains(text, tt.text) {
			t.Errorf("%s: %q, %q; want %q with %q", tt.name, got, text, tt.want, tt.text)
		}
	}
	if err := s.Recheck(issue(tlstest.Subject{Name: "late", NotAfter: time.Now().Add(-time.Minute)}), time.Now().Add(-2*time.Minute)); err != nil {
		t.Errorf("a certificate that has expired since the connection began: %v", err)
	}
	o := f.opts
	o.Client = ClientRequest
	s, err := NewServer(o)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Recheck(nil, time.Now()); err != nil {
		t.Errorf("request, no certificate: %v", err)
	}
	if got, _ := reasonOf(s, certs(f.own)); got != tcpframe.TLSUnknownAuthority {
		t.Errorf("request, certificate of another CA: %q", got)
	}
}

// TestPatterns: what is a pattern, and what matches it.
func TestPatterns(t *testing.T) {
	for _, bad := range []string{"", "*", "*.", "a..b", "a*.example.com", "*.*.example.com", "-.x y", "spiffe://example.com*", "spiffe://*", "spiffe://a/b*", "spiffe://a/*/b", "//x:1", "10.0.0.0/33"} {
		if _, err := ParsePattern(bad); err == nil {
			t.Errorf("%q is a pattern", bad)
		}
	}
	for _, tt := range []struct {
		pattern, name string
		want          bool
	}{
		{"host.example.com", "HOST.example.com", true},
		{"HOST.example.com", "host.example.com.", true},
		{"host.example.com", "xhost.example.com", false},
		{"*.example.com", "a.example.com", true},
		{"*.example.com", "a.b.example.com", false},
		{"*.example.com", ".example.com", false},
		{"*.example.com", "example.com", false},
		{"*.example.com", "*.example.com", false},
		{"10.1.0.0/16", "10.1.255.1", true},
		{"10.1.0.0/16", "10.2.0.1", false},
		{"::ffff:10.1.0.1", "10.1.0.1", true},
		{"2001:db8::/32", "2001:db8::1", true},
		{"urn:uuid:1", "urn:uuid:1", true},
		{"spiffe://a/b", "spiffe://a/b/c", false},
		{"spiffe://a/b/*", "spiffe://a/b/c/d", true},
		{"spiffe://a/b/*", "spiffe://a/b/%2e%2E/c", false},
		{"spiffe://a/b/*", "spiffe://a/b/.%2e/c", false},
		{"spiffe://a/b/*", "spiffe://a/b/", false},
		{"spiffe://a/b/*", "spiffe://a/b", false},
		{"spiffe://a/b/*", "spiffe://a/b/../c", false},
		{"spiffe://a/*", "spiffe://a.evil/b", false},
	} {
		p, err := ParsePattern(tt.pattern)
		if err != nil {
			t.Errorf("%v", err)
			continue
		}
		c := tlstest.NewCA(t, "ca").Issue(t, tlstest.Subject{Names: []string{tt.name}}).Leaf
		if got := p.matchesCertificate(c); got != tt.want {
			t.Errorf("%s matches %s: %v", tt.pattern, tt.name, got)
		}
		if got := p.Matches(IdentityOf([]*x509.Certificate{c})); got != tt.want {
			t.Errorf("%s matches the identity %s: %v", tt.pattern, tt.name, got)
		}
	}
	if p, _ := ParsePattern("a"); p.Matches(nil) {
		t.Error("a pattern matches nobody")
	}
}

// TestRefresh: files that change are put into force, or the old ones stay.
func TestRefresh(t *testing.T) {
	f := newFiles(t)
	s := f.server(t)
	refresh := func(now bool) (Refreshed, error) { t.Helper(); return s.Refresh(now) }
	want := func(what string, changed, trust bool) {
		t.Helper()
		first := s.TLS()
		if r, err := refresh(false); err != nil || r.Changed {
			t.Errorf("%s, first look: %+v, %v; a writer may be at work", what, r, err)
		}
		r, err := refresh(false)
		if err != nil || r.Changed != changed || r.Trust != trust || (s.TLS() != first) != changed {
			t.Errorf("%s, second look: %+v, %v", what, r, err)
		}
		if r, err := refresh(false); err != nil || r.Changed {
			t.Errorf("%s, third look: %+v, %v", what, r, err)
		}
	}
	want("nothing", false, false)
	next := f.servers.Issue(t, tlstest.Subject{Name: "next", Names: []string{"bridge.example.com"}, NotAfter: time.Now().Add(30 * time.Hour)})
	f.write(t, "server.pem", next.Cert)
	f.write(t, "server.key", next.Key)
	want("another certificate", true, false)
	if got := s.Condition(); !got.Own.End.Equal(next.Leaf.NotAfter) || got.Fault != "" {
		t.Errorf("condition %+v, want expiry at %v", got, next.Leaf.NotAfter)
	}

	refused := func(what, text string) {
		t.Helper()
		before := s.TLS()
		_, _ = refresh(false)
		if _, err := refresh(false); err == nil || !strings.Contains(err.Error(), text) || s.TLS() != before {
			t.Errorf("%s: %v, want an error with %q, and the old configuration", what, err, text)
		}
		if _, err := refresh(false); err != nil {
			t.Errorf("%s, again: %v; the error is for each content once", what, err)
		}
	}
	f.write(t, "server.key", f.own.Key)
	refused("key of another", "does not belong")
	f.write(t, "server.key", next.Key)
	_, _ = refresh(true)
	late := f.servers.Issue(t, tlstest.Subject{Name: "late", Names: []string{"bridge.example.com"}, NotAfter: time.Now().Add(-time.Minute)})
	f.write(t, "server.pem", late.Cert, late.Key)
	f.write(t, "server.key", late.Key)
	refused("expired", "has expired")
	if err := os.Remove(f.opts.CA); err != nil {
		t.Fatal(err)
	}
	refused("removed CA", "there is no such file")

	f.write(t, "server.pem", next.Cert)
	f.write(t, "server.key", next.Key)
	f.write(t, "users.pem", f.servers.PEM())
	if r, err := refresh(true); err != nil || !r.Changed || !r.Trust {
		t.Errorf("other CAs at once: %+v, %v", r, err)
	}
	if got, _ := reasonOf(s, certs(f.users.Issue(t, tlstest.Subject{}))); got != tcpframe.TLSUnknownAuthority {
		t.Errorf("a client of the CA that was removed: %q", got)
	}
}

// TestRefreshExpired: an expired certificate does not keep another expired one out.
func TestRefreshExpired(t *testing.T) {
	f := newFiles(t)
	late := f.servers.Issue(t, tlstest.Subject{Name: "late", Names: []string{"bridge.example.com"}, NotAfter: time.Now().Add(-time.Minute)})
	f.write(t, "server.pem", late.Cert)
	f.write(t, "server.key", late.Key)
	s := f.server(t)
	f.write(t, "users.pem", f.servers.PEM())
	if r, err := s.Refresh(true); err != nil || !r.Trust {
		t.Errorf("other CAs, and the same expired certificate: %+v, %v", r, err)
	}
}

// TestUpstream: which servers are trusted, under which name.
func TestUpstream(t *testing.T) {
	f := newFiles(t)
	ca := f.write(t, "servers.pem", f.servers.PEM())
	x, err := NewClient(ClientOptions{CA: ca})
	if err != nil {
		t.Fatal(err)
	}
	issue := func(names ...string) []*x509.Certificate {
		return certs(f.servers.Issue(t, tlstest.Subject{Name: "s", Names: names}))
	}
	for _, tt := range []struct {
		endpoint string
		certs    []*x509.Certificate
		want     tcpframe.TLSReason
	}{
		{"storage.example.com:2049", issue("storage.example.com"), ""},
		{"storage.example.com:2049", issue("other.example.com"), tcpframe.TLSWrongName},
		{"192.0.2.1:2049", issue("192.0.2.1"), ""},
		{"[2001:db8::1]:2049", issue("2001:db8::1"), ""},
		{"192.0.2.1:2049", issue("192.0.2.2"), tcpframe.TLSWrongName},
		{"192.0.2.1:2049", issue(), tcpframe.TLSWrongName},
		{"storage.example.com:2049", certs(f.users.Issue(t, tlstest.Subject{Names: []string{"storage.example.com"}})), tcpframe.TLSUnknownAuthority},
	} {
		err := x.current.Load().verify(tt.certs, x.host(tt.endpoint), time.Now())
		var e *tcpframe.TLSError
		if got := errors.As(err, &e); got != (tt.want != "") || got && e.Reason != tt.want {
			t.Errorf("%s, %s: %v, want %q", tt.endpoint, listNames(tt.certs[0]), err, tt.want)
		}
	}
	for name, good := range map[string]bool{"storage.example.com": true, "192.0.2.1": true, "*.example.com": false, "192.0.2.0/24": false, "spiffe://a/b": false, "a b": false} {
		if _, err := NewClient(ClientOptions{CA: ca, ServerName: name}); (err == nil) != good {
			t.Errorf("server name %q: %v", name, err)
		}
	}
	if _, err := NewClient(ClientOptions{CA: ca, Certificate: f.opts.Certificate}); err == nil || !strings.Contains(err.Error(), "has no private key") {
		t.Errorf("certificate without key: %v", err)
	}
	if _, err := NewClient(ClientOptions{}); err != nil {
		t.Errorf("the CAs of the system: %v", err)
	}
}
