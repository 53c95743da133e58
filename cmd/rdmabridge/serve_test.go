package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/configs"
	"github.com/rdmabridge/rdmabridge/internal/regmem"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
)

// startServe runs serve with a configuration. wait waits for the end and returns the error
// of serve.
func startServe(t *testing.T, text string) (b *bridge, signals chan os.Signal, wait func() error) {
	t.Helper()
	c, err := configs.Load([]byte(text), known)
	if err != nil {
		t.Fatal(err)
	}
	log := new(testkit.Log)
	signals = make(chan os.Signal, 2)
	started, ended := make(chan *bridge, 1), make(chan error, 1)
	go func() {
		ended <- serve(c, zerolog.New(log), signals, func(b *bridge) error {
			started <- b
			return nil
		})
	}()
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("log:\n%s", log)
		}
	})
	select {
	case b := <-started:
		return b, signals, func() error {
			select {
			case err := <-ended:
				return err
			case <-time.After(testkit.Patience):
				t.Fatal("serve does not end")
				return nil
			}
		}
	case err := <-ended:
		t.Fatalf("serve: %v", err)
	case <-time.After(testkit.Patience):
		t.Fatal("serve does not start")
	}
	return nil, nil, nil
}

func get(t *testing.T, url string) (int, string) {
	t.Helper()
	r, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return r.StatusCode, string(body)
}

// TestAdmin: while an upstream is down, /readyz fails and /livez does not.
func TestAdmin(t *testing.T) {
	dead := testkit.DeadAddr(t)
	b, signals, wait := startServe(t, strings.Replace(minimalConfig, "127.0.0.1:1", dead, 1)+"memory: {budget: 256MiB}\n")
	url := "http://" + b.admin.Addr()
	if code, body := get(t, url+"/livez"); code != http.StatusOK || body != "ok\n" {
		t.Errorf("/livez: %d %q", code, body)
	}
	if code, body := get(t, url+"/readyz"); code != http.StatusServiceUnavailable || !strings.Contains(body, "storage") {
		t.Errorf("/readyz: %d %q", code, body)
	}
	var code int
	var body string
	testkit.Eventually(t, "the bridge has tried to connect", func() bool {
		code, body = get(t, url+"/api/v1/status")
		return strings.Contains(body, dead)
	})
	if code != http.StatusOK || !strings.Contains(body, `"state":"not_ready"`) || !strings.Contains(body, b.proxy.Addr("nfs")) {
		t.Errorf("/api/v1/status: %d\n%s", code, body)
	}
	if code, body := get(t, url+"/"); code != http.StatusOK || !strings.HasPrefix(body, "<!doctype html>") {
		t.Errorf("/: %d\n%s", code, body)
	}
	if code, _ := get(t, url+"/nothing"); code != http.StatusNotFound {
		t.Errorf("/nothing: %d", code)
	}
	code, body = get(t, url+"/metrics")
	if code != http.StatusOK {
		t.Errorf("/metrics: %d", code)
	}
	for _, want := range []string{
		"rdmabridge_build_info{", "rdmabridge_memory_budget_bytes 2.68435456e+08", "rdmabridge_memory_used_bytes ",
		`rdmabridge_memory_account_used_bytes{account="calls"}`, `rdmabridge_listener_clients{listener="nfs"} 0`, "go_goroutines ",
	} {
		if !strings.Contains(body, want) {
			t.Errorf("/metrics lacks %s", want)
		}
	}
	signals <- syscall.SIGTERM
	if err := wait(); err != nil {
		t.Errorf("serve: %v", err)
	}
	if _, err := http.Get(url + "/livez"); err == nil {
		t.Error("the admin server answers after the end")
	}
}

