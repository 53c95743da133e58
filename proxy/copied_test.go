package proxy_test

import (
	"net"
	"os"
	"testing"
	"time"

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
	if err := c.(*net.TCPConn).SetReadBuffer(4096); err != nil {
		t.Fatal(err)
	}
	calls := 0
	for ; calls < 100_000; calls++ {
		c.SetWriteDeadline(time.Now().Add(500 * time.Millisecond))
		if err := testkit.WriteRecord(c, proxytest.GetattrCall(uint32(calls+1))); err != nil {
			if !os.IsTimeout(err) {
				t.Fatal(err)
			}
			break
		}
	}
	if calls == 100_000 {
		t.Fatal("the bridge reads on from a client that does not read")
	}
	c.(*net.TCPConn).SetLinger(0)
	c.Close()
	count := func(result string) int { return metric(h, `listener_calls_total{listener="nfs",result="`+result+`"}`) }
	h.Eventually("every Call that was read is over", func() bool {
		return metric(h, `listener_tcp_connections{`) == 0 && metric(h, `listener_calls_total{`) == metric(h, `listener_received_calls_total{`)
	})
	reply := 4 + oncrpc.ReplyHeader + 88 // record mark, and status and attributes: RFC 1813 Section 3.3.1
	sent := metric(h, `listener_tcp_sent_bytes_total{`)
	if got := count("replied"); got != sent/reply || got == 0 {
		t.Errorf("%d Calls count as replied; %d octets were written, which are %d Replies", got, sent, sent/reply)
	}
	if count("client_gone") == 0 {
		t.Errorf("no Call counts as one without a Reply, of %d", calls)
	}
}
