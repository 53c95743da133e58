package proxy_test

import (
	"bytes"
	"errors"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/testkit/proxytest"
	"github.com/rdmabridge/rdmabridge/proxy/settings"
)

// TestLaneUpstreamReplaced: a reload puts another upstream in the place of the one on whose lane a
// client with a Call under way is. The client's next COMPOUND does not go to the other one on the same
// client connection, which is closed instead; the client comes back, and is served there.
func TestLaneUpstreamReplaced(t *testing.T) {
	eachBack(t, func(t *testing.T, rdma bool) {
		x := newLaneBench(t, rdma, proxytest.Behaviour{Intercept: hangsOn}, nil)
		c := x.from(1)
		if _, err := c.Call(proxytest.SequenceCall(1)); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Go(hungCall(2)); err != nil {
			t.Fatal(err)
		}
		x.Eventually("a Call is under way", func() bool { return x.calls() >= 2 })
		next := x.TCPServer(proxytest.Behaviour{})
		if err := x.p.Reconfigure(proxytest.Listeners(settings.ListenerOptions{Name: "nfs", Address: "127.0.0.1:0", Upstream: "next"}),
			proxytest.Upstreams(settings.UpstreamOptions{Name: "next", Connections: 1, Endpoints: []string{next.Addr()}, ProbeInterval: -1})); err != nil {
			t.Fatal(err)
		}
		m := proxytest.EchoCall(3, 4, 4, 300) // belongs to no session
		if r, err := c.Call(m); err != nil || !bytes.Equal(r, proxytest.Expected(m)) {
			t.Fatalf("a Call of another program: %x, %v", r, err)
		}
		before := next.Calls.Load()
		if r, err := c.Call(proxytest.SequenceCall(4)); err == nil || errors.Is(err, proxytest.ErrTimeout) {
			t.Errorf("a COMPOUND on the same connection: %x, %v; want the end of the connection", r, err)
		}
		if n := next.Calls.Load() - before; n != 0 {
			t.Errorf("%d COMPOUNDs went to the next upstream on a connection that has sessions elsewhere", n)
		}
		m = proxytest.SequenceCall(5)
		if r, err := x.from(1).Call(m); err != nil || !bytes.Equal(r, proxytest.Expected(m)) {
			t.Errorf("on the next connection: %x, %v", r, err)
		}
	})
}
