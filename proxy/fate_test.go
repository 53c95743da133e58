package proxy_test

import (
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/testkit/proxytest"
	"github.com/rdmabridge/rdmabridge/proxy/settings"
)

// TestDeadlyCalls: Calls that end every connection they come on. Each is sent as often
// as its kind allows, always under one XID, with pauses; then its client's connection
// is closed rather than left waiting.
func TestDeadlyCalls(t *testing.T) {
	t.Parallel()
	const once, again = 1, 1 + 5
	for name, tc := range map[string]struct {
		call []byte
		want int
		mode settings.Mode
	}{
		"READ":                          {call: proxytest.ReadCall(7, 0, 100), want: again},
		"WRITE":                         {call: proxytest.WriteCall(7, 0, 100), want: again},
		"COMPOUND that begins SEQUENCE": {call: proxytest.SequenceCall(7), want: once}, // lane.go
		"the same, pinned":              {call: proxytest.SequenceCall(7), want: again, mode: settings.ModePinned},
		"MKDIR":                         {call: proxytest.MkdirCall(7, "d"), want: once},
		"READ under RPCSEC_GSS":         {call: proxytest.GSSCall(proxytest.ReadCall(7, 0, 100), 1, 1), want: once},
		"an unknown program":            {call: proxytest.EchoCall(7, 10, 10, 0), want: once},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := proxytest.NewHarness(t, budget)
			var s *proxytest.TCPServer
			ready := make(chan struct{})
			s = h.TCPServer(proxytest.Behaviour{Intercept: func(*oncrpc.Call) ([]byte, bool) {
				<-ready
				s.DropConnections()
				return nil, true
			}})
			close(ready)
			p := h.Proxy([]settings.ListenerOptions{{Name: "nfs", Address: "127.0.0.1:0", Upstream: "storage"}},
				[]settings.UpstreamOptions{{Name: "storage", Endpoints: []string{s.Addr()}, Connections: 1, Mode: tc.mode, BackoffMin: 40 * time.Millisecond, BackoffMax: 100 * time.Millisecond}})
			began := time.Now()
			if _, err := h.Client(p.Addr("nfs")).Call(tc.call); err == nil {
				t.Error("a Call was answered by nobody")
			}
			if n := int(s.Calls.Load()); n != tc.want {
				t.Errorf("sent %d times, want %d", n, tc.want)
			}
			if n := len(s.XIDs()); n != 1 {
				t.Errorf("sent under %d XIDs, want one", n)
			}
			// Pauses of 20, 40, 50 and 50 ms at least.
			if d := time.Since(began); tc.want == again && d < 160*time.Millisecond {
				t.Errorf("all tries were over after %v", d)
			}
			if lost := metric(h, `upstream_calls_total{outcome="lost",upstream="storage"}`); lost != 1 {
				t.Errorf("%d Calls counted as lost, want 1", lost)
			}
		})
	}
}
