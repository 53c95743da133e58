package tcpframe

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/internal/proxyheader"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/metrics"
)

// A proxyTest is a listener that takes 127.0.0.1 for a proxy.
type proxyTest struct {
	t      *testing.T
	l      *Listener
	opened chan string // "client wire" of each connection
	log    *testkit.Log
}

func newProxyTest(t *testing.T, e EngineOptions, o ListenOptions) *proxyTest {
	t.Helper()
	return newProxyTestOf(t, e, o, nil)
}

// newProxyTestOf does what newProxyTest does, with the handlers that handler makes instead of echoes unless it is nil.
func newProxyTestOf(t *testing.T, e EngineOptions, o ListenOptions, handler func() RecordHandler) *proxyTest {
	t.Helper()
	x := &proxyTest{t: t, opened: make(chan string, 100), log: new(testkit.Log)}
	e.Metrics, e.Log = metrics.New(), zerolog.New(x.log)
	if o.Proxies == nil {
		o.Proxies = prefixes("127.0.0.1/32")
	}
	if o.ProxyTimeout == 0 {
		o.ProxyTimeout = 10 * time.Second
	}
	x.l = listen(t, startLogging(t, e), o, func(*Conn) RecordHandler {
		if handler != nil {
			return handler()
		}
		h := echo()
		h.opened = func(c *Conn) { x.opened <- fmt.Sprint(c.RemoteAddr(), " ", c.WireAddr().Addr()) }
		return h
	})
	return x
}

func header(client string) []byte {
	return proxyheader.AppendClient(nil, netip.MustParseAddrPort(client), netip.MustParseAddrPort("192.0.2.1:2049"))
}

// dialFrom connects from an address of the loopback network.
func (x *proxyTest) dialFrom(from string) *peer {
	x.t.Helper()
	p, err := x.dial(from)
	if err != nil {
		x.t.Fatal(err)
	}
	return p
}

func (x *proxyTest) dial(from string) (*peer, error) {
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	c, err := d.Dial("tcp", x.l.Addr().String())
	if err != nil {
		return nil, err
	}
	x.t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(peerLasts))
	return &peer{x.t, c.(*net.TCPConn)}, nil
}

// served sends a record and reads it back.
func (x *proxyTest) served(p *peer) {
	x.t.Helper()
	want := pattern(300, 7)
	p.send(fragment(true, want))
	if got := p.readRecord(); !bytes.Equal(got, want) {
		x.t.Error("another record came back")
	}
}

func (x *proxyTest) wantOpened(want string) {
	x.t.Helper()
	select {
	case got := <-x.opened:
		if got != want {
			x.t.Errorf("the connection is that of %q, want %q", got, want)
		}
	case <-time.After(testkit.Patience):
		x.t.Fatal("Opened is not called")
	}
}

// wantRefused waits until the peer's connection has ended, counted as why.
func (x *proxyTest) wantRefused(p *peer, why reason, n uint64) {
	x.t.Helper()
	p.wantEnd(string(why))
	x.wantCounted(why, n)
}

// wantCounted waits until n connections are counted as refused for why.
func (x *proxyTest) wantCounted(why reason, n uint64) {
	x.t.Helper()
	testkit.Eventually(x.t, "counted as "+string(why), func() bool { return x.l.counters.refused[why].Value() == n })
}

// wantNoEntry connects from an address whose connections are refused at once, counted as why. The reset may
// come before connect(2) has returned.
func (x *proxyTest) wantNoEntry(from string, why reason, n uint64) {
	x.t.Helper()
	c, err := x.dial(from)
	switch {
	case err == nil:
		c.wantEnd(string(why))
	case !isReset(err):
		x.t.Fatal(err)
	}
	x.wantCounted(why, n)
}

// wantNone waits until no connection is counted.
func (x *proxyTest) wantNone() {
	x.t.Helper()
	testkit.Eventually(x.t, "no connection is counted", func() bool {
		x.l.mu.Lock()
		defer x.l.mu.Unlock()
		return x.l.clients.All() == 0 && x.l.starts.All() == 0 && x.l.clients.Hosts() == 0 && x.l.starts.Hosts() == 0 &&
			x.l.engine.sockets.Open() == 0 && x.l.counters.proxies.Load().waiting.Value() == 0
	})
}

