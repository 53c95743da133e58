package proxytest

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/testkit"
)

// A Client is an RPC client over TCP. Its methods are safe for concurrent use.
type Client struct {
	Conn net.Conn
	// Calls receives the server's Calls. A Call that finds it full is lost.
	Calls chan []byte

	wmu sync.Mutex // guards writing

	mu      sync.Mutex // guards the fields below
	pending map[uint32]chan []byte
	err     error
}

// DialClient connects to addr.
func DialClient(addr string) (*Client, error) { return DialClientFrom(nil, addr) }

// DialClientFrom connects to addr from a local address, nil for any.
func DialClientFrom(local net.IP, addr string) (*Client, error) {
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: local}}
	c, err := d.Dial("tcp", addr)
	if err != nil {
		return nil, err
	}
	return NewClient(c), nil
}

// DialClientAt connects to addr from the address and port local, as a client that keeps its port does when it
// connects again. Sockets with one local port may be connected to different addresses at the same time.
func DialClientAt(local netip.AddrPort, addr string) (*Client, error) {
	d := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(local), Control: SharePort}
	c, err := d.Dial("tcp", addr)
	if err != nil {
		return nil, err
	}
	return NewClient(c), nil
}

// SharePort is a Control of net.Dialer for sockets that have one local port.
func SharePort(_, _ string, c syscall.RawConn) (err error) {
	if e := c.Control(func(fd uintptr) {
		err = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1)
	}); e != nil {
		return e
	}
	return err
}

// A KeptPort is the local port of a client that keeps it, as Linux does: a server knows the client by it when
// it connects again.
type KeptPort struct {
	h  *Harness
	at netip.AddrPort
	n  byte // connections
}

// KeptPort returns a port that no other client has.
func (h *Harness) KeptPort() *KeptPort {
	return &KeptPort{h: h, at: netip.MustParseAddrPort(testkit.FreeAddr(h.T))}
}

// Client connects from the port to addr. Where addr is of a listener at all addresses of the host, connections that
// the port has already may go on: each goes to another address.
func (k *KeptPort) Client(addr string) *Client {
	k.h.T.Helper()
	to := netip.MustParseAddrPort(addr)
	if to.Addr().IsUnspecified() {
		k.n++
		to = netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, k.n}), to.Port())
	}
	c, err := DialClientAt(k.at, to.String())
	if err != nil {
		k.h.T.Fatal(err)
	}
	k.h.T.Cleanup(c.Reset)
	return c
}

// NewClient makes a client of a connection.
func NewClient(c net.Conn) *Client {
	cl := &Client{Conn: c, pending: make(map[uint32]chan []byte), Calls: make(chan []byte, 64)}
	go cl.read()
	return cl
}

// read matches Replies with Calls until the connection ends.
func (c *Client) read() {
	err := ReadMessages(bufio.NewReaderSize(c.Conn, 64<<10), c.called, c.answered)
	if err == nil {
		err = io.ErrUnexpectedEOF
	}
	c.mu.Lock()
	c.err = err
	for _, ch := range c.pending {
		close(ch)
	}
	c.pending = nil
	c.mu.Unlock()
	close(c.Calls)
}

// called receives a Call of the server.
func (c *Client) called(m []byte) (more bool) {
	select {
	case c.Calls <- m:
	default:
	}
	return true
}

// answered receives every other message.
func (c *Client) answered(m []byte) (more bool) {
	if len(m) < 8 {
		return false
	}
	c.mu.Lock()
	ch := c.pending[XID(m)]
	delete(c.pending, XID(m))
	c.mu.Unlock()
	if ch != nil {
		ch <- m
	}
	return true
}

// Go sends the Call m. The channel it returns receives the Reply, and is closed when the
// connection ends first.
func (c *Client) Go(m []byte) (<-chan []byte, error) {
	all, err := c.GoAll(m)
	if all == nil {
		return nil, err
	}
	return all[0], err
}

// GoAll does what Go does, for several Calls with one write.
func (c *Client) GoAll(ms ...[]byte) (replies []<-chan []byte, err error) {
	var b []byte
	c.mu.Lock()
	if c.pending == nil {
		c.mu.Unlock()
		return nil, c.err
	}
	for _, m := range ms {
		ch := make(chan []byte, 1)
		c.pending[binary.BigEndian.Uint32(m)] = ch
		replies = append(replies, ch)
		b = append(b, testkit.Record(m)...)
	}
	c.mu.Unlock()
	c.wmu.Lock()
	defer c.wmu.Unlock()
	_, err = c.Conn.Write(b)
	return replies, err
}

// Send sends m, to which it expects no Reply.
func (c *Client) Send(m []byte) error {
	c.wmu.Lock()
	defer c.wmu.Unlock()
	return testkit.WriteRecord(c.Conn, m)
}

// NextCall waits for a Call of the server.
func (c *Client) NextCall(wait time.Duration) ([]byte, error) {
	return next(c.Calls, wait)
}

// CallTimeout bounds Client.Call: a Call that takes longer hangs.
const CallTimeout = 60 * time.Second

// ErrTimeout reports a Call that was neither answered nor its connection closed.
var ErrTimeout = errors.New("proxytest: no reply and the connection still open")

// Call sends m and waits for its Reply.
func (c *Client) Call(m []byte) ([]byte, error) {
	ch, err := c.Go(m)
	if err != nil {
		return nil, err
	}
	return await(ch, &c.mu, &c.err)
}

// await waits for the Reply that comes on ch. When the connection ends first, *why says
// why; mu guards it.
func await(ch <-chan []byte, mu *sync.Mutex, why *error) ([]byte, error) {
	select {
	case r, ok := <-ch:
		if ok {
			return r, nil
		}
		mu.Lock()
		defer mu.Unlock()
		return nil, fmt.Errorf("proxytest: connection ended: %w", *why)
	case <-time.After(CallTimeout):
		return nil, ErrTimeout
	}
}

// Reset ends the connection with RST, so that another one can have the same addresses and ports at once.
func (c *Client) Reset() {
	_ = c.Conn.(*net.TCPConn).SetLinger(0)
	_ = c.Close()
}

// Close ends the connection.
func (c *Client) Close() error { return c.Conn.Close() }
