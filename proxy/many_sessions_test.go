package proxy_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/internal/regmem"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/internal/testkit/nfs4test"
	"github.com/rdmabridge/rdmabridge/internal/testkit/proxytest"
	"github.com/rdmabridge/rdmabridge/proxy"
	"github.com/rdmabridge/rdmabridge/proxy/reach"
	"github.com/rdmabridge/rdmabridge/proxy/settings"
	"github.com/rdmabridge/rdmabridge/rdmaside/iwarp"
	"github.com/rdmabridge/rdmabridge/tcpframe"
)

// A village is a proxy between many NFSv4.2 clients and a server of sessions.
type village struct {
	*proxytest.Harness
	p  *proxy.Proxy
	s  *nfs4test.Server
	cs *nfs4test.Clients
}

// villages runs f for a server over RDMA and one over TCP.
func villages(t *testing.T, clients, connections int, so nfs4test.ServerOptions, change func(*settings.UpstreamOptions, *nfs4test.ClientsOptions), f func(x *village)) {
	t.Parallel()
	for _, rdma := range []bool{true, false} {
		name := "tcp"
		if rdma {
			name = "rdma"
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f(newVillage(t, rdma, clients, connections, so, change))
		})
	}
}

func newVillage(t *testing.T, rdma bool, clients, connections int, so nfs4test.ServerOptions, change func(*settings.UpstreamOptions, *nfs4test.ClientsOptions)) *village {
	t.Helper()
	x := &village{Harness: proxytest.NewHarness(t, 128<<20), s: nfs4test.NewServer(so)}
	engine, err := tcpframe.Start(tcpframe.EngineOptions{Loops: 2, Log: x.Log})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(engine.Stop)
	t.Cleanup(x.s.Close)
	co := nfs4test.ClientsOptions{Prefix: "host", Renew: -1, Retry: time.Millisecond, Slots: 4}
	uo := settings.UpstreamOptions{
		Name: "storage", RDMA: rdma, Connections: connections, Mode: settings.ModeSessions,
		BackoffMin: time.Millisecond, BackoffMax: 20 * time.Millisecond,
	}
	var loops []loop.Loop
	for _, l := range engine.Loops() {
		loops, co.Loops = append(loops, l), append(co.Loops, l)
	}
	var addr string
	if rdma {
		uo.Provider = proxytest.IWARP(iwarp.Options{Log: x.Log})
		arena, aerr := regmem.New(regmem.Options{Budget: 256 << 20})
		if aerr != nil {
			t.Fatal(aerr)
		}
		t.Cleanup(func() { _ = arena.Close() })
		addr, err = x.s.ListenRDMA(nfs4test.RDMAOptions{
			Address: "127.0.0.1:0", Provider: proxytest.IWARP(iwarp.Options{Log: x.Log}), Loops: loops, Arena: arena, Credits: 64,
		})
	} else {
		uo.Source = ownPorts
		addr, err = x.s.ListenTCP("127.0.0.1:0")
	}
	if err != nil {
		t.Fatal(err)
	}
	uo.Endpoints = []string{addr}
	if change != nil {
		change(&uo, &co)
	}
	x.p = x.Proxy([]settings.ListenerOptions{{Name: "nfs", Address: "127.0.0.1:0", Upstream: "storage"}}, []settings.UpstreamOptions{uo})
	co.Target = x.p.Addr("nfs")
	x.cs = nfs4test.NewClients(clients, co)
	t.Cleanup(x.cs.Close)
	x.cs.Start()
	return x
}

// until waits until f is true.
func (x *village) until(what string, f func() bool) {
	x.T.Helper()
	if !testkit.Settles(testkit.Patience, f) {
		now, most := x.s.Connections()
		x.T.Fatalf("not within %v: %s; %s; server: %d sessions, %d down, %d connections, at most %d; %v",
			testkit.Patience, what, x.cs.Counts(), x.s.Sessions(), x.s.Down(), now, most, x.cs.Err())
	}
}

