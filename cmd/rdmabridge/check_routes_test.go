package main

import (
	"bytes"
	"testing"

	"github.com/rdmabridge/rdmabridge/configs"
)

// TestCheckRoutes: check prints which Calls go to which upstream, with rules, versions, and Calls that go nowhere.
func TestCheckRoutes(t *testing.T) {
	c, err := configs.Load([]byte(`
listeners:
  - name: nfs
    address: 127.0.0.1:2049
    rules:
      - {name: archive, clients: [10.2.0.0/16], action: upstream, upstream: b}
      - {name: try, clients: [10.3.0.0/16], action: upstream, upstream: b, dry_run: on}
      - {name: none, clients: [10.4.0.0/16], action: deny}
    routes:
      - {program: nfs, versions: [3, 4], upstream: a}
      - {program: 400100, upstream: b}
  - {name: rdma, address: "127.0.0.1:20049", transport: rdma, upstream: a}
upstreams:
  - {name: a, transport: rdma, endpoints: ["10.1.0.5:20049", "10.1.0.6:20049"]}
  - {name: b, transport: tcp, endpoints: ["10.1.0.5:20048"]}
`), known)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	printRoutes(&out, c)
	want := `nfs, tcp 127.0.0.1:2049
  rules[0] archive -> b, tcp 10.1.0.5:20048
  nfs 3, 4         -> a, rdma 10.1.0.5:20049 10.1.0.6:20049
  400100           -> b, tcp 10.1.0.5:20048
  all else         -> refused: PROG_UNAVAIL
rdma, rdma 127.0.0.1:20049
  all -> a, rdma 10.1.0.5:20049 10.1.0.6:20049
`
	if out.String() != want {
		t.Errorf("%s, want\n%s", &out, want)
	}
}
