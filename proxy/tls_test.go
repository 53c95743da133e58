package proxy_test

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/status"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/internal/testkit/proxytest"
	"github.com/rdmabridge/rdmabridge/internal/testkit/tlstest"
	"github.com/rdmabridge/rdmabridge/internal/tlsconf"
	"github.com/rdmabridge/rdmabridge/proxy/admit"
	"github.com/rdmabridge/rdmabridge/proxy/settings"
	"github.com/rdmabridge/rdmabridge/rdmaside/iwarp"
)

// probeCall is the Call that asks for TLS.
func probeCall(xid uint32) []byte {
	return oncrpc.AppendTLSProbe(nil, xid, oncrpc.ProgramNFS, 3)
}

// TestTLSModes: what a listener answers with and without TLS.
func TestTLSModes(t *testing.T) {
	for _, required := range []bool{false, true} {
		t.Run(fmt.Sprintf("required=%v", required), func(t *testing.T) {
			t.Parallel()
			x := newSecurity(t)
			h, logs := logged(t)
			s := h.TCPServer(proxytest.Behaviour{})
			p := h.Proxy([]settings.ListenerOptions{{Name: "nfs", Address: "127.0.0.1:0", Upstream: "s", TLS: x.listener(required)}},
				[]settings.UpstreamOptions{{Name: "s", Endpoints: []string{s.Addr()}}})

			plain := h.Client(p.Addr("nfs"))
			for xid, m := range map[uint32][]byte{1: proxytest.GetattrCall(1), 2: proxytest.CallHeader(nil, 2, oncrpc.ProgramMount, 3, 0), 3: proxytest.CallHeader(nil, 3, 99, 1, 0)} {
				want := oncrpc.AppendAuthError(nil, xid, oncrpc.AuthTooWeak)
				if !required {
					switch xid {
					case 1, 2:
						want = proxytest.Expected(m)
					case 3:
						continue
					}
				}
				if r, err := plain.Call(m); err != nil || !bytes.Equal(r, want) {
					t.Errorf("Call %d without TLS: %x, %v; want %x", xid, r, err, want)
				}
			}
			if n := s.Calls.Load(); required && n != 0 {
				t.Errorf("%d Calls without TLS have reached the server", n)
			}
			if n, want := metric(h, `listener_tls_refused_calls_total{listener="nfs"}`), 3; required && n != want || !required && n != 0 {
				t.Errorf("%d Calls are counted as refused", n)
			}
			if has := strings.Contains(logs.String(), `"event":"call_without_tls"`); has != required {
				t.Errorf("the log says that Calls were refused: %v\n%s", has, logs)
			}
			if required {
				// The connection goes on, and may still get TLS: no Call has reached a server.
				if r, err := plain.Call(probeCall(9)); err != nil || !bytes.Equal(r, oncrpc.AppendStartTLS(nil, 9)) {
					t.Errorf("probe behind refused Calls: %x, %v", r, err)
				}
			} else if r, err := plain.Call(probeCall(9)); err != nil || !bytes.Equal(r, oncrpc.AppendAccepted(nil, 9, oncrpc.Success)) {
				t.Errorf("probe behind Calls: %x, %v; want a Reply without STARTTLS", r, err)
			}

			user := x.issue("user")
			c := h.SecureClient(p.Addr("nfs"), x.user(user))
			check(t, c, proxytest.GetattrCall(10))
			check(t, c, proxytest.WriteCall(11, 0, 1<<20))
			check(t, c, proxytest.ReadCall(12, 0, 1<<20))
			bad := oncrpc.AppendAuthError(nil, 13, oncrpc.AuthBadCredential)
			if r, err := c.Call(probeCall(13)); err != nil || !bytes.Equal(r, bad) {
				t.Errorf("probe inside TLS: %x, %v; want %x", r, err, bad)
			}
			check(t, c, proxytest.GetattrCall(14))
			found := false
			for _, cl := range p.Status(status.Query{}).Clients.List {
				if cl.TLS == nil {
					continue
				}
				found = true
				if g := cl.TLS; g.Identity != "user.example.com" || g.Subject != "CN=user" || g.Issuer != "CN=users" || g.Serial != fmt.Sprintf("%x", user.Leaf.SerialNumber) {
					t.Errorf("status: %+v", g)
				}
			}
			if !found {
				t.Error("the status names no client with TLS")
			}
			if got := p.Status(status.Query{Filter: "user.example"}).Clients.Shown; got != 1 {
				t.Errorf("the filter by identity finds %d clients", got)
			}
		})
	}
}

