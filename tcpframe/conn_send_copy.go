package tcpframe

import "encoding/binary"

// Records that are copied
//
// Most records are short, and are written at the end of the pass in which they were queued. To lend their octets
// until then costs more than to copy them: when the Conn gives them back, they and all that belongs to
// them have left the cache. SendCopy puts such records one behind another in a block, which is written without being
// copied again. Only a connection that takes all that is written to it gets any.

const (
	// copyBlock is how many octets of records a block holds.
	copyBlock = 2<<10 - 2*8
	// mostBlocked bounds the octets that may wait to be written when SendCopy copies a record.
	mostBlocked = 16 << 10
	// mostBlocks is how many blocks of a loop are in use at the most, a MiB, and keepBlocks how many it keeps.
	mostBlocks = 512
	keepBlocks = 256
)

// A sendBlock holds records with their marks.
type sendBlock struct {
	n       int // octets in buf
	records int
	buf     [copyBlock]byte
}

// A CopyHandler is a RecordHandler that calls SendCopy.
type CopyHandler interface {
	RecordHandler
	// Copied says that the kernel has all octets of so many records of SendCopy, or, unless written, that
	// the connection has ended before it had.
	Copied(records int, written bool)
}

// SendCopy does what Send does with a copy of parts, so that the caller has them back at once. It reports false, and
// does nothing, for a record of more than 512 octets, and if the record would not be written at the end of the
// pass, as far as the Conn can know: then the caller calls Send. The Conn's handler is a CopyHandler. SendCopy
// does not allocate in the steady state.
func (c *Conn) SendCopy(parts [][]byte) bool {
	n := 0
	for _, p := range parts {
		n += len(p)
	}
	if n > copyUpTo || c.state != open || c.tls != nil || c.blocked || c.outbound > mostBlocked {
		return false
	}
	r := c.tail
	if r == nil || r.block == nil || r.block.n+markLen+n > copyBlock {
		if r = c.Loop().takeBlock(); r == nil {
			return false
		}
		if !c.owes() {
			c.outSince, c.outMark = c.Loop().Now(), c.tx
		}
		c.enqueue(r, false)
	}
	b := r.block
	putMark((*[markLen]byte)(b.buf[b.n:]), n)
	b.n += markLen
	for _, p := range parts {
		b.n += copy(b.buf[b.n:], p)
	}
	r.size, r.parts[0] = b.n, b.buf[:b.n]
	b.records++
	c.outbound += int64(markLen + n)
	c.copied += n
	c.sock.FlushSoon()
	return true
}

// written returns how many records of b are whole in its first n octets.
func (b *sendBlock) written(n int) (whole int) {
	if n == b.n {
		return b.records
	}
	for at := 0; ; whole++ {
		if at += markLen + int(binary.BigEndian.Uint32(b.buf[at:])&^lastFragment); at > n {
			return whole
		}
	}
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

// takeBlock returns an outRecord with an empty block, or nil if too many are in use.
func (l *Loop) takeBlock() *outRecord {
	if l.blocksOut == mostBlocks {
		return nil
	}
	l.blocksOut++
	r := l.takeNode()
	if n := len(l.blocks); n > 0 {
		r.block = l.blocks[n-1]
		l.blocks = l.blocks[:n-1]
	} else {
		r.block = new(sendBlock)
	}
	r.n = 1
	return r
}

// putBlock takes back the block of r.
func (l *Loop) putBlock(r *outRecord) {
	b := r.block
	r.block, b.n, b.records = nil, 0, 0
	l.blocksOut--
	if len(l.blocks) < keepBlocks {
		l.blocks = append(l.blocks, b)
	}
}
