package proxytest

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
)

// ErrNoTLS reports that the answer to a probe does not offer TLS.
var ErrNoTLS = errors.New("proxytest: the server does not offer TLS")

// StartTLS asks the server at the other end of nc for TLS, and does the handshake. RFC 9289 Section 4.1.
func StartTLS(nc net.Conn, c *tls.Config) (*tls.Conn, error) {
	if err := testkit.WriteRecord(nc, oncrpc.AppendTLSProbe(nil, 7, oncrpc.ProgramNFS, 3)); err != nil {
		return nil, err
	}
	m, err := testkit.ReadRecord(nc)
	if err != nil {
		return nil, err
	}
	var r oncrpc.Reply
	if err := oncrpc.ParseReply(m, &r); err != nil {
		return nil, err
	}
	if !r.StartsTLS() {
		return nil, ErrNoTLS
	}
	s := tls.Client(nc, c)
	return s, s.Handshake()
}

// DialSecure connects to addr and starts TLS.
func DialSecure(addr string, c *tls.Config) (*Client, error) {
	nc, err := net.Dial("tcp", addr)
	if err != nil {
		return nil, err
	}
	s, err := StartTLS(nc, c)
	if err != nil {
		nc.Close()
		return nil, err
	}
	return NewClient(s), nil
}

// SecureClient connects to addr and starts TLS.
func (h *Harness) SecureClient(addr string, c *tls.Config) *Client {
	h.T.Helper()
	cl, err := DialSecure(addr, c)
	if err != nil {
		h.T.Fatal(err)
	}
	h.T.Cleanup(func() { _ = cl.Close() })
	return cl
}

// A TLSFront is a server that answers probes and passes what comes over TLS on to another one, without
// TLS. It knows nothing of the bridge.
type TLSFront struct {
	l       net.Listener
	backend string
	config  func() *tls.Config // nil: it offers no TLS

	wg sync.WaitGroup

	mu       sync.Mutex // guards the rest
	conns    map[net.Conn]bool
	plain    int // connections that sent something else than a probe
	secure   int // handshakes that succeeded
	closed   bool
	failures []error // of handshakes
}

// TLSFront starts a TLSFront for the server at backend. config is called for each connection; the front
// offers no TLS, and passes all on, while it returns nil.
func (h *Harness) TLSFront(backend string, config func() *tls.Config) *TLSFront {
	h.T.Helper()
	f, err := NewTLSFront(h.T, backend, config)
	if err != nil {
		h.T.Fatal(err)
	}
	return f
}

// NewTLSFront is Harness.TLSFront.
func NewTLSFront(t testing.TB, backend string, config func() *tls.Config) (*TLSFront, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	f := &TLSFront{l: l, backend: backend, config: config, conns: make(map[net.Conn]bool)}
	f.wg.Go(func() {
		for {
			nc, err := l.Accept()
			if err != nil {
				return
			}
			f.wg.Go(func() { f.serve(nc) })
		}
	})
	t.Cleanup(f.Close)
	return f, nil
}

// Addr is the address at which the front listens.
func (f *TLSFront) Addr() string { return f.l.Addr().String() }

// Counts are the connections that had TLS and those that had none, and what handshakes failed with.
func (f *TLSFront) Counts() (secure, plain int, failures []error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.secure, f.plain, f.failures
}

func (f *TLSFront) keep(nc net.Conn) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		nc.Close()
		return false
	}
	f.conns[nc] = true
	return true
}

func (f *TLSFront) drop(nc net.Conn) {
	nc.Close()
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.conns, nc)
}

// DropConnections ends all connections.
func (f *TLSFront) DropConnections() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for nc := range f.conns {
		nc.Close()
	}
}

// Close ends the front.
func (f *TLSFront) Close() {
	f.l.Close()
	f.mu.Lock()
	f.closed = true
	f.mu.Unlock()
	f.DropConnections()
	f.wg.Wait()
}

func (f *TLSFront) serve(nc net.Conn) {
	if !f.keep(nc) {
		return
	}
	defer f.drop(nc)
	client, first, err := f.begin(nc)
	if err != nil {
		f.mu.Lock()
		f.failures = append(f.failures, err)
		f.mu.Unlock()
		return
	}
	server, err := net.Dial("tcp", f.backend)
	if err != nil || !f.keep(server) {
		return
	}
	defer f.drop(server)
	if first != nil && testkit.WriteRecord(server, first) != nil {
		return
	}
	f.wg.Go(func() {
		_, _ = io.Copy(client, server)
		client.Close()
	})
	_, _ = io.Copy(server, client)
}

// begin answers the probe. first is a message that is none, and belongs to the backend.
func (f *TLSFront) begin(nc net.Conn) (client net.Conn, first []byte, err error) {
	m, err := testkit.ReadRecord(nc)
	if err != nil {
		return nil, nil, err
	}
	var call oncrpc.Call
	if err := oncrpc.ParseCall(m, &call); err != nil {
		return nil, nil, err
	}
	c := f.config()
	if !call.TLSProbe() || c == nil {
		f.mu.Lock()
		f.plain++
		f.mu.Unlock()
		if call.TLSProbe() {
			return nc, nil, testkit.WriteRecord(nc, oncrpc.AppendAccepted(nil, call.XID, oncrpc.Success))
		}
		return nc, m, nil
	}
	if err := testkit.WriteRecord(nc, oncrpc.AppendStartTLS(nil, call.XID)); err != nil {
		return nil, nil, err
	}
	s := tls.Server(nc, c)
	if err := s.Handshake(); err != nil {
		return nil, nil, fmt.Errorf("handshake: %w", err)
	}
	f.mu.Lock()
	f.secure++
	f.mu.Unlock()
	return s, nil, nil
}
