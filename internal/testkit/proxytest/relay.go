package proxytest

import (
	"context"
	"io"
	"net"
	"slices"
	"sync"
	"syscall"
	"testing"
	"unsafe"

	"github.com/rdmabridge/rdmabridge/internal/testkit"
)

// A Relay stands between a client and a server, octet for octet, and can make the
// server's host vanish.
type Relay struct {
	t  testing.TB
	ln *net.TCPListener
	to string
	by net.Dialer
	wg sync.WaitGroup

	mu       sync.Mutex
	conns    []*net.TCPConn // the client's ends, in the order they came
	gone     []*net.TCPConn // those that vanished
	all      []net.Conn
	accepted int
	closed   bool
}

// NewRelay starts a relay to the server at addr.
func NewRelay(t testing.TB, to string) *Relay {
	t.Helper()
	return NewRelayFrom(t, "", to)
}

// NewRelayFrom starts a relay whose connections to the server at addr come from an address of this host, such as
// 127.0.1.1. "" leaves the choice to the kernel.
func NewRelayFrom(t testing.TB, from, to string) *Relay {
	t.Helper()
	var lc net.ListenConfig
	lc.SetMultipathTCP(false) // its sockets take no filter
	ln, err := lc.Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &Relay{t: t, ln: ln.(*net.TCPListener), to: to}
	if from != "" {
		r.by.LocalAddr = &net.TCPAddr{IP: net.ParseIP(from)}
	}
	r.wg.Go(r.accept)
	t.Cleanup(r.close)
	return r
}

// Addr is where it listens.
func (r *Relay) Addr() string { return r.ln.Addr().String() }

// Accepted is how many connections were made.
func (r *Relay) Accepted() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.accepted
}

func (r *Relay) accept() {
	for {
		near, err := r.ln.AcceptTCP()
		if err != nil {
			return
		}
		_ = near.SetKeepAlive(false) // a host that has vanished does not ask either
		far, err := r.by.Dial("tcp", r.to)
		r.mu.Lock()
		r.accepted++
		if err != nil || r.closed {
			r.mu.Unlock()
			near.Close()
			if far != nil {
				far.Close()
			}
			continue
		}
		r.conns, r.all = append(r.conns, near), append(r.all, near, far)
		r.mu.Unlock()
		pipe := func(to io.Writer, from net.Conn) {
			_, _ = io.Copy(to, from)
			near.Close()
			far.Close()
			r.mu.Lock()
			defer r.mu.Unlock()
			r.conns = slices.DeleteFunc(r.conns, func(c *net.TCPConn) bool { return c == near })
		}
		r.wg.Go(func() { pipe(far, near) })
		r.wg.Go(func() { pipe(outlet{r, near}, far) })
	}
}

// Drop ends the present connections, as a failure of the network between does.
func (r *Relay) Drop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.conns {
		c.Close()
	}
}

// An outlet writes to a client's connection until that has vanished.
type outlet struct {
	r *Relay
	c *net.TCPConn
}

func (o outlet) Write(b []byte) (int, error) {
	o.r.mu.Lock()
	gone := slices.Contains(o.r.gone, o.c)
	o.r.mu.Unlock()
	if gone {
		return len(b), nil
	}
	return o.c.Write(b)
}

// Vanish makes the kernel drop every segment of the present connections before TCP sees
// it: they look as if the server's host had lost its power. With refuse, new ones
// get no answer either. Vanish first waits until octets under way are acknowledged, so
// that they are not repeated.
func (r *Relay) Vanish(refuse bool) {
	r.t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.conns {
		if !testkit.Settles(testkit.Patience, func() bool { return testkit.Unacknowledged(c) == 0 }) {
			r.t.Error("the client's TCP does not acknowledge what was sent to it")
		}
		r.filter(c, syscall.SO_ATTACH_FILTER)
	}
	r.gone, r.conns = append(r.gone, r.conns...), nil
	if refuse {
		r.Ignore()
	}
}

// Ignore makes the kernel drop the SYNs of new connections, which get no answer.
func (r *Relay) Ignore() {
	r.t.Helper()
	r.filter(r.ln, syscall.SO_ATTACH_FILTER)
}

// Return ends Ignore; connections that have vanished stay lost.
func (r *Relay) Return() {
	r.t.Helper()
	r.filter(r.ln, syscall.SO_DETACH_FILTER)
}

// Forget ends the connections that Vanish made vanish, without a word on the wire, as a
// host that boots does: their addresses and ports can be used again. It needs
// CAP_NET_ADMIN.
func (r *Relay) Forget() {
	r.t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.gone {
		rc, err := c.SyscallConn()
		if err != nil {
			continue // it has ended by itself
		}
		_ = rc.Control(func(fd uintptr) {
			const repair = 19 // TCP_REPAIR
			err = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, repair, 1)
		})
		if err != nil {
			r.t.Skipf("no CAP_NET_ADMIN: %v", err)
		}
		c.Close()
	}
	r.gone = nil
}

// filter attaches or detaches a filter that accepts 0 octets of each segment.
func (r *Relay) filter(c syscall.Conn, option uintptr) {
	r.t.Helper()
	rc, err := c.SyscallConn()
	if err != nil {
		r.t.Error(err)
		return
	}
	drop := syscall.SockFilter{Code: syscall.BPF_RET | syscall.BPF_K}
	prog := syscall.SockFprog{Len: 1, Filter: &drop}
	var errno syscall.Errno
	_ = rc.Control(func(fd uintptr) {
		_, _, errno = syscall.Syscall6(syscall.SYS_SETSOCKOPT, fd, syscall.SOL_SOCKET, option, uintptr(unsafe.Pointer(&prog)), unsafe.Sizeof(prog), 0)
	})
	if errno != 0 {
		r.t.Errorf("socket filter: %v", errno)
	}
}

func (r *Relay) close() {
	r.ln.Close()
	r.mu.Lock()
	r.closed = true
	for _, c := range r.all {
		c.Close()
	}
	r.mu.Unlock()
	r.wg.Wait()
}
