package rpcbind

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/testkit"

	"golang.org/x/sys/unix"

	"github.com/rdmabridge/rdmabridge/internal/rpc/xdr"
	"github.com/rdmabridge/rdmabridge/metrics"
	"github.com/rdmabridge/rdmabridge/tcpframe"
)

// start runs a Server with testServices on address until the test ends.
func start(t *testing.T, address string, allow ...netip.Prefix) (*Server, *metrics.Registry) {
	t.Helper()
	m := metrics.New()
	e, err := tcpframe.Start(tcpframe.EngineOptions{Loops: 1, Metrics: m})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Stop)
	s, err := Listen(Options{Address: address, Allow: allow, Services: testServices(), Engine: e, Metrics: m})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return s, m
}

// dial connects to the Server at host.
func dial(t *testing.T, s *Server, network, host string) net.Conn {
	t.Helper()
	c, err := net.Dial(network, netip.AddrPortFrom(netip.MustParseAddr(host), s.Addr().Port()).String())
	if err != nil {
		if host == "::1" && (errors.Is(err, syscall.EADDRNOTAVAIL) || errors.Is(err, syscall.EAFNOSUPPORT)) {
			t.Skipf("no IPv6 here: %v", err)
		}
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(testkit.Patience))
	return c
}

// exchange sends a Call and returns the Reply.
func exchange(t *testing.T, c net.Conn, call []byte) []byte {
	t.Helper()
	if c.RemoteAddr().Network() == "tcp" {
		if _, err := c.Write(testkit.Record(call)); err != nil {
			t.Fatal(err)
		}
		m, err := testkit.ReadRecord(c)
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	if _, err := c.Write(call); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 64<<10)
	n, err := c.Read(b)
	if err != nil {
		t.Fatal(err)
	}
	return b[:n]
}

// Over real sockets the answer has the address of the question. A connected UDP socket
// receives nothing from other addresses, so the Reply comes from that address, too.
func TestLocalAddress(t *testing.T) {
	s, _ := start(t, "[::]:0")
	for _, host := range []string{"127.0.0.1", "127.0.0.2", "::1"} {
		for _, network := range []string{"tcp", "udp"} {
			t.Run(network+" "+host, func(t *testing.T) {
				c := dial(t, s, network, host)
				netid := "tcp"
				if strings.Contains(host, ":") {
					netid = "tcp6"
				}
				call := xdr.AppendOpaque(testkit.Unhex(t, callHead(4, 3)+"000186a3 00000003"), []byte(netid))
				call = append(call, make([]byte, 8)...)
				want := xdr.AppendOpaque(testkit.Unhex(t, success), []byte(host+".8.1"))
				if got := exchange(t, c, call); !bytes.Equal(got, want) {
					t.Errorf("GETADDR = %x, want %x", got, want)
				}
				if got := exchange(t, c, testkit.Unhex(t, callHead(4, 4))); !strings.Contains(string(got), "192.0.2.1.78.81") {
					t.Errorf("DUMP = %x", got)
				}
			})
		}
	}
}

// Publish replaces everything but the Server itself.
func TestPublish(t *testing.T) {
	s, _ := start(t, "127.0.0.1:0")
	c := dial(t, s, "tcp", "127.0.0.1")
	port := func(program, version int) uint32 {
		got := exchange(t, c, testkit.Unhex(t, callHead(2, 3)+fmt.Sprintf("%08x %08x 00000006 00000000", program, version)))
		return binary.BigEndian.Uint32(got[24:])
	}
	self := uint32(s.Addr().Port())
	if nfs, mount, rpcbind := port(100003, 3), port(100005, 3), port(100000, 2); nfs != 2049 || mount != 2049 || rpcbind != self {
		t.Errorf("ports %d, %d, %d; want 2049, 2049, %d", nfs, mount, rpcbind, self)
	}
	s.Publish([]Service{{Address: netip.MustParseAddrPort("127.0.0.1:4000"), Programs: []Program{{100003, 3}}}})
	if nfs, mount, rpcbind := port(100003, 3), port(100005, 3), port(100000, 2); nfs != 4000 || mount != 0 || rpcbind != self {
		t.Errorf("ports %d, %d, %d; want 4000, 0, %d", nfs, mount, rpcbind, self)
	}
}

