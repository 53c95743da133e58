package tcpframe

// maxParts is the most parts of one Send.
const maxParts = 6

// keepNodes is how many spare outRecords a loop keeps.
const keepNodes = 4096

// A Releaser is told when what was lent comes back.
type Releaser interface{ Release() }

// An outRecord is a record that waits to be written.
type outRecord struct {
	next  *outRecord
	done  Releaser
	size  int // octets, the mark included
	n     int // parts
	mark  [markLen]byte
	parts [maxParts][]byte
}

// Send queues the record made of parts, at most 6 and 2^31-1 octets, and
// returns; it is written at the end of the pass, with the other records of the
// pass. The octets are taken until done.Release is called, on the loop, once
// the kernel took them or the connection ended, which is before Send returns
// when the connection is closing already. The slice of slices is borrowed. done
// may be nil. Send does not allocate.
func (c *Conn) Send(parts [][]byte, done Releaser) { c.send(parts, done, false) }

// SendFirst is Send for a record that does not wait behind those of Send, but for one
// that has been written in part: a short one that need not wait for megabytes.
func (c *Conn) SendFirst(parts [][]byte, done Releaser) { c.send(parts, done, true) }

func (c *Conn) send(parts [][]byte, done Releaser, first bool) {
	if c.state != open {
		if done != nil {
			done.Release()
		}
		return
	}
	r := c.Loop().takeNode()
	if len(parts) > maxParts {
		panic("BUG: tcpframe: record of too many parts")
	}
	r.n = copy(r.parts[:], parts)
	n := 0
	for _, p := range parts {
		n += len(p)
	}
	if n > maxFragment {
		panic("BUG: tcpframe: record too long to send")
	}
	putMark(&r.mark, n)
	r.size, r.done = markLen+n, done
	if c.head == nil {
		c.outSince, c.outMark = c.Loop().Now(), c.tx
	}
	c.enqueue(r, first)
	c.outbound += int64(r.size)
	c.sock.FlushSoon()
}

// enqueue makes r the last of the queue, or of those that go first.
func (c *Conn) enqueue(r *outRecord, first bool) {
	after := c.tail
	if first {
		if after = c.first; after == nil && c.headSent > 0 {
			after = c.head
		}
		c.first = r
	}
	switch {
	case after != nil:
		r.next, after.next = after.next, r
	default:
		r.next, c.head = c.head, r
	}
	if r.next == nil {
		c.tail = r
	}
}

// write writes what is queued, as far as the kernel takes it, and then holds
// what is left against the limits.
func (c *Conn) write() {
	for c.head != nil && !c.blocked {
		iov, want := c.gather()
		n, err := c.sock.writev(iov, want)
		c.sent(n)
		if err != nil {
			c.fail(err)
			return
		}
		if n < want {
			c.blocked = true
		}
	}
	c.limitOutbound()
}

// copyUpTo is how long a piece may be to be copied next to its neighbours rather
// than be one of the pieces that the kernel collects.
const copyUpTo = 512

// gather makes an iovec of the front of the queue.
func (c *Conn) gather() (iov []iovec, want int) {
	l := c.Loop()
	iov = l.iov[:0]
	lin := l.linear[:0]
	skip, joined := c.headSent, false
	add := func(b []byte) {
		if skip >= len(b) {
			skip -= len(b)
			return
		}
		b = b[skip:]
		skip = 0
		want += len(b)
		if len(b) > copyUpTo || len(b) > cap(lin)-len(lin) {
			iov = appendIOV(iov, b)
			joined = false
			return
		}
		at := len(lin)
		lin = append(lin, b...)
		if joined {
			v := &iov[len(iov)-1]
			v.SetLen(int(v.Len) + len(b))
			return
		}
		iov = appendIOV(iov, lin[at:])
		joined = true
	}
	for r := c.head; r != nil && len(iov)+1+maxParts <= maxIOV; r = r.next {
		add(r.mark[:])
		for _, p := range r.parts[:r.n] {
			add(p)
		}
	}
	c.copied += len(lin)
	return iov, want
}

// sent gives back what the kernel took.
func (c *Conn) sent(n int) {
	if n == 0 {
		return
	}
	now := c.Loop().Now()
	c.active = now
	if c.tx += int64(n); c.tx-c.outMark >= sendOctets {
		c.outSince, c.outMark = now, c.tx
	}
	c.outbound -= int64(n)
	c.counters.sent.Add(uint64(n))
	n += c.headSent
	for c.head != nil && n >= c.head.size {
		n -= c.head.size
		c.headSent = 0
		c.pop()
	}
	c.headSent = n
}

// pop takes the first record off the queue and releases it.
func (c *Conn) pop() {
	r := c.head
	if c.head = r.next; c.head == nil {
		c.tail = nil
	}
	if c.first == r {
		c.first = nil
	}
	done := r.done
	c.Loop().putNode(r)
	if done != nil {
		done.Release()
	}
}

// limitOutbound pauses and resumes with hysteresis, and ends what went too far.
func (c *Conn) limitOutbound() {
	switch {
	case c.outbound > c.opts.OutboundLimit:
		c.refuse(&recordError{reason: reasonOutbound, value: c.outbound, limit: c.opts.OutboundLimit})
	case c.outbound > c.opts.MaxOutbound:
		c.why |= whyOutbound
	case c.why&whyOutbound != 0 && c.outbound <= c.opts.MaxOutbound/4:
		c.why &^= whyOutbound
		c.sock.FlushSoon() // for what is held
	}
}

// dropQueue releases everything that waits.
func (c *Conn) dropQueue() {
	c.outbound, c.headSent = 0, 0
	for c.head != nil {
		c.pop()
	}
}

func (l *Loop) takeNode() *outRecord {
	r := l.free
	if r == nil {
		return new(outRecord)
	}
	l.free, r.next = r.next, nil
	l.freeLen--
	return r
}

func (l *Loop) putNode(r *outRecord) {
	clear(r.parts[:r.n])
	r.done, r.next = nil, nil
	if l.freeLen < keepNodes {
		r.next, l.free = l.free, r
		l.freeLen++
	}
}
