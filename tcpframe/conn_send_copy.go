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
	r, n := c.tail, markLen+len(m)
	if r == nil || r.block == nil || r.block.n+n > copyBlock {
		r = c.loop.takeBlock()
		if !c.owes() {
			c.outSince, c.outMark = c.loop.Now(), c.tx
		}
		c.enqueue(r, false)
	}
	b := r.block
	to := b.buf[b.n:][:n]
	putMark((*[markLen]byte)(to), len(m))
	copy(to[markLen:], m)
	b.n += n
	b.records++
	r.size = b.n
	c.outbound += int64(n)
	c.copied += n
	c.sock.FlushSoon()
	return true
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
