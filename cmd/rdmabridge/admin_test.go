package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/configs"
	"github.com/rdmabridge/rdmabridge/internal/control"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/metrics"
)

// startAdmin starts an admin server that waits for its clients for requestTimeout.
func startAdmin(t *testing.T, source adminSource, requestTimeout time.Duration) (*admin, *syncBuffer) {
	t.Helper()
	log := new(syncBuffer)
	a := newAdmin("127.0.0.1:0", zerolog.New(log), source)
	if a.server.ReadTimeout <= 0 || a.server.ReadHeaderTimeout <= 0 {
		t.Error("a request may take for ever")
	}
	a.server.ReadTimeout, a.server.ReadHeaderTimeout = requestTimeout, requestTimeout
	if err := a.start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = a.close() })
	return a, log
}

// TestAdminConnections: requests that never end keep no probe out, and take no more descriptors
// than are reserved. One line and one counter say so.
func TestAdminConnections(t *testing.T) {
	closed := metrics.New().Counter("closed", "")
	source := adminSource{metrics: http.NotFoundHandler(), ready: func() error { return nil }, closed: closed}
	a, log := startAdmin(t, source, time.Hour) // otherwise some are closed for that, if the machine is busy
	const n = 300
	for i := range n {
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 1, byte(1+i%3))}}
		c, err := d.Dial("tcp", a.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		fmt.Fprint(c, "GET /metrics HTTP/1.1\r\nHost: x\r\n")
	}
	testkit.Eventually(t, "those beyond the limit are closed", func() bool { return closed.Value() == n-maxAdminConns })
	for i := range 10 {
		r, err := http.Get("http://" + a.addr + "/readyz")
		if err != nil {
			t.Fatalf("probe %d: %v", i, err)
		}
		_, _ = io.Copy(io.Discard, r.Body)
		r.Body.Close()
		if r.StatusCode != http.StatusOK {
			t.Errorf("probe %d: %s", i, r.Status)
		}
		http.DefaultClient.CloseIdleConnections()
	}
	lines := strings.Count(log.String(), "admin server has too many connections")
	if lines == 0 || lines > 50 {
		t.Errorf("%d lines for %d connections", lines, n)
	}
}

// TestAdminErrors: what package http has to say is in the format of the log.
func TestAdminErrors(t *testing.T) {
	a, log := startAdmin(t, adminSource{metrics: http.NotFoundHandler(), ready: func() error { panic("out of order") }}, testkit.Patience)
	if r, err := http.Get("http://" + a.addr + "/readyz"); err == nil {
		r.Body.Close()
	}
	testkit.Eventually(t, "the error is logged", func() bool { return strings.Contains(log.String(), "out of order") })
	for line := range strings.Lines(log.String()) {
		if !json.Valid([]byte(line)) {
			t.Errorf("a line in another format: %q", line)
		}
	}
}

// TestDescriptors: clients have what the admin server and the upstreams leave of RLIMIT_NOFILE.
func TestDescriptors(t *testing.T) {
	c, err := configs.Load([]byte(`
listeners:
  - {name: nfs, address: ':2049', upstream: one, limits: {connections: 5000}}
  - {name: rdma, address: ':20049', transport: rdma, upstream: two, limits: {connections: 100, starting: 10}}
upstreams:
  - {name: one, transport: rdma, endpoints: ['192.0.2.1:20049', '192.0.2.2:20049'], pool: {connections: 4, mode: pinned, pinned: 200}}
  - {name: two, transport: tcp, endpoints: ['192.0.2.1:2049', '192.0.2.2:2049'], failover: on, pool: {connections: 3, mode: shared}}
loops: 2
`), known)
	if err != nil {
		t.Fatal(err)
	}
	reserved := otherDescriptors + maxAdminConns + control.MaxConnections + 8*2 + 2*2 + 2*4*2 + 200 + 2*3
	for _, tt := range []struct{ limit, want int }{
		{1 << 20, 1<<20 - reserved},
		{1024, 1024 - reserved},
		{400, 100},
	} {
		if got := clientDescriptors(c, tt.limit); got != tt.want {
			t.Errorf("%d of %d descriptors are for clients, want %d", got, tt.limit, tt.want)
		}
	}
	if got := wantedDescriptors(c); got != 5000 {
		t.Errorf("%d are wanted, want 5000", got)
	}
}