// Calls sent without waiting are answered in their order.
func TestPipelined(t *testing.T) {
	s, _ := start(t, "127.0.0.1:0")
	c := dial(t, s, "tcp", "127.0.0.1")
	const calls = 5000
	sent := make(chan error, 1)
	go func() {
		var b []byte
		for i := range uint32(calls) {
			call := testkit.Unhex(t, callHead(2, 4))
			binary.BigEndian.PutUint32(call, i)
			b = append(b, testkit.Record(call)...)
		}
		_, err := c.Write(b)
		sent <- err
	}()
	for i := range uint32(calls) {
		m, err := testkit.ReadRecord(c)
		if err != nil {
			t.Fatalf("reply %d: %v", i, err)
		}
		if xid := binary.BigEndian.Uint32(m); xid != i {
			t.Fatalf("reply %d has XID %d", i, xid)
		}
	}
	if err := <-sent; err != nil {
		t.Error(err)
	}
}

// A client that sends many Calls and reads no Reply has at most one Reply in memory.
func TestUnread(t *testing.T) {
	s, m := start(t, "127.0.0.1:0")
	c := dial(t, s, "tcp", "127.0.0.1")
	call := testkit.Record(testkit.Unhex(t, callHead(4, 4)))
	// Write until the Server reads nothing for a while, because a Reply waits.
	b := bytes.Repeat(call, 1000)
	waiting := 0.0
	for at, end := 0, time.Now().Add(20*time.Second); waiting <= 0; {
		if time.Now().After(end) {
			t.Fatal("the Server has not stopped reading")
		}
		c.SetWriteDeadline(time.Now().Add(500 * time.Millisecond))
		n, err := c.Write(b[at:])
		if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("writing ended with %v, want the Server to stop reading", err)
		}
		if at = (at + n) % len(b); n > 0 {
			continue
		}
		for line := range strings.Lines(scrape(m)) {
			if v, ok := strings.CutPrefix(line, `rdmabridge_listener_tcp_outbound_buffered_bytes{listener="rpcbind"} `); ok {
				if waiting, err = strconv.ParseFloat(strings.TrimSpace(v), 64); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	reply, _ := s.answer(testkit.Unhex(t, callHead(4, 4)), overTCP("127.0.0.1"))
	if waiting > float64(4+len(reply)) {
		t.Errorf("%v octets wait for the client, want one Reply at most, %d", waiting, 4+len(reply))
	}
}

// CALLIT gets no Reply and keeps the connection. A message that is no Call closes it.
func TestConnection(t *testing.T) {
	s, m := start(t, "127.0.0.1:0")
	c := dial(t, s, "tcp", "127.0.0.1")
	if _, err := c.Write(testkit.Record(testkit.Unhex(t, callHead(3, 5)+"000186a3 00000003 00000000 00000000"))); err != nil {
		t.Fatal(err)
	}
	null := testkit.Unhex(t, callHead(3, 0))
	null[0] = 9
	if got := exchange(t, c, null); got[0] != 9 {
		t.Errorf("the first answer is %x, want that to NULL", got)
	}
	// In two fragments.
	if _, err := c.Write(append([]byte{0, 0, 0, 20}, append(null[:20:20], append([]byte{128, 0, 0, 20}, null[20:]...)...)...)); err != nil {
		t.Fatal(err)
	}
	if got, err := testkit.ReadRecord(c); err != nil || got[0] != 9 {
		t.Errorf("fragments: %x, %v", got, err)
	}
	for _, bad := range [][]byte{
		testkit.Record(testkit.Unhex(t, success)),
		{128, 0, 32, 4}, // a record of 8 KiB + 4
		bytes.Repeat([]byte{0, 0, 0, 0}, maxMessage/4+1),
	} {
		c := dial(t, s, "tcp", "127.0.0.1")
		if _, err := c.Write(bad); err != nil {
			t.Fatal(err)
		}
		if b, err := testkit.ReadRecord(c); err == nil {
			t.Errorf("%x is answered with %x", bad, b)
		}
	}
	text := scrape(m)
	for _, want := range []string{
		`rdmabridge_rpcbind_calls_total{procedure="null",transport="tcp"} 2`,
		`rdmabridge_rpcbind_calls_total{procedure="callit",transport="tcp"} 1`,
		`rdmabridge_rpcbind_calls_total{procedure="getversaddr",transport="udp"} 0`,
		`rdmabridge_rpcbind_refused_calls_total{reason="call",transport="tcp"} 1`,
		`rdmabridge_rpcbind_refused_calls_total{reason="malformed",transport="tcp"} 1`,
	} {
		if !strings.Contains(text, want+"\n") {
			t.Errorf("metrics lack %s", want)
		}
	}
}

// Datagrams that are no Call, too long, or broadcast get no Reply, and the next one
// does.
func TestDatagramSilence(t *testing.T) {
	s, m := start(t, "0.0.0.0:0")
	c, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(testkit.Patience))
	raw, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_BROADCAST, 1) })
	if err != nil {
		t.Fatal(err)
	}
	send := func(host string, m []byte) {
		t.Helper()
		if _, err := c.WriteToUDPAddrPort(m, netip.AddrPortFrom(netip.MustParseAddr(host), s.Addr().Port())); err != nil {
			t.Fatalf("to %s: %v", host, err)
		}
	}
	null := testkit.Unhex(t, callHead(2, 0))
	send("127.0.0.1", nil)
	send("127.0.0.1", []byte("hello"))
	send("127.0.0.1", testkit.Unhex(t, success))
	send("127.0.0.1", append(testkit.Unhex(t, callHead(3, 4)), make([]byte, maxMessage)...))
	send("127.255.255.255", null)
	send("127.0.0.1", testkit.Unhex(t, callHead(3, 5)+"000186a3 00000003 00000000 00000000"))
	null[0] = 9
	send("127.0.0.3", null)
	b := make([]byte, 64<<10)
	n, from, err := c.ReadFromUDPAddrPort(b)
	if err != nil || n != 24 || b[0] != 9 || from.Addr() != netip.MustParseAddr("127.0.0.3") {
		t.Errorf("the first answer: %x from %v, %v; want that to NULL from 127.0.0.3", b[:n], from, err)
	}
	text := scrape(m)
	for reason, want := range map[string]string{"malformed": "3", "long": "1", "group": "1", "call": "1", "rate": "0", "denied": "0"} {
		if line := `rdmabridge_rpcbind_refused_calls_total{reason="` + reason + `",transport="udp"} ` + want; !strings.Contains(text, line+"\n") {
			t.Errorf("metrics lack %s", line)
		}
	}
}

