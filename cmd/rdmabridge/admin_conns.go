package main

import (
	stdlog "log"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/internal/crowd"
	"github.com/rdmabridge/rdmabridge/metrics"
	"github.com/rdmabridge/rdmabridge/rdmaside"
)

// maxAdminConns bounds the connections of the admin server, whose descriptors are reserved.
const maxAdminConns = 64

// An adminListener bounds the connections of the admin server. A connection beyond the bound is
// let in, and the oldest one of the address with the most is closed for it: so connections that
// never finish a request keep no probe out. It is safe for concurrent use.
type adminListener struct {
	*net.TCPListener
	log    zerolog.Logger
	closed *metrics.Counter // connections closed for others
	lines  rdmaside.LineLimit

	mu    sync.Mutex // guards conns; a leaf
	conns crowd.Crowd[*adminConn]
}

// An adminConn is one connection.
type adminConn struct {
	net.Conn
	listener *adminListener
	place    crowd.Member[*adminConn] // guarded by listener.mu
}

// Accept implements net.Listener.
func (l *adminListener) Accept() (net.Conn, error) {
	nc, err := l.TCPListener.Accept()
	if err != nil {
		return nil, err
	}
	c := &adminConn{Conn: nc, listener: l}
	c.place.Value = c
	if old := l.add(c); old != nil {
		l.evict(old)
	}
	return c, nil
}

// add counts c. It returns the connection that is closed for c, if there is one.
func (l *adminListener) add(c *adminConn) (old *adminConn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.conns.Len() >= maxAdminConns {
		m := l.conns.Largest()
		l.conns.Remove(m)
		old = m.Value
	}
	l.conns.Add(&c.place, c.RemoteAddr().(*net.TCPAddr).AddrPort().Addr(), 1)
	return old
}

// evict closes c, which was counted off.
func (l *adminListener) evict(c *adminConn) {
	_ = c.Conn.Close()
	l.closed.Inc()
	if ok, suppressed := l.lines.Allow(time.Now()); ok {
		l.log.Warn().Stringer("peer", c.RemoteAddr()).Uint64("suppressed", suppressed).
			Msg("admin server has too many connections; the oldest of the address with the most is closed")
	}
}

// Close implements net.Conn.
func (c *adminConn) Close() error {
	c.listener.mu.Lock()
	c.listener.conns.Remove(&c.place)
	c.listener.mu.Unlock()
	return c.Conn.Close()
}

// An adminLog writes the errors of package http to the log.
type adminLog struct {
	log   zerolog.Logger
	lines rdmaside.LineLimit
}

// Write implements io.Writer. p is one line.
func (a *adminLog) Write(p []byte) (int, error) {
	if ok, suppressed := a.lines.Allow(time.Now()); ok {
		a.log.Warn().Str("error", strings.TrimSpace(string(p))).Uint64("suppressed", suppressed).Msg("admin server: a connection failed")
	}
	return len(p), nil
}

func newAdminLog(log zerolog.Logger) *stdlog.Logger { return stdlog.New(&adminLog{log: log}, "", 0) }