// TestTLSProbes: a probe that is no proper one is refused, and so are octets behind a probe.
func TestTLSProbes(t *testing.T) {
	t.Parallel()
	x := newSecurity(t)
	h, logs := logged(t)
	s := h.TCPServer(proxytest.Behaviour{})
	p := h.Proxy([]settings.ListenerOptions{{Name: "nfs", Address: "127.0.0.1:0", Upstream: "s", TLS: x.listener(false)}},
		[]settings.UpstreamOptions{{Name: "s", Endpoints: []string{s.Addr()}}})
	for name, change := range map[string]func(m []byte) []byte{
		"procedure":   func(m []byte) []byte { m[23] = 1; return m },
		"credential":  func(m []byte) []byte { m[31] = 4; return append(m[:32:32], append(make([]byte, 4), m[32:]...)...) },
		"verifier":    func(m []byte) []byte { m[39] = 4; return append(m, 0, 0, 0, 0) },
		"verifier of": func(m []byte) []byte { m[35] = 1; return m },
	} {
		c := h.Client(p.Addr("nfs"))
		if r, err := c.Call(change(probeCall(5))); err != nil || !bytes.Equal(r, oncrpc.AppendAuthError(nil, 5, oncrpc.AuthBadCredential)) {
			t.Errorf("%s: %x, %v; want AUTH_BADCRED", name, r, err)
		}
		check(t, c, proxytest.GetattrCall(6))
	}
	calls := s.Calls.Load()
	for _, behind := range []string{"a whole record", "part of a record", "one octet"} {
		nc, err := net.Dial("tcp", p.Addr("nfs"))
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
		m := testkit.Record(proxytest.MkdirCall(7, "injected"))
		switch behind {
		case "part of a record":
			m = m[:len(m)-4]
		case "one octet":
			m = m[:1]
		}
		if _, err := nc.Write(append(testkit.Record(probeCall(6)), m...)); err != nil {
			t.Fatal(err)
		}
		_ = nc.SetReadDeadline(time.Now().Add(testkit.Patience))
		b, err := io.ReadAll(nc)
		var timeout net.Error
		if errors.As(err, &timeout) && timeout.Timeout() || len(b) > 4+len(oncrpc.AppendStartTLS(nil, 6)) {
			t.Errorf("%s behind the probe: %x, %v; want the end of the connection", behind, b, err)
		}
	}
	if n := s.Calls.Load(); n != calls {
		t.Errorf("%d Calls from behind a probe have reached the server", n-calls)
	}
	h.Eventually("the failures are counted", func() bool {
		return metric(h, `listener_tls_failures_total{listener="nfs",reason="injected"}`) == 3
	})
	if !strings.Contains(logs.String(), `"reason":"injected"`) {
		t.Errorf("no line in the log:\n%s", logs)
	}
}

// TestTLSClientCertificates: clients whose certificates are no good get nothing done, and the log says
// which certificate it was and why.
func TestTLSClientCertificates(t *testing.T) {
	t.Parallel()
	x := newSecurity(t)
	h, logs := logged(t)
	s := h.TCPServer(proxytest.Behaviour{})
	revoked := x.issue("revoked")
	x.server.CRL = x.write("users.crl", x.users.CRL(t, revoked))
	x.server.Names = []string{"*.example.com"}
	p := h.Proxy([]settings.ListenerOptions{{Name: "nfs", Address: "127.0.0.1:0", Upstream: "s", TLS: x.listener(true)}},
		[]settings.UpstreamOptions{{Name: "s", Endpoints: []string{s.Addr()}}})
	stranger := tlstest.NewCA(t, "strangers")
	hour := time.Hour
	for _, tt := range []struct {
		name   string
		pair   *tlstest.Pair
		reason string // "" if it is good
	}{
		{"good", x.issue("good"), ""},
		{"none", nil, "no_certificate"},
		{"expired", x.users.Issue(t, tlstest.Subject{Name: "late", Names: []string{"late.example.com"}, NotBefore: time.Now().Add(-2 * hour), NotAfter: time.Now().Add(-hour)}), "expired"},
		{"not yet valid", x.users.Issue(t, tlstest.Subject{Name: "early", Names: []string{"early.example.com"}, NotBefore: time.Now().Add(hour)}), "expired"},
		{"stranger", stranger.Issue(t, tlstest.Subject{Name: "stranger", Names: []string{"stranger.example.com"}}), "unknown_authority"},
		{"revoked", revoked, "revoked"},
		{"name", x.users.Issue(t, tlstest.Subject{Name: "elsewhere", Names: []string{"elsewhere.example.net"}}), "forbidden"},
	} {
		c, err := proxytest.DialSecure(p.Addr("nfs"), x.user(tt.pair))
		if err == nil {
			var r []byte
			r, err = c.Call(proxytest.GetattrCall(1))
			if err == nil && !bytes.Equal(r, proxytest.Expected(proxytest.GetattrCall(1))) {
				err = fmt.Errorf("answered %x", r)
			}
			c.Close()
		}
		if (err == nil) != (tt.reason == "") {
			t.Errorf("%s: %v", tt.name, err)
		}
		if tt.reason == "" {
			continue
		}
		h.Eventually(tt.name+" is counted", func() bool {
			return metric(h, fmt.Sprintf("listener_tls_failures_total{listener=\"nfs\",reason=%q}", tt.reason)) > 0
		})
		want := `"reason":"` + tt.reason + `"`
		if tt.pair != nil {
			want = tt.pair.Leaf.Subject.CommonName
		}
		h.Eventually("the log says "+want, func() bool { return strings.Contains(logs.String(), want) })
	}
	if n := s.Calls.Load(); n != 1 {
		t.Errorf("%d Calls have reached the server, want that of the good client", n)
	}
}

