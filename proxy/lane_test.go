package proxy_test

import (
	"slices"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/internal/status"
	"github.com/rdmabridge/rdmabridge/internal/testkit/nfs4test"
	"github.com/rdmabridge/rdmabridge/internal/testkit/proxytest"
	"github.com/rdmabridge/rdmabridge/proxy"
	"github.com/rdmabridge/rdmabridge/proxy/settings"
	"github.com/rdmabridge/rdmabridge/rdmaside/iwarp"
	"github.com/rdmabridge/rdmabridge/rdmaside/iwarp/iwarptest"
	"github.com/rdmabridge/rdmabridge/tcpframe"
)

// laneConnections is how many connections the upstreams of these tests have for NFSv4.1 clients.
const laneConnections = 3

// A laneWorld is a server of NFSv4.1 sessions behind a bridge, and its clients.
type laneWorld struct {
	*proxytest.Harness
	p  *proxy.Proxy
	s  *nfs4test.Server
	cs *nfs4test.Clients

	listener settings.ListenerOptions // as they were at the start
	upstream settings.UpstreamOptions
	clients  nfs4test.ClientsOptions
}

// laneWorlds runs f with n clients of a server over RDMA, and with n of a server over TCP.
func laneWorlds(t *testing.T, n int, so nfs4test.ServerOptions, change func(*settings.ListenerOptions, *settings.UpstreamOptions, *nfs4test.ClientsOptions), f func(t *testing.T, x *laneWorld)) {
	for _, rdma := range []bool{true, false} {
		name := "TCP"
		if rdma {
			name = "RDMA"
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f(t, newLaneWorld(t, n, rdma, so, change))
		})
	}
}

