package translate

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/rdmabridge/rdmabridge/configs"
)

// TestRPCBindServices: the programs that rpcbind announces follow from the routes.
func TestRPCBindServices(t *testing.T) {
	c, err := configs.Load([]byte(`
listeners:
  - {name: default, address: ":2049", upstream: s}
  - name: routes
    address: ":2050"
    transport: rdma
    routes:
      - {program: nfs, upstream: s}
      - {program: nsm, versions: [1], upstream: s}
      - {program: rpcbind, upstream: s}
      - {program: ccp, upstream: s}
      - {program: 400000, versions: [9, 7], upstream: s}
      - {program: 400001, upstream: s}
  - name: both
    address: ":2051"
    upstream: s
    routes:
      - {program: mount, upstream: s}
      - {program: nfs, versions: [3], upstream: s}
      - {program: nlm, versions: [4], upstream: s}
      - {program: rquota, upstream: s}
upstreams: [{name: s, transport: tcp, endpoints: ["127.0.0.1:1"]}]
`), Known)
	if err != nil {
		t.Fatal(err)
	}
	at := map[string]string{"default": "[::]:2049", "routes": "192.0.2.1:2050", "both": "[::1]:2051"}
	services, err := RPCBind(c, func(name string) string { return at[name] }, netip.MustParseAddrPort("0.0.0.0:4045"))
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{
		"0.0.0.0:4045 false false [{100021 1} {100021 3} {100021 4} {100024 1}]",
		"0.0.0.0:4045 false true [{100021 1} {100021 3} {100021 4} {100024 1}]",
		"[::]:2049 false false [{100003 3} {100003 4} {100227 3}]",
		"192.0.2.1:2050 true false [{100003 2} {100003 3} {100003 4} {100024 1} {400000 7} {400000 9}]",
		"[::1]:2051 false false [{100003 3} {100003 4} {100005 1} {100005 2} {100005 3} {100011 1} {100011 2} {100021 4} {100227 3}]",
	} {
		if got := fmt.Sprint(services[i].Address, services[i].RDMA, services[i].UDP, services[i].Programs); got != want {
			t.Errorf("%s: %s\nwant %s", services[i].Address, got, want)
		}
	}
	if len(services) != 5 {
		t.Errorf("%d services, want 5", len(services))
	}
	c.NLM.Mount = "udp"
	services, err = RPCBind(c, func(name string) string { return at[name] }, netip.MustParseAddrPort("0.0.0.0:4045"))
	if want := "[{100021 1} {100021 3} {100021 4} {100024 1} {100005 1} {100005 2} {100005 3}]"; err != nil || len(services) != 5 || fmt.Sprint(services[1].Programs) != want ||
		len(services[0].Programs) != 4 {
		t.Errorf("with MOUNT over UDP: %v, %v; want %s over UDP alone", services[:2], err, want)
	}
	if _, err := RPCBind(c, func(string) string { return "" }, netip.AddrPort{}); err == nil {
		t.Error("a listener without an address is advertised")
	}
}
