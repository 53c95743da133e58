package rdmaside

import (
	"errors"
	"fmt"
	"time"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/internal/loop"
)

// Errors that are wrapped by those that close a connection: its Requester serves the Reads of its
// chunks too slowly, or there was no memory for its Calls.
var (
	errReadStall = errors.New("rdmaside: peer serves RDMA Reads too slowly")
	errStarved   = errors.New("rdmaside: no memory for a Call with chunks")
)

// paceFrom is how many octets the Calls that are being pulled must hold for Pace to apply.
const paceFrom = 128 << 10

// A readWatch closes a connection whose Reads make too little progress for a StallTimeout: none
// completes, or, while their Calls hold much memory, fewer octets arrive than Pace demands.
// Without a readWatch a few Requesters that serve hardly any Read could occupy all memory. It also
// closes a connection that has got no memory for a StallTimeout. One timer serves all Reads. The
// connection starts it when Reads are posted and it is not running. Only a whole period counts in
// which there were Reads outstanding throughout, so the connection ends between one and two times
// StallTimeout after it has stalled.
type readWatch struct {
	timer *time.Timer
	armed bool // timer is running
	begun bool // Reads were posted since the timer was started, and there was none before

	done   uint64 // Reads completed
	octets int64  // octets that they brought
	leases uint64 // Calls that got memory

	// Values when the timer was started.
	seen       uint64
	seenOctets int64
	seenLeases uint64
	starved    bool // a Call waited for memory
}

// watchReads starts the timer if there are Reads outstanding or a Call waits for memory.
func (c *ResponderConn) watchReads() {
	w := &c.watch
	if w.armed || c.reads == 0 && !c.waiting || c.state != up {
		return
	}
	w.armed, w.begun, w.starved = true, false, c.waiting
	w.seen, w.seenOctets, w.seenLeases = w.done, w.octets, w.leases
	limit := c.responder.opts.StallTimeout
	if w.timer == nil {
		w.timer = time.AfterFunc(limit, func() { c.loop.Post((*readTask)(c)) })
		return
	}
	w.timer.Reset(limit)
}

func (w *readWatch) stop() {
	if w.timer != nil {
		w.timer.Stop()
	}
}

type readTask ResponderConn

// Run closes the connection if it has made too little progress since the timer was started.
func (t *readTask) Run() {
	c := (*ResponderConn)(t)
	w, o := &c.watch, &c.responder.opts
	w.armed = false
	if c.state != up {
		return
	}
	switch octets := w.octets - w.seenOctets; {
	case c.reads > 0 && !w.begun && (w.done == w.seen || octets < c.paceOctets()):
		c.stalled(fmt.Errorf("%w: %d outstanding, %d octets in %s", errReadStall, c.reads, octets, o.StallTimeout))
	case c.waiting && w.starved && w.leases == w.seenLeases:
		c.stalled(fmt.Errorf("%w for %s", errStarved, o.StallTimeout))
	default:
		c.watchReads()
	}
}

// paceOctets returns how many octets Reads must bring within a StallTimeout. The Read that is on
// its way may lack its last octet.
func (c *ResponderConn) paceOctets() int64 {
	o := &c.responder.opts
	if c.held < paceFrom {
		return 0
	}
	return int64(float64(o.Pace)*o.StallTimeout.Seconds()) - maxRead
}

// stalled closes the connection with err.
func (c *ResponderConn) stalled(err error) {
	s := c.responder
	s.metrics.stalled.Inc()
	s.lines.stalled.Line(&s.opts.Log, zerolog.WarnLevel, "client_closed").Str("reason", "stalled").
		Stringer("peer", c.info.Peer).Err(err).Msg("the requester makes too little progress; connection closed")
	c.end(err)
}

var _ loop.Task = (*readTask)(nil)