// TestTLSTenants: a client with a certificate belongs to the tenant of its name once it has TLS, and counts as a
// new connection there.
func TestTLSTenants(t *testing.T) {
	t.Parallel()
	x := newSecurity(t)
	h, _ := logged(t)
	s := h.TCPServer(proxytest.Behaviour{})
	p := h.Proxy([]settings.ListenerOptions{{Name: "nfs", Address: "127.0.0.1:0", Upstream: "s", TLS: x.listener(true)}},
		[]settings.UpstreamOptions{{Name: "s", Endpoints: []string{s.Addr()}}})
	if err := p.SetTenants([]admit.TenantOptions{
		{Name: "named", Names: patterns(t, "named.example.com"), Total: admit.TenantLimits{Connections: 1, Calls: 8}},
		{Name: "rest", Clients: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}},
	}); err != nil {
		t.Fatal(err)
	}
	call := func(name string, xid uint32) (*proxytest.Client, error) {
		c, err := proxytest.DialSecure(p.Addr("nfs"), x.user(x.issue(name)))
		if err != nil {
			return nil, err
		}
		t.Cleanup(func() { c.Close() })
		for i := range uint32(20) {
			if _, err := c.Call(proxytest.GetattrCall(xid + i)); err != nil {
				return c, err
			}
		}
		return c, nil
	}
	tenants := func(named, rest int, namedCalls, restCalls uint64) func() bool {
		return func() bool {
			d := p.Status(status.Query{}).Tenants
			return d[0].Clients == named && d[1].Clients == rest && d[0].Calls == namedCalls && d[1].Calls >= restCalls && d[0].InFlight+d[1].InFlight == 0
		}
	}
	if _, err := call("other", 1); err != nil {
		t.Fatal(err)
	}
	h.Eventually("a client with another name belongs to the rest", tenants(0, 1, 0, 20))
	c, err := call("named", 100)
	if err != nil {
		t.Fatal(err)
	}
	h.Eventually("the client belongs to the tenant of its name", tenants(1, 1, 20, 20))
	if _, err := call("named", 200); err == nil {
		t.Error("the tenant has another connection than it may")
	}
	h.Eventually("the refusal is counted", func() bool {
		return metric(h, `tenant_refused_connections_total{reason="connections",tenant="named"}`) == 1 &&
			metric(h, `listener_refused_connections_total{listener="nfs",reason="tenant_connections"}`) == 1
	})
	h.Eventually("the connection that was refused is gone", tenants(1, 1, 20, 20))
	_ = c.Close()
	h.Eventually("there is room again", tenants(0, 1, 20, 20))
	if _, err := call("named", 300); err != nil {
		t.Error(err)
	}
}

// TestTLSResumption: a client resumes its session, and does not when the CAs have changed.
func TestTLSResumption(t *testing.T) {
	t.Parallel()
	x := newSecurity(t)
	h := proxytest.NewHarness(t, budget)
	s := h.TCPServer(proxytest.Behaviour{})
	p := h.Proxy([]settings.ListenerOptions{{Name: "nfs", Address: "127.0.0.1:0", Upstream: "s", TLS: x.listener(true)}},
		[]settings.UpstreamOptions{{Name: "s", Endpoints: []string{s.Addr()}}})
	user := x.user(x.issue("user"))
	user.ClientSessionCache = tls.NewLRUClientSessionCache(1)
	connect := func() bool {
		t.Helper()
		c := h.SecureClient(p.Addr("nfs"), user)
		check(t, c, proxytest.GetattrCall(1))
		return c.Conn.(*tls.Conn).ConnectionState().DidResume
	}
	if connect() {
		t.Error("the first session is resumed")
	}
	if !connect() {
		t.Error("the session is not resumed")
	}
	for _, c := range p.Status(status.Query{}).Clients.List {
		if c.TLS == nil || c.TLS.Identity != "user.example.com" {
			t.Errorf("the identity is %+v, also in a session that is resumed", c.TLS)
		}
	}
	x.write("users.pem", x.users.PEM(), tlstest.NewCA(t, "more").PEM())
	p.RefreshTLS(true)
	if connect() {
		t.Error("a session that began under other CAs is resumed")
	}
}

