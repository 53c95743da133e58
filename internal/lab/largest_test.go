//go:build lab

package lab

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/testkit"
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
	// knfsd returns up to 1 MiB, four times what this bridge carries.
	for _, w := range []greedyWay{{b, "to-rdma", toRDMA, 256 << 10}, {b, "to-tcp", toTCP, 256 << 10}} {
		t.Run(w.listener+"/neighbours", func(t *testing.T) { testNeighboursOfKnfsd(t, g, w) })
	}
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
	b.stop(t)
	b.wantQuiet(t) // no memory is left either
	t.Run("demo", func(t *testing.T) { testLargestDemo(t, g) })
}

// testLargestDemo has the server of `rdmabridge demo` behind a bridge with its defaults, over TCP and over RDMA. The
// server returns and takes 4 MiB at once, and so does the bridge. Of the clients only the raw one asks for so much:
// libnfs 4.0 and the kernels of the guests stop at 1 MiB, and each of their READs and WRITEs has that.
func testLargestDemo(t *testing.T, g *guest) {
	tcp, rdma := startDemo(t)
	p := freePorts(t, 3)
	b := newBridgeWith(t, p[0], p[2], fmt.Sprintf(`
listeners:
  - {name: to-tcp, address: "127.0.0.1:%d", transport: tcp, upstream: demo-tcp}
  - {name: to-rdma, address: "127.0.0.1:%d", transport: tcp, upstream: demo-rdma}
upstreams:
  - {name: demo-tcp, transport: tcp, endpoints: ["127.0.0.1:%d"], pool: {connections: 2}}
  - {name: demo-rdma, transport: rdma, provider: iwarp, endpoints: ["127.0.0.1:%d"], pool: {connections: 2}}
memory: {budget: 256MiB}
admin: {address: 127.0.0.1:%d}
log: {level: info, format: json}
`, p[0], p[1], tcp, rdma, p[2]))
	b.start(t)
	for _, w := range []greedyWay{{b, "to-tcp", p[0], 4 << 20}, {b, "to-rdma", p[1], 4 << 20}} {
		t.Run(w.listener, func(t *testing.T) {
			t.Run("neighbours", func(t *testing.T) { testNeighboursOfDemo(t, w) })
			t.Run("libnfs", func(t *testing.T) { testLargestLibNFS(t, w) })
			t.Run("kernel", func(t *testing.T) {
				// The server's files are visible at the mount alone.
				far := farEnd{nfs: w.port, mount: w.port, env: "EXPORT=/ SERVER=/mnt RSIZE=1048576 WSIZE=1048576"}
				t.Log(g.job(t, 2*time.Minute, far.script("/lab/largest.sh", "3")))
			})
			b.wantQuiet(t)
		})
	}
	b.stop(t)
	b.wantQuiet(t) // no memory is left either
}

// testLargestLibNFS copies a file with libnfs to the demo's server and back, in WRITEs and READs of 1 MiB.
func testLargestLibNFS(t *testing.T, w greedyWay) {
	const size, calls = 10 << 20, 10
	data := testkit.Pattern(size, w.port)
	local := filepath.Join(t.TempDir(), "local")
	if err := os.WriteFile(local, data, 0o600); err != nil {
		t.Fatal(err)
	}
	url := fmt.Sprintf("nfs://127.0.0.1//libnfs-%[1]d?nfsport=%[1]d&mountport=%[1]d", w.port)
	writes := w.operations(t, "WRITE", func() { command(t, time.Minute, "nfs-cp", local, url) })
	reads := w.operations(t, "READ", func() {
		if !bytes.Equal(command(t, time.Minute, "nfs-cat", url), data) {
			t.Error("nfs-cat: not what nfs-cp has written")
		}
	})
	if writes != calls || reads != calls {
		t.Errorf("%.0f WRITEs and %.0f READs of %d octets, want %d of 1 MiB", writes, reads, size, calls)
	}
}

// startDemo runs `rdmabridge demo` until the test ends, and returns its ports on 127.0.0.1.
func startDemo(t *testing.T) (tcp, rdma int) {
	t.Helper()
	p := freePorts(t, 2)
	at := func(port int) string { return fmt.Sprintf("127.0.0.1:%d", port) }
	d := start(t, bridgeBinary(t), "demo", "--tcp", at(p[0]), "--rdma", at(p[1]), "--admin", "none")
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the demo's log:\n%s", tail(d.output(), 40))
		}
	})
	waitFor(t, 30*time.Second, "the demo", func() bool {
		if !d.alive() {
			t.Fatalf("the demo ended:\n%s", d.output())
		}
		return bytes.Contains(d.output(), []byte("Press Ctrl-C"))
	})
	return p[0], p[1]
}
