package tcpframe

// Records that are copied
//
// Most records are short, and are written at the end of the pass in which they were queued. To lend their octets
// until then costs more than to copy them: when the Conn gives them back, they and all that belongs to
// them have left the cache. SendCopy puts such records one behind another in a block, which is written without being
// copied again. Only a connection that takes all that is written to it gets any.

// A CopyHandler is a RecordHandler that calls SendCopy.
type CopyHandler interface {
	RecordHandler
	// Copied says that the kernel has all octets of so many records of SendCopy, or, unless written, that
	// the connection has ended before it had.
	Copied(records int, written bool)
}

// SendCopy does what Send does with a copy of m, so that the caller has it back at once. It reports false, and
// does nothing, for a record of more than 512 octets, and if the record would not be written at the end of the
// pass, as far as the Conn can know: then the caller calls Send. The Conn's handler is a CopyHandler. SendCopy
// does not allocate in the steady state.
func (c *Conn) SendCopy(m []byte) bool {
	if !c.copies(len(m)) {
		return false
	}
	to := c.place(1, markLen+len(m))
	putMark((*[markLen]byte)(to), len(m))
	copy(to[markLen:], m)
	return true
}

// place queues so many records, which the caller writes to the n octets that place returns, with their marks. n is at most
// copyBlock.
func (c *Conn) place(records, n int) []byte {
	r := c.tail
	if r == nil || r.block == nil || r.block.n+n > copyBlock {
		r = c.loop.takeBlock()
		if !c.owes() {
			c.outSince, c.outMark = c.loop.Now(), c.tx
		}
		c.enqueue(r, false)
	}
	b := r.block
	at := b.n
	b.n += n
	b.records += records
	r.size = b.n
	c.outbound += int64(n)
	c.copied += n
	c.sock.FlushSoon()
	return b.buf[at:b.n]
}

// A relay is records, one behind the other in a run, that a Conn is to copy. They are copied in one piece, when the next
// record is not for that Conn or does not fit beside them, or when the run ends. A relay of a loop without a run is empty.
type relay struct {
	to      *Conn // nil for none
	records int
	octets  int // with the marks
	room    int // the most octets that the piece may have
}

// Relay takes m, which Next has returned, and has to, a Conn of the same loop, do what SendCopy does with it. It reports
// false, and does nothing, where SendCopy would. The octets are copied later: until its Run returns, the handler may
// write to them. For RunHandler.Run.
func (c *Conn) Relay(to *Conn, m []byte) bool {
	r := &c.loop.relay
	n := markLen + len(m)
	if to != r.to || r.octets+n > r.room || len(m) > copyUpTo {
		c.loop.endRelay()
		if !to.copies(len(m)) {
			return false
		}
		r.to, r.room = to, copyBlock
		if t := to.tail; t != nil && t.block != nil && t.block.n+n <= copyBlock {
			r.room -= t.block.n
		}
	}
	r.records++
	r.octets += n
	c.took(m, 0)
	return true
}

// endRelay has the Conn copy what Relay has collected.
func (l *Loop) endRelay() {
	r := l.relay
	if r.to == nil {
		return
	}
	l.relay = relay{}
	if r.to.state != open { // since the records were taken
		r.to.tellCopied(r.records, 0)
		return
	}
	copy(r.to.place(r.records, r.octets), l.run[l.runAt-r.octets:l.runAt])
}

// copies reports whether SendCopy takes a record of n octets.
func (c *Conn) copies(n int) bool {
	return n <= copyUpTo && c.state == open && c.tls == nil && !c.blocked &&
		c.outbound <= mostBlocked && c.loop.blocksOut < mostBlocks
}

// tellCopied tells the handler that so many records were copied, and so many of them written.
func (c *Conn) tellCopied(records, written int) {
	h := c.handler.(CopyHandler)
	if written > 0 {
		h.Copied(written, true)
	}
	if written < records {
		h.Copied(records-written, false)
	}
}
