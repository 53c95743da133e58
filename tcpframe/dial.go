package tcpframe

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// What DialOptions.LocalAddr asked for and cannot be had. Nothing was sent.
var (
	// ErrPortTaken is wrapped when the port is another socket's, or was this one's to the
	// same peer a moment ago.
	ErrPortTaken = errors.New("tcpframe: source port in use")
	// ErrPortForbidden is wrapped when the kernel keeps the port for the privileged.
	ErrPortForbidden = errors.New("tcpframe: source port not permitted")
	// errLocalAddress is wrapped when the address is none of this host's.
	errLocalAddress = errors.New("tcpframe: source address is not this host's")
)

// Dial connects to addr (host:port), on loop, or on the least loaded loop if
// that is nil, and returns after h.Opened has. It blocks, and must not be
// called on a loop. After an error no method of h was or will be called.
//
// The socket has SO_REUSEADDR: after it has ended its port can be had again while
// the kernel remembers it, and several sockets to different peers may share one.
func (e *Engine) Dial(ctx context.Context, addr string, loop *Loop, o DialOptions, h RecordHandler) (*Conn, error) {
	if o.Name == "" {
		o.Name = "upstream"
	}
	if loop == nil {
		loop = e.leastLoaded()
	}
	if o.Conn.SilentTimeout > 0 && o.KeepAlive == (net.KeepAliveConfig{}) {
		o.KeepAlive = keepAliveFor(o.Conn.SilentTimeout)
	}
	d := net.Dialer{KeepAliveConfig: keepAlive(o.KeepAlive), Control: reuse}
	if o.Reset {
		d.Control = reuseReset
	}
	if !d.KeepAliveConfig.Enable {
		d.KeepAlive = -1
	}
	if o.LocalAddr.Port() != 0 || o.LocalAddr.Addr().IsValid() {
		d.LocalAddr = net.TCPAddrFromAddrPort(o.LocalAddr)
	}
	nc, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, sourceError(err)
	}
	if addrPort(nc.LocalAddr()) == addrPort(nc.RemoteAddr()) {
		// Nobody listens there but this socket, which met itself.
		nc.Close()
		return nil, fmt.Errorf("tcpframe: dial %s: %w", addr, unix.ECONNREFUSED)
	}
	if err := tune(nc.(*net.TCPConn), o.UserTimeout); err != nil {
		nc.Close()
		return nil, fmt.Errorf("tcpframe: socket options: %w", err)
	}
	c := newConn(loop, nc, o.Conn, e.counters(o.Name))
	c.handler = h
	if err := loop.attach(nc, c.sock); err != nil {
		return nil, fmt.Errorf("tcpframe: %w", err)
	}
	return c, nil
}

// reuse sets what has to be set before bind. An address without a port takes one when
// it is known where the connection goes: there are 64 Ki of them for each peer, rather
// than in all. That is a favour, and kernels without it do without.
func reuse(_, _ string, c syscall.RawConn) error {
	var failed error
	err := c.Control(func(fd uintptr) {
		failed = os.NewSyscallError("setsockopt", unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1))
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1)
	})
	if err != nil {
		return err
	}
	return failed
}

// reuseReset is reuse for DialOptions.Reset. It is set before there is a connection, so
// that it holds when the process is killed.
func reuseReset(network, address string, c syscall.RawConn) error {
	failed := reuse(network, address, c)
	err := c.Control(func(fd uintptr) {
		l := unix.Linger{Onoff: 1}
		failed = errors.Join(failed, os.NewSyscallError("setsockopt", unix.SetsockoptLinger(int(fd), unix.SOL_SOCKET, unix.SO_LINGER, &l)))
	})
	return errors.Join(failed, err)
}

// sourceError says of err, from dialling, what it means for the local end.
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
