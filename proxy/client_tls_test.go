package proxy_test

import (
	"bytes"
	"crypto/tls"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/internal/testkit/proxytest"
	"github.com/rdmabridge/rdmabridge/internal/testkit/tlstest"
	"github.com/rdmabridge/rdmabridge/proxy/admit"
	"github.com/rdmabridge/rdmabridge/proxy/settings"
)

const injected = `listener_tls_failures_total{listener="nfs",reason="injected"}`

// holding returns a Behaviour that keeps the Replies to the Calls that which chooses until release is called. Each is
// announced on held.
func holding(t *testing.T, which func(*oncrpc.Call) bool) (b proxytest.Behaviour, held chan struct{}, release func()) {
	t.Helper()
	held, open := make(chan struct{}, 1), make(chan struct{})
	release = sync.OnceFunc(func() { close(open) })
	t.Cleanup(release)
	b.InterceptTCP = func(c *oncrpc.Call, from *proxytest.TCPConn) ([]byte, bool) {
		if !which(c) {
			return nil, false
		}
		reply := proxytest.Expected(c.Message)
		held <- struct{}{}
		go func() {
			<-open
			from.Send(reply)
		}()
		return nil, true
	}
	return b, held, release
}

// rawClient connects to addr.
func rawClient(t *testing.T, addr string) net.Conn {
	t.Helper()
	nc, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { nc.Close() })
	_ = nc.SetDeadline(time.Now().Add(testkit.Patience))
	return nc
}

func write(t *testing.T, nc net.Conn, b []byte) {
	t.Helper()
	if _, err := nc.Write(b); err != nil {
		t.Fatal(err)
	}
}

// wantSecure reads the Reply to the probe with this XID, does the handshake and calls.
func wantSecure(t *testing.T, nc net.Conn, xid uint32, c *tls.Config) {
	t.Helper()
	var r oncrpc.Reply
	answer, err := testkit.ReadRecord(nc)
	if err == nil {
		err = oncrpc.ParseReply(answer, &r)
	}
	if err != nil || !r.StartsTLS() || r.XID != xid {
		t.Fatalf("the probe is answered %x, %v", answer, err)
	}
	secure := proxytest.NewClient(tls.Client(nc, c))
	check(t, secure, proxytest.GetattrCall(1000))
}

// wantCut reads to the end of the connection, which must not bring a record.
func wantCut(t *testing.T, nc net.Conn) {
	t.Helper()
	if b, err := testkit.ReadRecord(nc); err == nil {
		t.Errorf("the client gets %x, want the end of the connection", b)
	}
}

// TestTLSProbeWaits: TLS begins on a connection whose probe had to wait for its tenant, unless something in plain
// text has followed the probe meanwhile. That is no Call, and ends the connection.
func TestTLSProbeWaits(t *testing.T) {
	call := testkit.Record(proxytest.GetattrCall(3))
	for _, tt := range []struct {
		name        string
		same, later []byte // behind the probe: in the same segment, and in another one
	}{
		{"alone", nil, nil},
		{"a Call", call, nil},
		{"a part of a Call", call[:len(call)-4], nil},
		{"an octet", call[:1], nil},
		{"another probe", testkit.Record(probeCall(8)), nil},
		{"a Call later", nil, call},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			x := newSecurity(t)
			h, logs := logged(t)
			b, held, release := holding(t, func(c *oncrpc.Call) bool { return c.Procedure == procRead })
			s := h.TCPServer(b)
			p := h.Proxy([]settings.ListenerOptions{{Name: "nfs", Address: "127.0.0.1:0", Upstream: "s", TLS: x.listener(false)}},
				[]settings.UpstreamOptions{{Name: "s", Endpoints: []string{s.Addr()}}})
			if err := p.SetTenants([]admit.TenantOptions{
				{Name: "all", Clients: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}, Total: admit.TenantLimits{Calls: 1}},
			}); err != nil {
				t.Fatal(err)
			}
			if _, err := h.Client(p.Addr("nfs")).Go(proxytest.ReadCall(1, 0, 4096)); err != nil {
				t.Fatal(err)
			}
			<-held
			nc := rawClient(t, p.Addr("nfs"))
			write(t, nc, slices.Concat(testkit.Record(probeCall(7)), tt.same))
			h.Eventually("the probe waits", func() bool { return metric(h, "tenant_waits_total") > 0 })
			if tt.later != nil {
				write(t, nc, tt.later)
			}
			calls := s.Calls.Load()
			release()
			if tt.same == nil && tt.later == nil {
				wantSecure(t, nc, 7, x.user(x.issue("user")))
				return
			}
			wantCut(t, nc)
			h.Eventually("it is counted", func() bool { return metric(h, injected) == 1 })
			if n := s.Calls.Load(); n != calls {
				t.Errorf("%d Calls in plain text have reached the server", n-calls)
			}
			if n := strings.Count(logs.String(), `"event":"client_tls_failed"`); n != 1 {
				t.Errorf("%d lines in the log:\n%s", n, logs)
			}
		})
	}
}

