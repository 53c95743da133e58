package proxy_test

import (
	"net"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/internal/testkit/proxytest"
	"github.com/rdmabridge/rdmabridge/proxy"
)

// TestCopiedReplies: a Call is over when its Reply has been copied for a client, and counts as replied when the kernel
// has the Reply. Of a client that does not read and then ends its connection, the Replies that the kernel took count
// as replied, and no others. Every Call counts once.
func TestCopiedReplies(t *testing.T) {
	t.Parallel()
	h := proxytest.NewHarness(t, budget)
	s := h.TCPServer(proxytest.Behaviour{})
	p := h.Proxy([]proxy.ListenerOptions{{Name: "nfs", Address: "127.0.0.1:0", Upstream: "s"}},
		[]proxy.UpstreamOptions{{Name: "s", Endpoints: []string{s.Addr()}}})
	c, err := net.Dial("tcp", p.Addr("nfs"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	sent := make(chan struct{})
	go func() { // until the bridge reads no more, and the connection is closed
		defer close(sent)
		for xid := uint32(1); testkit.WriteRecord(c, proxytest.GetattrCall(xid)) == nil; xid++ {
		}
	}()
	taken := func() int { return metric(h, `listener_tcp_sent_bytes_total{`) }
	before := -1
	h.Eventually("Replies wait, and the kernel takes no more", func() bool {
		was := before
		before = taken()
		return before == was && metric(h, `listener_tcp_outbound_buffered_bytes{`) > 0
	})
	c.(*net.TCPConn).SetLinger(0)
	c.Close()
	<-sent
	count := func(result string) int { return metric(h, `listener_calls_total{listener="nfs",result="`+result+`"}`) }
	h.Eventually("every Call that was read is over", func() bool {
		return metric(h, `listener_tcp_connections{`) == 0 && metric(h, `listener_calls_total{`) == metric(h, `listener_received_calls_total{`)
	})
	reply := 4 + oncrpc.ReplyHeader + 88 // record mark, and status and attributes: RFC 1813 Section 3.3.1
	octets := taken()
	if got := count("replied"); got != octets/reply || got == 0 {
		t.Errorf("%d Calls count as replied; %d octets were written, which are %d Replies", got, octets, octets/reply)
	}
	if count("client_gone") == 0 {
		t.Error("no Call counts as one without a Reply")
	}
}
