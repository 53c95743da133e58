package tcpframe

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
	r := c.loop.takeNode()
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
		c.outSince, c.outMark = c.loop.Now(), c.tx
	}
	c.enqueue(r, first && !c.Securing())
	c.outbound += int64(r.size)
	c.sock.FlushSoon()
}

// writeQueue writes as much of the queue as the kernel takes, up to the record last.
func (c *Conn) writeQueue(last *outRecord) {
	for last != nil && c.head != nil && !c.blocked {
		iov, want, copied, ends := c.gather(&c.loop.outPool, last)
		c.copied += copied
		n, err := c.sock.WriteIOV(iov, want)
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
		r := c.unlinkFirst()
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
	now := c.loop.Now()
	c.active = now
	if c.tx += int64(n); c.tx-c.outMark >= sendOctets {
		c.outSince, c.outMark = now, c.tx
	}
	c.counters.sent.Add(uint64(n))
}

// unlinkFirst removes the first record from the queue.
func (c *Conn) unlinkFirst() *outRecord {
	r := c.unlink()
	if c.tls != nil && c.tls.plain == r {
		c.tls.plain = nil
	}
	return r
}

// release gives back the memory of r, of which the kernel has taken n octets.
func (c *Conn) release(r *outRecord, n int) {
	l := c.loop
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
		c.release(c.unlinkFirst(), sent)
	}
}

// noteUnread tells the handler that whyOutbound has changed.
func (c *Conn) noteUnread(unread bool) {
	if h, ok := c.handler.(UnreadHandler); ok {
		h.Unread(unread)
	}
}
