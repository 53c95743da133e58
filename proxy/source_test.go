package proxy_test

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/status"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/internal/testkit/proxytest"
	"github.com/rdmabridge/rdmabridge/proxy"
	"github.com/rdmabridge/rdmabridge/proxy/reach"
	"github.com/rdmabridge/rdmabridge/proxy/settings"
)

// A portCase is a proxy in front of a TCP server that is asked where connections come
// from.
type portCase struct {
	mode settings.Mode
	*proxytest.Harness
	p    *proxy.Proxy
	s    *proxytest.TCPServer
	logs testkit.Log
}

func newPortCase(t *testing.T, connections int, source reach.Source, mode settings.Mode) *portCase {
	t.Helper()
	x := &portCase{Harness: proxytest.NewHarness(t, budget), mode: mode}
	x.Log = zerolog.New(&x.logs)
	x.s = x.TCPServer(proxytest.Behaviour{})
	x.p = x.proxy(connections, source)
	return x
}

// proxy is one more in front of x.s, as in a process of its own.
func (x *portCase) proxy(connections int, source reach.Source) *proxy.Proxy {
	x.T.Helper()
	h := x.Harness
	if x.p != nil {
		h = proxytest.NewHarness(x.T, budget)
		h.Log = x.Log
	}
	return h.Proxy([]settings.ListenerOptions{{Name: "nfs", Address: "127.0.0.1:0", Upstream: "storage"}}, []settings.UpstreamOptions{{
		Name: "storage", Mode: x.mode, Endpoints: []string{x.s.Addr()}, Connections: connections, Source: source,
		ConnectTimeout: time.Second, BackoffMin: 5 * time.Millisecond, BackoffMax: 20 * time.Millisecond,
	}})
}

// ports are where n connections come from, sorted.
func (x *portCase) ports(n int) []uint16 {
	x.T.Helper()
	x.Eventually(fmt.Sprint("there are ", n, " connections"), func() bool { return len(x.s.Conns()) == n })
	var ps []uint16
	for _, c := range x.s.Conns() {
		a := netip.MustParseAddrPort(c.RemoteAddr().String())
		ps = append(ps, a.Port())
	}
	slices.Sort(ps)
	if n := len(slices.Compact(slices.Clone(ps))); n != len(ps) {
		x.T.Fatalf("ports %d are not different", ps)
	}
	return ps
}

func (x *portCase) moved() int { return metric(x.Harness, "upstream_source_port_changes_total") }

// drop ends every connection, by FIN or by RST, and waits until all are new.
func (x *portCase) drop(reset bool) {
	x.T.Helper()
	old := x.s.Conns()
	for _, c := range old {
		if reset {
			_ = c.SetLinger(0)
		}
		c.Close()
	}
	x.Eventually("all connections are new", func() bool {
		now := x.s.Conns()
		return len(now) == len(old) && !slices.ContainsFunc(now, func(c *proxytest.TCPConn) bool { return slices.Contains(old, c) })
	})
}

// hosts is how many addresses ownHost has returned.
var hosts atomic.Uint32

// ownHost returns an address of this host from which no other test connects, and no test of another process. A test
// whose server knows clients by their ports needs it: the upstreams of many tests have one name, so that they try
// the same ports, and which of these another test has at the moment is left to chance.
func ownHost() netip.Addr {
	pid := os.Getpid()
	return netip.AddrFrom4([4]byte{127, byte(64 + pid>>8%64), byte(pid), byte(hosts.Add(1))})
}

// The ports of free are below those that the kernel chooses from.
const firstFree, endFree = 20000, 32000

// nextFree is where free begins to look: above the ports that it returned to other tests.
var nextFree = struct {
	sync.Mutex
	port uint16
}{port: uint16(firstFree + os.Getpid()%64*180)}

// free returns the first of n consecutive ports that are free, and that it returns again only after all others.
func free(t *testing.T, n int) uint16 {
	t.Helper()
	nextFree.Lock()
	defer nextFree.Unlock()
	for range (endFree - firstFree) / n {
		low := nextFree.port
		if low+uint16(n) > endFree {
			low = firstFree
		}
		nextFree.port = low + uint16(n)
		var all []net.Listener
		for port := low; port < nextFree.port; port++ {
			if l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port)); err == nil {
				all = append(all, l)
			}
		}
		for _, l := range all {
			l.Close()
		}
		if len(all) == n {
			return low
		}
	}
	t.Fatal("no ports")
	return 0
}

