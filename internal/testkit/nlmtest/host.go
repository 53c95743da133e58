package nlmtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/xdr"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
)

// A Call is a Call that a host has got.
type Call struct {
	From                        netip.Addr
	Datagram                    bool
	Program, Version, Procedure uint32
	Args                        []byte
}

// network returns the network that the Call came by.
func (c *Call) network() string {
	if c.Datagram {
		return "udp"
	}
	return "tcp"
}

// A Host answers Calls of NLM and NSM at one address over TCP and UDP, has an rpcbind that tells their ports, and calls
// other hosts. Its methods are safe for concurrent use.
type Host struct {
	Addr    netip.Addr
	rpcbind uint16
	handle  func(*Call) (results []byte, ok bool) // !ok: no such procedure. A nil result with ok sends no Reply

	xid atomic.Uint32

	mu     sync.Mutex // guards the fields below; a leaf
	up     bool
	ports  ports
	closes []io.Closer
	conns  map[net.Conn]struct{}
	work   *sync.WaitGroup

	callMu sync.Mutex // held during a Call over TCP
	conn   net.Conn   // the one to to
	to     netip.AddrPort
}

// ports are those of the services.
type ports struct{ tcp, udp uint16 }

// RPCBindPort returns a port that is free for the rpcbind of each of the hosts.
func RPCBindPort(t testing.TB, hosts ...netip.Addr) uint16 {
	t.Helper()
search:
	for range 100 {
		a := netip.MustParseAddrPort(testkit.FreeAddr(t))
		for _, h := range hosts {
			l, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(netip.AddrPortFrom(h, a.Port())))
			if err != nil {
				continue search
			}
			l.Close()
			u, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(h, a.Port())))
			if err != nil {
				continue search
			}
			u.Close()
		}
		return a.Port()
	}
	t.Fatal("no port is free for rpcbind")
	return 0
}

func newHost(addr netip.Addr, rpcbind uint16, handle func(*Call) ([]byte, bool)) *Host {
	h := &Host{Addr: addr, rpcbind: rpcbind, handle: handle}
	h.xid.Store(rand.Uint32())
	return h
}

// NewRPCBind is a Host whose rpcbind says that NLM and NSM are at port. It serves neither.
func NewRPCBind(addr netip.Addr, rpcbind, port uint16) (*Host, error) {
	h := newHost(addr, rpcbind, nil)
	if err := h.start(&ports{port, port}); err != nil {
		return nil, err
	}
	return h, nil
}

// NewHost is a Host with an rpcbind, that serves nothing.
func NewHost(addr netip.Addr, rpcbind uint16) (*Host, error) {
	h := newHost(addr, rpcbind, func(*Call) ([]byte, bool) { return nil, false })
	return h, h.Start()
}

// Start opens the host's sockets, at other ports than before.
func (h *Host) Start() error { return h.start(nil) }

// start opens the sockets of rpcbind, and of the services unless they are elsewhere.
func (h *Host) start(elsewhere *ports) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.up {
		return errors.New("nlmtest: the host is up")
	}
	h.work = new(sync.WaitGroup)
	h.conns = make(map[net.Conn]struct{})
	h.closes = nil
	listen := func(port uint16, handle func(*Call) ([]byte, bool)) (p ports, err error) {
		l, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(netip.AddrPortFrom(h.Addr, port)))
		if err != nil {
			return p, err
		}
		h.closes = append(h.closes, l)
		u, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(h.Addr, port)))
		if err != nil {
			return p, err
		}
		h.closes = append(h.closes, u)
		p.tcp = l.Addr().(*net.TCPAddr).AddrPort().Port()
		p.udp = u.LocalAddr().(*net.UDPAddr).AddrPort().Port()
		h.work.Go(func() { h.accept(l, handle) })
		h.work.Go(func() { h.datagrams(u, handle) })
		return p, nil
	}
	_, err := listen(h.rpcbind, h.lookUp)
	if elsewhere != nil {
		h.ports = *elsewhere
	} else if err == nil {
		h.ports, err = listen(0, h.handle)
	}
	if err != nil {
		for _, c := range h.closes {
			c.Close()
		}
		return fmt.Errorf("nlmtest: %w", err)
	}
	h.up = true
	return nil
}

