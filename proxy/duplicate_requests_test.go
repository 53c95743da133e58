package proxy_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/testkit/proxytest"
	"github.com/rdmabridge/rdmabridge/proxy"
	"github.com/rdmabridge/rdmabridge/proxy/reach"
	"github.com/rdmabridge/rdmabridge/proxy/settings"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric/fabrictest"
)

// A cachedServer is a server with a duplicate request cache, on TCP or RDMA, and what bridges to it need.
type cachedServer struct {
	*proxytest.Harness
	*proxytest.ReplyCache
	rdma     bool
	endpoint string
	provider *fabrictest.Loopback // of the server and of all bridges
	loop     *fabrictest.Loop     // of the server and of the RDMA clients
	gate     proxytest.Gate       // of the server's Replies
	host     netip.Addr           // from which all bridges connect over TCP
	arrived  func() int64         // how many Calls have come to the server
	over     func() bool          // the server has no connection over TCP
}

func newCachedServer(t *testing.T, rdma bool) *cachedServer {
	t.Helper()
	x := &cachedServer{
		Harness: proxytest.NewHarness(t, budget), ReplyCache: proxytest.NewReplyCache(), rdma: rdma,
		provider: fabrictest.NewLoopback(), loop: fabrictest.NewLoop(), host: ownHost(),
		over: func() bool { return true },
	}
	t.Cleanup(x.loop.Stop)
	x.gate.PassNull = true
	if !rdma {
		b := x.OverTCP()
		b.Gate = &x.gate
		s := x.TCPServer(b)
		x.endpoint, x.arrived = s.Addr(), s.Calls.Load
		x.over = func() bool { return len(s.Conns()) == 0 }
		return x
	}
	b := x.OverRDMA()
	b.Gate = &x.gate
	s := x.RDMAServer(x.provider, []loop.Loop{x.loop}, "storage", 64, b)
	x.endpoint, x.arrived = "storage", s.Calls.Load
	return x
}

// A cachedBridge is a bridge to a cachedServer, or to another cachedBridge.
type cachedBridge struct {
	p    *proxy.Proxy
	h    *proxytest.Harness
	rdma string // the address where it accepts RDMA clients
	from string // the address from which it connects
}

// bridge starts a bridge with the identity name. Its upstream is at endpoint.
func (x *cachedServer) bridge(name string, rdma bool, endpoint string) *cachedBridge {
	x.T.Helper()
	b := &cachedBridge{h: proxytest.NewHarness(x.T, budget), rdma: "bridge " + name, from: "127.0.0.1"}
	var source reach.Source
	if !rdma {
		source.Address, b.from = x.host, x.host.String()
	}
	var err error
	b.p, err = proxy.New(proxy.Options{
		Identity: name, Log: b.h.Log, Metrics: b.h.Metrics, Engine: b.h.Engine, Arena: b.h.Arena, Registry: b.h.Registry,
		Listeners: proxytest.Listeners(
			settings.ListenerOptions{Name: "tcp", Address: "127.0.0.1:0", Upstream: "storage"},
			settings.ListenerOptions{Name: "tcp too", Address: "127.0.0.1:0", Upstream: "storage"},
			settings.ListenerOptions{Name: "rdma", Address: b.rdma, RDMA: true, Provider: x.provider, Upstream: "storage"},
		),
		Upstreams: proxytest.Upstreams(settings.UpstreamOptions{
			Name: "storage", RDMA: rdma, Provider: x.provider, Endpoints: []string{endpoint}, Connections: 2, Source: source,
			BackoffMin: 5 * time.Millisecond, BackoffMax: 20 * time.Millisecond,
		}),
	})
	if err != nil {
		x.T.Fatal(err)
	}
	if err := b.p.Start(context.Background()); err != nil {
		x.T.Fatal(err)
	}
	x.T.Cleanup(func() { _ = b.p.Close() })
	x.Eventually("the bridge is ready", func() bool { return b.p.Ready() == nil })
	return b
}