// TestTLSClosedEarly: a Call whose client ends its TLS session before the Reply comes does not count as replied.
func TestTLSClosedEarly(t *testing.T) {
	t.Parallel()
	x := newSecurity(t)
	h := proxytest.NewHarness(t, budget)
	s := h.TCPServer(proxytest.Behaviour{Delay: 300 * time.Millisecond})
	p := h.Proxy([]settings.ListenerOptions{{Name: "nfs", Address: "127.0.0.1:0", Upstream: "s", TLS: x.listener(true)}},
		[]settings.UpstreamOptions{{Name: "s", Endpoints: []string{s.Addr()}}})
	c := h.SecureClient(p.Addr("nfs"), x.user(x.issue("user")))
	if _, err := c.Go(proxytest.GetattrCall(1)); err != nil {
		t.Fatal(err)
	}
	if err := c.Conn.(*tls.Conn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	calls := func(result string) int {
		return metric(h, fmt.Sprintf("listener_calls_total{listener=\"nfs\",result=%q}", result))
	}
	h.Eventually("the Call has ended", func() bool { return calls("client_gone")+calls("replied") == 1 && s.Calls.Load() == 1 })
	if n := calls("replied"); n != 0 {
		t.Error("a Reply that nobody got counts as one")
	}
}

// TestTLSRotation: certificates are replaced while clients come and work, and nobody notices.
func TestTLSRotation(t *testing.T) {
	t.Parallel()
	x := newSecurity(t)
	h, logs := logged(t)
	s := h.TCPServer(proxytest.Behaviour{})
	storage := x.storage(x.servers.Issue(t, tlstest.Subject{Names: []string{"127.0.0.1"}}))
	front := h.TLSFront(s.Addr(), func() *tls.Config { return storage })
	p := h.Proxy([]settings.ListenerOptions{{Name: "nfs", Address: "127.0.0.1:0", Upstream: "s", TLS: x.listener(true)}},
		[]settings.UpstreamOptions{{Name: "s", Endpoints: []string{front.Addr()}, TLS: x.upstream(true)}})
	user := x.user(x.issue("user"))
	var stop atomic.Bool
	var wg sync.WaitGroup
	var calls, conns atomic.Int64
	for i := range 4 {
		wg.Go(func() { // stays connected
			c, err := proxytest.DialSecure(p.Addr("nfs"), user)
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			for r, n := rand.New(rand.NewPCG(1, uint64(i))), uint32(0); !stop.Load(); n++ {
				m := chainCall(r, n<<4|uint32(i), int(n))
				if got, err := c.Call(m); err != nil || !bytes.Equal(got, proxytest.Expected(m)) {
					t.Errorf("client %d, Call %d: %v", i, n, err)
					return
				}
				calls.Add(1)
			}
		})
	}
	wg.Go(func() { // comes and goes
		for !stop.Load() {
			c, err := proxytest.DialSecure(p.Addr("nfs"), user)
			if err != nil {
				t.Error(err)
				return
			}
			check(t, c, proxytest.GetattrCall(1))
			c.Close()
			conns.Add(1)
		}
	})
	refresh := func(what string) {
		n, k := calls.Load(), conns.Load()
		p.RefreshTLS(false)
		p.RefreshTLS(false)
		h.Eventually(what+": work goes on", func() bool { return calls.Load() > n+20 && conns.Load() > k+5 || t.Failed() })
	}
	for i := range 6 {
		name := fmt.Sprintf("server %d", i)
		end := time.Now().Add(time.Duration(i+1) * 100 * time.Hour).Truncate(time.Second)
		pair := x.renew("server", x.servers, tlstest.Subject{Name: name, Names: []string{"localhost"}, NotAfter: end})
		x.renew("user", x.users, tlstest.Subject{Name: name, Names: []string{"bridge.example.com"}, NotAfter: end})
		refresh(name)
		c := h.SecureClient(p.Addr("nfs"), user)
		if got := c.Conn.(*tls.Conn).ConnectionState().PeerCertificates[0]; !got.Equal(pair.Leaf) {
			t.Errorf("%s: clients see the certificate of %s", name, got.Subject)
		}
		for _, m := range []string{`listener_tls_expiry_timestamp_seconds{file="certificate",listener="nfs"}`, `upstream_tls_expiry_timestamp_seconds{file="certificate",upstream="s"}`} {
			if got := int64(metric(h, m)); got != end.Unix() {
				t.Errorf("%s: %s is %d, want %d", name, m, got, end.Unix())
			}
		}
		// Half a change is none: the key does not fit.
		x.write("server.key", x.servers.Issue(t, tlstest.Subject{}).Key)
		refresh(name + " and a wrong key")
		wantFault := func(text string) {
			t.Helper()
			if f := p.Status(status.Query{}).Listeners[0].TLS; !f.Expires.Equal(end) || !f.RenewBy.Before(end) || (text == "") != (f.Refused == "") || !strings.Contains(f.Refused, text) {
				t.Errorf("%s: status: %+v", name, f)
			}
			if got := metric(h, "listener_tls_files_refused") == 1; got != (text != "") {
				t.Errorf("%s: the metric says that files are refused: %v", name, got)
			}
		}
		wantFault("does not belong")
		if f := p.Status(status.Query{}).Upstreams[0].TLS; !f.Expires.Equal(end) || f.Refused != "" || metric(h, "upstream_tls_files_refused") != 0 {
			t.Errorf("%s: status of the upstream: %+v", name, f)
		}
		x.write("server.key", pair.Key)
		refresh(name + " again")
		wantFault("")
	}
	stop.Store(true)
	wg.Wait()
	if n := metric(h, `listener_tls_reloads_total{listener="nfs",result="refused"}`); n != 6 {
		t.Errorf("%d reloads were refused, want 6", n)
	}
	if n := metric(h, `listener_tls_reloads_total{listener="nfs",result="loaded"}`); n != 12 {
		t.Errorf("%d reloads, want 12", n)
	}
	if !strings.Contains(logs.String(), "does not belong to the certificate in "+x.path("server.pem")) {
		t.Errorf("the log does not say what is wrong:\n%s", logs)
	}
	if n := metric(h, "upstream_disconnects_total"); n != 0 {
		t.Errorf("%d connections to the server were replaced", n)
	}
}

// TestTLSTimes: the status and the metrics say the same of when certificates, CAs and lists of revoked certificates expire
// and from when that is worth a warning, before and after they are replaced.
func TestTLSTimes(t *testing.T) {
	t.Parallel()
	x := newSecurity(t)
	now := time.Now().Truncate(time.Second)
	x.server.CRL, x.client.CRL = x.write("users.crl", x.users.CRL(t)), x.write("servers.crl", x.servers.CRL(t))
	h, _ := logged(t)
	storage := x.storage(x.servers.Issue(t, tlstest.Subject{Names: []string{"127.0.0.1"}}))
	front := h.TLSFront(h.TCPServer(proxytest.Behaviour{}).Addr(), func() *tls.Config { return storage })
	p := h.Proxy([]settings.ListenerOptions{{Name: "nfs", Address: "127.0.0.1:0", Upstream: "s", TLS: x.listener(true)}},
		[]settings.UpstreamOptions{{Name: "s", Endpoints: []string{front.Addr()}, TLS: x.upstream(true)}})
	look := func(of, ca string, f *status.TLSFiles) {
		t.Helper()
		for series, want := range map[string]time.Time{
			`expiry_timestamp_seconds{file="certificate",%s}`:   *f.Expires,
			`renew_by_timestamp_seconds{file="certificate",%s}`: *f.RenewBy,
			`expiry_timestamp_seconds{file="ca",%s}`:            f.CA.End,
			`renew_by_timestamp_seconds{file="ca",%s}`:          f.CA.RenewBy,
			`renew_by_timestamp_seconds{file="crl",%s}`:         f.CRL.RenewBy,
		} {
			side, _, _ := strings.Cut(of, "=")
			m := side + "_tls_" + fmt.Sprintf(series, of)
			if got := int64(metric(h, m)); got != want.Unix() || got == 0 {
				t.Errorf("%s is %d, want %d", m, got, want.Unix())
			}
		}
		if f.CA.Name != ca || f.CRL.Name != ca || !f.CA.RenewBy.Before(f.CA.Expires) {
			t.Errorf("%s: CA %+v, list %+v", of, f.CA, f.CRL)
		}
	}
	all := func() (l, u *status.TLSFiles) {
		d := p.Status(status.Query{})
		l, u = d.Listeners[0].TLS, d.Upstreams[0].TLS
		look(`listener="nfs"`, "CN=users", l)
		look(`upstream="s"`, "CN=servers", u)
		return l, u
	}
	all()
	for _, ca := range []*tlstest.CA{x.users, x.servers} {
		name := strings.TrimPrefix(ca.Cert.Subject.String(), "CN=")
		x.write(name+".pem", ca.Until(t, now.Add(-time.Hour), now.Add(100*time.Hour)).PEM())
		x.write(name+".crl", ca.List(t, now.Add(-time.Minute), now.Add(5*time.Hour)))
	}
	p.RefreshTLS(true)
	l, u := all()
	for _, f := range []*status.TLSFiles{l, u} {
		if !f.CA.End.Equal(now.Add(100*time.Hour)) || !f.CRL.RenewBy.Equal(now.Add(5*time.Hour)) {
			t.Errorf("after they are replaced: CA %+v, list %+v", f.CA, f.CRL)
		}
	}
}

// TestTLSRevocation: clients whose CA is removed, or whose certificate is revoked, are closed and do not
// come back. Others stay.
func TestTLSRevocation(t *testing.T) {
	t.Parallel()
	x := newSecurity(t)
	h, logs := logged(t)
	s := h.TCPServer(proxytest.Behaviour{})
	other := tlstest.NewCA(t, "others")
	x.write("users.pem", x.users.PEM(), other.PEM())
	x.server.CRL = x.write("users.crl", x.users.CRL(t))
	p := h.Proxy([]settings.ListenerOptions{{Name: "nfs", Address: "127.0.0.1:0", Upstream: "s", TLS: x.listener(true)}},
		[]settings.UpstreamOptions{{Name: "s", Endpoints: []string{s.Addr()}}})
	stays, leaves := x.issue("stays"), x.issue("leaves")
	alien := other.Issue(t, tlstest.Subject{Name: "alien", Names: []string{"alien.example.com"}})
	clients := make(map[*tlstest.Pair]*proxytest.Client)
	for _, p2 := range []*tlstest.Pair{stays, leaves, alien} {
		clients[p2] = h.SecureClient(p.Addr("nfs"), x.user(p2))
		check(t, clients[p2], proxytest.GetattrCall(1))
	}
	gone := func(pair *tlstest.Pair, reason string) {
		t.Helper()
		if _, err := clients[pair].NextCall(testkit.Patience); err == nil {
			t.Error("the client is called")
		}
		if _, err := clients[pair].Call(proxytest.GetattrCall(2)); err == nil {
			t.Errorf("%s is answered", pair.Leaf.Subject)
		}
		c, err := proxytest.DialSecure(p.Addr("nfs"), x.user(pair))
		if err == nil {
			if _, err = c.Call(proxytest.GetattrCall(3)); err == nil {
				t.Errorf("%s has come back", pair.Leaf.Subject)
			}
			c.Close()
		}
		h.Eventually("both are counted", func() bool {
			return metric(h, fmt.Sprintf("listener_tls_failures_total{listener=\"nfs\",reason=%q}", reason)) == 2
		})
		want := pair.Leaf.Subject.CommonName
		if !strings.Contains(logs.String(), want) {
			t.Errorf("the log does not name %s:\n%s", want, logs)
		}
		check(t, clients[stays], proxytest.GetattrCall(4))
	}
	x.write("users.crl", x.users.CRL(t, leaves))
	p.RefreshTLS(false)
	check(t, clients[leaves], proxytest.GetattrCall(5)) // the file may be incomplete
	p.RefreshTLS(false)
	gone(leaves, "revoked")
	check(t, clients[alien], proxytest.GetattrCall(6))
	x.write("users.pem", x.users.PEM())
	p.RefreshTLS(true)
	gone(alien, "unknown_authority")
}

// TestTLSReconfigure: a reload that requires TLS, or asks clients for certificates, concerns the clients
// that are connected.
func TestTLSReconfigure(t *testing.T) {
	t.Parallel()
	x := newSecurity(t)
	h := proxytest.NewHarness(t, budget)
	s := h.TCPServer(proxytest.Behaviour{})
	us := proxytest.Upstreams(settings.UpstreamOptions{Name: "s", Endpoints: []string{s.Addr()}})
	lo := proxytest.Listeners(settings.ListenerOptions{Name: "nfs", Address: "127.0.0.1:0", Upstream: "s"})[0]
	p := h.Proxy([]settings.ListenerOptions{lo}, us)
	apply := func(tls *settings.ListenerTLS) {
		t.Helper()
		lo.TLS = tls
		if err := p.Reconfigure([]settings.ListenerOptions{lo}, us); err != nil {
			t.Fatal(err)
		}
		p.RefreshTLS(false)
	}
	plain := h.Client(p.Addr("nfs"))
	check(t, plain, proxytest.GetattrCall(1))
	x.server.Client, x.server.CA = tlsconf.ClientNone, ""
	apply(x.listener(false))
	check(t, plain, proxytest.GetattrCall(2))
	nameless, named := h.SecureClient(p.Addr("nfs"), x.user(nil)), (*proxytest.Client)(nil)
	check(t, nameless, proxytest.GetattrCall(3))
	apply(x.listener(true))
	if r, err := plain.Call(proxytest.GetattrCall(4)); err != nil || !bytes.Equal(r, oncrpc.AppendAuthError(nil, 4, oncrpc.AuthTooWeak)) {
		t.Errorf("a client without TLS: %x, %v", r, err)
	}
	check(t, nameless, proxytest.GetattrCall(5))
	x.server.Client, x.server.CA = tlsconf.ClientRequire, x.path("users.pem")
	apply(x.listener(true))
	if _, err := nameless.NextCall(testkit.Patience); err == nil {
		t.Error("the client is called")
	}
	if _, err := nameless.Call(proxytest.GetattrCall(6)); err == nil {
		t.Error("a client without a certificate is answered although one is required now")
	}
	named = h.SecureClient(p.Addr("nfs"), x.user(x.issue("user")))
	check(t, named, proxytest.GetattrCall(7))
	apply(nil)
	check(t, named, proxytest.GetattrCall(8))
	check(t, plain, proxytest.GetattrCall(9))
	if _, err := proxytest.DialSecure(p.Addr("nfs"), x.user(nil)); !errors.Is(err, proxytest.ErrNoTLS) {
		t.Errorf("TLS although it is off: %v", err)
	}
}

// TestTLSUpstream: which servers an upstream accepts, and what it says of others.
func TestTLSUpstream(t *testing.T) {
	good := func(x *security) *tls.Config {
		return x.storage(x.servers.Issue(x.t, tlstest.Subject{Name: "storage", Names: []string{"127.0.0.1", "storage.example.com"}}))
	}
	for _, tt := range []struct {
		name   string
		must   bool
		change func(x *security)
		server func(x *security) *tls.Config // nil: no TLS
		reason string                        // of the error; "" if it works
		text   string
		secure bool
	}{
		{"required", true, nil, good, "", "", true},
		{"optional", false, nil, good, "", "", true},
		{"server name", true, func(x *security) { x.client.ServerName = "storage.example.com" }, good, "", "", true},
		{"other name", true, func(x *security) { x.client.ServerName = "other.example.com" }, good, "wrong_name", "set tls.server_name", false},
		{"other name, optional", false, func(x *security) { x.client.ServerName = "other.example.com" }, good, "wrong_name", "set tls.server_name", false},
		{"stranger", true, nil, func(x *security) *tls.Config {
			return x.storage(tlstest.NewCA(x.t, "strangers").Issue(x.t, tlstest.Subject{Name: "storage", Names: []string{"127.0.0.1"}}))
		}, "unknown_authority", "CN=storage", false},
		{"expired", true, nil, func(x *security) *tls.Config {
			return x.storage(x.servers.Issue(x.t, tlstest.Subject{Name: "storage", Names: []string{"127.0.0.1"}, NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: time.Now().Add(-time.Hour)}))
		}, "expired", "it was valid until", false},
		{"revoked", true, nil, func(x *security) *tls.Config {
			p := x.servers.Issue(x.t, tlstest.Subject{Name: "storage", Names: []string{"127.0.0.1"}})
			x.client.CRL = x.write("servers.crl", x.servers.CRL(x.t, p))
			return x.storage(p)
		}, "revoked", "CN=storage", false},
		{"another revoked", true, nil, func(x *security) *tls.Config {
			x.client.CRL = x.write("servers.crl", x.servers.CRL(x.t, x.servers.Issue(x.t, tlstest.Subject{Name: "gone"})))
			return good(x)
		}, "", "", true},
		{"no certificate of ours", true, func(x *security) { x.client.Certificate, x.client.Key = "", "" }, good, "peer_alert", "certificate", false},
		{"no ALPN", true, nil, func(x *security) *tls.Config { c := good(x); c.NextProtos = nil; return c }, "", "", true},
		{"TLS 1.2", true, nil, func(x *security) *tls.Config {
			c := good(x)
			c.MinVersion, c.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
			return c
		}, "peer_alert", "", false},
		{"no TLS, required", true, nil, nil, "none", "does not offer TLS", false},
		{"no TLS, optional", false, nil, nil, "", "", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			x := newSecurity(t)
			h, logs := logged(t)
			if tt.change != nil {
				tt.change(x)
			}
			s := h.TCPServer(proxytest.Behaviour{})
			var c *tls.Config
			if tt.server != nil {
				c = tt.server(x)
			}
			front := h.TLSFront(s.Addr(), func() *tls.Config { return c })
			u := settings.UpstreamOptions{Name: "s", Endpoints: []string{front.Addr()}, TLS: x.upstream(tt.must), BackoffMin: 10 * time.Millisecond, BackoffMax: 50 * time.Millisecond}
			if tt.reason != "" {
				u.UnavailableAfter = 500 * time.Millisecond // of no other: on a busy machine a handshake may take as long
			}
			p := h.Start([]settings.ListenerOptions{{Name: "nfs", Address: "127.0.0.1:0", Upstream: "s"}}, []settings.UpstreamOptions{u})
			cl := h.Client(p.Addr("nfs"))
			if tt.reason == "" {
				check(t, cl, proxytest.GetattrCall(1))
				check(t, cl, proxytest.WriteCall(2, 0, 1<<20))
				secure, plain, _ := front.Counts()
				if (secure > 0) != tt.secure || (plain > 0) == tt.secure {
					t.Errorf("%d connections with TLS, %d without", secure, plain)
				}
				u := p.Status(status.Query{Connections: true}).Upstreams[0]
				if (u.Connections[0].TLS != nil) != tt.secure || tt.secure && u.Connections[0].TLS.Subject != "CN=storage" {
					t.Errorf("status: %+v", u.Connections[0].TLS)
				}
				if has := strings.Contains(logs.String(), `"event":"upstream_without_tls"`); has == tt.secure {
					t.Errorf("the log says that TLS is missing: %v", has)
				}
				return
			}
			if _, err := cl.Call(proxytest.GetattrCall(1)); err == nil {
				t.Error("the Call is answered")
			}
			if n := s.Calls.Load(); n != 0 {
				t.Errorf("%d Calls have reached the server", n)
			}
			counted := fmt.Sprintf("upstream_tls_failures_total{reason=%q", tt.reason)
			if tt.reason == "none" {
				counted = `upstream_tls_missing_connections_total{result="refused"`
			}
			h.Eventually("it is counted", func() bool { return metric(h, counted) > 0 })
			h.Eventually("the log and the status say why", func() bool {
				return strings.Contains(logs.String(), `"event":"upstream_lost"`) && strings.Contains(logs.String(), tt.text) &&
					strings.Contains(p.Status(status.Query{}).Upstreams[0].LastError, tt.text)
			})
		})
	}
}

