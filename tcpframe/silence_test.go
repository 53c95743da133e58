package tcpframe

import (
	"bytes"
	"errors"
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
)

// blackHole makes the kernel drop every packet for c before TCP sees it. To the other end
// the host has vanished.
func blackHole(t *testing.T, c net.Conn) {
	t.Helper()
	rc, err := c.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	drop := unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K} // keep 0 octets of a packet
	cerr := rc.Control(func(fd uintptr) {
		err = unix.SetsockoptSockFprog(int(fd), unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: 1, Filter: &drop})
	})
	if err = errors.Join(err, cerr); err != nil {
		t.Fatal(err)
	}
}

// dialPair connects an engine to a plain socket.
func dialPair(t *testing.T, e *Engine, o DialOptions) (*Conn, *recorder, net.Conn) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	r := newRecorder()
	c, err := dial(e, ln.Addr().String(), o, r)
	if err != nil {
		t.Fatal(err)
	}
	far, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { far.Close() })
	return c, r, far
}

// A connection to a host that is gone ends with ErrSilent, whether it is idle or has octets
// under way, but not before the host has had time to answer.
func TestSilentPeer(t *testing.T) {
	testkit.NeedsFilter(t)
	t.Parallel()
	e := startEngine(t, EngineOptions{tick: 100 * time.Millisecond})
	o := DialOptions{Conn: ConnOptions{SilentTimeout: 4 * time.Second}}
	for name, send := range map[string]bool{"idle": false, "sending": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			began := time.Now()
			c, r, far := dialPair(t, e, o)
			blackHole(t, far)
			if send {
				c.Loop().Post(loop.TaskFunc(func() { c.Send([][]byte{bytes.Repeat([]byte{1}, 64<<10)}, nil) }))
			}
			if err := r.wait(t, "the peer's host is gone"); !errors.Is(err, ErrSilent) {
				t.Errorf("closed with %v, want %v", err, ErrSilent)
			}
			if d := time.Since(began); d < 2*time.Second {
				t.Errorf("closed after %v, want 2.5 s or more", d)
			}
		})
	}
}

// A peer whose process does nothing, so that its window closes, is not silent: its host
// acknowledges.
func TestStoppedPeer(t *testing.T) {
	t.Parallel()
	e := startEngine(t, EngineOptions{tick: 100 * time.Millisecond})
	const silent = 3 * time.Second
	c, r, _ := dialPair(t, e, DialOptions{Conn: ConnOptions{SilentTimeout: silent}})
	c.Loop().Post(loop.TaskFunc(func() {
		for range 16 {
			c.Send([][]byte{make([]byte, 1<<20)}, nil)
		}
	}))
	// The kernel doubles the time between the probes of a closed window. In the end no acknowledgement is
	// due for longer than SilentTimeout.
	testkit.Eventually(t, "the window is probed less often than each SilentTimeout", func() bool {
		select {
		case err := <-r.done:
			t.Fatalf("closed with %v", err)
		default:
		}
		return onLoop(c, func() bool {
			ti, err := unix.GetsockoptTCPInfo(c.sock.Descriptor(), unix.IPPROTO_TCP, unix.TCP_INFO)
			return err == nil && time.Duration(ti.Last_ack_recv)*time.Millisecond > silent
		})
	})
	if left := onLoop(c, func() int64 { return c.outbound }); left == 0 {
		t.Error("nothing is queued: the window never closed")
	}
}

// onLoop returns the result of f, which it calls on c's loop.
func onLoop[T any](c *Conn, f func() T) T {
	ch := make(chan T, 1)
	c.Loop().Post(loop.TaskFunc(func() { ch <- f() }))
	return <-ch
}
