package iwarp

import "github.com/rdmabridge/rdmabridge/internal/loop"

// Measure is part of fabric.TCPConn.
func (c *conn) Measure() (loop.TCP, bool) {
	if s, ok := c.sock.(loop.MeasuredSocket); ok {
		return s.Measure()
	}
	return loop.TCP{}, false
}
