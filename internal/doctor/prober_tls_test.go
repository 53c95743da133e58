package doctor

import (
	"crypto/tls"
	"strings"
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/testkit/proxytest"
	"github.com/rdmabridge/rdmabridge/internal/testkit/tlstest"
	"github.com/rdmabridge/rdmabridge/internal/tlsconf"
)

// TestAskTLS: doctor begins TLS as the bridge does, and says when it cannot.
func TestAskTLS(t *testing.T) {
	ca := tlstest.NewCA(t, "servers")
	good := &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{ca.Issue(t, tlstest.Subject{Names: []string{"127.0.0.1"}}).Certificate}}
	other := &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{ca.Issue(t, tlstest.Subject{Names: []string{"other.example.com"}}).Certificate}}
	client, err := tlsconf.NewClient(tlsconf.ClientOptions{CA: tlstest.Write(t, t.TempDir(), "ca.pem", ca.PEM())})
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name     string
		server   *tls.Config
		required bool
		secured  bool
		want     []string
	}{
		{"required", good, true, true, nil},
		{"optional", good, false, true, nil},
		{"other name", other, true, false, []string{"error endpoint-tls"}},
		{"other name, optional", other, false, false, []string{"error endpoint-tls"}},
		{"none, required", nil, true, false, []string{"error endpoint-tls"}},
		{"none, optional", nil, false, false, []string{"warning endpoint-tls"}},
	} {
		front, err := proxytest.NewTLSFront(t, serveTCP(t, proxytest.Behaviour{}), func() *tls.Config { return tt.server })
		if err != nil {
			t.Fatal(err)
		}
		c, err := client.TLS(front.Addr(), 10*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		e, _ := ask(t, Target{Address: front.Addr(), TLS: &TLS{Config: c, Required: tt.required}}, tt.want...)
		if e.TLS != tt.secured || e.Connected && e.Answers[0].Answer != "success" {
			t.Errorf("%s: %+v", tt.name, e)
		}
	}
	// The server wants a certificate, which it misses when the handshake is over for this side.
	strict := good.Clone()
	strict.ClientAuth = tls.RequireAnyClientCert
	front, err := proxytest.NewTLSFront(t, serveTCP(t, proxytest.Behaviour{}), func() *tls.Config { return strict })
	if err != nil {
		t.Fatal(err)
	}
	c, err := client.TLS(front.Addr(), 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	_, fs := ask(t, Target{Address: front.Addr(), TLS: &TLS{Config: c, Required: true}}, "error endpoint-tls")
	if len(fs) == 1 && !strings.Contains(fs[0].Text, "requires a certificate, and this side has sent none") {
		t.Errorf("%+v", fs)
	}
	// The server requires TLS, and the configuration has none.
	weak := func(c *oncrpc.Call) ([]byte, bool) {
		return oncrpc.AppendAuthError(nil, c.XID, oncrpc.AuthTooWeak), true
	}
	e, fs := ask(t, Target{Address: serveTCP(t, proxytest.Behaviour{Intercept: weak}), Programs: []Program{nfs3, nfs4}}, "error endpoint-tls") // the first is answered
	if len(e.Answers) != 2 || e.Answers[1].Answer != "denied: AUTH_TOOWEAK" || !strings.Contains(fs[0].Text, "requires TLS") {
		t.Errorf("%+v %+v", e, fs)
	}
}
