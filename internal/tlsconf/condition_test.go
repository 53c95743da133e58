package tlsconf

import (
	"strings"
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/testkit/tlstest"
)

// TestRenewal: a certificate is due two weeks before its end, or in the last fifth of its life. A chain is due when the
// first of its certificates is.
func TestRenewal(t *testing.T) {
	f := newFiles(t)
	now := time.Now().Truncate(time.Second)
	const day = 24 * time.Hour
	middle := f.servers.Intermediate(t, "middle") // for 1000 hours
	for _, tt := range []struct {
		ca   *tlstest.CA
		life time.Duration
		want time.Duration // before its end
	}{
		{f.servers, 365 * day, 14 * day},
		{f.servers, 90 * day, 14 * day},
		{f.servers, 45 * day, 9 * day},
		{f.servers, 10 * time.Hour, 2 * time.Hour},
	} {
		p := tt.ca.Issue(t, tlstest.Subject{Name: "own", NotBefore: now, NotAfter: now.Add(tt.life)})
		l := termOf(p.Certificate.Certificate[:1])
		if !l.Expiry.Equal(p.Leaf.NotAfter) || !l.End.Equal(l.Expiry) || l.Expiry.Sub(l.Renewal) != tt.want {
			t.Errorf("life of %v: %+v, due %v before, want %v", tt.life, l, l.Expiry.Sub(l.Renewal), tt.want)
		}
	}
	own := middle.Issue(t, tlstest.Subject{Name: "own", NotAfter: now.Add(300 * day)})
	l := termOf([][]byte{own.Leaf.Raw, middle.Cert.Raw})
	if !l.End.Equal(middle.Cert.NotAfter) || !l.Renewal.Before(l.End) || l.Name != "CN=middle" {
		t.Errorf("a chain: %+v; its issuer expires %v", l, middle.Cert.NotAfter)
	}
}

// TestCATerm: of the CAs of a file the one counts that is due first, unless one of the same name takes over, and all
// together end with the last.
func TestCATerm(t *testing.T) {
	const day = 24 * time.Hour
	now := time.Now().Truncate(time.Second)
	f := newFiles(t)
	old := f.users.Until(t, now.Add(-1000*day), now.Add(10*day))
	renewed := old.Until(t, now.Add(-day), now.Add(900*day))
	late := old.Until(t, now.Add(11*day), now.Add(900*day)) // when old has expired
	other := tlstest.NewCA(t, "others").Until(t, now, now.Add(50*day))
	for _, tt := range []struct {
		name string
		cas  []*tlstest.CA
		want Term
		warn string // "" for no warning
	}{
		{"one", []*tlstest.CA{old}, Term{"CN=users", now.Add(10 * day), now.Add(-20 * day), now.Add(10 * day)}, "expires soon"},
		{"two", []*tlstest.CA{other, old}, Term{"CN=users", now.Add(10 * day), now.Add(-20 * day), now.Add(50 * day)}, "expires soon"},
		{"a short life", []*tlstest.CA{other}, Term{"CN=others", now.Add(50 * day), now.Add(40 * day), now.Add(50 * day)}, ""},
		{"with its successor", []*tlstest.CA{old, renewed, other}, Term{"CN=others", now.Add(50 * day), now.Add(40 * day), now.Add(900 * day)}, ""},
		{"with a successor that comes too late", []*tlstest.CA{old, late, other}, Term{"CN=users", now.Add(10 * day), now.Add(-20 * day), now.Add(900 * day)}, "expires soon"},
	} {
		var b [][]byte
		for _, ca := range tt.cas {
			b = append(b, ca.PEM())
		}
		f.write(t, "users.pem", b...)
		s := f.server(t)
		if got := s.Condition().CA; got.Name != tt.want.Name || !got.Expiry.Equal(tt.want.Expiry) || !got.Renewal.Equal(tt.want.Renewal) || !got.End.Equal(tt.want.End) {
			t.Errorf("%s: %+v, want %+v", tt.name, got, tt.want)
		}
		if w := strings.Join(s.Warnings(), "\n"); strings.Contains(w, "expires soon") != (tt.warn != "") {
			t.Errorf("%s: the warnings are %q", tt.name, w)
		}
	}
	// What a CA of the file has revoked does not count.
	root := tlstest.NewCA(t, "root")
	middle := root.Intermediate(t, "middle")
	f.write(t, "users.pem", root.PEM(), middle.PEM())
	f.opts.CRL = f.write(t, "users.crl", root.CRL(t, middle.Pair()))
	if c := f.server(t).Condition().CA; c.Name != "CN=root" {
		t.Errorf("with a CA that is revoked: %+v", c)
	}
}

