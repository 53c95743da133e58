package tcpframe

import (
	"net"
	"testing"

	"golang.org/x/sys/unix"
)

func option(t *testing.T, c *net.TCPConn, level, name int) (v int) {
	t.Helper()
	rc, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if e := rc.Control(func(fd uintptr) { v, err = unix.GetsockoptInt(int(fd), level, name) }); e != nil || err != nil {
		t.Fatal(e, err)
	}
	return v
}

// tune sets a short send buffer towards a peer on this host, and TCP_USER_TIMEOUT.
func TestTune(t *testing.T) {
	ln, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	c, err := net.DialTCP("tcp", nil, ln.Addr().(*net.TCPAddr))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := tune(c, 0); err != nil {
		t.Fatal(err)
	}
	if got := option(t, c, unix.SOL_SOCKET, unix.SO_SNDBUF); got != 2*localSendBuffer {
		t.Errorf("SO_SNDBUF is %d, want %d", got, 2*localSendBuffer)
	}
	if got, want := option(t, c, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT), int(userTimeout.Milliseconds()); got != want {
		t.Errorf("TCP_USER_TIMEOUT is %d ms, want %d", got, want)
	}
}

type addrs struct {
	net.Conn
	local, remote net.Addr
}

func (a addrs) LocalAddr() net.Addr  { return a.local }
func (a addrs) RemoteAddr() net.Addr { return a.remote }

func TestOnThisHost(t *testing.T) {
	tcp := func(s string) net.Addr { return &net.TCPAddr{IP: net.ParseIP(s), Port: 2049} }
	for _, c := range []struct {
		local, remote net.Addr
		want          bool
	}{
		{tcp("127.0.0.1"), tcp("127.0.0.1"), true},
		{tcp("::1"), tcp("::1"), true},
		{tcp("192.0.2.1"), tcp("192.0.2.1"), true},
		{tcp("192.0.2.1"), tcp("::ffff:192.0.2.1"), true},
		{tcp("192.0.2.1"), tcp("192.0.2.2"), false},
		{tcp("2001:db8::1"), tcp("2001:db8::2"), false},
		{&net.UnixAddr{}, &net.UnixAddr{}, false},
	} {
		if got := onThisHost(addrs{local: c.local, remote: c.remote}); got != c.want {
			t.Errorf("%v to %v: %v, want %v", c.local, c.remote, got, c.want)
		}
	}
}