// absorbed is how many Calls the bridge has taken for others that are under way.
func (b *cachedBridge) absorbed() (n int) {
	for _, name := range []string{"tcp", "tcp too", "rdma"} {
		n += metric(b.h, fmt.Sprintf(`listener_calls_total{listener=%q,result="absorbed"}`, name))
	}
	return n
}

// toServer starts a bridge to the server.
func (x *cachedServer) toServer(name string) *cachedBridge {
	x.T.Helper()
	return x.bridge(name, x.rdma, x.endpoint)
}

// statusOf is the status of the Reply to m, which c gets.
func statusOf(t *testing.T, c caller, m []byte) uint32 {
	t.Helper()
	r, err := c.Call(m)
	if err != nil {
		t.Fatal(err)
	}
	return proxytest.Status(r)
}

// overTCPAndRDMA runs f with a server on either.
func overTCPAndRDMA(t *testing.T, f func(t *testing.T, x *cachedServer)) {
	for name, rdma := range map[string]bool{"TCP server": false, "RDMA server": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f(t, newCachedServer(t, rdma))
		})
	}
}

// TestProcessesOfOneHost: three processes of one host, one after the other, begin with one XID. Each has what it
// asks for done.
func TestProcessesOfOneHost(t *testing.T) {
	t.Parallel()
	overTCPAndRDMA(t, func(t *testing.T, x *cachedServer) {
		b := x.toServer("one")
		for i, m := range [][]byte{proxytest.MkdirCall(2, "d"), proxytest.RmdirCall(2, "d"), proxytest.MkdirCall(2, "d")} {
			c := x.Client(b.p.Addr("tcp"))
			if s := statusOf(t, c, m); s != proxytest.StatusOK {
				t.Errorf("process %d: status %d", i+1, s)
			}
			c.Close()
		}
		if !x.Has("d") || x.Executed() != 3 {
			t.Errorf("the directory is there: %v. %d Calls were executed, want 3", x.Has("d"), x.Executed())
		}
	})
}

// TestProcessesAtOnce: two processes of one host make one directory at the same time, under one XID. One of them has
// made it, and the other is told that it is there.
func TestProcessesAtOnce(t *testing.T) {
	t.Parallel()
	overTCPAndRDMA(t, func(t *testing.T, x *cachedServer) {
		b := x.toServer("one")
		m := proxytest.MkdirCall(2, "d")
		x.gate.Shut()
		var answers []<-chan []byte
		for range 2 {
			ch, err := x.Client(b.p.Addr("tcp")).Go(m)
			if err != nil {
				t.Fatal(err)
			}
			answers = append(answers, ch)
		}
		x.Eventually("both are under way", func() bool {
			return x.arrived() == 2 || b.absorbed() == 1
		})
		x.gate.Open()
		var got []uint32
		for _, ch := range answers {
			got = append(got, proxytest.Status(<-ch))
		}
		slices.Sort(got)
		if want := []uint32{proxytest.StatusOK, proxytest.StatusExists}; !slices.Equal(got, want) {
			t.Errorf("statuses %d, want %d", got, want)
		}
	})
}

