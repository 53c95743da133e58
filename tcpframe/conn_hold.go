package tcpframe

import "github.com/rdmabridge/rdmabridge/tcpframe/eventloop"

const keepHolds = 16 // spare buffers of held input that a loop keeps

// hold keeps a copy of b until reading is resumed.
func (c *Conn) hold(b []byte) {
	if len(c.held) == 0 && len(b) > cap(c.holdBuf) {
		c.dropHold()
		c.holdBuf = c.Loop().takeHold(len(b))
		c.held = c.holdBuf[:0]
	}
	if n := len(c.held) + len(b); n > cap(c.held) {
		// One read more, and no other one: then the socket leaves the loop.
		c.held = append(make([]byte, 0, max(n, min(2*n, 2*eventloop.ReadBuffer))), c.held...)
	}
	c.held = append(c.held, b...)
	c.copied += len(b)
	c.Loop().Hurry()
}

// dropHold forgets the octets that were held.
func (c *Conn) dropHold() {
	c.Loop().putHold(c.holdBuf)
	c.held, c.holdBuf = nil, nil
}

// takeHold returns an empty slice with a capacity of at least n octets.
func (l *Loop) takeHold(n int) []byte {
	if k := len(l.holds); k > 0 && n > eventloop.ReadBuffer/4 && n <= eventloop.ReadBuffer {
		b := l.holds[k-1]
		l.holds[k-1] = nil
		l.holds = l.holds[:k-1]
		return b
	}
	if n > eventloop.ReadBuffer/4 {
		n = max(n, eventloop.ReadBuffer)
	}
	return make([]byte, 0, n)
}

// putHold keeps b for takeHold if it is as long as one read.
func (l *Loop) putHold(b []byte) {
	if cap(b) == eventloop.ReadBuffer && len(l.holds) < keepHolds {
		l.holds = append(l.holds, b[:0])
	}
}