func newLaneWorld(t *testing.T, n int, rdma bool, so nfs4test.ServerOptions, change func(*settings.ListenerOptions, *settings.UpstreamOptions, *nfs4test.ClientsOptions)) *laneWorld {
	t.Helper()
	x := &laneWorld{Harness: proxytest.NewHarness(t, budget), s: nfs4test.NewServer(so)}
	t.Cleanup(x.s.Close)
	lo := settings.ListenerOptions{Name: "nfs", Address: "127.0.0.1:0", Upstream: "storage"}
	uo := settings.UpstreamOptions{
		Name: "storage", Connections: laneConnections, RDMA: rdma, BackoffMin: 5 * time.Millisecond, BackoffMax: 50 * time.Millisecond,
	}
	var addr string
	var err error
	if rdma {
		uo.Provider = proxytest.IWARP(iwarp.Options{})
		l := iwarptest.NewLoop()
		t.Cleanup(l.Stop)
		addr, err = x.s.ListenRDMA(nfs4test.RDMAOptions{Address: "127.0.0.1:0", Provider: uo.Provider, Loops: []loop.Loop{l}, Arena: x.Arena, Credits: 32})
	} else {
		uo.Source = ownPorts
		addr, err = x.s.ListenTCP("127.0.0.1:0")
	}
	if err != nil {
		t.Fatal(err)
	}
	uo.Endpoints = []string{addr}
	e, err := tcpframe.Start(tcpframe.EngineOptions{Loops: 2, Log: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Stop)
	co := nfs4test.ClientsOptions{Prefix: "host", Renew: -1, Retry: 5 * time.Millisecond}
	for _, l := range e.Loops() {
		co.Loops = append(co.Loops, loop.SocketLoop(l))
	}
	if change != nil {
		change(&lo, &uo, &co)
	}
	x.listener, x.upstream = lo, uo
	x.p = x.Proxy([]settings.ListenerOptions{lo}, []settings.UpstreamOptions{uo})
	co.Target = x.p.Addr("nfs")
	x.clients = co
	x.cs = nfs4test.NewClients(n, co)
	t.Cleanup(x.cs.Close)
	x.cs.Start()
	return x
}

// allUp waits until all clients have a session and the server can call them back.
func (x *laneWorld) allUp() {
	x.T.Helper()
	x.eventually("all are up", func() bool { return x.cs.Up() == x.cs.Len() && x.s.Down() == 0 })
}

func (x *laneWorld) eventually(what string, f func() bool) {
	x.T.Helper()
	x.Eventually(what, func() bool {
		if err := x.cs.Err(); err != nil {
			x.T.Fatalf("%s: %v; %s", what, err, x.cs.Counts())
		}
		return f()
	})
}

// called calls client i back, and fails the test unless the Call has come to it alone.
func (x *laneWorld) called(i int, token uint64) {
	x.T.Helper()
	r := x.s.Recall(x.cs.Owner(i), token)
	<-r.Done()
	if got := x.cs.Recalled(token); r.Err != nil || r.Status != nfs4test.OK || !slices.Equal(got, []int{i}) {
		x.T.Errorf("callback %d for client %d: %v, status %d, came to %v", token, i, r.Err, r.Status, got)
	}
}

// work has each client receive n Replies on average.
func (x *laneWorld) work(depth int, op nfs4test.Op, n int) {
	x.T.Helper()
	l := x.cs.Load(x.every(), depth, op)
	x.eventually("Replies", func() bool { return l.Replies.Load() >= int64(n*x.cs.Len()) })
	l.Stop()
}

func (x *laneWorld) every() []int {
	all := make([]int, x.cs.Len())
	for i := range all {
		all[i] = i
	}
	return all
}

// TestLanes: many clients share few connections, and each is called back on its own.
func TestLanes(t *testing.T) {
	for _, machine := range []bool{false, true} {
		change := func(_ *settings.ListenerOptions, _ *settings.UpstreamOptions, co *nfs4test.ClientsOptions) {
			co.Machine = machine
		}
		name := map[bool]string{false: "SP4_NONE", true: "SP4_MACH_CRED"}[machine]
		t.Run(name, func(t *testing.T) {
			laneWorlds(t, 60, nfs4test.ServerOptions{}, change, func(_ *testing.T, x *laneWorld) {
				x.allUp()
				x.work(4, nfs4test.OpGetattr, 20)
				for i := range x.cs.Len() {
					x.called(i, uint64(i)+1)
				}
				if _, n := x.s.Connections(); n > most(laneConnections) {
					x.T.Errorf("the server had up to %d connections, want at most %d", n, most(laneConnections))
				}
				if n := x.s.Created.Load(); n != 60 {
					x.T.Errorf("%d sessions, want one for each of 60 clients", n)
				}
				st, clients, lanes := x.p.Status(status.Query{Connections: true}).Upstreams[0], 0, 0
				for _, c := range st.Connections {
					if c.Kind == "lane" {
						clients += c.Clients
						lanes++
					}
				}
				if clients != 60 || lanes != laneConnections || st.Sessions != 60 {
					x.T.Errorf("the status has %d clients on %d lanes and %d sessions", clients, lanes, st.Sessions)
				}
			})
		})
	}
}

// TestLaneEnds: when a connection to the server ends, so do those of its clients, and only those. The
// clients come back and can be called again.
func TestLaneEnds(t *testing.T) {
	laneWorlds(t, 30, nfs4test.ServerOptions{}, nil, func(_ *testing.T, x *laneWorld) {
		x.allUp()
		l := x.cs.Load(x.every(), 2, nfs4test.OpGetattr)
		for range 5 {
			before := x.cs.Connects.Load()
			now, _ := x.s.Connections()
			x.s.DropConnection(now - 1)
			n := l.Replies.Load()
			x.eventually("work goes on", func() bool { return l.Replies.Load() > n+600 && x.cs.Up() == 30 })
			if more := x.cs.Connects.Load() - before; more > 25 {
				x.T.Errorf("%d of 30 clients had to connect again after one of the connections has ended", more)
			}
		}
		l.Stop()
		for i := range 30 {
			x.cs.Renew(i)
		}
		x.allUp()
		for i := range 30 {
			x.called(i, uint64(i)+1)
		}
		if n := x.s.Created.Load(); n != 30 {
			x.T.Errorf("%d sessions, want the 30 of the beginning", n)
		}
		if x.cs.Lost.Load() == 0 {
			x.T.Error("no client has lost its connection")
		}
	})
}

// TestLaneClientReturns: a client that connects again is called on its new connection, though the
// server has noticed nothing. While it is away the server is told to try later.
func TestLaneClientReturns(t *testing.T) {
	laneWorlds(t, 10, nfs4test.ServerOptions{CallbackDelay: 20 * time.Millisecond}, nil, func(_ *testing.T, x *laneWorld) {
		x.allUp()
		binds := x.cs.Binds.Load()
		for round := range 5 {
			for i := range 10 {
				x.cs.Reconnect(i)
			}
			var rs []*nfs4test.Recall
			for i := range 10 {
				rs = append(rs, x.s.Recall(x.cs.Owner(i), uint64(100*round+i)))
			}
			for i := range 10 {
				x.cs.Renew(i)
			}
			for i, r := range rs {
				<-r.Done()
				if got := x.cs.Recalled(r.Token); r.Err != nil || len(got) != 1 || got[0] != i {
					x.T.Errorf("callback %d for client %d: %v, came to %v", r.Token, i, r.Err, got)
				}
			}
		}
		if n := x.cs.Binds.Load() - binds; n != 0 {
			x.T.Errorf("the clients bound connections %d times, although the server's connections stayed", n)
		}
		if x.s.Created.Load() != 10 {
			x.T.Errorf("%d sessions, want 10", x.s.Created.Load())
		}
	})
}

// TestLaneSilentClient: a client that does not answer reverse Calls costs the others nothing, and the
// server tells it that its back channel has failed.
func TestLaneSilentClient(t *testing.T) {
	t.Parallel()
	laneWorlds(t, 6, nfs4test.ServerOptions{}, func(_ *settings.ListenerOptions, uo *settings.UpstreamOptions, _ *nfs4test.ClientsOptions) {
		uo.Connections = 1
	}, func(_ *testing.T, x *laneWorld) {
		x.allUp()
		x.cs.Silence(0, true)
		x.cs.Silence(1, true)
		a, b := x.s.Recall(x.cs.Owner(0), 1), x.s.Recall(x.cs.Owner(1), 2)
		for i := 2; i < 6; i++ {
			x.called(i, uint64(i)+1) // over RDMA the two hold the server's reverse credits
		}
		<-a.Done()
		<-b.Done()
		if a.Err == nil || b.Err == nil {
			x.T.Errorf("callbacks that were not answered ended with %v and %v", a.Err, b.Err)
		}
		x.cs.Silence(0, false)
		x.cs.Renew(0)
		x.eventually("the session is replaced", func() bool { return x.cs.Resets.Load() == 1 && x.s.Created.Load() == 7 })
		x.eventually("one is down", func() bool { return x.s.Down() == 1 })
		x.called(0, 100)
	})
}

// TestLaneReload: connections that are made differently after a reload replace the old ones, and their
// clients come back to them.
func TestLaneReload(t *testing.T) {
	laneWorlds(t, 30, nfs4test.ServerOptions{}, nil, func(_ *testing.T, x *laneWorld) {
		x.allUp()
		l := x.cs.Load(x.every(), 2, nfs4test.OpGetattr)
		uo := x.upstream
		for _, change := range []func(*settings.UpstreamOptions){
			func(o *settings.UpstreamOptions) { o.Credits = 64 },
			func(o *settings.UpstreamOptions) { o.Connections = 1 },
			func(o *settings.UpstreamOptions) { o.Connections = 4 },
		} {
			change(&uo)
			before := l.Replies.Load()
			if err := x.p.Reconfigure(proxytest.Listeners(x.listener), proxytest.Upstreams(uo)); err != nil {
				x.T.Fatal(err)
			}
			x.eventually("work goes on", func() bool { return l.Replies.Load() > before+1000 })
		}
		l.Stop()
		if n := metric(x.Harness, `upstream_calls_total{outcome="lost"`); n != 0 {
			x.T.Errorf("%d Calls were lost in a reload", n)
		}
		for i := range 30 {
			x.cs.Renew(i)
		}
		x.allUp()
		for i := range 30 {
			x.called(i, uint64(i)+1)
		}
	})
}

// TestLaneServerAway: clients survive a server that is away for a while and forgets everything.
func TestLaneServerAway(t *testing.T) {
	laneWorlds(t, 20, nfs4test.ServerOptions{}, nil, func(_ *testing.T, x *laneWorld) {
		x.allUp()
		x.s.Forget()
		x.work(2, nfs4test.OpGetattr, 10)
		x.allUp()
		for i := range 20 {
			x.called(i, uint64(i)+1)
		}
		if n := x.s.Created.Load(); n != 40 {
			x.T.Errorf("%d sessions were created, want 40", n)
		}
	})
}

// TestLaneConnections: the connections of one host are spread over the lanes. Under RPCSEC_GSS each
// has one of its own, because its BIND_CONN_TO_SESSION cannot be changed.
func TestLaneConnections(t *testing.T) {
	for _, tt := range []struct {
		name string
		call []byte
		want int
	}{
		{"AUTH_SYS", proxytest.SequenceCall(1), 2},
		{"krb5", proxytest.GSSCall(proxytest.SequenceCall(1), 1, 1), 6},
		{"krb5p", proxytest.GSSCall(proxytest.SequenceCall(1), 1, 3), 6},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := proxytest.NewHarness(t, budget)
			s := h.TCPServer(proxytest.Behaviour{})
			lo := settings.ListenerOptions{Name: "nfs", Address: "127.0.0.1:0", Upstream: "storage"}
			uo := settings.UpstreamOptions{Name: "storage", Endpoints: []string{s.Addr()}, Connections: 2}
			p := h.Proxy([]settings.ListenerOptions{lo}, []settings.UpstreamOptions{uo})
			h.Eventually("the shared connections are there", func() bool { return len(s.Conns()) == 2 })
			for range 6 {
				check(t, h.Client(p.Addr("nfs")), tt.call)
			}
			if n := len(s.Conns()) - 2; n != tt.want {
				t.Errorf("6 clients of one host are on %d connections, want %d", n, tt.want)
			}
			if err := p.Reconfigure(proxytest.Listeners(lo), proxytest.Upstreams(uo)); err != nil {
				t.Fatal(err)
			}
			check(t, h.Client(p.Addr("nfs")), tt.call)
			if n := len(s.Conns()) - 2; n != tt.want && n != tt.want+1 {
				t.Errorf("7 clients are on %d connections after a reload, want %d", n, tt.want)
			}
		})
	}
}

