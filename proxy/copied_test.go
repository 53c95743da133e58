package proxy_test

import (
	"net"
	"sync"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/internal/testkit/proxytest"
	"github.com/rdmabridge/rdmabridge/proxy/admit"
	"github.com/rdmabridge/rdmabridge/proxy/settings"
	"github.com/rdmabridge/rdmabridge/rdmaside/iwarp"
)

// taken is how many octets of Replies the kernel has taken.
func taken(h *proxytest.Harness) int { return metric(h, `listener_tcp_sent_bytes_total{`) }

// sendUntilFull has a client from the address from send GETATTRs until the bridge reads no more, because the client
// reads no Replies. leave ends its connection.
func sendUntilFull(h *proxytest.Harness, addr, from string) (leave func()) {
	h.T.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	c, err := d.Dial("tcp", addr)
	if err != nil {
		h.T.Fatal(err)
	}
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		for xid := uint32(1); testkit.WriteRecord(c, proxytest.GetattrCall(xid)) == nil; xid++ {
		}
	}()
	leave = sync.OnceFunc(func() {
		_ = c.(*net.TCPConn).SetLinger(0)
		_ = c.Close()
		<-sent
	})
	h.T.Cleanup(leave)
	before := -1
	h.Eventually("Replies wait, and the kernel takes no more", func() bool {
		was := before
		before = taken(h)
		return before == was && metric(h, `listener_tcp_outbound_buffered_bytes{`) > 0
	})
	return leave
}

// TestCopiedReplies: a Call is over when its Reply has been copied for a client, and counts as replied when the kernel
// has the Reply. Of a client that does not read and then ends its connection, the Replies that the kernel took count
// as replied, and no others. Every Call counts once.
func TestCopiedReplies(t *testing.T) {
	t.Parallel()
	h := proxytest.NewHarness(t, budget)
	s := h.TCPServer(proxytest.Behaviour{})
	p := h.Proxy([]settings.ListenerOptions{{Name: "nfs", Address: "127.0.0.1:0", Upstream: "s"}},
		[]settings.UpstreamOptions{{Name: "s", Endpoints: []string{s.Addr()}}})
	leave := sendUntilFull(h, p.Addr("nfs"), "127.0.0.1")
	octets := taken(h)
	leave()
	count := func(result string) int { return metric(h, `listener_calls_total{listener="nfs",result="`+result+`"}`) }
	h.Eventually("every Call that was read is over", func() bool {
		return metric(h, `listener_tcp_connections{`) == 0 && metric(h, `listener_calls_total{`) == metric(h, `listener_received_calls_total{`)
	})
	reply := 4 + oncrpc.ReplyHeader + 88 // record mark, and status and attributes: RFC 1813 Section 3.3.1
	if got := count("replied"); got != octets/reply || got == 0 {
		t.Errorf("%d Calls count as replied; %d octets were written, which are %d Replies", got, octets, octets/reply)
	}
	if count("client_gone") == 0 {
		t.Error("no Call counts as one without a Reply")
	}
}

// TestTenantOfSharedBlocks: when a Reply waits for its client in the block of its Call, the block counts once for
// the client's tenant.
func TestTenantOfSharedBlocks(t *testing.T) {
	t.Parallel()
	h := proxytest.NewHarness(t, budget)
	s := h.RDMAServer(proxytest.IWARP(iwarp.Options{}), []loop.Loop{h.Engine.Loops()[0]}, "127.0.0.1:0", 32, proxytest.Behaviour{})
	p := h.Proxy([]settings.ListenerOptions{{Name: "nfs", Address: "127.0.0.1:0", Upstream: "s", MaxCalls: 100}},
		[]settings.UpstreamOptions{{Name: "s", RDMA: true, Provider: proxytest.IWARP(iwarp.Options{}), Endpoints: []string{s.Addr()}}})
	x := &tenantBench{Harness: h, p: p}
	x.set(admit.TenantOptions{}, admit.TenantOptions{})
	leave := sendUntilFull(h, p.Addr("nfs"), "127.0.1.1")
	x.Eventually("all Calls are answered", func() bool {
		d := x.tenant("greedy")
		return d.InFlight >= 50 && d.Memory < int64(d.InFlight)*600 // blocks of 512
	})
	leave()
	x.Eventually("nothing is under way", func() bool { d := x.tenant("greedy"); return d.InFlight == 0 && d.Memory == 0 })
}
