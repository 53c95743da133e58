package admin

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

	"github.com/rdmabridge/rdmabridge/internal/status"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/metrics"
)

// startServer starts a Server that waits for its clients for requestTimeout.
func startServer(t *testing.T, source Source, closed *metrics.Counter, requestTimeout time.Duration) (*Server, *testkit.Log) {
	t.Helper()
	if source.Document == nil {
		source.Document = func(status.Query) status.Document { return status.Document{Time: time.Now()} }
	}
	log := new(testkit.Log)
	h := NewHandler(source)
	t.Cleanup(h.Close)
	s := NewServer(Options{Address: "127.0.0.1:0", Log: zerolog.New(log), Handler: h, Closed: closed})
	if s.server.ReadTimeout <= 0 || s.server.ReadHeaderTimeout <= 0 {
		t.Error("a request may take for ever")
	}
	s.server.ReadTimeout, s.server.ReadHeaderTimeout = requestTimeout, requestTimeout
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s, log
}

// TestConnections: requests that never end keep no probe out, and take no more descriptors
// than are reserved. One line and one counter say so.
func TestConnections(t *testing.T) {
	closed := metrics.New().Counter(metrics.AdminClosedConnections)
	a, log := startServer(t, Source{}, closed, time.Hour) // otherwise some are closed for that, if the machine is busy
	const n = 300
	for i := range n {
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 1, byte(1+i%3))}}
		c, err := d.Dial("tcp", a.Addr())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		fmt.Fprint(c, "GET /metrics HTTP/1.1\r\nHost: x\r\n")
	}
	testkit.Eventually(t, "those beyond the limit are closed", func() bool { return closed.Value() == n-MaxConns })
	for i := range 10 {
		r, err := http.Get("http://" + a.Addr() + "/readyz")
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

// TestErrors: what package http has to say is in the format of the log.
func TestErrors(t *testing.T) {
	a, log := startServer(t, Source{Ready: func() error { panic("out of order") }}, nil, testkit.Patience)
	if r, err := http.Get("http://" + a.Addr() + "/readyz"); err == nil {
		r.Body.Close()
	}
	testkit.Eventually(t, "the error is logged", func() bool { return strings.Contains(log.String(), "out of order") })
	for line := range strings.Lines(log.String()) {
		if !json.Valid([]byte(line)) {
			t.Errorf("a line in another format: %q", line)
		}
	}
}
