package admin

import (
	"net"
	"sync"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/internal/crowd"
	"github.com/rdmabridge/rdmabridge/internal/loglimit"
	"github.com/rdmabridge/rdmabridge/metrics"
)

// MaxConns bounds the connections of a Server, whose descriptors are reserved.
const MaxConns = 64

// A listener bounds the connections of the admin server. A connection beyond the bound is
// let in, and the oldest one of the address with the most is closed for it: so connections that
// never finish a request keep no probe out. It is safe for concurrent use.
type listener struct {
	*net.TCPListener
	log    zerolog.Logger
	closed *metrics.Counter // connections closed for others
	lines  loglimit.Limit

	mu    sync.Mutex // guards conns; a leaf
	conns crowd.Crowd[*conn]
}

// A conn is one connection.
type conn struct {
	net.Conn
	listener *listener
	place    crowd.Member[*conn] // guarded by listener.mu
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	nc, err := l.TCPListener.Accept()
	if err != nil {
		return nil, err
	}
	c := &conn{Conn: nc, listener: l}
	c.place.Value = c
	if old := l.add(c); old != nil {
		l.evict(old)
	}
	return c, nil
}

// add counts c. It returns the connection that is closed for c, if there is one.
func (l *listener) add(c *conn) (old *conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.conns.Len() >= MaxConns {
		m := l.conns.Largest()
		l.conns.Remove(m)
		old = m.Value
	}
	l.conns.Add(&c.place, c.RemoteAddr().(*net.TCPAddr).AddrPort().Addr(), 1)
	return old
}

// evict closes c, which was counted off.
func (l *listener) evict(c *conn) {
	_ = c.Conn.Close()
	l.closed.Inc()
	l.lines.Line(&l.log, zerolog.WarnLevel, "admin_crowded").Stringer("peer", c.RemoteAddr()).
		Msg("admin server has too many connections; the oldest of the address with the most is closed")
}

// Close implements net.Conn.
func (c *conn) Close() error {
	c.listener.mu.Lock()
	c.listener.conns.Remove(&c.place)
	c.listener.mu.Unlock()
	return c.Conn.Close()
}
