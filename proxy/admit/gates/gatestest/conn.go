// Package gatestest has what the tests of gates and of package admit share.
package gatestest

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/loop"
)

// A Conn is the part of a gates.Conn that ends, and that has a loop of its own: its mutex, which Post and Do hold.
type Conn struct {
	sync.Mutex
	left atomic.Bool
}

// Gone reports whether Close was called.
func (c *Conn) Gone() bool { return c.left.Load() }

// Close ends the connection.
func (c *Conn) Close(error) { c.left.Store(true) }

// Post runs t on the loop, later.
func (c *Conn) Post(t loop.Task) { go c.Do(t.Run) }

// Do runs f on the loop.
func (c *Conn) Do(f func()) {
	c.Lock()
	defer c.Unlock()
	f()
}

// BubbleClock returns the loops' clock in a bubble of testing/synctest.
func BubbleClock() func() int64 {
	began := time.Now()
	return func() int64 { return int64(time.Since(began)) + int64(time.Hour) }
}