// TestIPv4Alone: every server of the bridge whose address is 0.0.0.0 listens on IPv4 alone.
func TestIPv4Alone(t *testing.T) {
	if l, err := net.Listen("tcp", "[::1]:0"); err != nil {
		t.Skip("no IPv6 here: ", err)
	} else {
		l.Close()
	}
	b, signals, wait := startServe(t, `
listeners:
  - {name: tcp, address: "0.0.0.0:0", upstream: storage}
  - {name: rdma, address: "0.0.0.0:0", transport: rdma, upstream: storage}
upstreams: [{name: storage, transport: tcp, endpoints: ["127.0.0.1:1"]}]
rpcbind: {address: "0.0.0.0:0"}
admin: {address: "0.0.0.0:0"}
memory: {budget: 256MiB}
`)
	for name, address := range map[string]string{
		"the listener over TCP": b.proxy.Addr("tcp"), "the listener over RDMA": b.proxy.Addr("rdma"),
		"rpcbind": b.rpcbind.Addr().String(), "admin": b.admin.Addr(),
	} {
		_, port, _ := net.SplitHostPort(address)
		for host, want := range map[string]bool{"127.0.0.1": true, "::1": false} {
			c, err := net.Dial("tcp", net.JoinHostPort(host, port))
			if err == nil {
				c.Close()
			}
			if (err == nil) != want {
				t.Errorf("%s at %s, connecting to %s: %v, want it to be possible: %v", name, address, host, err, want)
			}
		}
	}
	if c, err := net.ListenPacket("udp", fmt.Sprintf("[::1]:%d", b.rpcbind.Addr().Port())); err != nil {
		t.Errorf("rpcbind has the port of IPv6 over UDP, too: %v", err)
	} else {
		c.Close()
	}
	signals <- syscall.SIGTERM
	if err := wait(); err != nil {
		t.Errorf("serve: %v", err)
	}
}

// TestLargest: every length that the configuration allows fits one lease. Plan rounds a
// Reply chunk up by less than 8 KiB.
func TestLargest(t *testing.T) {
	if configs.MaxRecord > regmem.MaxLease || configs.MaxReply+8*configs.KiB > regmem.MaxLease {
		t.Errorf("records of %s or Reply chunks of %s do not fit a lease of %d", configs.MaxRecord, configs.MaxReply, regmem.MaxLease)
	}
	_, signals, wait := startServe(t, `
listeners:
  - {name: a, address: 127.0.0.1:0, upstream: s, limits: {record: 8MiB, connections: 1048576, calls: 65536, outbound: 1GiB}}
  - {name: b, address: 127.0.0.1:0, transport: rdma, upstream: s, credits: 1024, inline: {call: 64KiB, reply: 64KiB}, limits: {record: 8MiB}}
upstreams:
  - {name: s, transport: rdma, endpoints: ["127.0.0.1:1"], pool: {connections: 64, credits: 1024}, inline: {call: 64KiB, reply: 64KiB}}
chunks: {io: 8MiB, reply: 8200KiB}
memory: {budget: 32GiB}
admin: {address: none}
loops: 2
`)
	signals <- syscall.SIGTERM
	if err := wait(); err != nil {
		t.Errorf("serve: %v", err)
	}
}

// TestNotifySystemd: the bridge notifies systemd when it listens and when it stops.
func TestNotifySystemd(t *testing.T) {
	path := filepath.Join(t.TempDir(), "notify")
	l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	t.Setenv("NOTIFY_SOCKET", path)
	want := func(state string) {
		t.Helper()
		b := make([]byte, 64)
		l.SetReadDeadline(time.Now().Add(testkit.Patience))
		if n, err := l.Read(b); err != nil || string(b[:n]) != state {
			t.Errorf("systemd hears %q, %v; want %s", b[:n], err, state)
		}
	}
	_, signals, wait := startServe(t, minimalConfig)
	want("READY=1")
	signals <- syscall.SIGTERM
	want("STOPPING=1")
	if err := wait(); err != nil {
		t.Errorf("serve: %v", err)
	}
}

// TestServiceManagerIsGone: systemd may end before the bridge when the host is shut down. The bridge warns only when it cannot
// say that it is ready, because systemd ends a service that does not say it.
func TestServiceManagerIsGone(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", filepath.Join(t.TempDir(), "gone"))
	for state, warns := range map[string]bool{"READY=1": true, "MAINPID=7\nREADY=1": true, "STOPPING=1": false, "WATCHDOG=1": false, reloading(): false} {
		var log testkit.Log
		tellSystemd(zerolog.New(&log), state)
		if got := strings.Contains(log.String(), "notify_failed"); got != warns {
			t.Errorf("%q: the bridge warns: %v, want %v", state, got, warns)
		}
	}
}

// TestServeTaken: a bridge whose port is in use reports that and ends.
func TestServeTaken(t *testing.T) {
	b, signals, wait := startServe(t, minimalConfig)
	c, err := configs.Load([]byte(strings.Replace(minimalConfig, "127.0.0.1:0", b.proxy.Addr("nfs"), 1)), known)
	if err != nil {
		t.Fatal(err)
	}
	if err := serve(c, zerolog.Nop(), nil, nil); err == nil || !strings.Contains(err.Error(), "address already in use") {
		t.Errorf("err = %v, want address already in use", err)
	}
	signals <- syscall.SIGINT
	if err := wait(); err != nil {
		t.Errorf("serve: %v", err)
	}
}