// TestTLSUpstreamRevocation: connections to a server that is not trusted any more end.
func TestTLSUpstreamRevocation(t *testing.T) {
	t.Parallel()
	x := newSecurity(t)
	h, logs := logged(t)
	s := h.TCPServer(proxytest.Behaviour{})
	storage := x.storage(x.servers.Issue(t, tlstest.Subject{Name: "storage", Names: []string{"127.0.0.1"}}))
	front := h.TLSFront(s.Addr(), func() *tls.Config { return storage })
	p := h.Proxy([]settings.ListenerOptions{{Name: "nfs", Address: "127.0.0.1:0", Upstream: "s"}},
		[]settings.UpstreamOptions{{Name: "s", Endpoints: []string{front.Addr()}, TLS: x.upstream(true), BackoffMin: 10 * time.Millisecond, BackoffMax: 50 * time.Millisecond}})
	c := h.Client(p.Addr("nfs"))
	check(t, c, proxytest.GetattrCall(1))
	x.write("servers.pem", tlstest.NewCA(t, "others").PEM())
	p.RefreshTLS(true)
	h.Eventually("the connection ends, and there is no other", func() bool {
		u := p.Status(status.Query{}).Upstreams[0]
		return u.Usable == 0 && strings.Contains(u.LastError, "CN=storage")
	})
	h.Eventually("the log says so", func() bool { return strings.Contains(logs.String(), "is not trusted any more") })
	x.write("servers.pem", x.servers.PEM())
	p.RefreshTLS(true)
	check(t, c, proxytest.GetattrCall(2))
}

