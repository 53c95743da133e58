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
		l := lifeOf(p.Certificate.Certificate[:1])
		if !l.expiry.Equal(p.Leaf.NotAfter) || l.expiry.Sub(l.renewal) != tt.want {
			t.Errorf("life of %v: expires %v, due %v before, want %v", tt.life, l.expiry, l.expiry.Sub(l.renewal), tt.want)
		}
	}
	own := middle.Issue(t, tlstest.Subject{Name: "own", NotAfter: now.Add(300 * day)})
	l := lifeOf([][]byte{own.Leaf.Raw, middle.Cert.Raw})
	if !l.expiry.Equal(middle.Cert.NotAfter) || !l.renewal.Before(l.expiry) {
		t.Errorf("a chain expires %v, due %v; its issuer expires %v", l.expiry, l.renewal, middle.Cert.NotAfter)
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
	if c := x.Condition(); c != (Condition{}) {
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
		if c := s.Condition(); !strings.Contains(c.Fault, "does not belong") || !c.Expiry.Equal(f.own.Leaf.NotAfter) {
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
