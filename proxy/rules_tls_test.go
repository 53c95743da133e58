package proxy_test

import (
	"bytes"
	"net"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rules"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/internal/testkit/proxytest"
	"github.com/rdmabridge/rdmabridge/proxy/settings"
)

// TestRulesByIdentity: a rule sees the names in a client's certificate, from the first Call over TLS on.
func TestRulesByIdentity(t *testing.T) {
	t.Parallel()
	x := newSecurity(t)
	h, _ := logged(t)
	s := h.TCPServer(proxytest.Behaviour{})
	p := h.Proxy([]settings.ListenerOptions{{Name: "nfs", Address: "127.0.0.1:0", Upstream: "s", TLS: x.listener(false), Rules: []rules.Rule{
		{Name: "users", Identities: patterns(t, "user.example.com"), Action: rules.Allow},
		{Name: "rest", Action: rules.Deny},
	}}}, []settings.UpstreamOptions{{Name: "s", Endpoints: []string{s.Addr()}}})
	check(t, h.SecureClient(p.Addr("nfs"), x.user(x.issue("user"))), proxytest.GetattrCall(1))
	for name, c := range map[string]interface{ Call([]byte) ([]byte, error) }{
		"another name": h.SecureClient(p.Addr("nfs"), x.user(x.issue("other"))),
		"plain text":   h.Client(p.Addr("nfs")),
	} {
		if r, err := c.Call(proxytest.GetattrCall(2)); err != nil || !bytes.Equal(r, denied(2, oncrpc.AuthTooWeak)) {
			t.Errorf("%s: %v, %x", name, err, r)
		}
	}
	h.Eventually("the Calls are counted", func() bool {
		return metric(h, `listener_rule_calls_total{listener="nfs",rule="users",verdict="allow"}`) == 1 && metric(h, `listener_rule_calls_total{listener="nfs",rule="rest",verdict="deny"}`) == 2
	})
}

// TestRulesWhenTLSBegins: a connection whose first Calls came in plain text is judged by its certificate once it has
// TLS, the same Calls again, and by other rules after a reload.
func TestRulesWhenTLSBegins(t *testing.T) {
	t.Parallel()
	x := newSecurity(t)
	h, _ := logged(t)
	s := h.TCPServer(proxytest.Behaviour{})
	// Users make a connection's rules ask about each Call.
	users := rules.Rule{Name: "users", Identities: patterns(t, "user.example.com"), UIDs: []rules.Range{{Low: 1000, High: 1999}}, Action: rules.Allow}
	rest := rules.Rule{Name: "rest", UIDs: []rules.Range{{Low: 0, High: 1<<32 - 1}}, Action: rules.Deny}
	l := settings.ListenerOptions{Name: "nfs", Address: "127.0.0.1:0", Upstream: "s", TLS: x.listener(false), Rules: []rules.Rule{users, rest}}
	u := settings.UpstreamOptions{Name: "s", Endpoints: []string{s.Addr()}}
	p := h.Proxy([]settings.ListenerOptions{l}, []settings.UpstreamOptions{u})
	nc, err := net.Dial("tcp", p.Addr("nfs"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = nc.Close() })
	call := func(xid uint32) []byte { return withUser(proxytest.GetattrCall(xid), 1000, 1000) }
	for xid := range uint32(3) {
		if err := testkit.WriteRecord(nc, call(xid)); err != nil {
			t.Fatal(err)
		}
		if r, err := testkit.ReadRecord(nc); err != nil || !bytes.Equal(r, denied(xid, oncrpc.AuthTooWeak)) {
			t.Fatalf("in plain text: %v, %x", err, r)
		}
	}
	secure, err := proxytest.StartTLS(nc, x.user(x.issue("user")))
	if err != nil {
		t.Fatal(err)
	}
	client := proxytest.NewClient(secure)
	t.Cleanup(func() { _ = client.Close() })
	expect := func(when string, xid uint32, allowed bool) {
		t.Helper()
		for range 2 {
			xid++
			want := denied(xid, oncrpc.AuthTooWeak)
			if allowed {
				want = proxytest.Expected(call(xid))
			}
			if r, err := client.Call(call(xid)); err != nil || !bytes.Equal(r, want) {
				t.Errorf("%s: %v, %x, want %x", when, err, r, want)
			}
		}
	}
	reload := func(all ...rules.Rule) {
		t.Helper()
		l.Rules = all
		if err := p.Reconfigure(proxytest.Listeners(l), proxytest.Upstreams(u)); err != nil {
			t.Fatal(err)
		}
	}
	expect("over TLS", 10, true)
	reload(rest, users)
	expect("after a reload", 20, false)
	reload(users, rest)
	expect("after another", 30, true)
}
