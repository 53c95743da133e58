package main

import (
	"testing"

	"github.com/rdmabridge/rdmabridge/configs"
	"github.com/rdmabridge/rdmabridge/internal/admin"
	"github.com/rdmabridge/rdmabridge/internal/control"
)

// TestDescriptors: clients have what the admin server and the upstreams leave of RLIMIT_NOFILE.
func TestDescriptors(t *testing.T) {
	c, err := configs.Load([]byte(`
listeners:
  - {name: nfs, address: ':2049', upstream: one, limits: {connections: 5000}}
  - {name: rdma, address: ':20049', transport: rdma, upstream: two, limits: {connections: 100, starting: 10}}
upstreams:
  - {name: one, transport: rdma, endpoints: ['198.51.100.1:20049', '198.51.100.2:20049'], pool: {connections: 4, mode: pinned, pinned: 200}}
  - {name: two, transport: tcp, endpoints: ['198.51.100.1:2049', '198.51.100.2:2049'], failover: on, pool: {connections: 3, mode: shared}}
loops: 2
`), known)
	if err != nil {
		t.Fatal(err)
	}
	reserved := otherDescriptors + admin.MaxConns + control.MaxConnections + 8*2 + 2*2 + 2*4*2 + 200 + 2*3
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
