package main

import (
	"crypto/tls"
	"fmt"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/configs"
	"github.com/rdmabridge/rdmabridge/internal/cli"
	"github.com/rdmabridge/rdmabridge/internal/status"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/internal/testkit/proxytest"
	"github.com/rdmabridge/rdmabridge/internal/testkit/tlstest"
)

// secureFiles writes what a listener with TLS needs into dir, and returns its settings.
func secureFiles(t *testing.T, dir string, servers, users *tlstest.CA) (settings string, own *tlstest.Pair) {
	t.Helper()
	own = servers.Issue(t, tlstest.Subject{Name: "bridge", Names: []string{"localhost"}})
	return fmt.Sprintf("mode: required, certificate: %s, client: {ca: %s}",
		tlstest.Write(t, dir, "bridge.pem", own.Cert, own.Key), tlstest.Write(t, dir, "users.pem", users.PEM())), own
}

// TestTLSServe: a bridge serves over TLS, uses files that others replace without being told, and what a
// reload of its own file says about TLS. Clients stay connected.
func TestTLSServe(t *testing.T) {
	dir := t.TempDir()
	servers, users := tlstest.NewCA(t, "servers"), tlstest.NewCA(t, "users")
	settings, _ := secureFiles(t, dir, servers, users)
	s := startEchoServer(t, "one!")
	file := func(settings, watch string) string {
		return fmt.Sprintf(`
listeners:
  - {name: nfs, address: 127.0.0.1:0, upstream: one, tls: {%s}}
upstreams:
  - {name: one, transport: tcp, endpoints: [%q]}
admin: {address: 127.0.0.1:0}
reload: {watch: %s}
`, settings, s.addr, watch)
	}
	x := startReload(t, file(settings, "20ms"))
	addr := x.b.proxy.Addr("nfs")
	user := users.Issue(t, tlstest.Subject{Name: "user", Names: []string{"user.example.com"}})
	config := &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: servers.Pool(), ServerName: "localhost", Certificates: []tls.Certificate{user.Certificate}}
	connect := func() *proxytest.Client {
		t.Helper()
		c, err := proxytest.DialSecure(addr, config)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	call := func(c *proxytest.Client) {
		t.Helper()
		if _, err := c.Call(userCall(1, 100003, 3)); err != nil {
			t.Fatal(err)
		}
	}
	presented := func(c *proxytest.Client) string {
		return c.Conn.(*tls.Conn).ConnectionState().PeerCertificates[0].Subject.CommonName
	}
	first := connect()
	call(first)
	x.metric(`rdmabridge_listener_tls_connections{listener="nfs"} 1`)

	next := servers.Issue(t, tlstest.Subject{Name: "next", Names: []string{"localhost"}})
	tlstest.Write(t, dir, "bridge.pem", next.Cert, next.Key)
	testkit.Eventually(t, "the files are noticed", func() bool { return strings.Contains(x.log.String(), `"event":"tls_files_loaded"`) })
	if got := presented(connect()); got != "next" {
		t.Errorf("clients see the certificate of %s", got)
	}
	call(first)
	tlstest.Write(t, dir, "bridge.pem", next.Cert)
	testkit.Eventually(t, "the log says what is wrong", func() bool {
		return strings.Contains(x.log.String(), `"event":"tls_files_refused"`) && strings.Contains(x.log.String(), "bridge.pem: the file has no private key")
	})
	call(connect())

	// The file of the bridge names broken files: nothing changes.
	x.reload(file(settings, "none"), refused)
	if !strings.Contains(x.log.String(), "listeners[0].tls: ") {
		t.Error("the log does not name the setting")
	}
	// Nobody looks at the files, but SIGHUP does.
	tlstest.Write(t, dir, "bridge.pem", next.Cert, next.Key)
	x.reload(file(settings, "none"), loaded)
	var last *tlstest.Pair
	for _, name := range []string{"third", "fourth"} { // a look that has begun may see the third
		last = servers.Issue(t, tlstest.Subject{Name: name, Names: []string{"localhost"}})
		tlstest.Write(t, dir, "bridge.pem", last.Cert, last.Key)
		x.reload(file(settings, "none"), `"event":"reload_unchanged"`)
		if got := presented(connect()); got != name {
			t.Errorf("after SIGHUP clients see the certificate of %s, want %s", got, name)
		}
	}
	call(first)
	x.metric(`rdmabridge_listener_tls_expiry_timestamp_seconds{file="certificate",listener="nfs"} ` + fmt.Sprint(float64(last.Leaf.NotAfter.Unix())))

	// Other names: the client that does not have one is closed.
	x.reload(file(settings[:len(settings)-1]+", names: [other.example.com]}", "20ms"), loaded)
	if _, err := first.NextCall(testkit.Patience); err == nil {
		t.Error("the client is called")
	}
	if _, err := first.Call(userCall(2, 100003, 3)); err == nil {
		t.Error("a client without an allowed name is answered")
	}
	if !strings.Contains(x.log.String(), "user.example.com") {
		t.Error("the log does not say which client it was")
	}
	x.stop()
}