// allUp waits until each client has a session and a connection, and the server can call each.
// Clients that have no back channel learn it when they renew their lease. Each renews it at least once: a
// client whose connection was lost while it had nothing to say is not known on its next one before it speaks.
func (x *village) allUp() {
	x.T.Helper()
	want := make([]int, x.cs.Len())
	for i := range want {
		want[i] = x.cs.Renewed(i) + 2 // one may be under way already
	}
	x.until("all are up", func() bool {
		all := x.cs.Up() == x.cs.Len() && x.s.Sessions() == x.cs.Len() && x.s.Down() == 0
		done := all
		for i := range want {
			if !all || x.cs.Renewed(i) < want[i] {
				x.cs.Renew(i)
				done = false
			}
		}
		return done
	})
}

func (x *village) everyone() (all []int) {
	for i := range x.cs.Len() {
		all = append(all, i)
	}
	return all
}

// work has the clients receive n Replies each, on average.
func (x *village) work(depth int, op nfs4test.Op, n int) {
	x.T.Helper()
	l := x.cs.Load(x.everyone(), depth, op)
	x.until("Replies", func() bool { return l.Replies.Load() >= int64(n*x.cs.Len()) })
	l.Stop()
}

// good fails the test if a client saw anything wrong, or the server had more than so many
// connections.
func (x *village) good(connections int) {
	x.T.Helper()
	if err := x.cs.Err(); err != nil {
		x.T.Error(err)
	}
	if _, most := x.s.Connections(); most > connections {
		x.T.Errorf("the server had %d connections, want at most %d", most, connections)
	}
	for what, n := range map[string]int64{
		"callbacks failed": x.s.Faults.Load(), "connections were evicted": x.s.Evicted.Load(),
		"callbacks came to a client without that session": x.cs.Strange.Load(),
	} {
		if n != 0 {
			x.T.Errorf("%d %s", n, what)
		}
	}
	if x.T.Failed() {
		x.T.Logf("the server's connections:\n%s", x.s.Past())
	}
	x.T.Logf("%s; server: %d COMPOUNDs, %d executed, %d replays, %d busy, %d bound", x.cs.Counts(),
		x.s.Calls.Load(), x.s.Executed.Load(), x.s.Replays.Load(), x.s.Busy.Load(), x.s.Bound.Load())
}

// recallSome calls n clients back, chosen at random, all at once, and checks that each callback
// has come to its client once, and nowhere else.
func (x *village) recallSome(n int, token uint64) {
	x.T.Helper()
	r := rand.New(rand.NewPCG(token, 1))
	var recalls []*nfs4test.Recall
	var whom []int
	for k := range n {
		i := r.IntN(x.cs.Len())
		whom = append(whom, i)
		recalls = append(recalls, x.s.Recall(x.cs.Owner(i), token+uint64(k)))
	}
	for k, r := range recalls {
		<-r.Done()
		if got := x.cs.Recalled(r.Token); r.Err != nil || r.Status != nfs4test.OK || len(got) != 1 || got[0] != whom[k] {
			x.T.Errorf("callback for client %d: %v, status %d; it came to %v; sent %d times, %d delays, %v", whom[k], r.Err, r.Status, got, r.Sent, r.Delays, r.Took)
		}
	}
}

// crowdSize is how many clients the tests have that are about many.
func crowdSize() int {
	if testkit.RaceEnabled || testing.Short() {
		return 100
	}
	return 400
}

// most is the most connections to the server that n pooled connections mean: as many lanes, and as
// many for other Calls.
func most(n int) int { return 2 * n }

// ownPorts are source ports that the kernel chooses for nobody. A seat that began on another port than its first choice,
// because somebody had that one, goes home after ten seconds, by a connection more for a moment (reach.Ports): tests that
// count connections would see it.
var ownPorts = reach.Source{Low: 28000, High: 31999}

// TestManySessions: hundreds of clients have sessions over three connections, and each Reply and
// each callback comes to its client. The server would close a connection more than it may have.
func TestManySessions(t *testing.T) {
	const connections = 3
	villages(t, crowdSize(), connections, nfs4test.ServerOptions{Connections: most(connections)}, nil, func(x *village) {
		x.allUp()
		x.work(2, nfs4test.OpGetattr, 20)
		x.work(1, 20000, 2)
		x.recallSome(x.cs.Len()/2, 1<<32)
		if n := x.s.Sessions(); n != x.cs.Len() {
			x.T.Errorf("%d sessions, want %d", n, x.cs.Len())
		}
		x.good(most(connections))
	})
}