// TestClientOnTheSamePort: a client that connects again from its port is the same to the next process of the bridge and
// to another bridge with the identity, and its Call is not executed again. From another port it is.
func TestClientOnTheSamePort(t *testing.T) {
	t.Parallel()
	overTCPAndRDMA(t, func(t *testing.T, x *cachedServer) {
		m := proxytest.MkdirCall(2, "d")
		at := netip.AddrPortFrom(netip.MustParseAddr("127.0.7.1"), free(t, 1))
		once := func(b *cachedBridge, at netip.AddrPort, listener string) uint32 {
			t.Helper()
			c, err := proxytest.DialClientAt(at, b.p.Addr(listener))
			if err != nil {
				t.Fatal(err)
			}
			defer c.Reset()
			return statusOf(t, c, m)
		}
		b := x.toServer("one")
		for range 3 {
			if s := once(b, at, "tcp"); s != proxytest.StatusOK {
				t.Errorf("status %d", s)
			}
		}
		if s := once(b, at, "tcp too"); s != proxytest.StatusOK {
			t.Errorf("at another listener: status %d", s)
		}
		b.p.Close()
		x.Eventually("its ports are free", x.over)
		if s := once(x.toServer("one"), at, "tcp"); s != proxytest.StatusOK {
			t.Errorf("the next process: status %d", s)
		}
		if n := x.Executed(); n != 1 {
			t.Errorf("the server executed it %d times, want once", n)
		}
		if s := once(x.toServer("two"), at, "tcp"); s != proxytest.StatusExists {
			t.Errorf("a client of another bridge: status %d, want NFS3ERR_EXIST", s)
		}
		if s := once(x.toServer("one "), netip.AddrPortFrom(at.Addr(), free(t, 1)), "tcp"); s != proxytest.StatusExists {
			t.Errorf("from another port: status %d, want NFS3ERR_EXIST", s)
		}
	})
}

// A process is a client whose XIDs count from a small number, as libnfs's did and those of test suites do.
type process struct {
	number, bridge int
	rdma           bool
	at             netip.AddrPort // from where it connects over TCP; without a port if it keeps none
	known          netip.AddrPort // from where a server without a bridge would see its connection come
	conn           caller
	end            func() // ends conn
	xid            uint32
	last           []byte // its latest Call
}

func (p *process) String() string {
	return fmt.Sprintf("client %d of bridge %d (RDMA: %v, known as %v)", p.number, p.bridge, p.rdma, p.known)
}

// firstXID is the XID with which all processes begin.
const firstXID = 2

// next makes the Call m of one of two directories the latest one.
func (p *process) next(random *rand.Rand) {
	name := fmt.Sprint("d", random.IntN(2))
	if random.IntN(2) == 0 {
		p.last = proxytest.MkdirCall(p.xid, name)
	} else {
		p.last = proxytest.RmdirCall(p.xid, name)
	}
	p.xid++
}

// A cachedModel is two bridges at one address before a server, their clients, and a server that has the clients for
// itself.
type cachedModel struct {
	*cachedServer
	random  *rand.Rand
	alone   *proxytest.ReplyCache
	chain   string        // what is between the bridges and far
	far     *cachedBridge // between the two bridges and the server; nil for none
	bridges []*cachedBridge
	clients []*process
}

// start starts bridge i.
func (m *cachedModel) start(i int) *cachedBridge {
	m.T.Helper()
	name := fmt.Sprint("near ", i)
	switch m.chain {
	case "TCP":
		return m.bridge(name, false, m.far.p.Addr("tcp"))
	case "RDMA":
		return m.bridge(name, true, m.far.rdma)
	}
	return m.toServer(name)
}

// connect connects p, again if it was connected.
func (m *cachedModel) connect(p *process) {
	m.T.Helper()
	if p.end != nil {
		p.end()
	}
	b := m.bridges[p.bridge]
	// A server without bridges sees the hosts behind two bridges at two addresses.
	host := netip.AddrFrom4([4]byte{10, byte(p.bridge), 0, p.at.Addr().As4()[3]})
	if p.rdma {
		c := m.RDMAClient(m.provider, m.loop, b.rdma, 0)
		p.conn, p.end, p.known = c, func() { _ = c.Close() }, netip.AddrPortFrom(host, 0)
		return
	}
	c, err := proxytest.DialClientAt(p.at, b.p.Addr("tcp"))
	if err != nil {
		m.T.Fatal(err)
	}
	m.T.Cleanup(c.Reset)
	port := netip.MustParseAddrPort(c.Conn.LocalAddr().String()).Port() // two processes may get the same one, one after the other
	p.conn, p.end, p.known = c, c.Reset, netip.AddrPortFrom(host, port)
}

