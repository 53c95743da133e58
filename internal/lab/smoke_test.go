//go:build lab

package lab

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// TestLabSmoke is what make test runs of the lab: files through the bridge between the peers that a user has, in both
// directions and with both providers. All is in one guest, which boots once. Its client and its server are the kernel's:
//
//	client -- TCP   --> rdmabridge on this host -- iWARP ------> knfsd
//	client -- iWARP --> rdmabridge on this host -- TCP --------> knfsd
//	client -- TCP   --> rdmabridge in the guest -- verbs, rxe -> knfsd
//	client -- rxe   --> rdmabridge in the guest, verbs -- TCP -> knfsd
func TestLabSmoke(t *testing.T) {
	needLab(t)
	g := newServer(t, packGuest(t, "--smoke"))
	g.launch(t)
	// The programs are built while the guest boots.
	g.put(t, built(t, buildVerbsBridge), "rdmabridge")
	b := newBridgeProcess(t, g)
	b.noProbes(t)
	port := freePorts(t, 1)[0]
	b.configure(t, upstreamsKey, rdmaListener("iwarp", local(port), local(g.nfs)))
	g.ready(t)

	b.start(t)
	testSmoke(t, g, "gateway", farEnd{nfs: b.port, mount: b.port}, b.metric, upstreamChunks)
	testSmoke(t, g, "reverse", farEnd{nfs: port, mount: b.port, env: "PROTO=rdma"}, b.metric, listenerChunks("rdma"))
	b.wantQuiet(t)
	b.stop(t)

	if t.Failed() {
		return // a script that failed leaves its mount, which hangs without siw0
	}
	g.becomeRXE(t) // last, because the bridge on this host reaches siw only
	v := startInGuest(t, g, withDriver(strings.Replace(verbsRequester, upstreamsKey, rdmaListener("ibverbs", "10.0.2.15:20100", "127.0.0.1:2049"), 1), "rxe"))
	testSmoke(t, g, "verbs/gateway", farEnd{nfs: 12049, mount: 12049, host: "127.0.0.1"}, v.sum, upstreamChunks)
	testSmoke(t, g, "verbs/reverse", farEnd{nfs: 20100, mount: 20048, host: "10.0.2.15", env: "PROTO=rdma"}, v.sum, listenerChunks("rdma"))
	v.stop(t, "")
}

// testSmoke writes and reads files with NFSv3 and NFSv4.2 through a bridge, and checks that it carried their data in
// chunks.
func testSmoke(t *testing.T, g *guest, name string, far farEnd, sum func(*testing.T, string) float64, chunks []string) {
	for _, v := range []string{"3", "4.2"} {
		t.Run(name+"/"+v, func(t *testing.T) { g.job(t, 2*time.Minute, far.script(fewFiles, v)) })
	}
	wantCounted(t, sum, chunks...)
}

// upstreamsKey is where the listeners of a configuration end.
const upstreamsKey = "upstreams:\n"

// rdmaListener is upstreamsKey after a listener on RDMA, and before its upstream, which is a server on TCP.
func rdmaListener(provider, address, server string) string {
	return fmt.Sprintf(`  - {name: rdma, address: %q, transport: rdma, provider: %s, upstream: knfsd, limits: {connections: 64}}
%s  - {name: knfsd, transport: tcp, endpoints: [%q], pool: {connections: 4}}
`, address, provider, upstreamsKey, server)
}