// TestSourcePortStays: the connection that follows one that has ended, shared or pinned,
// comes from the same port, whichever side ended it.
func TestSourcePortStays(t *testing.T) {
	t.Parallel()
	low := free(t, 8)
	for _, tt := range []struct {
		name   string
		source reach.Source
	}{
		{"any", reach.Source{}},
		{"any of an address", reach.Source{Address: ownHost()}},
		{"range", reach.Source{Low: low, High: low + 7}},
		{"range of an address", reach.Source{Address: ownHost(), Low: low, High: low + 7}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			x := newPortCase(t, 2, tt.source, settings.ModePinned)
			c := x.Client(x.p.Addr("nfs"))
			check(t, c, proxytest.SequenceCall(1))
			want := x.ports(3)
			if l := tt.source.Low; l > 0 && (want[0] < l || want[2] > tt.source.High) {
				t.Errorf("ports %d are not in the range from %d", want, l)
			}
			if a := tt.source.Address; a.IsValid() && !strings.HasPrefix(x.s.Conns()[0].RemoteAddr().String(), a.String()) {
				t.Errorf("from %s, want %s", x.s.Conns()[0].RemoteAddr(), a)
			}
			for round := range uint32(6) {
				x.drop(round%2 == 0)
				got := x.ports(3)
				if tt.source == (reach.Source{}) && x.moved() > 0 {
					want = got // other tests connect from this address, too, and were given a port of ours
				}
				if !slices.Equal(got, want) {
					t.Fatalf("after %d ends: from ports %d, want %d", round+1, got, want)
				}
				check(t, c, proxytest.SequenceCall(round+2))
			}
			if n := x.moved(); n != 0 && tt.source != (reach.Source{}) {
				t.Errorf("%d changes counted", n)
			}
		})
	}
}

// TestSourcePortsOfTheNextProcess: the proxy that follows one that has ended connects from
// the same ports, also on behalf of the same client; one beside it from others.
func TestSourcePortsOfTheNextProcess(t *testing.T) {
	t.Parallel()
	low := free(t, 40)
	for _, tt := range []struct {
		name   string
		source reach.Source
	}{
		{"any", reach.Source{Address: ownHost()}},
		{"range", reach.Source{Address: ownHost(), Low: low, High: low + 39}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			x := newPortCase(t, 3, tt.source, settings.ModePinned)
			port := x.KeptPort()
			pinned := func() *proxytest.Client {
				c := port.Client(x.p.Addr("nfs"))
				check(t, c, proxytest.SequenceCall(1))
				return c
			}
			c := pinned()
			want := x.ports(4)
			beside := x.proxy(3, tt.source)
			both := x.ports(7) // which are different
			beside.Close()
			for range 2 {
				c.Close()
				x.p.Close()
				x.ports(0)
				x.p = x.proxy(3, tt.source)
				c = pinned()
				if got := x.ports(4); !slices.Equal(got, want) {
					t.Fatalf("from ports %d, want %d", got, want)
				}
			}
			beside = x.proxy(3, tt.source)
			if got := x.ports(7); !slices.Equal(got, both) {
				t.Errorf("two from ports %d, want %d", got, both)
			}
			beside.Close()
		})
	}
}

// TestSourcePortsOfProcesses: two clients of one host that keep their ports have each its own source port at the
// server, also when they come back in another order: the server knows by it what they send again.
func TestSourcePortsOfProcesses(t *testing.T) {
	t.Parallel()
	x := newPortCase(t, 1, reach.Source{Address: ownHost()}, settings.ModePinned)
	one, two := x.KeptPort(), x.KeptPort()
	// from connects a client, and returns the source port of its connection to the server.
	from := func(k *proxytest.KeptPort) (*proxytest.Client, uint16) {
		before := x.ports(len(x.s.Conns()))
		c := k.Client(x.p.Addr("nfs"))
		check(t, c, proxytest.GetattrCall(1))
		for _, p := range x.ports(len(before) + 1) {
			if !slices.Contains(before, p) {
				return c, p
			}
		}
		t.Fatal("no other port")
		return nil, 0
	}
	x.ports(1)
	a, portOfOne := from(one)
	b, portOfTwo := from(two)
	a.Reset()
	b.Reset()
	x.ports(1)
	if _, p := from(two); p != portOfTwo {
		t.Errorf("the second client's Calls come from port %d, and came from %d; the first one's from %d", p, portOfTwo, portOfOne)
	}
	if _, p := from(one); p != portOfOne {
		t.Errorf("the first client's Calls come from port %d, and came from %d", p, portOfOne)
	}
}