// TestTLSUpstreamRevokedMeanwhile: a server that is not trusted any more when its handshake is done, but was
// when it began, gets no Calls.
func TestTLSUpstreamRevokedMeanwhile(t *testing.T) {
	t.Parallel()
	x := newSecurity(t)
	h, logs := logged(t)
	s := h.TCPServer(proxytest.Behaviour{})
	storage := x.storage(x.servers.Issue(t, tlstest.Subject{Name: "storage", Names: []string{"127.0.0.1"}}))
	asked, answer := make(chan struct{}, 1), make(chan struct{})
	front := h.TLSFront(s.Addr(), func() *tls.Config {
		select {
		case asked <- struct{}{}:
		default:
		}
		<-answer // the bridge has chosen what it trusts, and waits for the answer to its probe
		return storage
	})
	release := sync.OnceFunc(func() { close(answer) })
	t.Cleanup(release)
	p := h.Start([]settings.ListenerOptions{{Name: "nfs", Address: "127.0.0.1:0", Upstream: "s"}}, []settings.UpstreamOptions{{
		Name: "s", Endpoints: []string{front.Addr()}, TLS: x.upstream(true),
		BackoffMin: 10 * time.Millisecond, BackoffMax: 50 * time.Millisecond, UnavailableAfter: 500 * time.Millisecond,
	}})
	<-asked
	x.write("servers.pem", tlstest.NewCA(t, "others").PEM())
	p.RefreshTLS(true)
	release()
	h.Eventually("the connection ends", func() bool {
		return strings.Contains(logs.String(), "is not trusted any more")
	})
	if n := s.Calls.Load(); n != 0 {
		t.Errorf("%d Calls have reached the server", n)
	}
	if _, err := h.Client(p.Addr("nfs")).Call(proxytest.GetattrCall(1)); err == nil {
		t.Error("a Call is answered")
	}
}

