package configs

import (
	"strings"
	"testing"
)

// TestWarnings: Load warns where an upstream's reserved ports are lent to everybody, where nothing uses an upstream, and
// where clients of IPv6 cannot connect; and nowhere else.
func TestWarnings(t *testing.T) {
	const text = `
listeners:
  - name: l
    address: :1
    upstream: other
    routes: [{program: nfs, upstream: reserved}]
upstreams:
  - {name: reserved, transport: tcp, endpoints: [h:1], source: {ports: 700-2000}}
  - {name: other, transport: tcp, endpoints: [h:1]}
`
	for _, tt := range []struct{ name, old, new, want string }{
		{"by a route", "", "", "line 3: listeners[0].privileged: every user"},
		{"as the default", "upstream: other\n    routes: [{program: nfs, upstream: reserved}]", "upstream: reserved\n    routes: [{program: mount, upstream: other}]", "line 3: listeners[0].privileged: every user"},
		{"over RDMA", "address: :1", "address: :1\n    transport: rdma", "line 3: listeners[0].privileged: every user"},
		{"required", "address: :1", "address: :1\n    privileged: required", ""},
		{"decided", "address: :1", "address: :1\n    privileged: any", ""},
		{"other ports", "700-2000", "1024-2000", ""},
		{"any port", "700-2000", "any", ""},
		{
			"clients of IPv6, on IPv4 alone", "address: :1", "address: 0.0.0.0:1\n    privileged: any\n    allow: [10.0.0.0/8, '2001:db8::/32']",
			`line 4: listeners[0].address: 0.0.0.0:1 listens on IPv4 alone, so that no client of 2001:db8::/32 can connect, which allow has; write "[::]:1" for every address of IPv4 and IPv6`,
		},
		{"rpcbind, on IPv4 alone", "listeners:\n  - name: l\n", "rpcbind: {address: '10.0.0.1:111', allow: ['2001:db8::/32']}\nlisteners:\n  - name: l\n    privileged: any\n", "line 2: rpcbind.address: 10.0.0.1:111 listens on IPv4 alone"},
		{"clients of IPv6, on both", "address: :1", "address: '[::]:1'\n    privileged: any\n    allow: ['2001:db8::/32']", ""},
		{"clients of IPv6, behind a proxy", "address: :1", "address: 0.0.0.0:1\n    privileged: any\n    proxy_protocol: {from: [10.0.0.1]}\n    allow: ['2001:db8::/32']", ""},
		{"not reachable", "upstream: reserved", "upstream: other", "line 8: upstreams[0].name: nothing uses upstream reserved"},
	} {
		c, err := Load([]byte(strings.Replace(text, tt.old, tt.new, 1)), testKnown())
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		got := strings.Join(c.Warnings(), "\n")
		if tt.want == "" && got != "" || !strings.HasPrefix(got, tt.want) || strings.Contains(got, "\n") {
			t.Errorf("%s: warnings %q, want %q", tt.name, got, tt.want)
		}
	}
	_, err := Load([]byte(strings.Replace(text, "address: :1", "address: :1\n    privileged: 'yes'", 1)), testKnown())
	if err == nil || !strings.Contains(err.Error(), `listeners[0].privileged: "yes" is not possible here; write any or required`) {
		t.Errorf("privileged: yes: %v", err)
	}
}
