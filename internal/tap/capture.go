package tap

import (
	"context"
	"errors"
	"io"
	"sync/atomic"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/names"
	"github.com/rdmabridge/rdmabridge/proxy/observe"
)

const (
	// tick is how often a capture looks for events.
	tick = 10 * time.Millisecond
	// settle is how old an event has to be before it is handled, so that another loop has put all that
	// is older into its ring.
	settle = 3 * time.Millisecond
	// linger is how long a capture that ends waits for the Replies of its Calls.
	linger = time.Second
	// otherLeg is how many octets the loop copies of a message of a leg that the capture does not have:
	// enough for its XID and its status.
	otherLeg = 512
)

// A capture is one capture that is running. It is a Tap, whose methods are for the loops, as is put; closing is for both
// sides, and the rest belongs to the goroutine of run.
type capture struct {
	opts    Options // constant, as are rings and wake
	rings   []*ring // by loop
	wake    chan struct{}
	closing atomic.Bool // the loops need not ask about other Calls

	names   func() *names.Watch
	ends    []end // Calls that wait for the names of their files
	waiting int   // octets of their messages
	out     *writer
	flush   func() error
	began   time.Time
	calls   calls
	before  *ring // what waits for the trigger; nil without one, and after it
	pulled  time.Time
	done    Summary
	dropped [2]uint64 // as the file says so far
	dirty   bool      // something was written and not flushed
	closed  time.Time // Calls that were read later are not wanted; zero while all are
}

func newCapture(o Options, loops int, names func() *names.Watch, w io.Writer, flush func() error) (*capture, error) {
	o = o.withDefaults()
	c := &capture{opts: o, names: names, wake: make(chan struct{}, 1), flush: flush, began: time.Now(), dirty: true}
	share := int(o.Buffer)
	if o.needFate() {
		share /= 2
		c.calls.room = share
	}
	if o.Trigger.Set() {
		share /= 2
		c.before = newRing(share)
	}
	for range loops {
		c.rings = append(c.rings, newRing(share/loops))
	}
	c.calls.init()
	snap := uint32(0)
	if o.Snap > 0 {
		snap = uint32(o.Snap) + mostHeaders
	}
	var err error
	c.out, err = newWriter(w, "rdmabridge", o.describe(), snap)
	return c, err
}

// movesTarget reports whether what RDMA may move of an operation is the target of a symbolic link.
func movesTarget(operation string) bool {
	return operation == "READLINK" || operation == "SYMLINK" || operation == "CREATE"
}

// Wants is part of observe.Tap.
func (c *capture) Wants(q *observe.TapCall) uint32 {
	if c.closing.Load() || !c.opts.wants(q) {
		return 0
	}
	return 1
}

// Over is part of observe.Tap.
func (c *capture) Over(o *observe.TapOver) {
	e := event{kind: eventOver, call: o.Call, at: o.At, text: o.Result, status: o.Status, failed: o.Failed}
	c.put(o.Loop, &e, nil, 0)
}

// Ended is part of observe.Tap.
func (c *capture) Ended(conn *observe.TapConn, loop int, _ uint32, err error) {
	e := event{kind: eventEnded, conn: conn, at: time.Now()}
	if err != nil && !errors.Is(err, io.EOF) {
		e.text = err.Error()
	}
	c.put(loop, &e, nil, 0)
}