// TestSourcePortsComeHome: a process that had to take other ports, because the one before had
// its own, takes those when that has ended, without hurting what is under way.
func TestSourcePortsComeHome(t *testing.T) {
	t.Parallel()
	low := free(t, 20)
	source := reach.Source{Address: ownHost(), Low: low, High: low + 19}
	x := newPortCase(t, 3, source, settings.ModeShared)
	want := x.ports(3)
	next := x.proxy(3, source)
	x.ports(6)
	c := x.Client(next.Addr("nfs"))
	stop, calls := make(chan struct{}), make(chan error)
	go func() {
		for i := uint32(1); ; i++ {
			if _, err := c.Call(proxytest.MkdirCall(i, fmt.Sprint("d", i))); err != nil {
				calls <- err
				return
			}
			select {
			case <-stop:
				calls <- nil
				return
			default:
			}
		}
	}()
	x.p.Close()
	x.Eventually("the ports are those of the process before", func() bool {
		var ps []uint16
		for _, c := range x.s.Conns() {
			ps = append(ps, netip.MustParseAddrPort(c.RemoteAddr().String()).Port())
		}
		slices.Sort(ps)
		return slices.Equal(ps, want)
	})
	close(stop)
	if err := <-calls; err != nil {
		t.Errorf("a Call meanwhile: %v", err)
	}
	if n := x.moved(); n != 0 {
		t.Errorf("%d changes counted", n)
	}
}

// TestIdleClosedByServer: a server that closes an idle connection is not reported as a fault.
func TestIdleClosedByServer(t *testing.T) {
	t.Parallel()
	x := newPortCase(t, 1, reach.Source{Address: ownHost()}, settings.ModeShared)
	check(t, x.Client(x.p.Addr("nfs")), proxytest.GetattrCall(1))
	x.drop(false)
	x.Eventually("it is counted", func() bool { return metric(x.Harness, `upstream_disconnects_total{reason="idle"`) == 1 })
	x.Eventually("it is said", func() bool {
		return strings.Contains(x.logs.String(), "upstream closed an idle connection")
	})
	if strings.Contains(x.logs.String(), "no connection to upstream") {
		t.Errorf("a warning: %s", x.logs.String())
	}
}

// TestSourcePortRange: ports are given back by clients that go; when all are in use that
// is said.
func TestSourcePortRange(t *testing.T) {
	t.Parallel()
	low := free(t, 4)
	busy, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", low+1))
	if err != nil {
		t.Fatal(err)
	}
	defer busy.Close()
	x := newPortCase(t, 1, reach.Source{Address: netip.MustParseAddr("127.0.0.1"), Low: low, High: low + 3}, settings.ModePinned)
	for round := range uint32(3) {
		a, b := x.Client(x.p.Addr("nfs")), x.Client(x.p.Addr("nfs"))
		check(t, a, proxytest.SequenceCall(round+1))
		check(t, b, proxytest.SequenceCall(round+1))
		if got, want := x.ports(3), []uint16{low, low + 2, low + 3}; !slices.Equal(got, want) {
			t.Fatalf("from ports %d, want %d", got, want)
		}
		c := x.Client(x.p.Addr("nfs"))
		ch, err := c.Go(proxytest.SequenceCall(1))
		if err != nil {
			t.Fatal(err)
		}
		want := fmt.Sprintf("every source port is in use: %d to %d", low, low+3)
		x.Eventually("it is said that no port is left", func() bool { return strings.Contains(x.logs.String(), want) })
		a.Close()
		if r := <-ch; !bytes.Equal(r, proxytest.Expected(proxytest.SequenceCall(1))) {
			t.Fatalf("when there was a port again: %x", r)
		}
		x.ports(3)
		b.Close()
		c.Close()
		x.ports(1)
	}
	if n := x.moved(); n != 0 {
		t.Errorf("%d changes counted", n)
	}
}

