package tcpframe

import (
	"encoding/binary"

	"github.com/rdmabridge/rdmabridge/tcpframe/eventloop"
)

// maxParts is the most parts of one record in Send.
const maxParts = 6

// keepNodes is how many spare outRecords a loop keeps.
const keepNodes = 4096

// copyUpTo is the longest part that is copied next to its neighbours. The kernel collects
// longer ones by themselves.
const copyUpTo = 512

// linearOctets bounds the octets of short parts that are joined for one writev.
const linearOctets = 32 << 10

const (
	// copyBlock is how many octets of records a block holds.
	copyBlock = 2<<10 - 2*8
	// mostBlocked bounds the octets that may wait to be written when SendCopy copies a record.
	mostBlocked = 16 << 10
	// mostBlocks is how many blocks of a loop are in use at the most, a MiB, and keepBlocks how many it keeps.
	mostBlocks = 512
	keepBlocks = 256
)

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

// A sendBlock holds records with their marks.
type sendBlock struct {
	n       int // octets in buf
	records int
	buf     [copyBlock]byte
}

// An outQueue is the records of a Conn that wait to be written.
type outQueue struct {
	head, tail *outRecord
	first      *outRecord // the last record in the queue that SendFirst queued; nil for none
	headSent   int        // octets of head that were written
}

// enqueue puts r at the end of the queue, or behind the last record that goes first.
func (q *outQueue) enqueue(r *outRecord, first bool) {
	after := q.tail
	if first {
		if after = q.first; after == nil && q.headSent > 0 {
			after = q.head
		}
		q.first = r
	}
	switch {
	case after != nil:
		r.next, after.next = after.next, r
	default:
		r.next, q.head = q.head, r
	}
	if r.next == nil {
		q.tail = r
	}
}

// unlink removes the first record from the queue.
func (q *outQueue) unlink() *outRecord {
	r := q.head
	if q.head = r.next; q.head == nil {
		q.tail = nil
	}
	if q.first == r {
		q.first = nil
	}
	r.next, q.headSent = nil, 0
	return r
}

// gather makes an iovec of the front of the queue, up to the record last. ends reports whether last is in it, and copied is
// how many octets were joined.
func (q *outQueue) gather(l *outPool, last *outRecord) (iov []eventloop.IOVec, want, copied int, ends bool) {
	iov = l.iov[:0]
	lin := l.linear[:0]
	skip, joined := q.headSent, false
	add := func(b []byte) {
		if skip >= len(b) {
			skip -= len(b)
			return
		}
		b = b[skip:]
		skip = 0
		want += len(b)
		if len(b) > copyUpTo || len(b) > cap(lin)-len(lin) {
			iov = eventloop.AppendIOV(iov, b)
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
		iov = eventloop.AppendIOV(iov, lin[at:])
		joined = true
	}
	for r := q.head; !ends && r != nil && len(iov)+1+maxParts <= eventloop.MaxIOV; r = r.next {
		ends = r == last
		if r.block != nil {
			b := r.block.buf[skip:r.block.n]
			iov, want = eventloop.AppendIOV(iov, b), want+len(b)
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
	return iov, want, len(lin), ends
}

// An outPool is what the queues of a loop share. It belongs to the loop.
type outPool struct {
	iov       []eventloop.IOVec // for one writev
	linear    []byte            // short parts that gather joins, for one writev
	free      *outRecord        // spare nodes of output queues
	freeLen   int               // length of free
	blocks    []*sendBlock      // spare blocks of SendCopy
	blocksOut int               // blocks in use
}

func newOutPool() outPool {
	return outPool{iov: make([]eventloop.IOVec, 0, eventloop.MaxIOV), linear: make([]byte, 0, linearOctets)}
}

// takeNode returns an empty outRecord.
func (l *outPool) takeNode() *outRecord {
	r := l.free
	if r == nil {
		return new(outRecord)
	}
	l.free, r.next = r.next, nil
	l.freeLen--
	return r
}

// putNode keeps r for takeNode.
func (l *outPool) putNode(r *outRecord) {
	for i := r.n - 1; i >= 0; i-- { // one, mostly, for which clear takes four times as long
		r.parts[i] = nil
	}
	r.done, r.next = nil, nil
	if l.freeLen < keepNodes {
		r.next, l.free = l.free, r
		l.freeLen++
	}
}

// takeBlock returns an outRecord with an empty block. Fewer than mostBlocks are in use.
func (l *outPool) takeBlock() *outRecord {
	l.blocksOut++
	r := l.takeNode()
	if n := len(l.blocks); n > 0 {
		r.block = l.blocks[n-1]
		l.blocks = l.blocks[:n-1]
	} else {
		r.block = new(sendBlock)
	}
	return r
}

// putBlock takes back the block of r.
func (l *outPool) putBlock(r *outRecord) {
	b := r.block
	r.block, b.n, b.records = nil, 0, 0
	l.blocksOut--
	if len(l.blocks) < keepBlocks {
		l.blocks = append(l.blocks, b)
	}
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
