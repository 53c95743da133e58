package tap

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"github.com/rdmabridge/rdmabridge/proxy"
)

const (
	// tick is how often a capture looks for events.
	tick = 10 * time.Millisecond
	// settle is how old an event has to be before it is handled, so that another loop has put all that
	// is older into its ring.
	settle = 3 * time.Millisecond
	// linger is how long a capture that ends waits for the Replies of its Calls.
	linger = time.Second
	// mostCalls bounds the Calls that a capture follows.
	mostCalls = 1 << 16
)

// A capture is one capture that is running. message and put are for the loops, closing for both sides,
// and the rest belongs to the goroutine of run.
type capture struct {
	opts    Options // constant, as are rings and wake
	rings   []*ring // by loop
	wake    chan struct{}
	closing atomic.Bool // no other Call is wanted

	out     *writer
	flush   func() error
	began   time.Time
	calls   map[uint64]*followed
	free    []*followed
	read    int // Calls that were read
	written Summary
	dropped [2]uint64 // as the file says so far
	dirty   bool      // something was written and not flushed
}

// A followed is a Call that the capture follows.
type followed struct {
	id                           uint64
	program, version             uint32
	clientXID, upstreamXID       uint32
	read, sent, replied, settled time.Time
	sends                        int
}

func newCapture(o Options, loops int, w io.Writer, flush func() error) (*capture, error) {
	o = o.withDefaults()
	c := &capture{opts: o, wake: make(chan struct{}, 1), flush: flush, began: time.Now(), calls: make(map[uint64]*followed)}
	for range loops {
		c.rings = append(c.rings, newRing(int(o.Buffer)/loops))
	}
	var err error
	c.out, err = newWriter(w, "rdmabridge", "", 0)
	return c, err
}

// message takes what the capture wants of m. It runs on m's loop.
func (c *capture) message(m *proxy.TapMessage) {
	if !c.opts.leg(m.Conn.Leg) && !m.Out && m.Conn.Leg == proxy.TapUpstreams {
		return
	}
	e := event{
		kind: eventMessage, call: m.Call, conn: m.Conn, at: m.At, out: m.Out, reply: m.Reply, reverse: m.Call == 0,
		data: m.DataLength, rdma: m.RDMA, granted: m.Granted, outstanding: m.Outstanding,
		program: m.Program, version: m.Version, procedure: m.Procedure,
	}
	for _, p := range m.Parts {
		e.length += len(p)
	}
	n := e.length
	if m.DataLength > 0 && !c.opts.Payload {
		n = min(n, m.Data)
	}
	if c.opts.Snap > 0 {
		n = min(n, c.opts.Snap)
	}
	c.put(m.Loop, &e, m.Parts, n)
}

// put puts e into the ring of a loop, with the first n octets of parts.
func (c *capture) put(loop int, e *event, parts [][]byte, n int) {
	r := c.rings[loop]
	if !r.put(e, parts, n) && e.kind == eventMessage {
		r.dropped[e.conn.Leg].Add(1)
	}
	if r.full() {
		select {
		case c.wake <- struct{}{}:
		default:
		}
	}
}

// run writes the capture until ctx is done or it ends by itself.
func (c *capture) run(ctx context.Context) error {
	if err := c.sync(); err != nil {
		return err
	}
	t := time.NewTicker(tick)
	defer t.Stop()
	var deadline <-chan time.Time
	if c.opts.Duration > 0 {
		d := time.NewTimer(c.opts.Duration)
		defer d.Stop()
		deadline = d.C
	}
	var end time.Time
	for {
		select {
		case <-ctx.Done():
			return c.finish()
		case <-deadline:
			c.closing.Store(true)
		case <-c.wake:
		case <-t.C:
		}
		if err := c.drain(time.Now().Add(-settle)); err != nil {
			return err
		}
		if c.closing.Load() {
			if end.IsZero() {
				end = time.Now().Add(linger)
			}
			if len(c.calls) == 0 || time.Now().After(end) {
				return c.finish()
			}
		}
	}
}

// drain handles the events that are older than until, the oldest first.
func (c *capture) drain(until time.Time) error {
	for {
		var oldest *ring
		var e *event
		for _, r := range c.rings {
			if v := r.peek(); v != nil && (e == nil || v.at.Before(e.at)) {
				oldest, e = r, v
			}
		}
		if e == nil || e.at.After(until) {
			return c.sync()
		}
		err := c.handle(e)
		oldest.pop()
		if err != nil {
			return err
		}
	}
}

// finish writes the end of the file.
func (c *capture) finish() error {
	c.closing.Store(true)
	if err := c.drain(time.Now().Add(time.Hour)); err != nil {
		return err
	}
	if err := c.out.statistics(c.began, time.Now(), c.drops()); err != nil {
		return err
	}
	c.dirty = true
	return c.sync()
}

// sync gives what was written to the reader.
func (c *capture) sync() error {
	if err := c.out.ng.Flush(); err != nil {
		return err
	}
	if c.flush == nil {
		return nil
	}
	return c.flush()
}

func (c *capture) drops() (n [2]uint64) {
	for _, r := range c.rings {
		for i := range n {
			n[i] += r.dropped[i].Load()
		}
	}
	return n
}

func (c *capture) summary() Summary {
	s := c.written
	for _, n := range c.drops() {
		s.Dropped += n
	}
	return s
}

// handle handles an event.
func (c *capture) handle(e *event) error {
	switch e.kind {
	case eventOver:
		if f := c.calls[e.call]; f != nil {
			delete(c.calls, e.call)
		}
		return nil
	case eventEnded:
		return c.out.ended(e)
	}
	var f *followed
	if !e.reverse {
		if f = c.follow(e); f == nil {
			return nil
		}
	}
	return c.write(e, c.comments(e, f))
}

// follow notes what e says of its Call. It returns nil if the capture does not follow the Call.
func (c *capture) follow(e *event) *followed {
	f := c.calls[e.call]
	if f == nil {
		if e.reply || e.out || len(c.calls) >= mostCalls {
			return nil
		}
		f = &followed{id: e.call, program: e.program, version: e.version, read: e.at}
		c.calls[e.call] = f
		if c.read++; c.read == c.opts.Count {
			c.closing.Store(true)
		}
	}
	var xid uint32
	if len(e.octets) >= 4 {
		xid = binary.BigEndian.Uint32(e.octets)
	}
	switch {
	case !e.reply && !e.out:
		f.clientXID = xid
	case !e.reply:
		f.upstreamXID = xid
		if f.sends++; f.sends == 1 {
			f.sent = e.at
		}
	case !e.out:
		f.replied = e.at
	}
	return f
}

// write writes a message.
func (c *capture) write(e *event, comments []string) error {
	if !c.opts.leg(e.conn.Leg) {
		return nil
	}
	c.written.Messages++
	return c.out.message(e, comments)
}

// comments says what the octets of a message do not show.
func (c *capture) comments(e *event, f *followed) []string {
	return []string{fmt.Sprintf("%v", e.conn.Name)}
}
