package tcpframe

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/rdmabridge/rdmabridge/tcpframe/eventloop"
)

// Errors of Dial that concern DialOptions.LocalAddr. Nothing was sent.
var (
	// ErrPortTaken is wrapped when another socket has the port, or when this process had
	// a connection from it to the same peer a moment ago.
	ErrPortTaken = errors.New("tcpframe: source port in use")
	// ErrPortForbidden is wrapped when the port is reserved for privileged processes.
	ErrPortForbidden = errors.New("tcpframe: source port not permitted")
	// errLocalAddress is wrapped when this host does not have the address.
	errLocalAddress = errors.New("tcpframe: source address is not this host's")
)

// Dial connects to addr (host:port) on the given loop, or on the loop that drives the
// fewest sockets if that is nil. It returns after h.Opened has returned. Dial blocks, and
// must not be called on a loop. After an error no method of h was or will be called.
//
// The socket has SO_REUSEADDR: its port can be bound again while the kernel remembers the
// connection after its end, and several sockets to different peers may share one port.
func (e *Engine) Dial(ctx context.Context, addr string, loop *Loop, o DialOptions, h RecordHandler) (*Conn, error) {
	if err := o.Conn.validate(); err != nil {
		return nil, err
	}
	if o.Name == "" {
		o.Name = addr
	}
	if loop == nil {
		loop = e.place(nil)
	}
	nc, err := connect(ctx, addr, o)
	if err != nil {
		return nil, err
	}
	opts := o.Conn
	c := newConn(loop, nc, &opts, e.counted.of(ofUpstream, o.Name), e.Now(), nil, nil)
	c.setHandler(h)
	if err := loop.AttachSocket(nc, c.sock); err != nil {
		return nil, fmt.Errorf("tcpframe: %w", err)
	}
	return c, nil
}

// connect makes a connected socket.
func connect(ctx context.Context, addr string, o DialOptions) (net.Conn, error) {
	d := net.Dialer{KeepAlive: -1} // tune enables it
	d.Control = func(_, _ string, c syscall.RawConn) error { return o.bindOptions(c) }
	if o.LocalAddr.Port() != 0 || o.LocalAddr.Addr().IsValid() {
		d.LocalAddr = net.TCPAddrFromAddrPort(o.LocalAddr)
	}
	nc, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, sourceError(err)
	}
	if eventloop.AddrPort(nc.LocalAddr()) == eventloop.AddrPort(nc.RemoteAddr()) {
		// No process listens on the port, and the socket has connected to itself.
		nc.Close()
		return nil, fmt.Errorf("tcpframe: dial %s: %w", addr, unix.ECONNREFUSED)
	}
	if err := tune(nc.(*net.TCPConn), o.Conn.SilentTimeout); err != nil {
		nc.Close()
		return nil, fmt.Errorf("tcpframe: socket options: %w", err)
	}
	if len(o.Preamble) > 0 {
		// The send buffer is empty and takes them at once.
		if _, err := nc.Write(o.Preamble); err != nil {
			nc.Close()
			return nil, fmt.Errorf("tcpframe: %w", err)
		}
	}
	return nc, nil
}

// bindOptions sets the options that a socket needs before bind. With IP_BIND_ADDRESS_NO_PORT a
// socket bound to an address without a port gets its port when the peer is known: there
// are then 64 Ki ports for each peer, rather than in all. This one is best effort: old
// kernels lack the option. Reset sets SO_LINGER before there is a connection, so that it also
// holds when the process is killed.
func (o *DialOptions) bindOptions(c syscall.RawConn) error {
	var failed error
	err := c.Control(func(fd uintptr) {
		failed = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1)
		if o.Reset {
			failed = errors.Join(failed, unix.SetsockoptLinger(int(fd), unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}))
		}
	})
	return errors.Join(err, os.NewSyscallError("setsockopt", failed))
}

// sourceError wraps err, an error of dialling, in the error that names its cause in
// DialOptions.LocalAddr, if it has one there.
func sourceError(err error) error {
	var call *os.SyscallError
	bind := errors.As(err, &call) && call.Syscall == "bind"
	switch {
	case bind && errors.Is(err, unix.EADDRINUSE), !bind && errors.Is(err, unix.EADDRNOTAVAIL):
		return fmt.Errorf("%w: %w", ErrPortTaken, err)
	case bind && errors.Is(err, unix.EACCES):
		return fmt.Errorf("%w: %w", ErrPortForbidden, err)
	case bind && errors.Is(err, unix.EADDRNOTAVAIL):
		return fmt.Errorf("%w: %w", errLocalAddress, err)
	}
	return fmt.Errorf("tcpframe: %w", err)
}
