//go:build lab

package lab

import (
	"fmt"
	"testing"
	"time"
)

// testVerbsFeatures runs what of NFS needs more than files between clients on TCP and a server on RDMA:
// locks, several processes that verify what they wrote, Kerberos and recalled delegations. Clients
// that are machines of their own, and Kerberos, use the address away.
func testVerbsFeatures(t *testing.T, b *guestBridge, far, away farEnd) {
	g := b.g
	t.Run("locks/4.1", func(t *testing.T) { g.job(t, 2*time.Minute, away.script("/lab/locks2.sh", "4.1")) })
	t.Run("fio/4.1", func(t *testing.T) { g.job(t, 3*time.Minute, far.script("SIZE=1m /lab/fio.sh", "4.1")) })
	t.Run("krb5i/3", func(t *testing.T) {
		longCalls, replyChunks := `upstream_rdma_calls_total{call="long"`, `upstream_rdma_calls_total{call="inline",reply="reply_chunk"`
		long, chunks := b.sum(t, longCalls), b.sum(t, replyChunks)
		g.job(t, time.Minute, "/lab/krb5.sh start")
		defer g.job(t, time.Minute, "/lab/krb5.sh stop")
		far := away
		far.host = "bridge.lab" // the server's principal is nfs/bridge.lab
		g.job(t, 2*time.Minute, far.script("SEC=krb5i /lab/users.sh", "3"))
		if b.sum(t, longCalls) == long || b.sum(t, replyChunks) == chunks {
			t.Error("no signed Call or no signed Reply was too long for a Send")
		}
	})
	t.Run("recall/4.1", func(t *testing.T) {
		g.job(t, 3*time.Minute, away.script("IDLE=1 /lab/recall.sh", "4.1"))
		b.wantReverse(t, "upstream")
	})
}

// wantReverse fails unless the server made three Calls or more to clients, as recall.sh has it do, and each
// was answered.
func (b *guestBridge) wantReverse(t *testing.T, side string) {
	t.Helper()
	calls, replies := b.sum(t, side+"_reverse_calls_total"), b.sum(t, side+"_reverse_replies_total")
	if calls < 3 || replies != calls {
		t.Errorf("%.0f Calls of the server to clients, %.0f answered", calls, replies)
	}
}

// testVerbsInterop: provider ibverbs in the guest, on siw, and provider iwarp on this host are each
// other's peers, in both roles.
//
//	the guest's NFS client -- TCP --> rdmabridge in the guest -- siw --> rdmabridge on this host
//	the guest's knfsd     <-- TCP --- rdmabridge in the guest <-- siw ---------'
func testVerbsInterop(t *testing.T, g *guest, clients farEnd, relay int) {
	p := freePorts(t, 2)
	host := newBridgeOf(t, built(t, buildVerbsBridge), p[0], p[1], fmt.Sprintf(`
listeners:
  - {name: nfs, address: "127.0.0.1:%d", transport: rdma, provider: iwarp, upstream: guest, limits: {connections: 64}}
upstreams:
  - {name: guest, transport: rdma, provider: iwarp, endpoints: ["127.0.0.1:%d"], pool: {connections: 2}}
memory: {budget: 256MiB}
admin: {address: 127.0.0.1:%d}
log: {level: info, format: json}
`, p[0], relay, p[1]))
	const config = `
listeners:
  - {name: tcp, address: "10.0.2.15:12050", transport: tcp, upstream: host, routes: [{program: mount, upstream: mountd}], limits: {connections: 64}}
  - {name: nfs, address: "10.0.2.15:20102", transport: rdma, provider: ibverbs, upstream: storage, limits: {connections: 64}}
upstreams:
  - {name: host, transport: rdma, provider: ibverbs, endpoints: ["10.0.2.2:%d"], pool: {connections: 2}}
  - {name: storage, transport: tcp, endpoints: ["127.0.0.1:2049"], pool: {connections: 4}}
  - {name: mountd, transport: tcp, endpoints: ["127.0.0.1:20048"]}
memory: {budget: 256MiB}
admin: {address: "127.0.0.1:9090"}
log: {level: info, format: json}
`
	b := beginInGuest(t, g, fmt.Sprintf(config, p[0]), lockedMemory(config))
	waitFor(t, time.Minute, "the guest's listener", func() bool { return b.job.said(`"listener":"nfs"`) })
	host.start(t) // each is an upstream of the other
	b.ready(t)
	t.Run("files/3", func(t *testing.T) {
		g.job(t, 3*time.Minute, clients.script("NAMES=200 SIZES='0 1 3 4095 4096 65537 1048577' /lab/files.sh", "3"))
	})
	t.Run("recall/4.1", func(t *testing.T) {
		g.job(t, 3*time.Minute, clients.script("IDLE=1 /lab/recall.sh", "4.1"))
		b.wantReverse(t, "upstream")
		b.wantReverse(t, "listener")
	})
	for _, shape := range []string{
		`upstream_rdma_calls_total{call="read_chunk"`, `upstream_rdma_calls_total{call="inline",reply="write_chunk"`, `upstream_rdma_calls_total{call="inline",reply="reply_chunk"`,
		`listener_rdma_calls_total{call="pulled"`, `listener_rdma_replies_total{listener="nfs",reply="write_chunk"`, `listener_rdma_replies_total{listener="nfs",reply="reply_chunk"`,
	} {
		if b.sum(t, shape) == 0 || host.metric(t, shape) == 0 {
			t.Errorf("%s: %.0f in the guest, %.0f on the host", shape, b.sum(t, shape), host.metric(t, shape))
		}
	}
	t.Run("drain", func(t *testing.T) {
		host.wantQuiet(t)
		// Before the host's bridge listened; and when this one drains: it ends the host's connection to
		// it, so the host's bridge ends those of its clients, of which this one is one.
		b.stop(t, `"upstream":"host","event":"upstream_lost","error":"(dial [^"]*|EOF)"`)
		host.stop(t)
	})
}