// TestSourcePortLost: when another process has the port meanwhile, the connection comes
// from another one, and that is counted.
func TestSourcePortLost(t *testing.T) {
	t.Parallel()
	mine := ownHost()
	x := newPortCase(t, 1, reach.Source{Address: mine}, settings.ModeShared)
	port := x.ports(1)[0]
	addr := x.s.Addr()
	x.s.Close()
	x.Eventually("the connection has gone", func() bool { return x.p.Status(status.Query{}).Upstreams[0].Usable == 0 })
	l, err := net.Listen("tcp", fmt.Sprintf("%s:%d", mine, port))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if x.s, err = proxytest.ListenTCP(addr, proxytest.Behaviour{}); err != nil {
		t.Fatal(err)
	}
	defer x.s.Close()
	if got := x.ports(1)[0]; got == port {
		t.Errorf("from port %d, which is another's", got)
	}
	if n := x.moved(); n != 1 {
		t.Errorf("%d changes counted, want 1", n)
	}
	check(t, x.Client(x.p.Addr("nfs")), proxytest.GetattrCall(1))
}

// TestSourcePortForTheDuplicateRequestCache: a harmful Call is not executed twice,
// although the connection is lost with its Reply, or the proxy with all of them, and the client
// has to send it again: the server knows it by its XID and where it comes from.
func TestSourcePortForTheDuplicateRequestCache(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name        string
		connections int
		next        bool // the Call comes again to the next process
	}{{"one connection", 1, false}, {"several", 3, false}, {"the next process", 1, true}, {"several of the next process", 3, true}} {
		t.Run(tt.name, func(t *testing.T) { testDuplicateRequestCache(t, tt.connections, tt.next) })
	}
}

func testDuplicateRequestCache(t *testing.T, connections int, next bool) {
	type known struct {
		from string
		xid  uint32
	}
	var mu sync.Mutex
	cache := make(map[known][]byte)
	executed := make(map[string]int)
	server := func(c *oncrpc.Call, from *proxytest.TCPConn) ([]byte, bool) {
		if c.Procedure != 9 {
			return nil, false
		}
		mu.Lock()
		defer mu.Unlock()
		k := known{from.RemoteAddr().String(), c.XID}
		if r, ok := cache[k]; ok {
			return r, true
		}
		cache[k] = proxytest.Expected(c.Message)
		executed[string(c.Message[c.Args:])]++
		_ = from.SetLinger(0)
		from.Close()
		return nil, true
	}
	h := proxytest.NewHarness(t, budget)
	s, own := h.TCPServer(proxytest.Behaviour{InterceptTCP: server}), ownHost()
	start := func() *proxy.Proxy {
		return proxytest.NewHarness(t, budget).Proxy([]settings.ListenerOptions{{Name: "nfs", Address: "0.0.0.0:0", Upstream: "storage"}}, []settings.UpstreamOptions{{
			Name: "storage", Endpoints: []string{s.Addr()}, Connections: connections, BackoffMin: 5 * time.Millisecond, BackoffMax: 20 * time.Millisecond,
			Source: reach.Source{Address: own},
		}})
	}
	p := start()
	const calls = 10
	for i := range uint32(calls) {
		m, port := proxytest.MkdirCall(i+1, fmt.Sprint("once", i)), h.KeptPort()
		if r, err := port.Client(p.Addr("nfs")).Call(m); err == nil || errors.Is(err, proxytest.ErrTimeout) {
			t.Fatalf("a Call whose Reply was lost: %d octets, %v; want the end of the connection", len(r), err)
		}
		if next {
			p.Close()
			p = start()
		}
		check(t, port.Client(p.Addr("nfs")), m)
	}
	mu.Lock()
	defer mu.Unlock()
	if len(executed) != calls {
		t.Errorf("%d directories were made, want %d", len(executed), calls)
	}
	for args, n := range executed {
		if n != 1 {
			t.Errorf("%x was executed %d times", args, n)
		}
	}
}

// TestSourcePortReserved: connections come from reserved ports, for servers that do not
// trust users.
func TestSourcePortReserved(t *testing.T) {
	t.Parallel()
	l, err := net.ListenPacket("udp", "127.0.0.1:700")
	if errors.Is(err, syscall.EACCES) {
		t.Skip("needs CAP_NET_BIND_SERVICE")
	} else if err == nil {
		l.Close()
	}
	x := newPortCase(t, 8, reach.Source{Low: 665, High: 1023}, settings.ModeShared)
	want := x.ports(8)
	if want[0] < 665 || want[7] > 1023 {
		t.Errorf("from ports %d", want)
	}
	x.drop(false)
	if got := x.ports(8); !slices.Equal(got, want) {
		t.Errorf("from ports %d, want %d", got, want)
	}
}
