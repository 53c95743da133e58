package control

import (
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/internal/loglimit"
	"github.com/rdmabridge/rdmabridge/internal/unixsocket"
)

// mostRefusals bounds the connections that are told why they are refused. Others are closed.
const mostRefusals = 8

// A listener lets only the user of this process and root in, and no more than MaxConnections.
type listener struct {
	*net.UnixListener
	log   zerolog.Logger
	lines loglimit.Limit

	open     atomic.Int32 // connections that were let in
	refusing atomic.Int32 // connections that are being refused
}

// A conn is one connection, with the process at its other end.
type conn struct {
	net.Conn
	peer   unixsocket.Peer
	closed func()
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	for {
		c, err := l.AcceptUnix()
		if err != nil {
			return nil, err
		}
		peer, err := unixsocket.PeerOf(c)
		switch {
		case err != nil:
			l.refuse(c, peer, err.Error())
		case !peer.Trusted():
			l.refuse(c, peer, fmt.Sprintf("user %d may not control this bridge: only user %d, which it runs as, and root may", peer.UID, os.Geteuid()))
		case l.open.Load() >= MaxConnections:
			l.refuse(c, peer, fmt.Sprintf("the control socket has %d connections, which are all that it takes; end a capture or a top that runs", MaxConnections))
		default:
			l.open.Add(1)
			return &conn{Conn: c, peer: peer, closed: sync.OnceFunc(func() { l.open.Add(-1) })}, nil
		}
	}
}

// refuse tells the process at the other end of c why it is not let in.
func (l *listener) refuse(c *net.UnixConn, peer unixsocket.Peer, why string) {
	if ok, suppressed := l.lines.Allow(time.Now()); ok {
		l.log.Warn().Str("event", "control_refused").Int("uid", peer.UID).Int("other_pid", peer.PID).Uint64("suppressed", suppressed).
			Str("reason", why).Msg("control socket: a connection was refused")
	}
	if l.refusing.Add(1) > mostRefusals {
		l.refusing.Add(-1)
		c.Close()
		return
	}
	go func() {
		defer l.refusing.Add(-1)
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(time.Second))
		// A client whose request was not read may not see the answer.
		_, _ = c.Read(make([]byte, 4096))
		fmt.Fprintf(c, "HTTP/1.1 403 Forbidden\r\n%s: %d\r\nContent-Type: text/plain\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s",
			pidHeader, os.Getpid(), len(why), why)
	}()
}

// Close implements net.Conn.
func (c *conn) Close() error {
	err := c.Conn.Close()
	c.closed()
	return err
}
