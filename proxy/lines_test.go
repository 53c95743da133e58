package proxy_test

import (
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/internal/loglimit"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/internal/testkit/proxytest"
	"github.com/rdmabridge/rdmabridge/proxy/settings"
)

// TestLines: what many clients do wrong, and what becomes of many clients in an outage, takes a
// bounded number of log lines. The metrics count all of it, and the next line the rest.
func TestLines(t *testing.T) {
	t.Parallel()
	const clients = 60
	h := proxytest.NewHarness(t, budget)
	logs := new(testkit.Log)
	h.Log = zerolog.New(logs)
	dead := testkit.DeadAddr(t)
	began := time.Now()
	p := h.Start([]settings.ListenerOptions{{Name: "nfs", Address: "127.0.0.1:0", Upstream: "dead"}}, []settings.UpstreamOptions{{Name: "dead", Endpoints: []string{dead}, UnavailableAfter: 50 * time.Millisecond}})
	for name, m := range map[string][]byte{
		"not an RPC Call; connection closed":                {0, 0, 0, 1, 0, 0, 0, 9, 0, 0, 0, 9},
		"call cannot be answered; client connection closed": proxytest.GetattrCall(1),
	} {
		for range clients {
			c, err := net.Dial("tcp", p.Addr("nfs"))
			if err != nil {
				t.Fatal(err)
			}
			if err := testkit.WriteRecord(c, m); err != nil {
				t.Fatal(err)
			}
			_ = c.SetReadDeadline(time.Now().Add(testkit.Patience))
			if _, err := c.Read(make([]byte, 1)); err == nil {
				t.Errorf("%s: the client is answered", name)
			}
			c.Close()
		}
		n := strings.Count(logs.String(), name)
		if most := loglimit.Burst + int(time.Since(began)/loglimit.Every) + 1; n == 0 || n > most {
			t.Errorf("%d lines %q for %d clients, want at most %d", n, name, clients, most)
		}
	}
	for _, result := range []string{"malformed", "abandoned"} {
		series := fmt.Sprintf("listener_calls_total{listener=\"nfs\",result=%q}", result)
		h.Eventually(series, func() bool { return metric(h, series) == clients })
	}
}
