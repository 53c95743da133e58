package nlm

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"github.com/rdmabridge/rdmabridge/internal/loglimit"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ask"
	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpcbind"
)

const (
	serverTimeout  = 20 * time.Second       // for a Call of a client at the server
	dialTimeout    = 5 * time.Second        // for a connection
	resolveTimeout = 2 * time.Second        // for the server's name, before the Server listens
	silence        = 10 * time.Second       // of a peer that has octets to acknowledge
	retryPause     = 250 * time.Millisecond // before a Call is sent again
)

// An upstream is the connection to a program of the server, NLM or MOUNT, which all clients share. It is made when a Call
// needs it. A Call whose connection breaks is sent again on the next one, because each procedure can be repeated.
type upstream struct {
	s       *Server
	name    string // of the program, for the log
	program uint32
	version uint32        // that the server's rpcbind is asked for
	port    uint16        // 0 asks its rpcbind
	dial    chan struct{} // has one place, for the goroutine that connects

	mu       sync.Mutex // guards the fields below; a leaf
	link     *link      // nil before the first, and after one has ended
	xid      uint32
	tried    time.Time // when connecting failed
	addrs    []netip.Addr
	failures loglimit.Seldom
}

// A link is one connection to the server.
type link struct {
	conn  net.Conn
	ended chan struct{} // closed when it cannot be used any more
	write chan struct{} // has one place, for the goroutine that writes

	mu      sync.Mutex // guards the fields below; a leaf
	pending map[uint32]chan []byte
	heard   time.Time // when the latest Reply came
}

func newUpstream(s *Server, name string, program, version uint32, port uint16) *upstream {
	return &upstream{s: s, name: name, program: program, version: version, port: port, dial: make(chan struct{}, 1), xid: rand.Uint32()}
}

// is reports whether a is an address of the server.
func (u *upstream) is(a netip.Addr) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return slices.Contains(u.addrs, a)
}

