package proxy_test

import (
	"encoding/binary"
	"net"
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/internal/testkit/proxytest"
	"github.com/rdmabridge/rdmabridge/proxy/settings"
)

// A client that trickles a Call is closed after RequestTimeout, and no other. A change of the setting holds for
// the clients that connect after it.
func TestRequestTimeout(t *testing.T) {
	t.Parallel()
	h := proxytest.NewHarness(t, budget)
	s := h.TCPServer(proxytest.Behaviour{})
	l := settings.ListenerOptions{Name: "nfs", Address: "127.0.0.1:0", Upstream: "tcp"}
	u := []settings.UpstreamOptions{{Name: "tcp", Endpoints: []string{s.Addr()}}}
	p := h.Proxy([]settings.ListenerOptions{l}, u)
	closed := func() int {
		return metric(h, `listener_refused_connections_total{listener="nfs",reason="request_timeout"}`)
	}
	dial := func() net.Conn {
		c, err := net.Dial("tcp", p.Addr("nfs"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	neighbour := h.Client(p.Addr("nfs"))
	check(t, neighbour, proxytest.GetattrCall(1))
	old := dial()
	begun := binary.BigEndian.AppendUint32(nil, 1<<31|1<<20)
	if _, err := old.Write(begun); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "both have joined", func() bool { return metric(h, `listener_clients{listener="nfs"}`) == 2 })

	l.RequestTimeout = time.Second
	if err := p.Reconfigure(proxytest.Listeners(l), proxytest.Upstreams(u...)); err != nil {
		t.Fatal(err)
	}
	c := dial()
	if _, err := c.Write(begun); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the client that trickles is closed", func() bool {
		_, _ = c.Write(make([]byte, 500)) // fails once it is closed
		return closed() == 1
	})
	check(t, neighbour, proxytest.GetattrCall(2))
	if _, err := old.Write(make([]byte, 100)); err != nil {
		t.Errorf("a client from before the change: %v", err)
	}
	testkit.Eventually(t, "one client has gone", func() bool { return metric(h, `listener_clients{listener="nfs"}`) == 2 })
	if n := closed(); n != 1 {
		t.Errorf("%d clients are closed", n)
	}
}