// restart ends bridge i, and starts the next process of it.
func (m *cachedModel) restart(i int) {
	m.T.Helper()
	for _, p := range m.clients {
		if p.bridge == i {
			p.end()
			p.end = nil
		}
	}
	m.bridges[i].p.Close()
	m.bridges[i] = m.start(i)
	for _, p := range m.clients {
		if p.bridge == i {
			m.connect(p)
		}
	}
}

// cut ends the connections between the bridges, and waits for the next ones.
func (m *cachedModel) cut() {
	m.T.Helper()
	accepted := func() int { return metric(m.far.h, "listener_accepted_connections_total") }
	before := accepted()
	n, err := m.far.p.Disconnect(m.bridges[0].from, "test")
	if err != nil {
		m.T.Fatal(err)
	}
	m.Eventually("the bridges have other connections", func() bool { return accepted() == before+n })
}

// send has each of all send its latest Call, at the same time. The results must be those that the server would give the
// clients without a bridge, in some order.
func (m *cachedModel) send(step int, what string, all ...*process) {
	m.T.Helper()
	var answers []<-chan []byte
	for _, p := range all {
		ch, err := p.conn.Go(p.last)
		if err != nil {
			m.T.Fatal(err)
		}
		answers = append(answers, ch)
	}
	got := make([]uint32, len(all))
	for i, ch := range answers {
		r, ok := <-ch
		if !ok {
			m.T.Fatalf("step %d: %v was closed", step, all[i])
		}
		got[i] = proxytest.Status(r)
	}
	var want [][]uint32
	for _, order := range [][]int{{0, 1}, {1, 0}} {
		alone, statuses := m.alone.Clone(), make([]uint32, len(all))
		for _, i := range order {
			if i >= len(all) {
				continue
			}
			var h oncrpc.Call
			if err := oncrpc.ParseCall(all[i].last, &h); err != nil {
				m.T.Fatal(err)
			}
			statuses[i] = alone.Serve(&h, all[i].rdma, all[i].known)
		}
		if slices.Equal(statuses, got) && alone.Executed() == m.Executed() && alone.Has("d0") == m.Has("d0") && alone.Has("d1") == m.Has("d1") {
			m.alone = alone
			return
		}
		want = append(want, statuses)
	}
	m.T.Fatalf("step %d, %s: %v got statuses %d; without a bridge they would be one of %d, and %d Calls were executed of %d",
		step, what, all, got, want, m.Executed(), m.alone.Executed())
}

// step is one step of the model.
func (m *cachedModel) step(n int) {
	p := m.clients[m.random.IntN(len(m.clients))]
	kind := m.random.IntN(20)
	if kind < 8 && p.last == nil {
		kind = 19
	}
	switch {
	case kind < 4:
		m.send(n, "again", p)
		return
	case kind < 8:
		m.connect(p)
		m.send(n, "again on the next connection", p)
		return
	case kind < 11: // another process
		m.connect(p)
		p.xid = firstXID
	case kind == 11 && m.random.IntN(4) == 0:
		m.restart(p.bridge)
	case kind == 12 && m.far != nil:
		m.cut()
	case kind < 16:
		q := m.clients[(p.number+1+m.random.IntN(len(m.clients)-1))%len(m.clients)]
		p.next(m.random)
		q.next(m.random)
		if m.random.IntN(2) == 0 {
			q.xid = p.xid - 1
			q.last = proxytest.WithXID(p.last, q.xid)
			q.xid++
		}
		m.send(n, "at once", p, q)
		return
	}
	p.next(m.random)
	m.send(n, "the first time", p)
}

