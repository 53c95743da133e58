package proxy_test

import (
	"net"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/status"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/internal/testkit/proxytest"
	"github.com/rdmabridge/rdmabridge/proxy/settings"
)

// TestPrimedTCP: a connection to a TCP upstream gets no Call before the server has answered a NULL
// Call on it.
func TestPrimedTCP(t *testing.T) {
	t.Parallel()
	h := proxytest.NewHarness(t, budget)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	p := h.Start([]settings.ListenerOptions{{Name: "nfs", Address: "127.0.0.1:0", Upstream: "storage"}},
		[]settings.UpstreamOptions{{Name: "storage", Endpoints: []string{l.Addr().String()}}})
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	client := h.Client(p.Addr("nfs"))
	if _, err := client.Go(proxytest.GetattrCall(1)); err != nil {
		t.Fatal(err)
	}
	h.Eventually("the Call has come", func() bool { return p.Status(status.Query{}).Upstreams[0].Credits.Waiting == 1 })
	read := func() (m oncrpc.Call) {
		t.Helper()
		b, err := testkit.ReadRecord(c)
		if err != nil {
			t.Fatal(err)
		}
		if err := oncrpc.ParseCall(b, &m); err != nil {
			t.Fatal(err)
		}
		return m
	}
	first := read()
	if first.Procedure != 0 {
		t.Fatalf("the first message is a Call of procedure %d, want NULL", first.Procedure)
	}
	if _, err := client.Go(proxytest.GetattrCall(2)); err != nil {
		t.Fatal(err)
	}
	h.Eventually("two Calls have come, and none goes on", func() bool { return p.Status(status.Query{}).Upstreams[0].Credits.Waiting == 2 })
	if err := testkit.WriteRecord(c, oncrpc.AppendAccepted(nil, first.XID, oncrpc.ProgramUnavailable)); err != nil {
		t.Fatal(err)
	}
	if m := read(); m.Procedure != 1 {
		t.Errorf("then comes a Call of procedure %d, want GETATTR", m.Procedure)
	}
}