// resolve looks the server's addresses up. If that fails the Server goes on with those that it has.
func (u *upstream) resolve(ctx context.Context) ([]netip.Addr, error) {
	addrs, err := []netip.Addr(nil), error(nil)
	if a, e := netip.ParseAddr(u.s.o.Server); e == nil {
		addrs = []netip.Addr{a.Unmap()}
	} else if addrs, err = net.DefaultResolver.LookupNetIP(ctx, "ip", u.s.o.Server); err == nil {
		for i := range addrs {
			addrs[i] = addrs[i].Unmap()
		}
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if err == nil {
		u.addrs = addrs
	}
	if len(u.addrs) == 0 {
		return nil, err
	}
	return u.addrs, nil
}

// call sends a Call to the server and returns the Reply. It goes on until ctx ends.
func (u *upstream) call(ctx context.Context, version, procedure uint32, c credential, args []byte) (oncrpc.Reply, error) {
	return u.send(ctx, append(appendCall(nil, 0, u.program, version, procedure, c), args...))
}

// send sends the Call m, with an XID of its own, and returns the Reply. It goes on until ctx ends.
func (u *upstream) send(ctx context.Context, m []byte) (r oncrpc.Reply, err error) {
	u.mu.Lock()
	u.xid++
	xid := u.xid
	u.mu.Unlock()
	binary.BigEndian.PutUint32(m, xid)
	for {
		var l *link
		if l, err = u.connected(ctx); err == nil {
			var b []byte
			if b, err = l.call(ctx, xid, m); err == nil {
				if err = oncrpc.ParseReply(b, &r); err == nil {
					return r, nil
				}
				l.end()
			}
		}
		select {
		case <-ctx.Done():
			return r, errors.Join(ctx.Err(), err)
		case <-time.After(retryPause):
		}
	}
}

// appendCall appends the header of a Call.
func appendCall(b []byte, xid, program, version, procedure uint32, c credential) []byte {
	return ask.AppendCall(b, xid, program, version, procedure, ask.Credential{Flavor: c.flavor, Body: c.body})
}

var errTried = errors.New("connecting to the server has just failed")

// connected returns the link, which it makes if there is none.
func (u *upstream) connected(ctx context.Context) (*link, error) {
	select {
	case u.dial <- struct{}{}:
		defer func() { <-u.dial }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	u.mu.Lock()
	l, tried := u.link, u.tried
	u.mu.Unlock()
	switch {
	case l != nil && l.alive():
		return l, nil
	case time.Since(tried) < retryPause/2:
		return nil, errTried
	}
	c, err := u.connect(ctx)
	u.mu.Lock()
	defer u.mu.Unlock()
	if err != nil {
		u.tried = time.Now()
		u.failures.Line(&u.s.log, zerolog.WarnLevel, "nlm_server_unreachable").Str("server", u.s.o.Server).Err(err).Msgf("nlm: the server's %s cannot be reached", u.name)
		return nil, err
	}
	u.failures.Reset()
	l = &link{conn: c, ended: make(chan struct{}), write: make(chan struct{}, 1), pending: make(map[uint32]chan []byte)}
	u.link = l
	u.s.work.Go(l.read)
	u.s.work.Go(func() {
		select {
		case <-u.s.ctx.Done():
		case <-l.ended:
		}
		l.end()
	})
	return l, nil
}

// connect connects to the program at one of the server's addresses.
func (u *upstream) connect(ctx context.Context) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	addrs, err := u.resolve(ctx)
	if err != nil {
		return nil, err
	}
	local := u.s.Addr().Addr() // where the server must call: it calls the address that a LOCK came from
	if local.IsUnspecified() {
		local = netip.Addr{}
	}
	var errs []error
	for _, a := range addrs {
		port := u.port
		if port == 0 {
			if port, err = u.s.ask(ctx, local, a, "tcp", u.program, u.version); err != nil {
				errs = append(errs, fmt.Errorf("asking rpcbind at %s: %w", a, err))
				continue
			}
		}
		c, err := u.s.dial(ctx, "tcp", local, netip.AddrPortFrom(a, port), true)
		if err == nil {
			return c, nil
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}

func (l *link) alive() bool {
	select {
	case <-l.ended:
		return false
	default:
		return true
	}
}

// end closes the connection. Calls under way on it are sent again.
func (l *link) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.alive() {
		close(l.ended)
		l.conn.Close()
	}
}

// read hands Replies to those that wait for them.
func (l *link) read() {
	defer l.end()
	for {
		m, err := readRecord(l.conn, func() {})
		if err != nil {
			return
		}
		xid, _, _ := oncrpc.MessageType(m)
		l.mu.Lock()
		l.heard = time.Now()
		if reply := l.pending[xid]; reply != nil {
			delete(l.pending, xid)
			reply <- m
		}
		l.mu.Unlock()
	}
}

var errEnded = errors.New("the connection to the server has ended")

// call sends the Call m and returns its Reply.
func (l *link) call(ctx context.Context, xid uint32, m []byte) ([]byte, error) {
	reply, sent := make(chan []byte, 1), time.Now()
	l.mu.Lock()
	l.pending[xid] = reply
	l.mu.Unlock()
	defer func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.pending, xid)
	}()
	select {
	case l.write <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-l.ended:
		return nil, errEnded
	}
	_ = l.conn.SetWriteDeadline(time.Now().Add(writeTimeout))
	_, err := l.conn.Write(ask.Record(m))
	<-l.write
	if err != nil {
		l.end() // part of the record may have gone
		return nil, err
	}
	select {
	case b := <-reply:
		return b, nil
	case <-l.ended:
		return nil, errEnded
	case <-ctx.Done():
		l.mu.Lock()
		silent := l.heard.Before(sent)
		l.mu.Unlock()
		if silent {
			l.end() // the next Call tries another one
		}
		return nil, ctx.Err()
	}
}

// dial connects, from a privileged port if that is asked for and possible: servers may ask for one. An invalid local
// address lets the kernel choose one.
func (s *Server) dial(ctx context.Context, network string, local netip.Addr, remote netip.AddrPort, privileged bool) (net.Conn, error) {
	if local.IsValid() && local.Is4() != remote.Addr().Is4() {
		local = netip.Addr{}
	}
	d := net.Dialer{Timeout: dialTimeout, Control: func(network, _ string, c syscall.RawConn) error {
		if network == "udp4" || network == "udp6" {
			return nil
		}
		return c.Control(func(fd uintptr) { // best effort
			_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(silence.Milliseconds()))
		})
	}}
	return ask.Dial(ctx, d, network, local, remote.String(), privileged)
}

// ask asks rpcbind at a host for a port.
func (s *Server) ask(ctx context.Context, local, host netip.Addr, transport string, program, version uint32) (uint16, error) {
	c, err := s.dial(ctx, "tcp", local, netip.AddrPortFrom(host, s.o.RPCBindPort), false)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	port, err := rpcbind.AskOn(ctx, c, transport, program, version)
	if err == nil && port == 0 {
		err = fmt.Errorf("%s has no %s over %s", host, oncrpc.ProgramName(program), transport)
	}
	return port, err
}