// A client that is not allowed gets no Reply, on either transport.
func TestAllow(t *testing.T) {
	s, _ := start(t, "0.0.0.0:0", netip.MustParsePrefix("127.0.0.2/32"))
	from := func(network, host string) (net.Conn, error) {
		d := net.Dialer{LocalAddr: &net.UDPAddr{IP: net.ParseIP(host)}}
		if network == "tcp" {
			d.LocalAddr = &net.TCPAddr{IP: net.ParseIP(host)}
		}
		c, err := d.Dial(network, netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), s.Addr().Port()).String())
		if err == nil {
			t.Cleanup(func() { c.Close() })
		}
		return c, err
	}
	for _, network := range []string{"tcp", "udp"} {
		c, err := from(network, "127.0.0.2")
		if err != nil {
			t.Fatal(err)
		}
		c.SetDeadline(time.Now().Add(testkit.Patience))
		if got := exchange(t, c, testkit.Unhex(t, callHead(2, 0))); !bytes.Equal(got, testkit.Unhex(t, success)) {
			t.Errorf("%s, allowed: %x", network, got)
		}
		c, err = from(network, "127.0.0.3")
		if err != nil {
			continue
		}
		c.SetDeadline(time.Now().Add(300 * time.Millisecond))
		_, _ = c.Write(testkit.Record(testkit.Unhex(t, callHead(2, 0)))) // the connection may be reset
		if n, err := c.Read(make([]byte, 64)); err == nil {
			t.Errorf("%s, not allowed: %d octets", network, n)
		}
	}
}

// Close closes all connections and accepts no more.
func TestClose(t *testing.T) {
	s, _ := start(t, "127.0.0.1:0")
	c := dial(t, s, "tcp", "127.0.0.1")
	exchange(t, c, testkit.Unhex(t, callHead(2, 0)))
	if err := s.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
	if n, err := c.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("Read after Close: %d, %v; want EOF", n, err)
	}
	if c, err := net.Dial("tcp", s.Addr().String()); err == nil {
		c.Close()
		t.Error("connected after Close")
	}
	u, err := net.ListenPacket("udp", s.Addr().String())
	if err != nil {
		t.Errorf("the UDP port is still taken: %v", err)
	} else {
		u.Close()
	}
}

// Listen fails when its port is taken on either transport, and leaves no socket open.
func TestTaken(t *testing.T) {
	e, err := tcpframe.Start(tcpframe.EngineOptions{Loops: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Stop()
	// A port that is free on both.
	var u net.PacketConn
	for u == nil {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		u, _ = net.ListenPacket("udp", l.Addr().String())
		l.Close()
	}
	defer u.Close()
	at := u.LocalAddr().String()
	if _, err := Listen(Options{Address: at, Engine: e}); !errors.Is(err, syscall.EADDRINUSE) || !strings.HasPrefix(err.Error(), "rpcbind: ") {
		t.Errorf("UDP taken: %v", err)
	}
	l, err := net.Listen("tcp", at)
	if err != nil {
		t.Fatalf("TCP was kept: %v", err)
	}
	defer l.Close()
	u.Close()
	if _, err := Listen(Options{Address: at, Engine: e}); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("TCP taken: %v", err)
	}
}
