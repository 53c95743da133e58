package proxy_test

import (
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/internal/status"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/internal/testkit/proxytest"
	"github.com/rdmabridge/rdmabridge/internal/testkit/tlstest"
	"github.com/rdmabridge/rdmabridge/proxy/reach"
	"github.com/rdmabridge/rdmabridge/proxy/settings"
	"github.com/rdmabridge/rdmabridge/rdmaside/iwarp"
)

// TestUpstreamFault: what listens at an endpoint is no server that the bridge can use. The upstream is down from the
// start, though it accepts connections, and a problem with a code of its own says why.
func TestUpstreamFault(t *testing.T) {
	t.Parallel()
	// The far bridge requires TLS and certificates, and each test has files of its own.
	secure := func(change func(*security)) func(*security) *reach.TLS {
		return func(x *security) *reach.TLS {
			if change != nil {
				change(x)
			}
			return x.upstream(true)
		}
	}
	var files sync.Map // by the test
	farBridge := func(t *testing.T, _ *proxytest.Harness) string {
		x, h := newSecurity(t), proxytest.NewHarness(t, budget)
		files.Store(t.Name(), x)
		return h.Proxy([]settings.ListenerOptions{{Name: "far", Address: "127.0.0.1:0", Upstream: "storage", TLS: x.listener(true)}},
			[]settings.UpstreamOptions{{Name: "storage", Endpoints: []string{h.TCPServer(proxytest.Behaviour{}).Addr()}}}).Addr("far")
	}
	serveRDMA := func(t *testing.T, h *proxytest.Harness) string {
		side := iwarpSide(iwarp.Options{})
		return h.RDMAServer(side.provider, []loop.Loop{side.loop(t)}, "127.0.0.1:0", 32, proxytest.Behaviour{}).Addr()
	}
	for _, tt := range []struct {
		name string
		rdma bool
		at   func(t *testing.T, h *proxytest.Harness) string
		code string
		says string
		tls  func(x *security) *reach.TLS
	}{
		{"RDMA at NFS over TCP", true, func(_ *testing.T, h *proxytest.Harness) string {
			return h.TCPServer(proxytest.Behaviour{}).Addr()
		}, status.CodeProtocol, "does not answer to RDMA", nil},
		{"RDMA at HTTP", true, func(t *testing.T, _ *proxytest.Harness) string {
			return testkit.Serve(t, "tcp", "127.0.0.1:0", func(c net.Conn) { _, _ = c.Write([]byte("HTTP/1.1 400 Bad Request\r\n\r\n")); c.Close() })
		}, status.CodeProtocol, "it speaks HTTP", nil},
		{"RDMA at a server that waits for more", true, func(t *testing.T, _ *proxytest.Harness) string {
			return testkit.Serve(t, "tcp", "127.0.0.1:0", func(net.Conn) {})
		}, status.CodeProtocol, "does not answer to RDMA", nil},
		{"TCP at RDMA", false, serveRDMA, status.CodeProtocol, "ends them without an answer", nil},
		{"TCP at TLS", false, func(t *testing.T, _ *proxytest.Harness) string {
			s := httptest.NewUnstartedServer(http.NotFoundHandler())
			s.Config.ErrorLog = log.New(io.Discard, "", 0)
			s.StartTLS()
			t.Cleanup(s.Close)
			return s.Listener.Addr().String()
		}, status.CodeProtocol, "", nil},
		{"TCP at HTTP", false, func(t *testing.T, _ *proxytest.Harness) string {
			return testkit.Serve(t, "tcp", "127.0.0.1:0", func(c net.Conn) { _, _ = c.Write([]byte("HTTP/1.1 400 Bad Request\r\n\r\n")); c.Close() })
		}, status.CodeProtocol, "the peer speaks HTTP", nil},
		{"TCP at a server that waits for more", false, func(t *testing.T, _ *proxytest.Harness) string {
			return testkit.Serve(t, "tcp", "127.0.0.1:0", func(net.Conn) {}) // as HTTP does, if the XID has no newline
		}, status.CodeUpstreamDown, "has answered nothing yet", nil},
		{"TLS at a server without", false, func(_ *testing.T, h *proxytest.Harness) string {
			return h.TCPServer(proxytest.Behaviour{}).Addr()
		}, status.CodeTLS, "does not offer TLS", secure(nil)},
		{"TLS at RDMA", false, serveRDMA, status.CodeProtocol, "ends them without an answer", secure(nil)},
		{"certificate that the far bridge does not know", false, farBridge, status.CodeTLS, "refuses the certificate of this side", secure(func(x *security) {
			x.renew("user", tlstest.NewCA(x.t, "strangers"), tlstest.Subject{Name: "bridge"})
		})},
		{"no certificate where one is required", false, farBridge, status.CodeTLS, "requires a certificate", secure(func(x *security) {
			x.client.Certificate, x.client.Key = "", ""
		})},
		{"far bridge with a certificate of another CA", false, farBridge, status.CodeTLS, "no CA that this side trusts", secure(func(x *security) {
			x.client.CA = x.write("strangers.pem", tlstest.NewCA(x.t, "strangers").PEM())
		})},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			h := proxytest.NewHarness(t, budget)
			u := settings.UpstreamOptions{
				Name: "s", Endpoints: []string{tt.at(t, h)}, RDMA: tt.rdma,
				ConnectTimeout: 300 * time.Millisecond, BackoffMin: 10 * time.Millisecond, BackoffMax: 50 * time.Millisecond,
			}
			if tt.tls != nil {
				x, ok := files.Load(t.Name())
				if !ok {
					x = newSecurity(t)
				}
				u.TLS = tt.tls(x.(*security))
			}
			if tt.rdma {
				u.Provider = proxytest.IWARP(iwarp.Options{})
			}
			began := time.Now()
			p := h.Start([]settings.ListenerOptions{{Name: "nfs", Address: "127.0.0.1:0", Upstream: "s"}}, []settings.UpstreamOptions{u})
			seen, since := false, time.Time{}
			for time.Since(began) < 20*time.Second && !(seen && time.Since(began) > time.Second) {
				d := p.Status(status.Query{})
				up := &d.Upstreams[0]
				if up.State != status.Down || p.Ready() == nil || up.DownSince == nil || !since.IsZero() && !up.DownSince.Equal(since) {
					t.Fatalf("after %v: state %s since %v, %v before, and the bridge is ready: %v", time.Since(began), up.State, up.DownSince, since, p.Ready() == nil)
				}
				since = *up.DownSince
				d.Time, d.Started = d.Time.Add(time.Minute), began // the judge waits for a few seconds
				if ps := status.Judge(&d, nil); up.LastError != "" {
					seen = len(ps) == 1 && ps[0].Code == tt.code && strings.Contains(ps[0].Text, tt.says)
					if !seen && time.Since(began) > 15*time.Second {
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

// TestUpstreamRequiresTLS: a far bridge requires TLS, and the near one has none. It answers NULL Calls, with AUTH_TOOWEAK,
// so that the upstream is up. A problem says why its Calls fail, until TLS is there or other Calls succeed.
func TestUpstreamRequiresTLS(t *testing.T) {
	t.Parallel()
	x := newSecurity(t)
	near, far := proxytest.NewHarness(t, budget), proxytest.NewHarness(t, budget)
	s := far.TCPServer(proxytest.Behaviour{})
	addr := far.Proxy([]settings.ListenerOptions{{Name: "far", Address: "127.0.0.1:0", Upstream: "storage", TLS: x.listener(true)}},
		[]settings.UpstreamOptions{{Name: "storage", Endpoints: []string{s.Addr()}}}).Addr("far")
	p := near.Proxy([]settings.ListenerOptions{{Name: "nfs", Address: "127.0.0.1:0", Upstream: "far"}}, []settings.UpstreamOptions{{Name: "far", Endpoints: []string{addr}}})
	c := near.Client(p.Addr("nfs"))
	if r, err := c.Call(proxytest.GetattrCall(1)); err != nil || len(r) == 0 || s.Calls.Load() != 0 {
		t.Fatalf("%x, %v; %d Calls have reached the server", r, err, s.Calls.Load())
	}
	var ps []status.Problem
	near.Eventually("the problem is there", func() bool {
		d := p.Status(status.Query{})
		ps = status.Judge(&d, nil)
		return len(ps) > 0 && ps[0].Code == status.CodeTLS
	})
	if !strings.Contains(ps[0].Text, "requires TLS") || !strings.Contains(ps[0].Advice, "tls: {mode: required}") {
		t.Errorf("%+v", ps)
	}
}

// TestAfterOutage: the network to the server was away, and Calls that it had have waited for another connection. That is
// not the server's time, and no problem says so.
func TestAfterOutage(t *testing.T) {
	testkit.NeedsFilter(t)
	t.Parallel()
	h := proxytest.NewHarness(t, budget)
	gate := &proxytest.Gate{PassNull: true}
	s := h.TCPServer(proxytest.Behaviour{Gate: gate})
	relay := proxytest.NewRelay(t, s.Addr())
	p := h.Proxy([]settings.ListenerOptions{{Name: "nfs", Address: "127.0.0.1:0", Upstream: "s"}}, []settings.UpstreamOptions{{
		Name: "s", Endpoints: []string{relay.Addr()}, ConnectTimeout: 300 * time.Millisecond, BackoffMin: 10 * time.Millisecond, BackoffMax: 50 * time.Millisecond,
	}})
	c := h.Client(p.Addr("nfs"))
	gate.Shut()
	var replies []<-chan []byte
	for i := range uint32(30) {
		ch, err := c.Go(proxytest.GetattrCall(i + 1))
		if err != nil {
			t.Fatal(err)
		}
		replies = append(replies, ch)
	}
	h.Eventually("the server has the Calls", func() bool { return s.Calls.Load() == 30 })
	relay.Ignore()
	relay.Drop()
	before := status.Document{}
	h.Eventually("the upstream is down", func() bool {
		before = p.Status(status.Query{})
		return before.Upstreams[0].State == status.Down
	})
	time.Sleep(300 * time.Millisecond)
	gate.Open()
	relay.Return()
	for _, ch := range replies {
		if r := <-ch; len(r) == 0 {
			t.Fatal("a Call is not answered")
		}
	}
	var now status.Document
	h.Eventually("all are counted", func() bool {
		now = p.Status(status.Query{})
		return now.Upstreams[0].Phases.Calls == 30
	})
	if mean := now.Upstreams[0].Phases.Server / 30; mean < 0.3 {
		t.Fatalf("a Call took %v s at the server and on the way, so that nothing is tried", mean)
	}
	// As if the outage had been a long one.
	before.Time = before.Upstreams[0].DownSince.Add(20 * time.Second)
	now.Time = before.Time.Add(30 * time.Second)
	ps := slices.DeleteFunc(status.Judge(&now, &before), func(p status.Problem) bool { return p.Code == status.CodeSlowStart })
	if len(ps) != 1 || ps[0].Code != status.CodeUpstreamDown || ps[0].Severity != status.Notice {
		t.Errorf("%+v", ps)
	}
}
