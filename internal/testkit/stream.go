package testkit

import (
	"bytes"
	"net"
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/loop"
)

// TCPPair returns both ends of a loopback connection. What the test does with b ends after 5 times Patience.
func TCPPair(t testing.TB) (a, b *net.TCPConn) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	c, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	s, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close(); s.Close() })
	c.SetDeadline(time.Now().Add(5 * Patience))
	return s.(*net.TCPConn), c.(*net.TCPConn)
}

// Serve accepts connections on network, "tcp" or "unix", at address, and calls serve for each, which is closed
// when the test ends. It returns where it listens.
func Serve(t testing.TB, network, address string, serve func(net.Conn)) string {
	t.Helper()
	l, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			t.Cleanup(func() { c.Close() })
			go serve(c)
		}
	}()
	return l.Addr().String()
}

// An EchoStream is a loop.Stream that echoes a stream of octets and queues those that the kernel does not take. Its
// fields belong to the loop.
type EchoStream struct {
	T      testing.TB
	Socket loop.Socket
	Short  int        // how often Writev took less than it was given
	Reads  int        // how often Socket.Read returned octets
	Ended  chan error // receives the error of Detached

	queue  [][]byte
	queued int
}

// NewEchoStream returns an EchoStream that reports to t.
func NewEchoStream(t testing.TB) *EchoStream { return &EchoStream{T: t, Ended: make(chan error, 1)} }

// Attached implements loop.Stream, as the methods below.
func (r *EchoStream) Attached(s loop.Socket) { r.Socket = s }

func (r *EchoStream) Received(b []byte) {
	r.put(b)
	buf := make([]byte, 100_000)
	for {
		n, err := r.Socket.Read(buf)
		if n == 0 || err != nil {
			break
		}
		r.Reads++
		r.put(buf[:n])
	}
	r.Socket.FlushSoon()
	r.Socket.FlushSoon()
}

func (r *EchoStream) put(b []byte) {
	for len(b) > 0 {
		n := min(len(b), 777)
		r.queue = append(r.queue, bytes.Clone(b[:n]))
		r.queued += n
		b = b[n:]
	}
}

func (r *EchoStream) Writable() { r.Socket.FlushSoon() }

func (r *EchoStream) Flush() {
	n, err := r.Socket.Writev(r.queue)
	if err != nil {
		r.Socket.Close()
		return
	}
	if n < r.queued {
		r.Short++
	}
	r.queued -= n
	for len(r.queue) > 0 && n >= len(r.queue[0]) {
		n -= len(r.queue[0])
		r.queue = r.queue[1:]
	}
	if n > 0 {
		r.queue[0] = r.queue[0][n:]
	}
}

func (r *EchoStream) Detached(err error) {
	if _, e := r.Socket.Writev([][]byte{{1}}); e == nil {
		r.T.Error("Writev in Detached has no error")
	}
	r.Socket.FlushSoon()
	r.Socket.Close()
	r.Ended <- err
}
