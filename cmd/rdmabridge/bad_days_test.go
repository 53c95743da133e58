package main

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/cli"
	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/status"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/internal/testkit/browser"
	"github.com/rdmabridge/rdmabridge/internal/testkit/proxytest"
	"github.com/rdmabridge/rdmabridge/internal/testkit/tlstest"
)

// badDays are upstreams that cannot work. A bridge names the problem of each by its code, and doctor by one of its own.
var badDays = []struct {
	name, settings string // of the upstream; AT is where the server of at listens
	at             string
	problem, says  string
	doctor         string
}{
	{"no-tls", "transport: tcp", "far", status.CodeTLS, "requires TLS, and the bridge connects without", "endpoint-tls"},
	{"stranger", "transport: tcp, tls: {mode: required, ca: DIR/servers.pem, certificate: DIR/stranger.pem}", "far", status.CodeTLS, "refuses the certificate of this side", "endpoint-tls"},
	{"nameless", "transport: tcp, tls: {mode: required, ca: DIR/servers.pem}", "far", status.CodeTLS, "requires a certificate", "endpoint-tls"},
	{"distrust", "transport: tcp, tls: {mode: required, ca: DIR/users.pem, certificate: DIR/user.pem}", "far", status.CodeTLS, "no CA that this side trusts", "endpoint-tls"},
	{"plain-server", "transport: tcp, tls: {mode: required, ca: DIR/servers.pem}", "nfs", status.CodeTLS, "does not offer TLS", "endpoint-tls"},
	{"rdma-at-tcp", "transport: rdma", "nfs", status.CodeProtocol, "does not answer as NFS over RDMA does", "endpoint-protocol"},
	{"tcp-at-rdma", "transport: tcp", "rdma", status.CodeProtocol, "ends them without an answer", "endpoint-protocol"},
	{"tcp-at-http", "transport: tcp", "http", status.CodeProtocol, "speaks HTTP", "endpoint-protocol"},
	{"nobody", "transport: tcp", "dead", status.CodeUpstreamDown, "connection refused", "endpoint-refused"},
}

