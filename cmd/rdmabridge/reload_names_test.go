package main

import (
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/internal/testkit/tlstest"
)

// TestReloadNames: after reloads that give every listener, upstream, tenant and rule another name, /metrics has as many
// series as at first, and none with an old name.
func TestReloadNames(t *testing.T) {
	s := startEchoServer(t, "one!")
	dir := t.TempDir()
	pair := tlstest.NewCA(t, "servers").Issue(t, tlstest.Subject{Name: "server", Names: []string{"localhost"}})
	cert, key := tlstest.Write(t, dir, "server.pem", pair.Cert), tlstest.Write(t, dir, "server.key", pair.Key)
	rdma, secure := testkit.FreeAddr(t), testkit.FreeAddr(t)
	config := func(n int) string {
		return strings.NewReplacer("#", fmt.Sprint("-", n), "RDMA", rdma, "SECURE", secure, "SERVER", s.addr, "CERT", cert, "KEY", key).Replace(`
listeners:
  - {name: nfs#, address: '127.0.0.1:0', upstream: self#, rules: [{name: all#, clients: [127.0.0.0/8], action: allow}]}
  - {name: rdma#, address: 'RDMA', transport: rdma, upstream: one#}
  - {name: tls#, address: 'SECURE', upstream: one#, tls: {mode: required, certificate: CERT, key: KEY}}
upstreams:
  - {name: self#, transport: rdma, endpoints: ['RDMA'], pool: {idle: none, connections: 2}}
  - {name: one#, transport: tcp, endpoints: ['SERVER']}
tenants: [{name: local#, clients: [127.0.0.0/8]}]
admin: {address: 127.0.0.1:0}
loops: 2
reload: {watch: none}
`)
	}
	x := startReload(t, config(0))
	call := func(n int) {
		t.Helper()
		c, err := net.Dial("tcp", x.b.proxy.Addr(fmt.Sprint("nfs-", n)))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if err := testkit.WriteRecord(c, userCall(1, 100003, 3)); err != nil {
			t.Fatal(err)
		}
		if _, err := testkit.ReadRecord(c); err != nil {
			t.Fatal(err)
		}
	}
	// series returns the names and labels of the bridge's series, without the numbers of the configuration n.
	series := func(n int) (all []string) {
		_, body := get(t, "http://"+x.b.admin.Addr()+"/metrics")
		for line := range strings.Lines(body) {
			if i := strings.LastIndexByte(line, ' '); strings.HasPrefix(line, "rdmabridge_") {
				all = append(all, strings.ReplaceAll(line[:i], fmt.Sprint("-", n, `"`), `"`))
			}
		}
		slices.Sort(all)
		return slices.Compact(all)
	}
	call(0)
	var first []string
	testkit.Eventually(t, "all connections are made", func() bool {
		now := series(0)
		done := len(now) == len(first)
		first = now
		return done && x.has(`rdmabridge_upstream_connections{upstream="self-0"} 2`)
	})
	const reloads = 12
	for n := range reloads {
		x.reload(config(n+1), loaded)
		call(n + 1)
	}
	var now []string
	if !testkit.Settles(testkit.Patience, func() bool { now = series(reloads); return slices.Equal(now, first) }) {
		t.Errorf("%d series, want %d:\n%s", len(now), len(first), strings.Join(difference(now, first), "\n"))
	}
	if _, body := get(t, "http://"+x.b.admin.Addr()+"/metrics"); strings.Contains(body, "tls-0") {
		t.Error("a series has the name of a listener that is gone")
	}
	x.stop()
}

// difference returns what only one of two sorted lists has.
func difference(now, want []string) (all []string) {
	for _, s := range now {
		if _, ok := slices.BinarySearch(want, s); !ok {
			all = append(all, "+ "+s)
		}
	}
	for _, s := range want {
		if _, ok := slices.BinarySearch(now, s); !ok {
			all = append(all, "- "+s)
		}
	}
	return all
}