// TestSequenceOfResults: random clients of two bridges at one address, over TCP with ports that they keep or do not
// keep, and over RDMA, make and remove a few directories under a few XIDs, also two at once. They send Calls again,
// connect again and start anew, and the bridges start again. Each result is one that the server alone would have
// given them, with the same cache. So it is behind a second bridge, over TCP and over RDMA, whose connections end
// from time to time.
func TestSequenceOfResults(t *testing.T) {
	t.Parallel()
	for _, chain := range []string{"", "TCP", "RDMA"} {
		name := "one bridge"
		if chain != "" {
			name = "two bridges, between them " + chain
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			overTCPAndRDMA(t, func(t *testing.T, x *cachedServer) { sequenceOfResults(t, x, chain) })
		})
	}
}

func sequenceOfResults(t *testing.T, x *cachedServer, chain string) {
	steps := 600
	if testing.Short() {
		steps = 150
	}
	m := &cachedModel{cachedServer: x, random: rand.New(rand.NewPCG(35, 1)), alone: proxytest.NewReplyCache(), chain: chain}
	if chain != "" {
		m.far = x.toServer("far")
	}
	m.bridges = []*cachedBridge{m.start(0), m.start(1)}
	ports := free(t, 2)
	for i := range 12 {
		p := &process{number: i, bridge: i % 2, xid: firstXID}
		switch i / 2 % 3 {
		case 0: // the other bridge has a client with the same port
			p.at = netip.AddrPortFrom(netip.MustParseAddr("127.0.8.1"), ports+uint16(i/6))
		case 1:
			p.at = netip.MustParseAddrPort("127.0.8.1:0")
		case 2: // they are one client to a server
			p.at, p.rdma = netip.MustParseAddrPort("127.0.0.1:0"), true
		}
		m.connect(p)
		m.clients = append(m.clients, p)
	}
	for n := range steps {
		m.step(n)
	}
}

// TestLostBetweenBridges: the connections between two bridges end while a Call is at the server. The client sends
// the Call again from its port, and it is executed once.
func TestLostBetweenBridges(t *testing.T) {
	t.Parallel()
	for _, rdma := range []bool{false, true} {
		t.Run(fmt.Sprint("RDMA between them: ", rdma), func(t *testing.T) {
			t.Parallel()
			overTCPAndRDMA(t, func(t *testing.T, x *cachedServer) {
				far := x.toServer("far")
				to := far.p.Addr("tcp")
				if rdma {
					to = far.rdma
				}
				near := x.bridge("near", rdma, to)
				at := netip.AddrPortFrom(netip.MustParseAddr("127.0.7.2"), free(t, 1))
				dial := func() *proxytest.Client {
					c, err := proxytest.DialClientAt(at, near.p.Addr("tcp"))
					if err != nil {
						t.Fatal(err)
					}
					t.Cleanup(c.Reset)
					return c
				}
				m := proxytest.MkdirCall(2, "d")
				x.gate.Shut()
				first, err := dial().Go(m)
				if err != nil {
					t.Fatal(err)
				}
				x.Eventually("it is at the server", func() bool { return x.Executed() == 1 })
				if _, err := far.p.Disconnect(near.from, "test"); err != nil {
					t.Fatal(err)
				}
				if r, ok := <-first; ok {
					t.Fatalf("answered %x although the connections have ended", r)
				}
				var second <-chan []byte
				again := func() {
					if second, err = dial().Go(m); err != nil {
						t.Fatal(err)
					}
				}
				again()
				x.Eventually("it is taken for the one under way", func() bool {
					select {
					case r, ok := <-second:
						if ok {
							t.Fatalf("answered %x before the server has answered", r)
						}
						again() // near sent it on a connection whose end it had not seen yet
					default:
					}
					return far.absorbed() == 1
				})
				x.gate.Open()
				if r := <-second; r == nil || proxytest.Status(r) != proxytest.StatusOK {
					t.Errorf("answered %x", r)
				}
				if n := x.Executed(); n != 1 {
					t.Errorf("the server executed it %d times, want once", n)
				}
			})
		})
	}
}