// Stop closes the host's sockets and connections, as the end of the host would.
func (h *Host) Stop() {
	h.mu.Lock()
	for _, c := range h.closes {
		c.Close()
	}
	for c := range h.conns {
		c.Close()
	}
	h.up = false
	work := h.work
	h.mu.Unlock()
	h.callMu.Lock()
	h.drop()
	h.callMu.Unlock()
	work.Wait()
}

func (h *Host) accept(l *net.TCPListener, handle func(*Call) ([]byte, bool)) {
	for {
		c, err := l.AcceptTCP()
		if err != nil {
			return
		}
		h.mu.Lock()
		h.conns[c] = struct{}{}
		h.mu.Unlock()
		h.work.Go(func() {
			defer func() {
				c.Close()
				h.mu.Lock()
				delete(h.conns, c)
				h.mu.Unlock()
			}()
			from := c.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap()
			for {
				m, err := testkit.ReadRecord(c)
				if err != nil {
					return
				}
				if reply := answer(m, from, false, handle); reply != nil {
					if testkit.WriteRecord(c, reply) != nil {
						return
					}
				}
			}
		})
	}
}

func (h *Host) datagrams(u *net.UDPConn, handle func(*Call) ([]byte, bool)) {
	buf := make([]byte, 64<<10)
	for {
		n, from, err := u.ReadFromUDPAddrPort(buf)
		if err != nil {
			return
		}
		if reply := answer(bytes.Clone(buf[:n]), from.Addr().Unmap(), true, handle); reply != nil {
			_, _ = u.WriteToUDPAddrPort(reply, from)
		}
	}
}

// answer returns the Reply to the message m, or nil for none.
func answer(m []byte, from netip.Addr, datagram bool, handle func(*Call) ([]byte, bool)) []byte {
	var c oncrpc.Call
	if oncrpc.ParseCall(m, &c) != nil {
		return nil
	}
	var results []byte
	ok := true
	if c.Procedure == 0 {
		results = []byte{}
	} else {
		results, ok = handle(&Call{from, datagram, c.Program, c.Version, c.Procedure, m[c.Args:]})
	}
	switch {
	case !ok:
		return oncrpc.AppendAccepted(nil, c.XID, oncrpc.ProcedureUnavailable)
	case results == nil:
		return nil
	}
	return append(oncrpc.AppendAccepted(nil, c.XID, oncrpc.Success), results...)
}

// lookUp answers GETPORT and GETADDR.
func (h *Host) lookUp(c *Call) ([]byte, bool) {
	if c.Program != ProgramRPCBind || c.Procedure != 3 {
		return nil, false
	}
	h.mu.Lock()
	p := h.ports
	h.mu.Unlock()
	args := newCursor(c.Args)
	program, version := args.Uint32(), args.Uint32()
	known := program == ProgramNLM && (version == 1 || version == 3 || version == 4) || program == ProgramNSM && version == 1
	if c.Version == 2 {
		port := p.tcp
		if args.Uint32() == 17 {
			port = p.udp
		}
		if !known {
			port = 0
		}
		return xdr.AppendUint32(nil, uint32(port)), true
	}
	port := p.tcp
	if string(args.opaque()) == "udp" {
		port = p.udp
	}
	if !known {
		return xdr.AppendOpaque(nil, nil), true
	}
	return xdr.AppendOpaque(nil, fmt.Appendf(nil, "%v.%d.%d", h.Addr, port>>8, port&0xff)), true
}

// Message returns a Call with AUTH_SYS.
func Message(xid, program, version, procedure uint32, args []byte) []byte {
	m := xdr.AppendWords(nil, xid, oncrpc.TypeCall, oncrpc.RPCVersion, program, version, procedure)
	m = xdr.AppendWords(m, oncrpc.FlavorSys, 24, 1, 3)
	m = append(m, "nlm\x00"...)
	m = xdr.AppendWords(m, 0, 0, 0) // uid, gid, gids
	return append(xdr.AppendWords(m, oncrpc.FlavorNone, 0), args...)
}

// ErrRefused is the error of a Call that was answered, and not executed.
var ErrRefused = errors.New("nlmtest: the Call was refused")

// resend is after how long a Call over UDP is sent again.
const resend = 200 * time.Millisecond

