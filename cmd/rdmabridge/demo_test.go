//go:build !nodemo

package main

import (
	"bytes"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/demo"
	"github.com/rdmabridge/rdmabridge/internal/demo/demotest"
	"github.com/rdmabridge/rdmabridge/internal/status"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
)

// startDemo runs the demo on free ports until the test ends.
func startDemo(t *testing.T) (demo.Addresses, *bridge) {
	t.Helper()
	var out bytes.Buffer
	log := new(testkit.Log)
	signals := make(chan os.Signal, 2)
	type ready struct {
		addresses demo.Addresses
		bridge    *bridge
	}
	started, ended := make(chan ready, 1), make(chan error, 1)
	go func() {
		o := demo.Addresses{TCP: "127.0.0.1:0", RDMA: testkit.FreeAddr(t), Admin: "127.0.0.1:0"}
		ended <- runDemo(o, &out, log, signals, func(a demo.Addresses, b *bridge) { started <- ready{a, b} })
	}()
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("log:\n%s", log)
		}
	})
	var r ready
	select {
	case r = <-started:
	case err := <-ended:
		t.Fatalf("demo: %v\n%s", err, log)
	}
	if got := r.bridge.config.Control.Path; filepath.Base(got) != "demo.sock" && got != "none" {
		t.Errorf("the demo's control socket is %s, which may be a bridge's", got)
	}
	t.Cleanup(func() {
		signals <- syscall.SIGTERM
		select {
		case err := <-ended:
			if err != nil {
				t.Errorf("demo: %v", err)
			}
			if s := log.String(); strings.Contains(s, "memory leak") {
				t.Error("not all message memory was released")
			}
		case <-time.After(testkit.Patience):
			t.Error("the demo does not end")
		}
	})
	_, port, err := net.SplitHostPort(r.addresses.TCP)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"mount -t nfs -o vers=3,proto=tcp,port=" + port + ",mountport=" + port + ",mountproto=tcp,nolock 127.0.0.1:/ /mnt",
		"nfs-cat          'nfs://127.0.0.1//hello?nfsport=" + port + "&mountport=" + port + "'",
		"http://" + r.addresses.Admin + "/",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the demo does not say %q:\n%s", want, out.String())
		}
	}
	return r.addresses, r.bridge
}

// TestDemo runs the demo as the README describes it: TCP, iWARP, TCP.
func TestDemo(t *testing.T) {
	a, b := startDemo(t)
	url := "http://" + a.Admin
	for _, path := range []string{"/readyz", "/livez"} {
		if code, body := get(t, url+path); code != http.StatusOK || body != "ok\n" {
			t.Errorf("%s: %d %q", path, code, body)
		}
	}
	entries, largest := 2000, 64<<20
	if testkit.RaceEnabled {
		entries, largest = 500, 8<<20
	}
	t.Run("go", func(t *testing.T) { demotest.GoClient(t, a.TCP, entries) })
	t.Run("libnfs", func(t *testing.T) { demotest.Libnfs(t, a.TCP, largest) })
	t.Run("largest", func(t *testing.T) { demotest.Largest(t, a.TCP) })
	t.Run("versions", func(t *testing.T) { testVersions(t, a.TCP) })

	// The Calls went over RDMA.
	status := b.proxy.Status(status.Query{})
	if n := len(status.Upstreams); n != 2 {
		t.Fatalf("%d upstreams, want 2", n)
	}
	_, body := get(t, url+"/metrics")
	for _, upstream := range []string{"rdma", "server"} {
		if v := series(body, fmt.Sprintf(`rdmabridge_upstream_sent_calls_total{upstream=%q}`, upstream)); v == "" || v == "0" {
			t.Errorf("no Call was sent to upstream %s: %q", upstream, v)
		}
	}
	for _, u := range status.Upstreams {
		if u.State != "up" {
			t.Errorf("upstream %s is %s: %s", u.Name, u.State, u.LastError)
		}
	}
	if code, body := get(t, url+"/"); code != http.StatusOK || !strings.Contains(body, "<title>") {
		t.Errorf("the status page: %d, %s", code, body)
	}
}

// testVersions calls programs and versions without a route. The bridge answers them:
// go-nfs would treat NFSv4 as NFSv3.
func testVersions(t *testing.T, addr string) {
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(testkit.Patience))
	for i, tc := range []struct {
		program, version uint32
		want             string // from the verifier on
	}{
		{100003, 3, "0000000000000000 00000000"},                   // SUCCESS
		{100003, 4, "0000000000000000 00000002 00000003 00000003"}, // PROG_MISMATCH, 3 to 3
		{100005, 1, "0000000000000000 00000002 00000003 00000003"},
		{100021, 4, "0000000000000000 00000001"}, // PROG_UNAVAIL
	} {
		if _, err := c.Write(testkit.Record(nullCall(uint32(i), tc.program, tc.version))); err != nil {
			t.Fatal(err)
		}
		m, err := testkit.ReadRecord(c)
		if err != nil {
			t.Fatal(err)
		}
		want := fmt.Sprintf("%08x0000000100000000", i) + strings.ReplaceAll(tc.want, " ", "")
		if got := fmt.Sprintf("%x", m); got != want {
			t.Errorf("program %d version %d: %s, want %s", tc.program, tc.version, got, want)
		}
	}
}

// TestServeTCP puts the demo's server behind a bridge without RDMA.
func TestServeTCP(t *testing.T) {
	t.Parallel()
	server := startDemoNFS(t, demo.Options{})
	b, signals, wait := startServe(t, fmt.Sprintf(`
listeners: [{name: nfs, address: 127.0.0.1:0, upstream: server}]
upstreams: [{name: server, transport: tcp, endpoints: [%q], pool: {connections: 3}}]
admin: {address: none}
drain: {timeout: 1m}
`, server))
	t.Run("go", func(t *testing.T) { demotest.GoClient(t, b.proxy.Addr("nfs"), 300) })
	t.Run("libnfs", func(t *testing.T) { demotest.Libnfs(t, b.proxy.Addr("nfs"), 8<<20) })
	signals <- syscall.SIGTERM
	if err := wait(); err != nil {
		t.Errorf("serve: %v", err)
	}
	if n := b.arena.Outstanding(); n != 0 {
		t.Errorf("%d leases outstanding at the end", n)
	}
}
