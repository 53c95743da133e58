package tcpframe

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
)

// An announcer is a recorder that sends its connection to peers once it is open: a Conn that
// is not open yet ignores Close.
type announcer struct {
	*recorder
	peers chan<- *Conn
}

func (a *announcer) Opened(c *Conn) {
	a.recorder.Opened(c)
	a.peers <- c
}

// A connection has the port that was requested. The port can be used again after either end
// has closed the connection, and not before.
func TestDialLocalPort(t *testing.T) {
	e := startEngine(t, EngineOptions{Loops: 1})
	peers := make(chan *Conn, 8)
	l := listen(t, e, ListenOptions{}, func(*Conn) RecordHandler { return &announcer{newRecorder(), peers} })
	addr := l.Addr().String()
	rec := newRecorder()
	mine := netip.MustParseAddr("127.0.0.8") // no other test connects from there, so the port stays free
	c, err := dial(e, addr, DialOptions{LocalAddr: netip.AddrPortFrom(mine, 0)}, rec)
	if err != nil {
		t.Fatal(err)
	}
	from := c.LocalAddr()
	for round := range 4 {
		if _, err := dial(e, addr, DialOptions{LocalAddr: from}, newRecorder()); !errors.Is(err, ErrPortTaken) || !errors.Is(err, syscall.EADDRNOTAVAIL) {
			t.Fatalf("the port of a connection: %v, want %v", err, ErrPortTaken)
		}
		peer := <-peers
		e.Loops()[0].Post(loop.TaskFunc(func() {
			if round%2 == 0 {
				peer.Close(nil)
			} else {
				c.Abort(nil)
			}
		}))
		_ = rec.wait(t, "the end")
		rec = newRecorder()
		testkit.Eventually(t, "the port can be used again", func() bool {
			c, err = dial(e, addr, DialOptions{LocalAddr: from}, rec)
			return err == nil
		})
		if c.LocalAddr() != from {
			t.Fatalf("from %s, want %s", c.LocalAddr(), from)
		}
	}
}

// Dial tells apart why it cannot have a local address.
func TestDialLocalErrors(t *testing.T) {
	e := startEngine(t, EngineOptions{Loops: 1})
	l := listen(t, e, ListenOptions{}, func(*Conn) RecordHandler { return newRecorder() })
	other, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	taken := netip.MustParseAddrPort(other.Addr().String())
	for _, tt := range []struct {
		name string
		from netip.AddrPort
		want error
	}{
		{"a listener's port", taken, ErrPortTaken},
		{"a listener's port, of any address", netip.AddrPortFrom(netip.Addr{}, taken.Port()), ErrPortTaken},
		{"another host's address", netip.MustParseAddrPort("192.0.2.1:0"), errLocalAddress},
		{"another host's address and a port", netip.MustParseAddrPort("192.0.2.1:900"), errLocalAddress},
		{"the peer's own port", netip.MustParseAddrPort(l.Addr().String()), ErrPortTaken},
	} {
		if _, err := dial(e, l.Addr().String(), DialOptions{LocalAddr: tt.from}, newRecorder()); !errors.Is(err, tt.want) {
			t.Errorf("%s: %v, want %v", tt.name, err, tt.want)
		}
	}
	// A process without privileges would get EACCES from bind.
	denied := &net.OpError{Op: "dial", Err: os.NewSyscallError("bind", syscall.EACCES)}
	if err := sourceError(denied); !errors.Is(err, ErrPortForbidden) || !errors.Is(err, syscall.EACCES) {
		t.Errorf("EACCES: %v", err)
	}
	for _, err := range []error{context.Canceled, os.NewSyscallError("connect", syscall.ECONNREFUSED), os.NewSyscallError("connect", syscall.EACCES)} {
		got := sourceError(err)
		for _, is := range []error{ErrPortTaken, ErrPortForbidden, errLocalAddress} {
			if errors.Is(got, is) || !errors.Is(got, err) {
				t.Errorf("%v became %v", err, got)
			}
		}
	}
}

// A socket that connects to itself, because no process listens on its own port, is no
// connection.
func TestDialSelf(t *testing.T) {
	e := startEngine(t, EngineOptions{Loops: 1})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := netip.MustParseAddrPort(l.Addr().String())
	l.Close()
	if _, err := dial(e, fmt.Sprint(addr), DialOptions{LocalAddr: addr}, newRecorder()); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("%v, want %v", err, syscall.ECONNREFUSED)
	}
}

// With Reset the kernel ends the connection with RST, also when the process is killed. The
// port is then free at once.
func TestDialReset(t *testing.T) {
	e := startEngine(t, EngineOptions{Loops: 1})
	l := listen(t, e, ListenOptions{}, func(*Conn) RecordHandler { return newRecorder() })
	for _, reset := range []bool{false, true} {
		c, err := dial(e, l.Addr().String(), DialOptions{Reset: reset}, newRecorder())
		if err != nil {
			t.Fatal(err)
		}
		got := make(chan bool)
		e.Loops()[0].Post(loop.TaskFunc(func() {
			v, err := unix.GetsockoptLinger(c.sock.Descriptor(), unix.SOL_SOCKET, unix.SO_LINGER)
			if err != nil {
				t.Error(err)
			}
			got <- err == nil && v.Onoff == 1 && v.Linger == 0
		}))
		if v := <-got; v != reset {
			t.Errorf("Reset %v: SO_LINGER of 0 s is set: %v", reset, v)
		}
	}
}
