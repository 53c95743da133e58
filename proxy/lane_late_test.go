package proxy_test

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/status"
	"github.com/rdmabridge/rdmabridge/internal/testkit/proxytest"
	"github.com/rdmabridge/rdmabridge/proxy"
	"github.com/rdmabridge/rdmabridge/proxy/settings"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric/fabrictest"
)

// hungSession is the first octet of the ID of a session whose Calls the server never answers: hangsOn.
const hungSession = 0xff

// hungCall is a COMPOUND of NFSv4.2 in hungSession.
func hungCall(xid uint32) []byte { return sessionCall(hungSession, xid) }

// hangsOn is the behaviour of a server that does not answer the Calls of hungSession.
func hangsOn(c *oncrpc.Call) ([]byte, bool) { return nil, sessionOf(c) == hungSession }

// A laneBench is a bridge with lanes to a server that answers as a Behaviour says.
type laneBench struct {
	*proxytest.Harness
	p           *proxy.Proxy
	calls       func() int64 // that the server has received
	connections func() int   // of the server
}

// eachBack runs f for servers over RDMA and over TCP, at the same time.
func eachBack(t *testing.T, f func(t *testing.T, rdma bool)) {
	t.Helper()
	for _, rdma := range []bool{true, false} {
		name := "TCP"
		if rdma {
			name = "RDMA"
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f(t, rdma)
		})
	}
}

// newLaneBench starts a bridge before a server, over RDMA or TCP, that grants 32 credits.
func newLaneBench(t *testing.T, rdma bool, b proxytest.Behaviour, change func(*settings.ListenerOptions, *settings.UpstreamOptions)) *laneBench {
	t.Helper()
	x := &laneBench{Harness: proxytest.NewHarness(t, budget)}
	lo := settings.ListenerOptions{Name: "nfs", Address: "127.0.0.1:0", Upstream: "storage"}
	uo := settings.UpstreamOptions{
		Name: "storage", RDMA: rdma, Connections: 1, Credits: 32, SlowStart: 1 << 10,
		BackoffMin: 5 * time.Millisecond, BackoffMax: 50 * time.Millisecond,
	}
	if rdma {
		lp, l := fabrictest.NewLoopback(), fabrictest.NewLoop()
		t.Cleanup(l.Stop)
		s := x.RDMAServer(lp, []loop.Loop{l}, "storage", 32, b)
		uo.Provider, uo.Endpoints = lp, []string{"storage"}
		x.calls, x.connections = s.Calls.Load, s.Connections
	} else {
		s := x.TCPServer(b)
		uo.Endpoints = []string{s.Addr()}
		x.calls, x.connections = s.Calls.Load, func() int { return len(s.Conns()) }
	}
	if change != nil {
		change(&lo, &uo)
	}
	x.p = x.Proxy([]settings.ListenerOptions{lo}, []settings.UpstreamOptions{uo})
	return x
}

// from returns a client at an address of its own.
func (x *laneBench) from(host byte) *proxytest.Client {
	x.T.Helper()
	c, err := proxytest.DialClientFrom(net.IPv4(127, 0, 9, host), x.p.Addr("nfs"))
	if err != nil {
		x.T.Fatal(err)
	}
	x.T.Cleanup(func() { c.Close() })
	return c
}

// A bystander is a client that sends Calls one after the other and connects again when the bridge
// closes its connection.
type bystander struct {
	x      *laneBench
	c      *proxytest.Client
	xid    uint32
	closed int // how often the bridge closed the connection
}

// call sends n Calls.
func (b *bystander) call(n int) {
	b.x.T.Helper()
	for range n {
		b.xid++
		if _, err := b.c.Call(proxytest.SequenceCall(b.xid)); errors.Is(err, proxytest.ErrTimeout) {
			b.x.T.Fatal("a bystander's Call has no Reply")
		} else if err != nil {
			b.closed++
			b.c = b.x.from(2)
		}
	}
}

// TestLaneLateCalls: a host some of whose Calls are not answered within timeouts.call loses its own
// connection, and the connections of the others on its lane go on as long as the Calls that hang take
// few credits. When they take more, another connection replaces the lane's, but not over and over.
func TestLaneLateCalls(t *testing.T) {
	change := func(_ *settings.ListenerOptions, u *settings.UpstreamOptions) {
		u.CallTimeout, u.ProbeInterval = time.Second, 100*time.Millisecond
	}
	for _, tt := range []struct {
		name             string
		rounds, calls    int
		replaced, closed int // at most
	}{
		{"few", 3, 1, 0, 0},
		{"many", 3, 5, 1, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			eachBack(t, func(t *testing.T, rdma bool) {
				x := newLaneBench(t, rdma, proxytest.Behaviour{Intercept: hangsOn}, change)
				b := &bystander{x: x, c: x.from(2)}
				xid := uint32(0)
				for range tt.rounds {
					bad := x.from(1)
					var hung sync.WaitGroup
					for range tt.calls {
						xid++
						ch, err := bad.Go(hungCall(xid))
						if err != nil {
							t.Fatal(err)
						}
						hung.Go(func() {
							if _, ok := <-ch; ok {
								t.Error("a Call that hangs has a Reply")
							}
						})
					}
					over := make(chan struct{})
					go func() { hung.Wait(); close(over) }()
					for done := false; !done; {
						select {
						case <-over:
							done = true
						default:
							b.call(1)
						}
					}
					b.call(20)
				}
				if b.closed > tt.closed {
					t.Errorf("the bridge closed a bystander's connection %d times, want at most %d", b.closed, tt.closed)
				}
				if n := metric(x.Harness, `upstream_disconnects_total{reason="dropped"`); n > tt.replaced {
					t.Errorf("%d connections were replaced, want at most %d", n, tt.replaced)
				}
				if n := metric(x.Harness, `upstream_leaked_credits_total`); n == 0 {
					t.Error("no Call was late")
				}
			})
		})
	}
}

