package demo

import (
	"bytes"
	"encoding/binary"
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
			return newClosingConn(c, l), nil
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

// A closingConn is a connection of a closingListener. One goroutine of go-nfs reads from it, and answers the Calls
// that are not for go-nfs. Another one writes the Replies of go-nfs, each in several pieces.
type closingConn struct {
	net.Conn
	l      *closingListener
	record bytes.Buffer // the rest of the record that is being read

	mu     sync.Mutex // guards left and failed, and is held while writing; locked before closingListener.mu
	turn   sync.Cond  // left has become 0, or failed is set
	left   int        // octets of the record that go-nfs is writing
	failed bool       // nothing more can be written
}

func newClosingConn(c net.Conn, l *closingListener) *closingConn {
	x := &closingConn{Conn: c, l: l}
	x.turn.L = &x.mu
	return x
}

// Read reads from a record that is for go-nfs.
func (c *closingConn) Read(p []byte) (int, error) {
	var err error
	for c.record.Len() == 0 && err == nil {
		var refusal []byte
		if refusal, err = readRecord(c.Conn, &c.record); refusal != nil {
			c.record.Reset()
			err = c.refuse(refusal)
		}
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

// refuse writes the Reply m between two Replies of go-nfs.
func (c *closingConn) refuse(m []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.left > 0 && !c.failed {
		c.turn.Wait()
	}
	if c.failed {
		return net.ErrClosed
	}
	_, err := c.Conn.Write(append(binary.BigEndian.AppendUint32(nil, 1<<31|uint32(len(m))), m...))
	return err
}

// Write writes a piece of a record of go-nfs. The first piece has the record's mark, and no piece has octets of two
// records.
func (c *closingConn) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.left == 0 && len(p) >= 4 {
		c.left = 4 + int(binary.BigEndian.Uint32(p)&^(1<<31))
	}
	n, err := c.Conn.Write(p)
	if c.left -= n; err != nil {
		c.failed = true
		_ = c.Close()
	}
	if c.left <= 0 || c.failed {
		c.turn.Signal()
	}
	return n, err
}

func (c *closingConn) Close() error {
	c.l.mu.Lock()
	delete(c.l.conns, c.Conn)
	c.l.mu.Unlock()
	return c.Conn.Close()
}