// TestManyReconnect: clients that lose their connection in the middle of COMPOUNDs go on with their
// sessions, and no COMPOUND is executed twice.
func TestManyReconnect(t *testing.T) {
	const connections = 3
	villages(t, crowdSize()/2, connections, nfs4test.ServerOptions{Delay: time.Millisecond}, nil, func(x *village) {
		x.allUp()
		l := x.cs.Load(x.everyone(), 2, nfs4test.OpGetattr)
		r := rand.New(rand.NewPCG(1, 2))
		for range 40 {
			for range x.cs.Len() / 20 {
				x.cs.Reconnect(r.IntN(x.cs.Len()))
			}
			n := l.Replies.Load()
			x.until("Replies", func() bool { return l.Replies.Load() > n+int64(x.cs.Len()) })
		}
		l.Stop()
		x.allUp()
		x.recallSome(x.cs.Len()/2, 1<<32)
		if x.cs.Resent.Load() == 0 || x.s.Replays.Load()+x.s.Busy.Load() == 0 {
			x.T.Errorf("%s; %d replays, %d busy: this test tests nothing", x.cs.Counts(), x.s.Replays.Load(), x.s.Busy.Load())
		}
		x.until("a Reply for each COMPOUND that was executed", func() bool {
			return x.s.Executed.Load() == x.cs.Replies.Load()+x.cs.Uncached.Load()
		})
		if n := x.s.Created.Load(); n != int64(x.cs.Len()) {
			x.T.Errorf("%d sessions were created, want %d", n, x.cs.Len())
		}
		x.good(most(connections))
	})
}

// TestManyProtected: with SP4_MACH_CRED the server refuses a session on a connection that it is not
// bound to, so clients that come back on another connection have to bind it first.
func TestManyProtected(t *testing.T) {
	const connections = 3
	villages(t, crowdSize()/2, connections, nfs4test.ServerOptions{}, func(_ *settings.UpstreamOptions, o *nfs4test.ClientsOptions) { o.Machine = true }, func(x *village) {
		x.allUp()
		l := x.cs.Load(x.everyone(), 2, nfs4test.OpGetattr)
		for k := range 10 {
			now, _ := x.s.Connections()
			x.s.DropConnection(k % max(now, 1))
			for i := range x.cs.Len() / 10 {
				x.cs.Reconnect((10*i + k) % x.cs.Len())
			}
			n := l.Replies.Load()
			x.until("Replies", func() bool { return l.Replies.Load() > n+int64(4*x.cs.Len()) })
		}
		l.Stop()
		x.allUp()
		x.recallSome(x.cs.Len()/2, 1<<32)
		if x.s.Unbound.Load() == 0 {
			x.T.Error("no session was refused on a connection: this test tests nothing")
		}
		if n := x.s.Created.Load(); n != int64(x.cs.Len()) {
			x.T.Errorf("%d sessions were created, want %d", n, x.cs.Len())
		}
		x.good(most(connections) + connections)
	})
}

// TestManyForgotten: the server starts again and knows no session any more. All clients make new
// ones, and are called back on these.
func TestManyForgotten(t *testing.T) {
	const connections = 3
	villages(t, crowdSize()/2, connections, nfs4test.ServerOptions{}, nil, func(x *village) {
		x.allUp()
		l := x.cs.Load(x.everyone(), 2, nfs4test.OpGetattr)
		for k := range 2 {
			x.s.Forget()
			n := l.Replies.Load()
			x.until("Replies", func() bool { return l.Replies.Load() > n+int64(10*x.cs.Len()) })
			x.allUp()
			x.recallSome(x.cs.Len()/4, uint64(k+1)<<32)
		}
		l.Stop()
		x.good(most(connections))
	})
}