// TestLaneLateCallAgain: a client whose Call the server has dropped sends it again on its next
// connection, with the same XID, and gets the Reply.
func TestLaneLateCallAgain(t *testing.T) {
	for _, signed := range []bool{false, true} {
		t.Run(fmt.Sprint("signed ", signed), func(t *testing.T) {
			change := func(_ *settings.ListenerOptions, u *settings.UpstreamOptions) {
				u.CallTimeout, u.ProbeInterval = time.Second, 50*time.Millisecond
			}
			eachBack(t, func(t *testing.T, rdma bool) {
				var dropped atomic.Bool
				x := newLaneBench(t, rdma, proxytest.Behaviour{Intercept: func(c *oncrpc.Call) ([]byte, bool) {
					_, hangs := hangsOn(c)
					return nil, hangs && dropped.CompareAndSwap(false, true)
				}}, change)
				c := x.from(1)
				check(t, c, proxytest.SequenceCall(1))
				m := hungCall(2)
				if signed {
					m = proxytest.GSSCall(m, 1, 1)
				}
				if _, err := c.Call(m); err == nil || errors.Is(err, proxytest.ErrTimeout) {
					t.Fatalf("a Call that is dropped: %v", err)
				}
				check(t, x.from(1), m)
				if n := metric(x.Harness, "upstream_leaked_credits_total"); n != 1 {
					t.Errorf("%d leaked credits, want 1", n)
				}
			})
		})
	}
}

// TestLaneLateHosts: when so many hosts have Calls that hang that a new host could not get in, another
// connection replaces the lane's each time.
func TestLaneLateHosts(t *testing.T) {
	t.Parallel()
	change := func(_ *settings.ListenerOptions, u *settings.UpstreamOptions) {
		// A newcomer is closed after half the time for which late Calls do not replace another connection.
		u.CallTimeout, u.ProbeInterval, u.UnavailableAfter = time.Second, 50*time.Millisecond, 5*time.Second
	}
	eachBack(t, func(t *testing.T, rdma bool) {
		x := newLaneBench(t, rdma, proxytest.Behaviour{Intercept: hangsOn}, change)
		for round := range byte(3) {
			for i := range byte(60) {
				if _, err := x.from(100 + i).Go(hungCall(uint32(round)<<8 + uint32(i))); err != nil {
					t.Fatal(err)
				}
			}
			x.Eventually("the Calls are there", func() bool { return x.calls() >= 28 })
			check(t, x.from(2+round), sessionCall(2, 1))
		}
	})
}

// lateBench is a bench with a client whose lane has a late Call of another, which is gone.
func lateBench(t *testing.T, rdma bool) (*laneBench, *bystander, *settings.UpstreamOptions) {
	t.Helper()
	var uo settings.UpstreamOptions
	x := newLaneBench(t, rdma, proxytest.Behaviour{Intercept: hangsOn}, func(_ *settings.ListenerOptions, u *settings.UpstreamOptions) {
		// A machine that stands still for so long has a server that seems to have stalled: the connection ends.
		u.CallTimeout, u.ProbeInterval = time.Second, 50*time.Millisecond
		uo = *u
	})
	b := &bystander{x: x, c: x.from(2)}
	b.call(1)
	bad := x.from(1)
	hung, err := bad.Go(hungCall(1))
	if err != nil {
		t.Fatal(err)
	}
	for done := false; !done; {
		select {
		case <-hung:
			done = true
		default:
			b.call(1)
		}
	}
	// A probe may be outstanding, too.
	x.Eventually("the late Call alone is outstanding", func() bool { return x.p.Status(status.Query{}).Upstreams[0].Credits.Used == 1 })
	if b.closed != 0 {
		t.Errorf("the other client of the lane was closed %d times", b.closed)
	}
	return x, b, &uo
}

// ended waits until no Call is outstanding.
func (x *laneBench) ended(why string) {
	x.T.Helper()
	x.Eventually(why, func() bool {
		return x.p.Status(status.Query{}).Upstreams[0].Credits.Used == 0 && metric(x.Harness, "listener_received_calls_total") == metric(x.Harness, "listener_calls_total")
	})
}

// TestLaneLateEnds: nothing is left of Calls that the server never answers when the last client of their
// lane has gone.
func TestLaneLateEnds(t *testing.T) {
	eachBack(t, func(t *testing.T, rdma bool) {
		x, b, _ := lateBench(t, rdma)
		b.c.Close()
		x.ended("the late Call has ended")
	})
}

// TestLaneLateReplaced: nothing is left of Calls that the server never answers when another connection has replaced theirs,
// whether the clients of that come to the other one or not.
func TestLaneLateReplaced(t *testing.T) {
	t.Parallel()
	eachBack(t, func(t *testing.T, rdma bool) {
		x, b, uo := lateBench(t, rdma)
		uo.SilentTimeout = time.Minute // connections are made with it
		if err := x.p.Reconfigure(proxytest.Listeners(settings.ListenerOptions{Name: "nfs", Address: "127.0.0.1:0", Upstream: "storage"}), proxytest.Upstreams(*uo)); err != nil {
			t.Fatal(err)
		}
		x.Eventually("the other client is closed, to come to the new connection", func() bool { b.call(1); return b.closed > 0 })
		x.ended("the late Call has ended")
		b.call(1)
	})
}