// Message is part of observe.Tap. It takes what the capture wants of m.
func (c *capture) Message(m *observe.TapMessage) {
	e := event{
		kind: eventMessage, call: m.Call, conn: m.Conn, at: m.At, out: m.Out, reply: m.Reply, reverse: m.Call == 0,
		data: m.DataLength, rdma: m.RDMA, granted: m.Granted, outstanding: m.Outstanding,
		program: m.Program, version: m.Version, procedure: m.Procedure,
	}
	for _, p := range m.Parts {
		e.length += len(p)
	}
	n := e.length
	if m.DataLength > 0 && !c.opts.Payload && !movesTarget(m.Operation) {
		n = min(n, m.Data)
	}
	if c.opts.Snap > 0 {
		n = min(n, c.opts.Snap)
	}
	if n < e.length {
		n = min(n, mostSegment-4) // in one packet, behind the record mark
	}
	if !c.opts.leg(m.Conn.Leg) {
		n = min(n, otherLeg)
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
	stopped := ctx.Done()
	for {
		select {
		case <-stopped:
			stopped = nil
			c.close(time.Now())
		case <-deadline:
			c.close(time.Now())
		case <-c.wake:
		case <-t.C:
		}
		now := time.Now()
		if err := c.drain(now.Add(-settle)); err != nil {
			return err
		}
		if !c.pulled.IsZero() && c.opts.Trigger.After >= 0 && now.Sub(c.pulled) >= c.opts.Trigger.After {
			c.close(now)
		}
		if c.ended(now) {
			return c.finish()
		}
	}
}

// close takes no Calls any more that are read after the time at. The capture goes on until it has the
// Replies of the others.
func (c *capture) close(at time.Time) {
	if c.closed.IsZero() {
		c.closed = at
		c.closing.Store(true)
	}
}

// ended reports whether a capture that is closing has all Replies, or has waited for them long enough.
func (c *capture) ended(now time.Time) bool {
	since := now.Sub(c.closed)
	return !c.closed.IsZero() && (since > 2*settle && c.calls.pending == 0 || since > linger)
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
			if err := c.judge(); err != nil {
				return err
			}
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
	if !c.dirty {
		return nil
	}
	c.dirty = false
	if err := c.out.ng.Flush(); err != nil {
		return err
	}
	if c.flush == nil {
		return nil
	}
	return c.flush()
}

// drops counts the messages that the capture has missed, by leg.
func (c *capture) drops() (n [2]uint64) {
	for _, r := range c.rings {
		for i := range n {
			n[i] += r.dropped[i].Load()
		}
	}
	for i := range n {
		n[i] += c.calls.dropped[i]
	}
	return n
}

func (c *capture) summary() Summary {
	s := c.done
	for _, n := range c.drops() {
		s.Dropped += n
	}
	return s
}

// handle handles an event of a loop.
func (c *capture) handle(e *event) error {
	switch e.kind {
	case eventOver:
		return c.over(e)
	case eventEnded:
		if err := c.write(e); err != nil {
			return err
		}
		if e.text != "" && c.opts.Trigger.Disconnect {
			return c.pull()
		}
		return nil
	}
	if e.reverse {
		e.comments = append(e.comments, reverseComment(e))
		return c.write(e)
	}
	f := c.calls.follow(e, c.closed)
	if f == nil {
		return nil
	}
	if !c.opts.needFate() && !e.reply && !e.out {
		c.count(e)
	}
	e.comments = append(e.comments, callComment(e, f))
	if c.opts.needFate() {
		c.calls.keep(f, e)
		return nil
	}
	return c.write(e)
}

// count counts a Call of the capture, at the time of e.
func (c *capture) count(e *event) {
	if c.done.Calls++; c.done.Calls == c.opts.Count {
		c.close(e.at)
	}
}

// over decides about a Call that is over.
func (c *capture) over(e *event) error {
	f := c.calls.take(e.call)
	if f == nil {
		return nil
	}
	f.fate.finish(e, f)
	if !c.opts.Place.Set() || !f.fate.wanted(&c.opts) {
		return c.decide(f, e)
	}
	c.ends = append(c.ends, end{f, *e})
	if c.waiting += len(f.memory); len(c.ends) < mostEnds && c.waiting < mostWaiting {
		return nil
	}
	return c.judge()
}

// decide writes a Call that is over, if it is wanted.
func (c *capture) decide(f *followed, e *event) error {
	defer c.calls.recycle(f)
	wanted := true
	if c.opts.needFate() {
		if c.opts.Count > 0 && c.done.Calls >= c.opts.Count {
			return nil
		}
		if wanted = f.fate.wanted(&c.opts); wanted {
			c.count(e)
			if err := c.writeKept(f, e); err != nil {
				return err
			}
		}
	}
	if wanted && f.fate.pulls(&c.opts.Trigger) {
		return c.pull()
	}
	return nil
}

// writeKept writes the messages of f, which were held back until e.
func (c *capture) writeKept(f *followed, e *event) error {
	for i := range f.kept {
		k := &f.kept[i]
		if i == 0 && f.fate.text != "" {
			k.comments = append(k.comments, "result="+f.fate.text)
		}
		k.octets = f.memory[k.from : k.from+k.size]
		if err := c.write(&k.event); err != nil {
			return err
		}
	}
	return nil
}

// write writes e, or keeps it for the trigger.
func (c *capture) write(e *event) error {
	if e.kind == eventMessage && !c.opts.leg(e.conn.Leg) {
		return nil
	}
	if b := c.before; b != nil {
		for old := b.peek(); old != nil && e.at.Sub(old.at) > c.opts.Trigger.Before; old = b.peek() {
			b.pop()
		}
		saved := *e
		for !b.put(&saved, [][]byte{e.octets}, len(e.octets)) {
			if b.peek() == nil {
				c.calls.dropped[e.conn.Leg]++ // it is longer than the ring
				return nil
			}
			b.pop()
		}
		return nil
	}
	return c.emit(e)
}

// pull writes what has waited for the trigger.
func (c *capture) pull() error {
	b := c.before
	if b == nil {
		return nil
	}
	c.before, c.pulled = nil, time.Now()
	for e := b.peek(); e != nil; e = b.peek() {
		if err := c.emit(e); err != nil {
			return err
		}
		b.pop()
	}
	return nil
}

// emit writes e.
func (c *capture) emit(e *event) error {
	c.dirty = true
	if e.kind == eventEnded {
		return c.out.ended(e)
	}
	c.done.Messages++
	var missed uint64
	now := c.drops()
	for i := range now {
		missed += now[i] - c.dropped[i]
	}
	c.dropped = now
	return c.out.message(e, missed)
}