// Call calls another host from this host's address, over "udp" or "tcp". It sends the Call again until ctx ends.
func (h *Host) Call(ctx context.Context, network string, to netip.AddrPort, program, version, procedure uint32, args []byte) ([]byte, error) {
	xid := h.xid.Add(1)
	m := Message(xid, program, version, procedure, args)
	exchange := h.exchangeTCP
	if network == "udp" {
		exchange = h.exchangeUDP
	}
	for {
		reply, err := exchange(ctx, to, xid, m)
		var r oncrpc.Reply
		switch {
		case err != nil && ctx.Err() != nil:
			return nil, fmt.Errorf("%w: %w", ctx.Err(), err)
		case err != nil:
			select {
			case <-ctx.Done():
			case <-time.After(10 * time.Millisecond):
			}
			continue
		case oncrpc.ParseReply(reply, &r) != nil || !r.Succeeded():
			return nil, ErrRefused
		}
		return reply[r.Results:], nil
	}
}

// Dial connects to another host from this host's address.
func (h *Host) Dial(ctx context.Context, network string, to netip.AddrPort) (net.Conn, error) {
	d := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(h.Addr, 0))}
	if network == "udp" {
		d.LocalAddr = net.UDPAddrFromAddrPort(netip.AddrPortFrom(h.Addr, 0))
	}
	return d.DialContext(ctx, network, to.String())
}

// exchangeTCP sends m over the host's one connection to the other host. The caller repeats it.
func (h *Host) exchangeTCP(ctx context.Context, to netip.AddrPort, xid uint32, m []byte) ([]byte, error) {
	h.callMu.Lock()
	defer h.callMu.Unlock()
	if h.to != to {
		h.drop()
	}
	if h.conn == nil {
		c, err := h.Dial(ctx, "tcp", to)
		if err != nil {
			return nil, err
		}
		h.conn, h.to = c, to
	}
	c := h.conn
	stop := context.AfterFunc(ctx, func() { c.SetDeadline(time.Now()) })
	defer stop()
	if err := testkit.WriteRecord(h.conn, m); err != nil {
		h.drop()
		return nil, err
	}
	for {
		reply, err := testkit.ReadRecord(h.conn)
		if err != nil {
			h.drop()
			return nil, err
		}
		if oncrpc.IsReply(reply, xid) {
			return reply, nil
		}
	}
}

func (h *Host) drop() {
	if h.conn != nil {
		h.conn.Close()
	}
	h.conn, h.to = nil, netip.AddrPort{}
}

func (h *Host) exchangeUDP(ctx context.Context, to netip.AddrPort, xid uint32, m []byte) ([]byte, error) {
	c, err := h.Dial(ctx, "udp", to)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	stop := context.AfterFunc(ctx, func() { c.SetDeadline(time.Now()) })
	defer stop()
	buf := make([]byte, 64<<10)
	for {
		if _, err := c.Write(m); err != nil {
			return nil, err
		}
		_ = c.SetReadDeadline(time.Now().Add(resend))
		n, err := c.Read(buf)
		if err == nil && oncrpc.IsReply(buf[:n], xid) {
			return buf[:n], nil
		}
		if err != nil && !errors.Is(err, context.DeadlineExceeded) && !isTimeout(err) || ctx.Err() != nil {
			return nil, err
		}
	}
}

func isTimeout(err error) bool {
	var n net.Error
	return errors.As(err, &n) && n.Timeout()
}

// Send sends a datagram and waits for no Reply.
func (h *Host) Send(to netip.AddrPort, program, version, procedure uint32, args []byte) error {
	c, err := h.Dial(context.Background(), "udp", to)
	if err != nil {
		return err
	}
	defer c.Close()
	_, err = c.Write(Message(h.xid.Add(1), program, version, procedure, args))
	return err
}

// Ask asks the rpcbind of another host for a port, over UDP.
func (h *Host) Ask(ctx context.Context, host netip.Addr, network string, program, version uint32) (netip.AddrPort, error) {
	protocol := uint32(6)
	if network == "udp" {
		protocol = 17
	}
	b, err := h.Call(ctx, "udp", netip.AddrPortFrom(host, h.rpcbind), ProgramRPCBind, 2, 3, xdr.AppendWords(nil, program, version, protocol, 0))
	if err != nil {
		return netip.AddrPort{}, err
	}
	port := newCursor(b).Uint32()
	if port == 0 || port > 65535 {
		return netip.AddrPort{}, errors.New("nlmtest: the program is not registered: " + strconv.Itoa(int(program)))
	}
	return netip.AddrPortFrom(host, uint16(port)), nil
}
