package rdmaside

import (
	"errors"
	"fmt"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/loop"
)

// errReadStall is wrapped by the error that closes a connection whose Requester
// offered Read chunks and did not serve them.
var errReadStall = errors.New("rdmaside: peer does not serve RDMA Reads")

// readTimeout bounds the time in which no outstanding Read completes. After
// that the Responder closes the connection.
const readTimeout = 60 * time.Second

// A readWatch closes a connection on which Reads are outstanding and none
// completes. The memory for the data of these Reads is leased meanwhile, and
// without a readWatch a few Requesters that never serve a Read could occupy all
// memory. One timer serves all Reads. The connection starts it when Reads are
// posted and it is not running, so it fires between one and two times
// readTimeout after the last completion.
type readWatch struct {
	timer *time.Timer
	armed bool   // timer is running
	done  uint64 // Reads completed
	seen  uint64 // done when the timer was started
}

// watchReads starts the timer if there are Reads outstanding.
func (c *ResponderConn) watchReads() {
	w := &c.watch
	if w.armed || c.reads == 0 {
		return
	}
	w.armed, w.seen = true, w.done
	if w.timer == nil {
		w.timer = time.AfterFunc(readTimeout, func() { c.loop.Post((*readTask)(c)) })
		return
	}
	w.timer.Reset(readTimeout)
}

func (w *readWatch) stop() {
	if w.timer != nil {
		w.timer.Stop()
	}
}

type readTask ResponderConn

// Run closes the connection if no Read has completed since the timer was started.
func (t *readTask) Run() {
	c := (*ResponderConn)(t)
	c.watch.armed = false
	if c.state != up {
		return
	}
	if c.reads > 0 && c.watch.done == c.watch.seen {
		c.end(fmt.Errorf("%w: %d outstanding for %s", errReadStall, c.reads, readTimeout))
		return
	}
	c.watchReads()
}

var _ loop.Task = (*readTask)(nil)