// The header and the first record may come in one segment, in pieces of any length, or one octet at a
// time.
func TestAnnounced(t *testing.T) {
	t.Parallel()
	x := newProxyTest(t, EngineOptions{}, ListenOptions{})
	record := pattern(300, 3)
	stream := append(header("203.0.113.7:799"), fragment(true, record)...)
	for _, n := range []int{1, 7, 28, 29, 100, len(stream)} {
		p := x.dialFrom("127.0.0.1")
		for piece := range slices.Chunk(stream, n) {
			p.send(piece)
		}
		if got := p.readRecord(); !bytes.Equal(got, record) {
			t.Errorf("pieces of %d octets: another record came back", n)
		}
		x.wantOpened("203.0.113.7:799 127.0.0.1")
		x.served(p)
		p.Close()
	}
	x.wantNone()
	if n := x.l.counters.proxies.Load().named.Value(); n != 6 {
		t.Errorf("%d connections counted, want 6", n)
	}
}

// A header without a client stands for the proxy, and so does a client on the proxy's own host.
func TestAnnouncedItself(t *testing.T) {
	t.Parallel()
	x := newProxyTest(t, EngineOptions{}, ListenOptions{})
	p := x.dialFrom("127.0.0.1")
	p.send(proxyheader.AppendLocal(nil))
	x.wantOpened(p.LocalAddr().String() + " 127.0.0.1")
	x.served(p)
	if n := x.l.counters.proxies.Load().unnamed.Value(); n != 1 {
		t.Errorf("%d connections counted, want 1", n)
	}
}

// Nobody but a proxy can choose an address: a header is no record, and its connection ends.
func TestSpoofed(t *testing.T) {
	t.Parallel()
	x := newProxyTest(t, EngineOptions{}, ListenOptions{})
	for i, h := range [][]byte{header("203.0.113.7:799"), []byte("PROXY TCP4 203.0.113.7 192.0.2.1 799 2049\r\n")} {
		p := x.dialFrom("127.0.0.2")
		x.wantOpened(p.LocalAddr().String() + " 127.0.0.2")
		p.send(h)
		x.wantRefused(p, reasonTooLong, uint64(i)+1)
	}
	p := x.dialFrom("127.0.0.2")
	x.wantOpened(p.LocalAddr().String() + " 127.0.0.2")
	x.served(p)
	testkit.Eventually(t, "the log says what these octets look like", func() bool {
		return strings.Contains(x.log.String(), "proxy_protocol.from")
	})
}

func TestNotAnnounced(t *testing.T) {
	t.Parallel()
	x := newProxyTest(t, EngineOptions{}, ListenOptions{})
	for _, tt := range []struct {
		send string
		want reason
	}{
		{"PROXY TCP4 203.0.113.7 192.0.2.1 799 2049\r\n", reasonProxyV1},
		{"\x80\x00\x00\x28", reasonProxyMissing},
		{string(header("203.0.113.7:799")[:12]) + "\x31\x11\x00\x0c", reasonProxyHeader},
		{string(header("203.0.113.7:799")[:12]) + "\x21\x11\xff\xff", reasonProxyHeader},
	} {
		p := x.dialFrom("127.0.0.1")
		n := x.l.counters.refused[tt.want].Value()
		p.send([]byte(tt.send))
		x.wantRefused(p, tt.want, n+1)
	}
	// A connection that ends inside the header, and one that ends before it, as health checks do.
	n := x.l.counters.refused[reasonProxyHeader].Value()
	p := x.dialFrom("127.0.0.1")
	p.send(header("203.0.113.7:799")[:20])
	p.CloseWrite()
	x.wantRefused(p, reasonProxyHeader, n+1)
	p = x.dialFrom("127.0.0.1")
	p.CloseWrite()
	p.wantEnd("the proxy has closed it")
	x.wantNone()
	if got := x.l.counters.refused[reasonProxyHeader].Value(); got != n+1 {
		t.Errorf("a connection without an octet counts as refused")
	}
	if len(x.opened) > 0 {
		t.Errorf("%q is a client", <-x.opened)
	}
}