// TestManyCallbacksMeanwhile: callbacks go on while clients reconnect. None comes to another client,
// and each that the server believes to be answered has come to its client.
func TestManyCallbacksMeanwhile(t *testing.T) {
	const connections = 3
	villages(t, crowdSize()/4, connections, nfs4test.ServerOptions{CallbackDelay: 5 * time.Millisecond}, nil, func(x *village) {
		x.allUp()
		l := x.cs.Load(x.everyone(), 1, nfs4test.OpGetattr)
		r := rand.New(rand.NewPCG(3, 4))
		right, failed, delays := 0, 0, 0
		for round := range 30 {
			var recalls []*nfs4test.Recall
			var whom []int
			for k := range x.cs.Len() / 4 {
				i := r.IntN(x.cs.Len())
				whom = append(whom, i)
				recalls = append(recalls, x.s.Recall(x.cs.Owner(i), uint64(round)<<32+uint64(k)))
				if k%4 == 0 {
					x.cs.Reconnect(i)
				}
			}
			for k, v := range recalls {
				<-v.Done()
				delays += v.Delays
				got := x.cs.Recalled(v.Token)
				for _, i := range got {
					if i != whom[k] {
						x.T.Errorf("callback for client %d came to %v", whom[k], got)
					}
				}
				switch {
				case v.Err != nil:
					failed++ // the client's answer was lost with its connection: the server makes it repair its session
				case len(got) != 1:
					x.T.Errorf("callback for client %d is answered and came to %v", whom[k], got)
				default:
					right++
				}
			}
		}
		l.Stop()
		x.allUp()
		x.recallSome(x.cs.Len(), 1<<48)
		x.T.Logf("%d callbacks right, %d failed, %d delays", right, failed, delays)
		if right < 9*failed {
			x.T.Errorf("%d callbacks right, %d failed", right, failed)
		}
		if err := x.cs.Err(); err != nil {
			x.T.Error(err)
		}
	})
}

// TestManySilent: clients that do not answer callbacks do not keep the server from calling others,
// although it has two credits for all clients of a connection. The bridge answers for them before
// the server loses its patience.
func TestManySilent(t *testing.T) {
	const connections, silent = 2, 4
	villages(t, 40, connections, nfs4test.ServerOptions{CallbackTimeout: testkit.Patience}, nil, func(x *village) {
		x.allUp()
		var waiting []*nfs4test.Recall
		for i := range silent {
			x.cs.Silence(i, true)
			waiting = append(waiting, x.s.Recall(x.cs.Owner(i), uint64(i)))
		}
		for i := silent; i < x.cs.Len(); i++ {
			r := x.s.Recall(x.cs.Owner(i), uint64(i))
			<-r.Done()
			if got := x.cs.Recalled(r.Token); r.Err != nil || len(got) != 1 || got[0] != i {
				x.T.Errorf("callback for client %d: %v; it came to %v", i, r.Err, got)
			}
		}
		for _, r := range waiting {
			<-r.Done()
			if r.Err == nil || r.Took >= testkit.Patience {
				x.T.Errorf("callback for a silent client: %v after %v", r.Err, r.Took)
			}
		}
		for i := range silent {
			x.cs.Silence(i, false)
		}
		x.allUp()
		x.recallSome(x.cs.Len(), 1<<48)
		if n := x.cs.Resets.Load(); n != silent {
			x.T.Errorf("%d clients replaced their session, want %d", n, silent)
		}
		if err := x.cs.Err(); err != nil {
			x.T.Error(err)
		}
	})
}

// TestManyLost: when a connection to the server ends, its clients are closed, come back with their
// sessions, and can be called back again. Nothing is executed twice.
func TestManyLost(t *testing.T) {
	const connections = 3
	villages(t, crowdSize()/2, connections, nfs4test.ServerOptions{}, nil, func(x *village) {
		x.allUp()
		l := x.cs.Load(x.everyone(), 1, nfs4test.OpGetattr)
		for k := range 6 {
			now, _ := x.s.Connections()
			x.s.DropConnection(k % max(now, 1))
			n := l.Replies.Load()
			x.until("Replies", func() bool { return l.Replies.Load() > n+int64(4*x.cs.Len()) })
			x.until("all have a connection", func() bool { return x.cs.Up() == x.cs.Len() })
		}
		l.Stop()
		x.allUp()
		x.recallSome(x.cs.Len()/2, 1<<32)
		if x.cs.Lost.Load() == 0 {
			x.T.Errorf("%s: this test tests nothing", x.cs.Counts())
		}
		x.until("a Reply for each COMPOUND that was executed", func() bool {
			return x.s.Executed.Load() == x.cs.Replies.Load()+x.cs.Uncached.Load()
		})
		if n := x.s.Created.Load(); n != int64(x.cs.Len()) {
			x.T.Errorf("%d sessions were created, want %d", n, x.cs.Len())
		}
		x.good(most(connections) + connections) // a connection may be replaced before the server sees its end
	})
}
