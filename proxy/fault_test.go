package proxy_test

import (
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/internal/status"
	"github.com/rdmabridge/rdmabridge/internal/testkit/proxytest"
	"github.com/rdmabridge/rdmabridge/proxy"
	"github.com/rdmabridge/rdmabridge/proxy/settings"
	"github.com/rdmabridge/rdmabridge/rdmaside/iwarp"
)

// serveAny accepts connections and calls serve for each.
func serveAny(t *testing.T, serve func(net.Conn)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			t.Cleanup(func() { c.Close() })
			go serve(c)
		}
	}()
	return l.Addr().String()
}

// unready starts a proxy that need not get ready.
func unready(t *testing.T, h *proxytest.Harness, l settings.ListenerOptions, u settings.UpstreamOptions) *proxy.Proxy {
	t.Helper()
	p, err := proxy.New(proxy.Options{
		Log: h.Log, Metrics: h.Metrics, Engine: h.Engine, Arena: h.Arena, Registry: h.Registry,
		Listeners: proxytest.Listeners(l), Upstreams: proxytest.Upstreams(u),
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	return p
}

// TestUpstreamFault: what listens at an endpoint is no server that the bridge can use. The upstream is down from the
// start, though it accepts connections, and a problem with a code of its own says why.
func TestUpstreamFault(t *testing.T) {
	for _, tt := range []struct {
		name string
		rdma bool
		at   func(t *testing.T, h *proxytest.Harness) string
		code string
		says string
	}{
		{"RDMA at NFS over TCP", true, func(_ *testing.T, h *proxytest.Harness) string {
			return h.TCPServer(proxytest.Behaviour{}).Addr()
		}, status.CodeProtocol, "does not answer to RDMA"},
		{"RDMA at HTTP", true, func(t *testing.T, _ *proxytest.Harness) string {
			return serveAny(t, func(c net.Conn) { _, _ = c.Write([]byte("HTTP/1.1 400 Bad Request\r\n\r\n")); c.Close() })
		}, status.CodeProtocol, "it speaks HTTP"},
		{"RDMA at a server that waits for more", true, func(t *testing.T, _ *proxytest.Harness) string {
			return serveAny(t, func(net.Conn) {})
		}, status.CodeProtocol, "does not answer to RDMA"},
		{"TCP at RDMA", false, func(t *testing.T, h *proxytest.Harness) string {
			side := iwarpSide(iwarp.Options{})
			return h.RDMAServer(side.provider, []loop.Loop{side.loop(t)}, "127.0.0.1:0", 32, proxytest.Behaviour{}).Addr()
		}, status.CodeProtocol, "ends them without an answer"},
		{"TCP at TLS", false, func(t *testing.T, _ *proxytest.Harness) string {
			s := httptest.NewTLSServer(http.NotFoundHandler())
			t.Cleanup(s.Close)
			return s.Listener.Addr().String()
		}, status.CodeProtocol, ""},
		{"TCP at HTTP", false, func(t *testing.T, _ *proxytest.Harness) string {
			return serveAny(t, func(c net.Conn) { _, _ = c.Write([]byte("HTTP/1.1 400 Bad Request\r\n\r\n")); c.Close() })
		}, status.CodeProtocol, "the peer speaks HTTP"},
		{"TCP at HTTP that waits for more", false, func(t *testing.T, _ *proxytest.Harness) string {
			s := httptest.NewServer(http.NotFoundHandler())
			t.Cleanup(s.Close)
			return s.Listener.Addr().String()
		}, status.CodeUpstreamDown, "has answered nothing yet"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			h := proxytest.NewHarness(t, budget)
			u := settings.UpstreamOptions{
				Name: "s", Endpoints: []string{tt.at(t, h)}, RDMA: tt.rdma,
				ConnectTimeout: 300 * time.Millisecond, BackoffMin: 10 * time.Millisecond, BackoffMax: 50 * time.Millisecond,
			}
			if tt.rdma {
				u.Provider = proxytest.IWARP(iwarp.Options{})
			}
			began := time.Now()
			p := unready(t, h, settings.ListenerOptions{Name: "nfs", Address: "127.0.0.1:0", Upstream: "s"}, u)
			seen := false
			for time.Since(began) < 2*time.Second && !(seen && time.Since(began) > time.Second) {
				d := p.Status(status.Query{})
				up := &d.Upstreams[0]
				if up.State != status.Down || p.Ready() == nil || up.DownSince == nil || up.DownSince.After(began.Add(100*time.Millisecond)) {
					t.Fatalf("after %v: state %s since %v, and the bridge is ready: %v", time.Since(began), up.State, up.DownSince, p.Ready() == nil)
				}
				d.Time, d.Started = d.Time.Add(time.Minute), began // the judge waits for a few seconds
				if ps := status.Judge(&d, nil); up.LastError != "" {
					seen = len(ps) == 1 && ps[0].Code == tt.code && strings.Contains(ps[0].Text, tt.says)
					if !seen && time.Since(began) > time.Second {
						t.Fatalf("%+v", ps)
					}
				}
				time.Sleep(20 * time.Millisecond)
			}
			if !seen {
				t.Errorf("no problem says what is wrong: %+v", p.Status(status.Query{}).Upstreams[0])
			}
		})
	}
}
