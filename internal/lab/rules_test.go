//go:build lab

package lab

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// testRuleRates: the kernel's client reads and writes 4 MiB in /export/archive at the 512 KiB a second of the rule, and as much
// beside it at once. Neither loses anything.
func testRuleRates(t *testing.T, g *guest, b *bridgeProcess, far farEnd, vers string) {
	const matched, waits = `listener_rule_calls_total{listener="rates",rule="archive"`, `listener_rate_limit_waits_total{limit="rule",listener="rates"}`
	for _, x := range []struct {
		dir   string
		least float64 // seconds: of the READs, those that are sent together do not wait for each other's Replies
	}{{"", 0}, {"/archive", 6}} {
		calls, waited := b.metric(t, matched), b.metric(t, waits)
		out := g.job(t, 2*time.Minute, far.script("STEP=rate DIR="+x.dir+" /lab/exports.sh", vers))
		var took float64
		if _, at, ok := strings.Cut(out, "took "); !ok {
			t.Fatal(out)
		} else if _, err := fmt.Sscan(at, &took); err != nil {
			t.Fatal(err)
		}
		if took < x.least {
			t.Errorf("/export%s: 8 MiB took %.1f s", x.dir, took)
		}
		limited := x.least > 0
		if calls, waited = b.metric(t, matched)-calls, b.metric(t, waits)-waited; limited != (waited > 0) || limited != (calls > 8) {
			t.Errorf("/export%s: the rule has matched %.0f Calls, and the client has waited %.0f times", x.dir, calls, waited)
		}
		t.Logf("/export%s: 8 MiB in %.2f s, %.0f Calls of the rule, %.0f waits", x.dir, took, calls, waited)
	}
	b.wantNoErrors(t)
}

// testRules: rules make exports read-only, and users others, for the kernel's client and server, neither of which knows.
func testRules(t *testing.T, g *guest) {
	p := freePorts(t, 7)
	readOnly, readOnlyRDMA, root, all, exports, rates := p[0], p[1], p[2], p[3], p[5], p[6]
	const changes = "rules: [{name: readers, class: changing, action: deny}]"
	const routes = "upstream: storage, routes: [{program: mount, upstream: mountd}]"
	b := newBridgeWith(t, readOnly, p[4], fmt.Sprintf(`
listeners:
  - {name: read-only, address: "127.0.0.1:%[1]d", transport: tcp, %[6]s, %[7]s}
  - {name: read-only-rdma, address: "127.0.0.1:%[2]d", transport: rdma, provider: iwarp, upstream: knfsd, %[7]s}
  - {name: root, address: "127.0.0.1:%[3]d", transport: tcp, %[6]s, squash: {mode: root}}
  - {name: all, address: "127.0.0.1:%[4]d", transport: tcp, %[6]s, squash: {mode: all, uid: 1001, gid: 1000}}
  - name: exports
    address: "127.0.0.1:%[11]d"
    transport: tcp
    upstream: storage
    routes: [{program: mount, upstream: mountd}]
    rules:
      - {name: archive, class: changing, exports: [/export/archive], action: deny}
      - {name: secret, exports: [/export/secret], action: deny}
  - name: rates
    address: "127.0.0.1:%[12]d"
    transport: tcp
    upstream: storage
    routes: [{program: mount, upstream: mountd}]
    rules: [{name: archive, exports: [/export/archive], action: limit, rate: {bytes: 512KiB}}]
upstreams:
  - name: storage
    transport: rdma
    provider: iwarp
    endpoints: ["127.0.0.1:%[8]d"]
    pool: {connections: 4, credits: 128}
    mount: {port: %[10]d}
  - {name: knfsd, transport: tcp, endpoints: ["127.0.0.1:%[9]d"], pool: {connections: 2}}
  - {name: mountd, transport: tcp, endpoints: ["127.0.0.1:%[10]d"]}
memory: {budget: 128MiB}
admin: {address: 127.0.0.1:%[5]d}
log: {level: info, format: json}
`, readOnly, readOnlyRDMA, root, all, p[4], routes, changes, g.rdma, g.nfs, g.mount, exports, rates))
	g.job(t, time.Minute, "STEP=setup /lab/exports.sh")
	defer g.job(t, time.Minute, "STEP=remove /lab/exports.sh")
	b.start(t)
	for _, v := range []string{"3", "4.0", "4.2"} {
		t.Run("exports/"+v, func(t *testing.T) {
			g.job(t, 2*time.Minute, farEnd{nfs: exports, mount: exports}.script("/lab/exports.sh", v))
			b.wantNoErrors(t)
		})
	}
	for _, v := range []string{"3", "4.0", "4.2"} {
		t.Run("rates/"+v, func(t *testing.T) { testRuleRates(t, g, b, farEnd{nfs: rates, mount: rates}, v) })
	}
	t.Run("exports/made-up", func(t *testing.T) { testMadeUpHandles(t, g, exports) })
	for _, v := range []string{"3", "4.0", "4.2"} {
		t.Run("readonly/"+v, func(t *testing.T) {
			g.job(t, 2*time.Minute, farEnd{nfs: readOnly, mount: readOnly}.script("/lab/readonly.sh", v))
			b.wantNoErrors(t)
		})
	}
	t.Run("readonly/rdma/4.2", func(t *testing.T) {
		g.job(t, 2*time.Minute, farEnd{nfs: readOnlyRDMA, mount: readOnly, env: "PROTO=rdma"}.script("/lab/readonly.sh", "4.2"))
		b.wantNoErrors(t)
	})
	t.Run("readonly/kerberos", func(t *testing.T) {
		g.job(t, time.Minute, "/lab/krb5.sh start")
		defer g.job(t, time.Minute, "/lab/krb5.sh stop")
		far := farEnd{nfs: readOnly, mount: readOnly, host: "bridge.lab"} // the server's principal is nfs/bridge.lab
		for _, x := range []struct{ sec, vers, refusal string }{
			{"krb5", "4.2", "Read-only file system"},
			{"krb5i", "3", "Permission denied"},
			{"krb5i", "4.2", "Permission denied"},
			{"krb5p", "3", "Permission denied"},
		} {
			t.Run(x.sec+"/"+x.vers, func(t *testing.T) {
				g.job(t, 3*time.Minute, far.script(fmt.Sprintf("SEC=%s REFUSAL='%s' /lab/readonly.sh", x.sec, x.refusal), x.vers))
				b.wantNoErrors(t)
			})
		}
	})
	for _, x := range []struct {
		name  string
		port  int
		owner map[string]string // user and group of who makes a file
	}{
		{"root", root, map[string]string{"root": "65534 65534", "alice": "1000 1000", "bob": "1001 1001"}},
		{"all", all, map[string]string{"root": "1001 1000", "alice": "1001 1000", "bob": "1001 1000"}},
	} {
		for _, v := range []string{"3", "4.2"} {
			t.Run("squash/"+x.name+"/"+v, func(t *testing.T) {
				out := g.job(t, time.Minute, farEnd{nfs: x.port, mount: x.port}.script("/lab/squash.sh", v))
				for user, want := range x.owner {
					if !strings.Contains(out, fmt.Sprintf("owner %s %s\n", user, want)) {
						t.Errorf("squash of %s: the file of %s should belong to %s:\n%s", x.name, user, want, out)
					}
				}
				b.wantQuiet(t)
			})
		}
	}
	b.stop(t)
}