// TestLaneUpstreamRemoved: when a reload removes an upstream, the clients on its lanes are closed, idle
// ones too: their sessions are at that server.
func TestLaneUpstreamRemoved(t *testing.T) {
	laneWorlds(t, 100, nfs4test.ServerOptions{}, nil, func(_ *testing.T, x *laneWorld) {
		x.allUp()
		s := x.TCPServer(proxytest.Behaviour{})
		lo := x.listener
		lo.Upstream = "other"
		if err := x.p.Reconfigure(proxytest.Listeners(lo), proxytest.Upstreams(settings.UpstreamOptions{Name: "other", Endpoints: []string{s.Addr()}})); err != nil {
			x.T.Fatal(err)
		}
		x.eventually("all have lost their connections", func() bool { return x.cs.Lost.Load() >= 100 })
	})
}

// TestLanePausedClient: a client that the bridge does not read from, because it has as many Calls under
// way as it may, is not called: its answer would not be seen in time.
func TestLanePausedClient(t *testing.T) {
	const delayed = `upstream_session_callbacks_total{outcome="delayed"`
	laneWorlds(t, 2, nfs4test.ServerOptions{Delay: time.Second, CallbackDelay: 20 * time.Millisecond},
		func(lo *settings.ListenerOptions, _ *settings.UpstreamOptions, _ *nfs4test.ClientsOptions) {
			lo.MaxCalls = 1
		},
		func(_ *testing.T, x *laneWorld) {
			x.allUp()
			before := x.s.Calls.Load()
			l := x.cs.Load([]int{0}, 1, nfs4test.OpGetattr)
			x.eventually("its Call is at the server", func() bool { return x.s.Calls.Load() > before })
			x.called(1, 1)
			if n := metric(x.Harness, delayed); n != 0 {
				x.T.Errorf("%d callbacks of a client that is read from were delayed", n)
			}
			r := x.s.Recall(x.cs.Owner(0), 2)
			x.eventually("the server is told to try later", func() bool { return metric(x.Harness, delayed) > 0 })
			l.Stop()
			<-r.Done()
			if got := x.cs.Recalled(2); r.Err != nil || !slices.Equal(got, []int{0}) {
				x.T.Errorf("the callback ended with %v and came to %v", r.Err, got)
			}
		})
}
