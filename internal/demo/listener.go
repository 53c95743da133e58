package demo

import (
	"net"
	"sync"
)

// A closingListener accepts connections that close themselves after an error. The
// go-nfs server does not close them, and its clients would wait for Replies forever.
type closingListener struct {
	net.Listener

	mu    sync.Mutex        // guards conns; a leaf
	conns map[net.Conn]bool // the open connections
}

func (l *closingListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	cc := &closingConn{Conn: c, l: l}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.conns == nil {
		l.conns = make(map[net.Conn]bool)
	}
	l.conns[c] = true
	return cc, nil
}

// Close stops listening and closes the connections.
func (l *closingListener) Close() error {
	err := l.Listener.Close()
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := range l.conns {
		c.Close()
	}
	return err
}

// A closingConn is a connection of a closingListener.
type closingConn struct {
	net.Conn
	l *closingListener
}

func (c *closingConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if err != nil {
		_ = c.Close() // the server stops reading after an error
	}
	return n, err
}

func (c *closingConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	if err != nil {
		_ = c.Close()
	}
	return n, err
}

func (c *closingConn) Close() error {
	c.l.mu.Lock()
	delete(c.l.conns, c.Conn)
	c.l.mu.Unlock()
	return c.Conn.Close()
}
