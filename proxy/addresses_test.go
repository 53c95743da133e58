package proxy_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/internal/status"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/internal/testkit/proxytest"
	"github.com/rdmabridge/rdmabridge/proxy/settings"
	"github.com/rdmabridge/rdmabridge/rdmaside"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
	"github.com/rdmabridge/rdmabridge/rdmaside/iwarp"
	"github.com/rdmabridge/rdmabridge/rdmaside/iwarp/iwarptest"
)

// endsCalls ends each connection when a Call comes. rdmaside.CallHandler.
type endsCalls struct{ calls *atomic.Int64 }

func (e endsCalls) Call(x *rdmaside.Exchange) {
	e.calls.Add(1)
	x.Abort()
}

// twoAddresses is a name with two addresses, and a server at each. That at the second works.
type twoAddresses struct {
	*proxytest.Harness
	endpoint string
	provider fabric.Provider // nil for TCP
	tried    atomic.Int64    // Calls, or connections without one, that came to the first address
	drop     func()          // ends the connections to the second
}

// newTwoAddresses gives host its addresses. The server at the first serves connections as broken does, which
// is for TCP; over RDMA it ends them.
func newTwoAddresses(t *testing.T, host string, rdma bool, broken func(*proxytest.TCPConn)) *twoAddresses {
	x := &twoAddresses{Harness: proxytest.NewHarness(t, budget)}
	first, second := netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("127.0.0.2")
	port := fmt.Sprint(free(t, 1))
	if rdma {
		iw, l := proxytest.IWARP(iwarp.Options{}), iwarptest.NewLoop()
		t.Cleanup(l.Stop)
		s := x.RDMAServer(iw, []loop.Loop{l}, net.JoinHostPort(second.String(), port), 32, proxytest.Behaviour{})
		x.drop = func() { s.DropConnections(io.EOF) }
		r, err := rdmaside.NewResponder(rdmaside.ResponderOptions{
			Memory: x.Arena.Account("broken", 1<<20), Registry: x.Registry, Credits: 4, FirstCredits: 4, CallInline: 4096, ReplyInline: 4096, MaxCall: 1 << 16,
		}, endsCalls{&x.tried})
		if err != nil {
			t.Fatal(err)
		}
		ln, err := iw.Listen(net.JoinHostPort(first.String(), port), fabric.ListenOptions{MaxConnections: 64, MaxStarting: 64, MaxStartingPerAddr: 64}, func(in fabric.Incoming) {
			_, _ = r.Accept(context.Background(), in, l)
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { ln.Close() })
		x.provider = iw
	} else {
		s, err := proxytest.ListenTCP(net.JoinHostPort(second.String(), port), proxytest.Behaviour{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.Close)
		x.drop = s.DropConnections
		b, err := proxytest.ServeTCP(net.JoinHostPort(first.String(), port), func(c *proxytest.TCPConn) {
			x.tried.Add(1)
			broken(c)
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(b.Close)
	}
	x.Names[host] = []netip.Addr{first, second}
	x.endpoint = net.JoinHostPort(host, port)
	return x
}

// TestMuteAddress: a name has two addresses, and the server at the first accepts connections and answers
// nothing, or ends them. The clients are served at the second, whatever connections carry their Calls, and
// stay there when it has ended its connections.
func TestMuteAddress(t *testing.T) {
	t.Parallel()
	var all sync.WaitGroup
	defer all.Wait()
	for _, server := range []struct {
		name   string
		broken func(*proxytest.TCPConn) // nil: RDMA
	}{
		{"mute", func(c *proxytest.TCPConn) { _, _ = io.Copy(io.Discard, c) }},
		{"shut", func(c *proxytest.TCPConn) { _, _ = testkit.ReadRecord(c) }},
		{"RDMA", nil},
	} {
		for _, how := range []struct {
			name string
			mode settings.Mode
			call []byte
		}{
			{"shared", settings.ModeAuto, proxytest.GetattrCall(1)},
			{"lane", settings.ModeAuto, proxytest.SequenceCall(1)},
			{"pinned", settings.ModePinned, proxytest.GetattrCall(1)},
		} {
			name := server.name + "-" + how.name
			atOnce(t, &all, name, func(t *testing.T) {
				x := newTwoAddresses(t, name+".test", server.broken == nil, server.broken)
				p := x.Proxy([]settings.ListenerOptions{{Name: "nfs", Address: "127.0.0.1:0", Upstream: "storage"}}, []settings.UpstreamOptions{{
					Name: "storage", Endpoints: []string{x.endpoint}, RDMA: x.provider != nil, Provider: x.provider, Mode: how.mode, Connections: 1,
					ConnectTimeout: time.Second, UnavailableAfter: testkit.Patience, BackoffMin: 5 * time.Millisecond, BackoffMax: 50 * time.Millisecond,
				}})
				if check(t, x.Client(p.Addr("nfs")), how.call); t.Failed() {
					return
				}
				x.Eventually("each connection has credits", func() bool {
					return !slices.ContainsFunc(p.Status(status.Query{Connections: true}).Upstreams[0].Connections, func(c status.Connection) bool {
						return c.Credits.Granted == 0
					})
				})
				tried := x.tried.Load()
				x.drop()
				x.Eventually("a client is served again", func() bool { // one that comes too early loses its lane
					r, err := x.Client(p.Addr("nfs")).Call(how.call)
					return err == nil && bytes.Equal(r, proxytest.Expected(how.call))
				})
				if n := x.tried.Load() - tried; n > 0 {
					t.Errorf("%d attempts at the address that does not work, after the other has served", n)
				}
			})
		}
	}
}
