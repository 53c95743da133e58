package demo

import (
	"bytes"
	"net"
	"sync"
)

// maxConns is how many connections the server has at most. The demo's bridge makes 4.
const maxConns = 64

// A closingListener accepts connections that close themselves after an error. The
// go-nfs server does not close them, and its clients would wait for Replies forever.
type closingListener struct {
	net.Listener

	mu    sync.Mutex        // guards conns; a leaf
	conns map[net.Conn]bool // the open connections
}

// Accept accepts the next connection, and closes those beyond maxConns.
func (l *closingListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if l.add(c) {
			return &closingConn{Conn: c, l: l}, nil
		}
		c.Close()
	}
}

// add notes an open connection. It reports false when there are too many.
func (l *closingListener) add(c net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.conns) >= maxConns {
		return false
	}
	if l.conns == nil {
		l.conns = make(map[net.Conn]bool)
	}
	l.conns[c] = true
	return true
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
	l      *closingListener
	record bytes.Buffer // the rest of the record that is being read
}

// Read reads from a record whose lengths have been checked.
func (c *closingConn) Read(p []byte) (int, error) {
	var err error
	if c.record.Len() == 0 {
		err = readRecord(c.Conn, &c.record)
	}
	n := 0
	if err == nil {
		n, err = c.record.Read(p)
	}
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
