package eventloop

import (
	"errors"
	"sync"
	"time"
)

// ErrClosed is the error of an act that needs a socket which has ended, or loops which have stopped.
var ErrClosed = errors.New("tcpframe: closed")

// common is what the loops of a Group share.
type common struct {
	watcher  *watcher // constant, as the next two
	busyPoll int64    // nanoseconds; 0 for none
	epoch    time.Time

	mu          sync.Mutex // guards the rest; a leaf
	stopped     bool
	attachments sync.WaitGroup // calls of Attach that have not returned; Add with mu held
}

// Now returns the nanoseconds since the start on a monotonic clock. It is never 0. On a loop, Loop.Now is cheaper.
func (c *common) Now() int64 { return int64(time.Since(c.epoch)) + 1 }

// attaching reports whether an Attach may begin: the group has not stopped. The caller then calls attachments.Done.
func (c *common) attaching() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopped {
		return false
	}
	c.attachments.Add(1)
	return true
}