// TestTLSCheck: check says what is wrong with files of TLS, and with which setting.
func TestTLSCheck(t *testing.T) {
	dir := t.TempDir()
	servers, users := tlstest.NewCA(t, "servers"), tlstest.NewCA(t, "users")
	settings, _ := secureFiles(t, dir, servers, users)
	check := func(listener, upstream string) (code int, out string) {
		t.Helper()
		path := dir + "/rdmabridge.yaml"
		write(t, path, fmt.Sprintf(`
listeners:
  - {name: nfs, address: 127.0.0.1:0, upstream: one, tls: {%s}}
upstreams:
  - {name: one, transport: tcp, endpoints: ['h:1'], tls: {%s}}
`, listener, upstream))
		code, stdout, stderr := run("check", path)
		return code, stdout + stderr
	}
	for _, tt := range []struct {
		listener, upstream string
		code               int
		want               string
	}{
		{settings, "mode: optional", cli.ExitDone, "good: 1 listeners"},
		{settings[:len(settings)-1] + ", names: ['*.*']}", "mode: off", cli.ExitFailed, `3: listeners[0].tls: "*.*" is not a DNS name`},
		{"mode: optional, certificate: " + dir + "/none.pem", "mode: off", cli.ExitFailed, "none.pem: there is no such file"},
		{"mode: off", "mode: required, ca: " + dir + "/rdmabridge.yaml", cli.ExitFailed, "5: upstreams[0].tls: " + dir + "/rdmabridge.yaml: the file has no certificate"},
		{"mode: off", "mode: required, server_name: '*.example.com'", cli.ExitFailed, "is no name of a server"},
	} {
		if code, out := check(tt.listener, tt.upstream); code != tt.code || !strings.Contains(out, tt.want) {
			t.Errorf("tls: {%s} and {%s}: exit code %d, want %d with %q:\n%s", tt.listener, tt.upstream, code, tt.code, tt.want, out)
		}
	}
	late := servers.Issue(t, tlstest.Subject{Name: "late", Names: []string{"localhost"}, NotAfter: time.Now().Add(-time.Hour), NotBefore: time.Now().Add(-2 * time.Hour)})
	path := tlstest.Write(t, dir, "bridge.pem", late.Cert, late.Key)
	must(t, os.Chmod(path, 0o644))
	code, out := check(settings, "mode: off")
	for _, want := range []string{"warning: ", "has expired: it was valid until", "every user of this host can read this private key"} {
		if code != cli.ExitDone || !strings.Contains(out, want) {
			t.Errorf("an expired certificate: exit code %d, want a warning with %q:\n%s", code, want, out)
		}
	}
}

// TestTLSShown: the commands and the JSON name a client by its certificate.
func TestTLSShown(t *testing.T) {
	dir := t.TempDir()
	servers, users := tlstest.NewCA(t, "servers"), tlstest.NewCA(t, "users")
	settings, _ := secureFiles(t, dir, servers, users)
	s := startEchoServer(t, "one!")
	x := startReload(t, fmt.Sprintf(`
listeners:
  - {name: nfs, address: 127.0.0.1:0, upstream: one, tls: {%s}}
upstreams:
  - {name: one, transport: tcp, endpoints: [%q]}
admin: {address: 127.0.0.1:0}
control: {path: %s/control.sock}
log: {access: {mode: all, path: %s/access.log}}
`, settings, s.addr, dir, dir))
	user := users.Issue(t, tlstest.Subject{Name: "user", Names: []string{"user.example.com"}})
	c, err := proxytest.DialSecure(x.b.proxy.Addr("nfs"), &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: servers.Pool(), ServerName: "localhost", Certificates: []tls.Certificate{user.Certificate}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Call(userCall(1, 100003, 3)); err != nil {
		t.Fatal(err)
	}
	awaitControl(t, dir+"/control.sock", os.Getpid())
	if code, out, errOut := run("clients", "--wide", "--socket", dir+"/control.sock"); code != cli.ExitDone || !strings.Contains(out, "user.example.com") {
		t.Errorf("clients: exit code %d\n%s%s", code, out, errOut)
	}
	w := httptest.NewRecorder()
	x.b.pages.ServeHTTP(w, httptest.NewRequest("GET", "/api/v1/clients?filter=user.example", nil))
	if !strings.Contains(w.Body.String(), `"identity":"user.example.com"`) {
		t.Errorf("JSON: %s", w.Body)
	}
	testkit.Eventually(t, "the access log names the client", func() bool {
		b, _ := os.ReadFile(dir + "/access.log")
		return strings.Contains(string(b), `"tls":true,"identity":"user.example.com"`)
	})
	if d := x.b.proxy.Status(status.Query{}); d.Clients.List[0].TLS == nil {
		t.Error("the status does not have it")
	}
	x.stop()
}

// TestUpstreamCRL: the setting crl of an upstream is read, and a list of another CA is an error.
func TestUpstreamCRL(t *testing.T) {
	t.Parallel()
	dir, ca := t.TempDir(), tlstest.NewCA(t, "servers")
	u := &configs.UpstreamTLS{
		Mode: configs.TLSRequired, CA: tlstest.Write(t, dir, "servers.pem", ca.PEM()), CRL: tlstest.Write(t, dir, "servers.crl", ca.CRL(t)),
	}
	if w, err := known.UpstreamTLS(u); err != nil || len(w) > 0 {
		t.Errorf("a list of the CA: %v, %v", w, err)
	}
	tlstest.Write(t, dir, "servers.crl", tlstest.NewCA(t, "others").CRL(t))
	if _, err := known.UpstreamTLS(u); err == nil || !strings.Contains(err.Error(), u.CRL) {
		t.Errorf("a list of another CA: %v", err)
	}
}
