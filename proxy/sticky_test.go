package proxy_test

import (
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/status"
	"github.com/rdmabridge/rdmabridge/internal/testkit/proxytest"
	"github.com/rdmabridge/rdmabridge/proxy/reach"
	"github.com/rdmabridge/rdmabridge/proxy/settings"
)

// seenMkdirs is where the MKDIRs of a server came from, none of which is answered by itself.
type seenMkdirs struct {
	mu      sync.Mutex
	from    []string
	xids    []uint32
	answers []func()
}

func (s *seenMkdirs) intercept(c *oncrpc.Call, from *proxytest.TCPConn) ([]byte, bool) {
	if c.Procedure != 9 {
		return nil, false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.from = append(s.from, from.RemoteAddr().String())
	s.xids = append(s.xids, c.XID)
	reply := proxytest.Expected(c.Message)
	s.answers = append(s.answers, func() { from.Send(reply) })
	return nil, true
}

func (s *seenMkdirs) ports() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.from)
}

// answer answers the first.
func (s *seenMkdirs) answer() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answers[0]()
}

// TestStickyGSS: a retransmission under RPCSEC_GSS uses the connection of the Call that is
// still under way, where it waits for the XID.
func TestStickyGSS(t *testing.T) {
	t.Parallel()
	var seen seenMkdirs
	h := proxytest.NewHarness(t, budget)
	s := h.TCPServer(proxytest.Behaviour{InterceptTCP: seen.intercept})
	p := h.Proxy([]settings.ListenerOptions{{Name: "nfs", Address: "127.0.0.1:0", Upstream: "storage"}},
		[]settings.UpstreamOptions{{Name: "storage", Endpoints: []string{s.Addr()}, Connections: 2}})
	h.Eventually("all are there", func() bool { return p.Status(status.Query{}).Upstreams[0].Usable == 2 })
	a := h.Client(p.Addr("nfs"))
	if _, err := a.Go(proxytest.GSSCall(proxytest.MkdirCall(77, "d"), 1, 1)); err != nil {
		t.Fatal(err)
	}
	h.Eventually("it is at the server", func() bool { return len(seen.ports()) == 1 })
	a.Close()
	if _, err := h.Client(p.Addr("nfs")).Go(proxytest.GSSCall(proxytest.MkdirCall(77, "d"), 2, 1)); err != nil {
		t.Fatal(err)
	}
	h.Eventually("the next one waits for its XID, or is there", func() bool {
		return metric(h, "upstream_xid_collisions_total") > 0 || len(seen.ports()) == 2
	})
	check(t, h.Client(p.Addr("nfs")), proxytest.GetattrCall(1))
	if len(seen.ports()) == 1 {
		seen.answer()
	}
	h.Eventually("it is there again", func() bool { return len(seen.ports()) == 2 })
	if ports := seen.ports(); ports[0] != ports[1] {
		t.Errorf("sent again while it is under way, it comes from %s and then from %s", ports[0], ports[1])
	}
}

// TestStickySlow: a Call that takes longer than a Call may comes from the same port again.
func TestStickySlow(t *testing.T) {
	t.Parallel()
	var seen seenMkdirs
	h := proxytest.NewHarness(t, budget)
	s := h.TCPServer(proxytest.Behaviour{InterceptTCP: seen.intercept})
	p := h.Proxy([]settings.ListenerOptions{{Name: "nfs", Address: "127.0.0.1:0", Upstream: "storage"}},
		[]settings.UpstreamOptions{{
			Name: "storage", Endpoints: []string{s.Addr()}, Connections: 1, CallTimeout: time.Second, ProbeInterval: -1,
			Source: reach.Source{Address: ownHost()},
		}})
	a, other := h.Client(p.Addr("nfs")), h.Client(p.Addr("nfs"))
	ch, err := a.Go(proxytest.MkdirCall(77, "d"))
	if err != nil {
		t.Fatal(err)
	}
	h.Eventually("the connection of the first is closed", func() bool {
		check(t, other, proxytest.GetattrCall(1))
		return ended(ch) || t.Failed()
	})
	if _, err := h.Client(p.Addr("nfs")).Go(proxytest.MkdirCall(77, "d")); err != nil {
		t.Fatal(err)
	}
	h.Eventually("it is there again", func() bool { return len(seen.ports()) == 2 })
	if ports := seen.ports(); ports[0] != ports[1] {
		t.Errorf("a MKDIR that takes long comes from %s and, when the client sends it again, from %s (XIDs %x)", ports[0], ports[1], seen.xids)
	}
}