// TestTLSChain: clients on RDMA, a bridge to another bridge over TLS, and from there to a server on
// RDMA. Between the bridges nobody reads or changes anything.
func TestTLSChain(t *testing.T) {
	t.Parallel()
	x := newSecurity(t)
	near, far := proxytest.NewHarness(t, budget), proxytest.NewHarness(t, budget)
	back := iwarpSide(iwarp.Options{})
	s := far.RDMAServer(back.provider, []loop.Loop{back.loop(t)}, "127.0.0.1:0", 32, proxytest.Behaviour{})
	p2 := far.Proxy([]settings.ListenerOptions{{Name: "tls", Address: "127.0.0.1:0", Upstream: "storage", TLS: x.listener(true)}},
		[]settings.UpstreamOptions{{Name: "storage", RDMA: true, Provider: proxytest.IWARP(iwarp.Options{}), Endpoints: []string{s.Addr()}}})
	tap := newWireTap(t, p2.Addr("tls"))
	front := iwarpSide(iwarp.Options{})
	p1 := near.Proxy([]settings.ListenerOptions{{Name: "rdma", Address: "127.0.0.1:0", RDMA: true, Provider: front.provider, Upstream: "far"}},
		[]settings.UpstreamOptions{{Name: "far", Endpoints: []string{tap.addr()}, TLS: x.upstream(true)}})
	c := near.RDMAClient(front.provider, front.loop(t), p1.Addr("rdma"), 16)
	secret := []byte("nobody between the bridges reads this")
	payload := bytes.Repeat(secret, 4000)
	for i := range uint32(20) {
		for _, m := range [][]byte{proxytest.EchoCallOf(100+i, payload, len(payload), 0), proxytest.WriteCall(200+i, 0, 1<<18), proxytest.ReadCall(300+i, 0, 1<<18)} {
			if r, err := c.Call(m); err != nil || !bytes.Equal(r, proxytest.Expected(m)) {
				t.Fatalf("a Call of %d octets was answered %d octets, %v", len(m), len(r), err)
			}
		}
	}
	seen := tap.octets()
	if len(seen) < 20*2*(len(payload)+1<<17) {
		t.Fatalf("only %d octets went over the wire", len(seen))
	}
	for name, plain := range map[string][]byte{"the payload": secret, "the data of a WRITE": proxytest.WriteCall(1, 0, 4096)[200:300], "the name of a client": []byte("bridge.example.com")} {
		if bytes.Contains(seen, plain) {
			t.Errorf("%s is on the wire in plain text", name)
		}
	}
	if !bytes.Contains(seen, []byte("STARTTLS")) {
		t.Error("the tap does not see the Reply to the probe: it is not between the bridges")
	}
	if g := p2.Status(status.Query{}).Clients.List[0].TLS; g == nil || g.Identity != "bridge.example.com" {
		t.Errorf("the far bridge knows its client as %+v", g)
	}
}