// TestTLSUnanswered: a NULL Call in plain text that the server has not answered when the probe comes ends the
// connection. Its Reply would come inside TLS, for whatever Call the client has sent with the same XID.
func TestTLSUnanswered(t *testing.T) {
	t.Parallel()
	x := newSecurity(t)
	h, logs := logged(t)
	b, held, release := holding(t, func(c *oncrpc.Call) bool { return c.Procedure == 0 && c.Flavor == oncrpc.FlavorSys })
	s := h.TCPServer(b)
	p := h.Proxy([]settings.ListenerOptions{{Name: "nfs", Address: "127.0.0.1:0", Upstream: "s", TLS: x.listener(false)}},
		[]settings.UpstreamOptions{{Name: "s", Endpoints: []string{s.Addr()}}})
	null := func(xid uint32) []byte {
		m := proxytest.GetattrCall(xid)
		m[23] = 0 // the procedure
		return m
	}
	nc := rawClient(t, p.Addr("nfs"))
	write(t, nc, testkit.Record(null(1)))
	<-held
	write(t, nc, testkit.Record(probeCall(2)))
	wantCut(t, nc)
	h.Eventually("it is counted", func() bool { return metric(h, injected) == 1 })
	if !strings.Contains(logs.String(), "was not answered yet") {
		t.Errorf("the log does not say why:\n%s", logs)
	}
	release()

	// One that was answered is no reason.
	nc = rawClient(t, p.Addr("nfs"))
	write(t, nc, testkit.Record(null(3)))
	<-held
	if b, err := testkit.ReadRecord(nc); err != nil || !bytes.Equal(b, proxytest.Expected(null(3))) {
		t.Fatalf("the NULL Call is answered %x, %v", b, err)
	}
	write(t, nc, testkit.Record(probeCall(4)))
	wantSecure(t, nc, 4, x.user(x.issue("user")))
}

// TestTLSUpstreamInjected: a server, or somebody on the path to it, that sends plain text behind its STARTTLS gets no
// Call, and what it has sent answers none.
func TestTLSUpstreamInjected(t *testing.T) {
	t.Parallel()
	x := newSecurity(t)
	h, logs := logged(t)
	s := h.TCPServer(proxytest.Behaviour{})
	good := x.storage(x.servers.Issue(t, tlstest.Subject{Name: "storage", Names: []string{"127.0.0.1"}}))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	front := h.TLSFront(s.Addr(), func() *tls.Config { return good })
	const bad = 2 // connections that get plain text
	var wg sync.WaitGroup
	t.Cleanup(wg.Wait)
	t.Cleanup(func() { l.Close() })
	wg.Go(func() {
		for range bad {
			nc, err := l.Accept()
			if err != nil {
				return
			}
			defer nc.Close()
			m, err := testkit.ReadRecord(nc)
			var c oncrpc.Call
			if err == nil {
				err = oncrpc.ParseCall(m, &c)
			}
			if err != nil || !c.TLSProbe() {
				t.Errorf("the bridge begins with %x, %v", m, err)
				return
			}
			_, _ = nc.Write(slices.Concat(testkit.Record(oncrpc.AppendStartTLS(nil, c.XID)), testkit.Record(oncrpc.AppendAccepted(nil, 1, oncrpc.Success))))
		}
	})
	p := h.Start([]settings.ListenerOptions{{Name: "nfs", Address: "127.0.0.1:0", Upstream: "s"}}, []settings.UpstreamOptions{{
		Name: "s", Endpoints: []string{l.Addr().String(), front.Addr()}, TLS: x.upstream(false),
		BackoffMin: 10 * time.Millisecond, BackoffMax: 50 * time.Millisecond,
	}})
	h.Eventually("it is counted", func() bool { return metric(h, `upstream_tls_failures_total{reason="injected"`) == bad })
	if !strings.Contains(logs.String(), `"event":"upstream_tls_failed"`) {
		t.Errorf("no line in the log:\n%s", logs)
	}
	check(t, h.Client(p.Addr("nfs")), proxytest.GetattrCall(1))
}