// TestCRLTerm: a list is due when its successor is, and the youngest list of an issuer counts.
func TestCRLTerm(t *testing.T) {
	now := time.Now().Truncate(time.Second)
	f := newFiles(t)
	others := tlstest.NewCA(t, "others")
	list := func(ca *tlstest.CA, from, next time.Duration) []byte { return ca.List(t, now.Add(from), now.Add(next)) }
	f.write(t, "users.pem", f.users.PEM(), others.PEM())
	for _, tt := range []struct {
		name  string
		lists [][]byte
		due   string // whose list is
		at    time.Duration
		warn  bool
	}{
		{"overdue", [][]byte{list(f.users, -3*time.Hour, -time.Hour)}, "CN=users", -time.Hour, true},
		{"replaced", [][]byte{list(f.users, -3*time.Hour, -time.Hour), list(f.users, -time.Hour, time.Hour)}, "CN=users", time.Hour, false},
		{"two issuers", [][]byte{list(f.users, -3*time.Hour, 3*time.Hour), list(others, -3*time.Hour, 2*time.Hour)}, "CN=others", 2 * time.Hour, false},
	} {
		f.opts.CRL = f.write(t, "users.crl", tt.lists...)
		s := f.server(t)
		if c := s.Condition().CRL; c.Name != tt.due || !c.Renewal.Equal(now.Add(tt.at)) || !c.Expiry.Equal(c.Renewal) || !c.End.IsZero() {
			t.Errorf("%s: %+v", tt.name, c)
		}
		if w := strings.Join(s.Warnings(), "\n"); strings.Contains(w, "should have been replaced") != tt.warn {
			t.Errorf("%s: the warnings are %q", tt.name, w)
		}
	}
}

// TestCondition: the Condition has the fault of files that are refused for as long as they are.
func TestCondition(t *testing.T) {
	f := newFiles(t)
	s := f.server(t)
	x, err := NewClient(ClientOptions{CA: f.write(t, "servers.pem", f.servers.PEM())})
	if err != nil {
		t.Fatal(err)
	}
	if c := x.Condition(); c.Own != (Term{}) || c.CRL != (Term{}) || c.Fault != "" || c.CA.Name != "CN=servers" {
		t.Errorf("a Client without a certificate: %+v", c)
	}
	f.write(t, "server.key", f.servers.Issue(t, tlstest.Subject{}).Key)
	f.write(t, "servers.pem", []byte("nothing"))
	for i := range 3 {
		_, err := s.Refresh(true)
		if (err != nil) != (i == 0) {
			t.Errorf("look %d: %v", i, err)
		}
		_, _ = x.Refresh(true)
		if c := s.Condition(); !strings.Contains(c.Fault, "does not belong") || !c.Own.End.Equal(f.own.Leaf.NotAfter) {
			t.Errorf("look %d: %+v", i, c)
		}
		if c := x.Condition(); !strings.Contains(c.Fault, "servers.pem") {
			t.Errorf("look %d of the Client: %+v", i, c)
		}
	}
	f.write(t, "server.key", f.own.Key)
	f.write(t, "servers.pem", f.servers.PEM())
	if r, err := s.Refresh(true); !r.Changed || err != nil || s.Condition().Fault != "" {
		t.Errorf("files that are mended: %+v, %v, %+v", r, err, s.Condition())
	}
	if r, err := x.Refresh(true); !r.Changed || err != nil || x.Condition().Fault != "" {
		t.Errorf("files of the Client that are mended: %+v, %v, %+v", r, err, x.Condition())
	}
	// The same fault of other content is another one.
	for range 2 {
		f.write(t, "server.key", f.servers.Issue(t, tlstest.Subject{}).Key)
		if _, err := s.Refresh(true); err == nil {
			t.Error("another key that does not belong is no error")
		}
	}
}