// TestBadDays: the page, the JSON, stats and doctor name what is wrong with each upstream of badDays, and with a listener
// whose clients ask for a program that has no route. They name nothing else: an idle bridge has no slow start. Then the
// configuration file breaks, a certificate disappears, and at last the file does.
func TestBadDays(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	servers, users := tlstest.NewCA(t, "servers"), tlstest.NewCA(t, "users")
	pair := func(file string, ca *tlstest.CA, s tlstest.Subject) {
		p := ca.Issue(t, s)
		tlstest.Write(t, dir, file, p.Cert, p.Key)
	}
	pair("far.pem", servers, tlstest.Subject{Name: "far", Names: []string{"127.0.0.1"}})
	pair("user.pem", users, tlstest.Subject{Name: "near"})
	pair("stranger.pem", tlstest.NewCA(t, "strangers"), tlstest.Subject{Name: "near"})
	tlstest.Write(t, dir, "servers.pem", servers.PEM())
	tlstest.Write(t, dir, "users.pem", users.PEM())
	inDir := strings.NewReplacer("DIR", dir)

	// The server has NFS alone at its port, as Linux has.
	server, err := proxytest.ListenTCP("127.0.0.1:0", proxytest.Behaviour{Intercept: func(c *oncrpc.Call) ([]byte, bool) {
		if c.Program != oncrpc.ProgramNFS {
			return oncrpc.AppendAccepted(nil, c.XID, oncrpc.ProgramUnavailable), true
		}
		return oncrpc.AppendAccepted(nil, c.XID, oncrpc.Success), true
	}})
	must(t, err)
	t.Cleanup(server.Close)
	nfs := server.Addr()
	far, farSignals, farEnds := startServe(t, inDir.Replace(fmt.Sprintf(`
listeners:
  - {name: far, address: "127.0.0.1:0", upstream: storage, tls: {mode: required, certificate: DIR/far.pem, client: {ca: DIR/users.pem}}}
  - {name: rdma, address: "127.0.0.1:0", transport: rdma, upstream: storage}
upstreams: [{name: storage, transport: tcp, endpoints: [%q]}]
admin: {address: none}
control: {path: none}
memory: {budget: 256MiB}
`, nfs)))
	at := map[string]string{
		"nfs": nfs, "far": far.proxy.Addr("far"), "rdma": far.proxy.Addr("rdma"), "dead": testkit.DeadAddr(t),
		"http": testkit.Serve(t, "tcp", "127.0.0.1:0", func(c net.Conn) { _, _ = c.Write([]byte("HTTP/1.1 400 Bad Request\r\n\r\n")); c.Close() }),
	}
	var listeners, upstreams strings.Builder
	for _, b := range badDays {
		fmt.Fprintf(&listeners, "  - {name: to-%s, address: '127.0.0.1:0', upstream: %s}\n", b.name, b.name)
		fmt.Fprintf(&upstreams, "  - {name: %s, endpoints: [%q], backoff: {min: 50ms, max: 200ms}, timeouts: {connect: 15s}, %s}\n", b.name, at[b.at], b.settings)
	}
	x := startReload(t, inDir.Replace(fmt.Sprintf(`
listeners:
  - {name: nfs, address: "127.0.0.1:0", upstream: good}
%supstreams:
  - {name: good, transport: tcp, endpoints: [%q]}
  - {name: mountd, transport: tcp, endpoints: [%q]}
%sadmin: {address: "127.0.0.1:0"}
control: {path: DIR/c.sock}
memory: {budget: 512MiB}
reload: {watch: 100ms}
`, &listeners, nfs, nfs, &upstreams)))
	c, err := proxytest.DialClient(x.b.proxy.Addr("nfs"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Call(nullCall(1, 100005, 3)); err != nil {
		t.Fatal(err)
	}

	want := map[string][2]string{"nfs": {status.CodeNoRoute, "ask listener nfs for MOUNT"}}
	for _, b := range badDays {
		want[b.name] = [2]string{b.problem, b.says}
	}
	url := "http://" + x.b.admin.Addr()
	var problems []status.Problem
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("problems: %+v", problems)
		}
	})
	testkit.Eventually(t, "the bridge has all the problems", func() bool {
		_, body := get(t, url+"/api/v1/problems")
		problems = nil
		if err := json.Unmarshal([]byte(body), &problems); err != nil {
			t.Fatalf("%v: %s", err, body)
		}
		for _, p := range problems {
			if w, known := want[p.Subject]; !known || w[0] != p.Code || !strings.Contains(p.Text, w[1]) {
				return false
			}
		}
		return len(problems) == len(want)
	})

	_, out, errOut := run("stats", "-c", x.path, "--over", "0")
	_, inJSON, _ := run("stats", "-c", x.path, "--json")
	for subject, w := range want {
		if !strings.Contains(out, w[1]) || !strings.Contains(out, subject) {
			t.Errorf("stats does not say %q of %s:\n%s%s", w[1], subject, out, errOut)
		}
		if !strings.Contains(inJSON, `"code": "`+w[0]+`"`) {
			t.Errorf("stats --json lacks %s", w[0])
		}
	}
	report := runDoctor(t, cli.ExitFailed, "-c", x.path)
	for _, b := range badDays {
		if !report.has("error", b.doctor, b.name+", ") {
			t.Errorf("doctor does not say %s of %s: %+v", b.doctor, b.name, report.Findings)
		}
	}
	if !report.has("warning", "config-warning", "configuration") || report.has("error", "endpoint", "good, ") {
		t.Errorf("doctor does not warn of the upstream that nothing uses, or accuses a good one: %+v", report.Findings)
	}
	if _, out, errOut := run("check", x.path); !strings.Contains(out+errOut, "nothing uses upstream mountd") {
		t.Errorf("check does not warn of the upstream that nothing uses: %s%s", out, errOut)
	}
	if strings.Contains(strings.ToLower(out+inJSON), "slow start") || strings.Contains(fmt.Sprint(report.Findings), "slow") {
		t.Errorf("a slow start that nobody waits for is a problem in stats or doctor:\n%s%+v", out, report.Findings)
	}

	// The file breaks. Whoever asks by the file is answered, and told so.
	x.write(string(readFile(t, x.path)) + "nothing: 1\n")
	want[x.path] = [2]string{status.CodeConfigRefused, "nothing: unknown setting"}
	testkit.Eventually(t, "stats -c says in JSON that the file is refused", func() bool {
		_, out, _ := run("stats", "-c", x.path, "--json")
		return strings.Contains(out, `"code": "`+status.CodeConfigRefused+`"`)
	})
	for _, verb := range []string{"stats", "doctor"} {
		if _, out, errOut := run(verb, "-c", x.path); !strings.Contains(out+errOut, "nothing: unknown setting") {
			t.Errorf("%s does not say what is wrong with the file:\n%s%s", verb, out, errOut)
		}
	}
	t.Run("page", func(t *testing.T) {
		p := browser.Start(t).Open(t, url, browser.Look{Width: 1280, Height: 900})
		p.Until("the page has all the problems", fmt.Sprintf("document.querySelectorAll('#problems li').length === %d", len(want)))
		text := browser.Eval[string](p, "[...document.querySelectorAll('#problems li')].map((e) => e.textContent).join('\\n')")
		for subject, w := range want {
			if !strings.Contains(text, w[0]) || !strings.Contains(text, w[1]) || !strings.Contains(text, subject) {
				t.Errorf("the page does not say %s, %q of %s: %s", w[0], w[1], subject, text)
			}
		}
	})

	must(t, os.Remove(filepath.Join(dir, "servers.pem")))
	if code, out, errOut := run("stats", "-c", x.path); code != cli.ExitDone || !strings.Contains(out, "nothing: unknown setting") {
		t.Errorf("stats -c without a certificate that the file names: %d\n%s%s", code, out, errOut)
	}
	must(t, os.Rename(x.path, x.path+"~"))
	testkit.Eventually(t, "stats says that the file is gone", func() bool {
		_, out, _ := run("stats", "--socket", filepath.Join(dir, "c.sock"), "--json")
		return strings.Contains(out, `"code": "`+status.CodeConfigRefused+`"`) && strings.Contains(out, "no such file")
	})
	x.stop()
	farSignals <- os.Interrupt
	if err := farEnds(); err != nil {
		t.Error(err)
	}
}
