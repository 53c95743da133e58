package tcpframe

// maxParts is the most parts of one record in Send.
const maxParts = 6

// keepNodes is how many spare outRecords a loop keeps.
const keepNodes = 4096

// copyUpTo is the longest part that is copied next to its neighbours. The kernel collects
// longer ones by themselves.
const copyUpTo = 512

// A Releaser gets back the memory that Send was lent.
type Releaser interface{ Release() }

// An outRecord is a record that waits to be written.
type outRecord struct {
	next  *outRecord
	done  Releaser
	size  int // octets, including the mark
	n     int // parts
	end   int // in TLS: where its octets end in session.out
	mark  [markLen]byte
	parts [maxParts][]byte
	block *sendBlock // of SendCopy, with all of the record's octets; nil for Send
}

// Send queues the record that consists of parts: at most 6 parts, and 2^31-1 octets in sum. The
// loop writes the record at the end of the pass, together with the other records of the pass.
//
// Send borrows the slice of slices. The caller lends the octets until the Conn calls
// done.Release on the loop. The Conn does so when the kernel has all octets or the connection
// has ended. If the connection is already closing, it does so before Send returns. done may be
// nil. Send does not allocate.
func (c *Conn) Send(parts [][]byte, done Releaser) { c.send(parts, done, false) }

// SendFirst does what Send does, for a short record that must not wait for megabytes. The loop
// writes it before the records that Send has queued, but after a record that is already written
// in part.
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
	r.n = len(parts)
	n := 0
	for i, p := range parts { // one, mostly, for which copy takes twice as long
		r.parts[i] = p
		n += len(p)
	}
	if n > maxFragment {
		panic("BUG: tcpframe: record too long to send")
	}
	putMark(&r.mark, n)
	r.size, r.done = markLen+n, done
	if !c.owes() {
		c.outSince, c.outMark = c.Loop().Now(), c.tx
	}
	c.enqueue(r, first && !c.Securing())
	c.outbound += int64(r.size)
	c.sock.FlushSoon()
}

// enqueue puts r at the end of the queue, or behind the last record that goes first.
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

// write writes as much of the queue as the kernel takes, and then compares the rest
// with the limits.
func (c *Conn) write() {
	if c.tls != nil {
		c.tls.write()
	} else {
		c.writeQueue(c.tail)
	}
	if c.state < ending {
		c.limitOutbound()
	}
}

// owes reports whether octets wait to be written.
func (c *Conn) owes() bool {
	if c.tls != nil {
		return c.tls.owes()
	}
	return c.head != nil
}

// writeQueue writes as much of the queue as the kernel takes, up to the record last.
func (c *Conn) writeQueue(last *outRecord) {
	for last != nil && c.head != nil && !c.blocked {
		iov, want, ends := c.gather(last)
		n, err := c.sock.writev(iov, want)
		c.sent(n)
		if err != nil {
			c.fail(err)
			return
		}
		if n < want {
			c.blocked = true
		} else if ends {
			return
		}
	}
}

// gather makes an iovec of the front of the queue, up to the record last. ends reports whether last is in it.
func (c *Conn) gather(last *outRecord) (iov []iovec, want int, ends bool) {
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
	for r := c.head; !ends && r != nil && len(iov)+1+maxParts <= maxIOV; r = r.next {
		ends = r == last
		if r.block != nil {
			b := r.parts[0][skip:]
			iov, want = appendIOV(iov, b), want+len(b)
			skip, joined = 0, false
			continue
		}
		if joined && r.size <= copyUpTo && r.size <= cap(lin)-len(lin) {
			// A short record behind another one, of which nothing is written.
			lin = append(lin, r.mark[:]...)
			for _, p := range r.parts[:r.n] {
				lin = append(lin, p...)
			}
			want += r.size
			v := &iov[len(iov)-1]
			v.SetLen(int(v.Len) + r.size)
			continue
		}
		add(r.mark[:])
		for _, p := range r.parts[:r.n] {
			add(p)
		}
	}
	c.copied += len(lin)
	return iov, want, ends
}

// sent counts n octets that the kernel took, and releases the records among them that
// are written in full.
func (c *Conn) sent(n int) {
	if n == 0 {
		return
	}
	c.wrote(n)
	c.outbound -= int64(n)
	n += c.headSent
	for c.head != nil && n >= c.head.size {
		r := c.unlink()
		n -= r.size
		c.release(r, r.size)
	}
	c.headSent = n
}

// wrote counts n octets that the kernel took.
func (c *Conn) wrote(n int) {
	if n == 0 {
		return
	}
	now := c.Loop().Now()
	c.active = now
	if c.tx += int64(n); c.tx-c.outMark >= sendOctets {
		c.outSince, c.outMark = now, c.tx
	}
	c.counters.sent.Add(uint64(n))
}

// unlink removes the first record from the queue.
func (c *Conn) unlink() *outRecord {
	r := c.head
	if c.head = r.next; c.head == nil {
		c.tail = nil
	}
	if c.first == r {
		c.first = nil
	}
	if c.tls != nil && c.tls.plain == r {
		c.tls.plain = nil
	}
	r.next, c.headSent = nil, 0
	return r
}

// release gives back the memory of r, of which the kernel has taken n octets.
func (c *Conn) release(r *outRecord, n int) {
	l := c.Loop()
	if b := r.block; b != nil {
		records, written := b.records, b.written(n)
		l.putBlock(r)
		l.putNode(r)
		c.tellCopied(records, written)
		return
	}
	l.release(r)
}

// release gives back the memory of r, and keeps r for takeNode.
func (l *Loop) release(r *outRecord) {
	done := r.done
	l.putNode(r)
	if done != nil {
		done.Release()
	}
}

// limitOutbound pauses and resumes reading by the length of the queue, with hysteresis,
// and closes the connection when the queue is too long.
func (c *Conn) limitOutbound() {
	switch {
	case c.outbound > c.opts.OutboundLimit:
		c.refuse(&recordError{reason: reasonOutbound, value: c.outbound, limit: c.opts.OutboundLimit})
	case c.outbound > c.opts.MaxOutbound:
		if c.why&whyOutbound == 0 {
			c.why |= whyOutbound
			c.noteUnread(true)
		}
	case c.why&whyOutbound != 0 && c.outbound <= c.opts.MaxOutbound/4:
		c.why &^= whyOutbound
		c.noteUnread(false)
		c.sock.FlushSoon() // to parse the octets that are held
	}
}

// dropQueue releases the records that are queued.
func (c *Conn) dropQueue() {
	c.outbound = 0
	if c.tls != nil {
		c.tls.dropOut()
	}
	for c.head != nil {
		sent := c.headSent
		c.release(c.unlink(), sent)
	}
}

// takeNode returns an empty outRecord.
func (l *Loop) takeNode() *outRecord {
	r := l.free
	if r == nil {
		return new(outRecord)
	}
	l.free, r.next = r.next, nil
	l.freeLen--
	return r
}

// putNode keeps r for takeNode.
func (l *Loop) putNode(r *outRecord) {
	for i := r.n - 1; i >= 0; i-- { // one, mostly, for which clear takes four times as long
		r.parts[i] = nil
	}
	r.done, r.next = nil, nil
	if l.freeLen < keepNodes {
		r.next, l.free = l.free, r
		l.freeLen++
	}
}
