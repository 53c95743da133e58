//go:build lab

package lab

import (
	"fmt"
	"testing"
	"time"
)

// testLargest has the kernel's client mount knfsd, which offers 1 MiB, through a bridge that carries less. The
// client takes the sizes that the bridge carries, and its READs and WRITEs have those.
func testLargest(t *testing.T, g *guest) {
	p := freePorts(t, 4)
	toRDMA, toTCP, fromRDMA := p[0], p[1], p[2]
	const more = "routes: [{program: mount, upstream: mountd}], limits: {record: 140KiB}"
	b := newBridgeWith(t, toRDMA, p[3], fmt.Sprintf(`
listeners:
  - {name: to-rdma, address: "127.0.0.1:%[1]d", transport: tcp, upstream: storage, %[5]s}
  - {name: to-tcp, address: "127.0.0.1:%[2]d", transport: tcp, upstream: knfsd, %[5]s}
  - {name: from-rdma, address: "127.0.0.1:%[3]d", transport: rdma, provider: iwarp, upstream: knfsd, limits: {record: 140KiB}}
upstreams:
  - {name: storage, transport: rdma, provider: iwarp, endpoints: ["127.0.0.1:%[6]d"], pool: {connections: 4, credits: 128}}
  - {name: knfsd, transport: tcp, endpoints: ["127.0.0.1:%[7]d"], pool: {connections: 2}}
  - {name: mountd, transport: tcp, endpoints: ["127.0.0.1:%[8]d"]}
chunks: {io: 256KiB}
memory: {budget: 128MiB}
admin: {address: 127.0.0.1:%[4]d}
log: {level: info, format: json}
`, toRDMA, toTCP, fromRDMA, p[3], more, g.rdma, g.nfs, g.mount))
	b.start(t)
	const sizes = "RSIZE=262144 WSIZE=135168 "
	for name, far := range map[string]farEnd{"to-rdma": {nfs: toRDMA, mount: toRDMA}, "to-tcp": {nfs: toTCP, mount: toTCP}} {
		for _, v := range []string{"3", "4.0", "4.1", "4.2"} {
			t.Run(name+"/"+v, func(t *testing.T) {
				t.Log(g.job(t, 2*time.Minute, sizes+far.script("/lab/largest.sh", v)))
				b.wantNoErrors(t)
			})
		}
	}
	t.Run("from-rdma/4.2", func(t *testing.T) {
		t.Log(g.job(t, 2*time.Minute, sizes+farEnd{nfs: fromRDMA, mount: toTCP, env: "PROTO=rdma"}.script("/lab/largest.sh", "4.2")))
		b.wantNoErrors(t)
	})
}