// Octets of a header do not keep a connection beyond the timeout.
func TestAnnouncementTimeout(t *testing.T) {
	t.Parallel()
	x := newProxyTest(t, EngineOptions{}, ListenOptions{ProxyTimeout: 200 * time.Millisecond})
	silent, slow := x.dialFrom("127.0.0.1"), x.dialFrom("127.0.0.1")
	for i, b := range header("203.0.113.7:799")[:27] {
		if _, err := slow.Write([]byte{b}); err != nil {
			if !isReset(err) {
				t.Fatal(err)
			}
			break // the time is over
		}
		testkit.Eventually(t, "the octet is there, or the time is over", func() bool {
			return x.l.counters.received.Value() == uint64(i)+1 || x.l.counters.refused[reasonProxyTimeout].Value() == 2
		})
	}
	silent.wantEnd("nothing was sent")
	slow.wantEnd("the header is not complete")
	testkit.Eventually(t, "both are counted", func() bool { return x.l.counters.refused[reasonProxyTimeout].Value() == 2 })
	x.wantNone()
}

// The limits of a listener look at the client.
func TestAnnouncedLimits(t *testing.T) {
	t.Parallel()
	from := func(x *proxyTest, client string) *peer {
		p := x.dialFrom("127.0.0.1")
		p.send(header(client))
		return p
	}
	t.Run("allow", func(t *testing.T) {
		x := newProxyTest(t, EngineOptions{}, ListenOptions{Allow: prefixes("203.0.113.0/24")})
		x.served(from(x, "203.0.113.7:799"))
		x.wantRefused(from(x, "198.51.100.7:799"), reasonDenied, 1)
		if s := x.log.String(); !strings.Contains(s, `"peer":"198.51.100.7:799","proxy":"127.0.0.1:`) {
			t.Errorf("the log names client and proxy otherwise: %s", s)
		}
		p := x.dialFrom("127.0.0.1")
		p.send(proxyheader.AppendLocal(nil))
		x.wantRefused(p, reasonDenied, 2)
		x.wantNoEntry("127.0.0.2", reasonDenied, 3)
	})
	t.Run("privileged", func(t *testing.T) {
		x := newProxyTest(t, EngineOptions{}, ListenOptions{Privileged: true})
		x.served(from(x, "203.0.113.7:799"))
		x.wantRefused(from(x, "203.0.113.7:1024"), reasonPort, 1)
		x.wantRefused(from(x, "203.0.113.7:0"), reasonPort, 2)
	})
	t.Run("address", func(t *testing.T) {
		x := newProxyTest(t, EngineOptions{}, ListenOptions{MaxConnsPerAddr: 2})
		for _, a := range []string{"203.0.113.7:1", "203.0.113.7:2", "203.0.113.8:1", "203.0.113.9:1", "[2001:db8::1]:1"} {
			x.served(from(x, a))
		}
		x.wantRefused(from(x, "203.0.113.7:3"), reasonAddrConns, 1)
	})
	t.Run("listener", func(t *testing.T) {
		asked := make(chan netip.Addr, 2)
		x := newProxyTest(t, EngineOptions{}, ListenOptions{MaxConns: 2, MakeRoom: func(a netip.Addr) bool {
			asked <- a
			return a == netip.MustParseAddr("203.0.113.9")
		}})
		x.served(from(x, "203.0.113.7:1"))
		x.served(from(x, "203.0.113.7:2"))
		x.wantRefused(from(x, "203.0.113.8:1"), reasonConns, 1)
		x.served(from(x, "203.0.113.9:1"))
		if a, b := <-asked, <-asked; a != netip.MustParseAddr("203.0.113.8") || b != netip.MustParseAddr("203.0.113.9") {
			t.Errorf("room is made for %v and %v", a, b)
		}
	})
	t.Run("process", func(t *testing.T) {
		x := newProxyTest(t, EngineOptions{MaxSockets: 2}, ListenOptions{})
		x.served(from(x, "203.0.113.7:1"))
		x.served(from(x, "203.0.113.7:2"))
		p := from(x, "203.0.113.8:1")
		x.wantRefused(p, reasonTotal, 1)
	})
}

