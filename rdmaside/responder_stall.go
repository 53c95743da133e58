package rdmaside

import (
	"errors"
	"fmt"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/loop"
)

// ErrReadStall is wrapped by the end of a connection whose Requester advertised
// Read chunks and did not serve them.
var ErrReadStall = errors.New("rdmaside: peer does not serve RDMA Reads")

// A readWatch ends a connection on which Reads are outstanding and none completes.
// The memory that they are to fill is lent meanwhile, and a few Requesters that
// never serve a Read could have all there is. One timer serves all Reads: it is set
// when there are some and it is not, so that it runs out between one and two
// ResponderOptions.ReadTimeout after the last that completed.
type readWatch struct {
	timer *time.Timer
	armed bool
	done  uint64 // Reads completed
	seen  uint64 // done when the timer was set
}

// watchReads is called when Reads have been posted.
func (c *ResponderConn) watchReads() {
	w := &c.watch
	d := c.responder.opts.ReadTimeout
	if w.armed || c.reads == 0 || d <= 0 {
		return
	}
	w.armed, w.seen = true, w.done
	if w.timer == nil {
		w.timer = time.AfterFunc(d, func() { c.loop.Post((*readTask)(c)) })
		return
	}
	w.timer.Reset(d)
}

func (w *readWatch) stop() {
	if w.timer != nil {
		w.timer.Stop()
	}
}

type readTask ResponderConn

// Run looks whether a Read has completed since the timer was set.
func (t *readTask) Run() {
	c := (*ResponderConn)(t)
	c.watch.armed = false
	if c.state != up {
		return
	}
	if c.reads > 0 && c.watch.done == c.watch.seen {
		c.end(fmt.Errorf("%w: %d outstanding for %s", ErrReadStall, c.reads, c.responder.opts.ReadTimeout))
		return
	}
	c.watchReads()
}

var _ loop.Task = (*readTask)(nil)
