package tcpframe

import (
	"bytes"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/metrics"
)

func prefixes(s ...string) (ps []netip.Prefix) {
	for _, p := range s {
		ps = append(ps, netip.MustParsePrefix(p))
	}
	return ps
}

func TestAllow(t *testing.T) {
	for _, tt := range []struct {
		allow []netip.Prefix
		addr  string
		want  bool
	}{
		{nil, "192.0.2.1", true},
		{prefixes("192.0.2.0/24"), "192.0.2.1", true},
		{prefixes("192.0.2.77/24"), "192.0.2.1", true}, // host bits are ignored
		{prefixes("192.0.2.0/24"), "192.0.3.1", false},
		{prefixes("192.0.2.0/24"), "2001:db8::1", false},
		{prefixes("::ffff:192.0.2.0/120"), "192.0.2.9", true},
		{prefixes("2001:db8::/32", "192.0.2.0/24"), "2001:db8::1", true},
		{prefixes("fe80::/10"), "fe80::1%eth0", true},
		{prefixes("0.0.0.0/0"), "2001:db8::1", false},
	} {
		l := &Listener{engine: &Engine{}}
		l.engine.sockets.SetLimit(10)
		l.Update(listenBounds(ListenOptions{Allow: tt.allow}))
		reason, err := l.enter(netip.AddrPortFrom(netip.MustParseAddr(tt.addr), 700), l.opts.Load())
		if (err == nil) != tt.want || (err != nil && reason != reasonDenied) {
			t.Errorf("%v in %v: %q, %v", tt.addr, tt.allow, reason, err)
		}
	}
}

// refused reports whether the listener has closed p instead of serving it.
func refused(t *testing.T, p *peer) bool {
	p.SetReadDeadline(time.Now().Add(testkit.Patience))
	_, err := p.Write(fragment(true, pattern(8, 0)))
	if err == nil {
		_, err = readRecord(p, nil)
	}
	if ne, ok := err.(net.Error); ok && ne.Timeout() {
		t.Error("neither served nor closed")
	}
	return err != nil
}

// A connection beyond a limit is closed at accept; those that were admitted stay.
func TestLimits(t *testing.T) {
	t.Parallel()
	for _, tt := range []limitTest{
		{"denied", EngineOptions{}, ListenOptions{Allow: prefixes("10.0.0.0/8")}, 0, reasonDenied},
		{"listener", EngineOptions{}, ListenOptions{MaxConns: 3}, 3, reasonConns},
		{"address", EngineOptions{}, ListenOptions{MaxConnsPerAddr: 2}, 2, reasonAddrConns},
		{"process", EngineOptions{MaxSockets: 4}, ListenOptions{MaxConns: -1, MaxConnsPerAddr: -1}, 4, reasonTotal},
	} {
		t.Run(tt.name, tt.run)
	}
}

// A limitTest opens as many connections as a limit admits, and three more.
type limitTest struct {
	name string
	e    EngineOptions
	o    ListenOptions
	in   int // connections that are admitted
	want reason
}

func (tt limitTest) run(t *testing.T) {
	tt.e.Metrics = metrics.New()
	e := startEngine(t, tt.e)
	l := listen(t, e, tt.o, func(*Conn) RecordHandler { return echo() })
	var in []*peer
	for range tt.in {
		p := dialPeer(t, l)
		if refused(t, p) {
			t.Fatalf("connection %d of %d refused", len(in)+1, tt.in)
		}
		in = append(in, p)
	}
	for range 3 {
		c, err := net.Dial("tcp", l.Addr().String())
		if isReset(err) {
			continue // closed before connect returned
		} else if err != nil {
			t.Fatal(err)
		}
		if !refused(t, &peer{t, c.(*net.TCPConn)}) {
			t.Errorf("connection %d admitted", tt.in+1)
		}
		c.Close()
	}
	if n := l.counters.refused[tt.want].Value(); n != 3 {
		t.Errorf("counted %d times as %q, want 3", n, tt.want)
	}
	for _, p := range in {
		if refused(t, p) {
			t.Error("a connection that was admitted is closed")
		}
	}
	if len(in) == 0 {
		return
	}
	in[0].Close()
	testkit.Eventually(t, "the listener has one connection less", func() bool { return connsOf(l) == tt.in-1 })
	if refused(t, dialPeer(t, l)) {
		t.Error("refused though the listener is below its limit")
	}
}

func TestUpdate(t *testing.T) {
	e := startEngine(t, EngineOptions{})
	l := listen(t, e, ListenOptions{}, func(*Conn) RecordHandler { return echo() })
	p := dialPeer(t, l)
	p.send(fragment(true, pattern(8, 0)))
	p.readRecord()
	l.Update(listenBounds(ListenOptions{Allow: prefixes("10.0.0.0/8")}))
	if c, err := net.Dial("tcp", l.Addr().String()); err == nil {
		(&peer{t, c.(*net.TCPConn)}).wantEnd("not allowed any more")
		c.Close()
	}
	p.send(fragment(true, pattern(8, 0)))
	p.readRecord()
}

// A lineWriter sends a value to its channel for every line that contains text.
type lineWriter struct {
	text  string
	lines chan struct{}
}

func (w lineWriter) Write(b []byte) (int, error) {
	if bytes.Contains(b, []byte(w.text)) {
		select {
		case w.lines <- struct{}{}:
		default:
		}
	}
	return len(b), nil
}

// A Listener without descriptors waits, and accepts connections when there are some again.
// Connections that were accepted before still work.
func TestAcceptWithoutDescriptors(t *testing.T) {
	failed := lineWriter{"cannot accept", make(chan struct{}, 1)}
	e := startLogging(t, EngineOptions{Log: zerolog.New(failed)})
	l := listen(t, e, ListenOptions{}, func(*Conn) RecordHandler { return echo() })
	in := dialPeer(t, l)
	in.send(fragment(true, pattern(8, 0)))
	in.readRecord()

	client, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(client)
	restore := withoutDescriptors(t)
	a := l.Addr()
	if err := syscall.Connect(client, &syscall.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}); err != nil {
		t.Fatal(err)
	}
	<-failed.lines
	in.send(fragment(true, pattern(8, 0)))
	in.readRecord()
	restore()
	if _, err := syscall.Write(client, fragment(true, pattern(8, 0))); err != nil {
		t.Fatal(err)
	}
	syscall.SetsockoptTimeval(client, syscall.SOL_SOCKET, syscall.SO_RCVTIMEO, &syscall.Timeval{Sec: 5})
	buf := make([]byte, 12)
	if n, err := syscall.Read(client, buf); n != 12 || err != nil {
		t.Errorf("the client that waited reads %d octets, %v", n, err)
	}
}

// TestPacer: at a rate, a second's worth of connections comes at once, and the next ones at the rate.
func TestPacer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var pace pacer
		accept := func() (n int) {
			for range 100 {
				if pace.wait() > 0 {
					break
				}
				pace.came(5)
				n++
			}
			return n
		}
		for i, step := range []struct {
			wait time.Duration
			want int
		}{{0, 5}, {0, 0}, {200 * time.Millisecond, 1}, {400 * time.Millisecond, 2}, {time.Hour, 5}} {
			time.Sleep(step.wait)
			if n := accept(); n != step.want {
				t.Errorf("step %d: %d connections, want %d", i, n, step.want)
			}
		}
		if pace.came(0); pace.wait() > 0 {
			t.Error("a listener without a rate waits")
		}
	})
}