// Connections without a header have a limit of their own, and use up none of the clients'.
func TestStarts(t *testing.T) {
	t.Parallel()
	x := newProxyTest(t, EngineOptions{}, ListenOptions{MaxConns: 2})
	var silent []*peer
	for range spareSockets {
		silent = append(silent, x.dialFrom("127.0.0.1"))
	}
	starts := func() int {
		x.l.mu.Lock()
		defer x.l.mu.Unlock()
		return x.l.starts.All()
	}
	testkit.Eventually(t, "all have been accepted", func() bool { return starts() == spareSockets })
	x.wantNoEntry("127.0.0.1", reasonProxyStarting, 1)
	x.served(x.dialFrom("127.0.0.2"))
	silent[0].send(header("203.0.113.7:799"))
	x.served(silent[0])
	silent[1].Close()
	testkit.Eventually(t, "two less wait", func() bool { return starts() == spareSockets-2 })
}

// An engine that stops ends connections without a header, too.
func TestStopAnnouncing(t *testing.T) {
	t.Parallel()
	x := newProxyTest(t, EngineOptions{}, ListenOptions{})
	p := x.dialFrom("127.0.0.1")
	p.send(header("203.0.113.7:799")[:5])
	testkit.Eventually(t, "the connection waits", func() bool { return x.l.counters.proxies.Load().waiting.Value() == 1 })
	x.l.engine.Stop()
	p.wantEnd("the engine has stopped")
	x.wantNone()
}

// FuzzAnnounced checks that a connection becomes a client's only after a header that package proxyheader
// accepts, that the octets behind it arrive in any pieces, and that nothing panics.
func FuzzAnnounced(f *testing.F) {
	f.Add(header("203.0.113.7:799"), uint8(3))
	f.Add(proxyheader.AppendLocal(nil), uint8(1))
	f.Add([]byte("PROXY TCP4 "), uint8(2))
	f.Fuzz(func(t *testing.T, b []byte, piece uint8) {
		record := pattern(40, 9)
		var got []byte
		h := newRecorder()
		h.record = func(_ *Conn, b Buffer) { got = bytes.Clone(b.Bytes()); b.Release() }
		c := offlineConn(ConnOptions{}, h)
		e := &Engine{counted: c.counters.set}
		e.sockets.SetLimit(10)
		l := &Listener{engine: e, counters: c.counters, open: func(*Conn) RecordHandler { return h }}
		o := listenBounds(ListenOptions{Proxies: prefixes("127.0.0.1/32"), ProxyTimeout: time.Second})
		l.Update(o)
		c.listener, c.handler, c.proxy = l, nil, &announcement{due: 1 << 62}
		if _, err := l.enterProxy(netip.AddrPort{}, &o); err != nil {
			t.Fatal(err)
		}
		c.state = announcing
		c.counters.proxies.Load().waiting.Add(1)
		client, n, err := proxyheader.Parse(b)
		stream := bytes.Clone(b)
		if n > 0 {
			stream = append(stream[:n], fragment(true, record)...)
		}
		for p := range slices.Chunk(stream, int(piece)+1) {
			if c.state == ending {
				break
			}
			c.pass(p)
		}
		switch {
		case n > 0 && (!bytes.Equal(got, record) || client.IsValid() && !client.Addr().IsLoopback() && c.RemoteAddr() != client):
			t.Fatalf("the header of %v: the client is %v, and its record is %x", client, c.RemoteAddr(), got)
		case n == 0 && (c.handler != nil || (err != nil) != (c.state == ending)):
			t.Fatalf("state %d after %v", c.state, err)
		case n == 0 && err == nil && len(c.proxy.begun) != len(b):
			t.Fatalf("%d of %d octets are kept", len(c.proxy.begun), len(b))
		}
		if (*connStream)(c).Detached(io.EOF); l.clients.Hosts() > 0 || l.starts.Hosts() > 0 || e.sockets.Open() != 0 {
			t.Fatal("a connection that has ended is counted")
		}
	})
}
