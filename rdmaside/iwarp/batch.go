package iwarp

import (
	"slices"
	"sync"
)

// A batch is a list of FPDUs for one Writev, or for several when the socket accepts it
// in pieces. Headers, trailers, and small payloads are built in lin, one behind the
// other, so that the trailer of one FPDU and the header of the next are one slice. iov
// refers to large payloads where they are.
type batch struct {
	lin  []byte   // never grows beyond its capacity
	mark int      // lin[mark:] is not in iov yet
	iov  [][]byte // the slices to write
	ends []int    // where FPDUs end, in octets since the start of the batch

	size  int  // octets in all
	at    int  // octets written
	open  bool // it counts as open in its pool
	first int  // index of the first slice of iov that is not wholly written
}

// Bounds of a batch. 1024 is the kernel's limit of iovecs. Batches of more than
// 256 KiB were measured to gain nothing.
const (
	batchLin   = 128 << 10
	batchIov   = 1024
	batchFPDUs = 300
	batchSize  = 256 << 10
)

func newBatch() *batch {
	return &batch{
		lin:  make([]byte, 0, batchLin),
		iov:  make([][]byte, 0, batchIov),
		ends: make([]int, 0, batchFPDUs),
	}
}

// room reports whether an FPDU that needs octets of lin and n slices still fits.
func (b *batch) room(octets, n int) bool {
	return len(b.lin)+octets <= cap(b.lin) && len(b.iov)+n < cap(b.iov) &&
		len(b.ends) < cap(b.ends) && b.size < batchSize
}

// refer adds p to the batch without copying it.
func (b *batch) refer(p []byte) {
	b.flushLin()
	b.iov = append(b.iov, p)
	b.size += len(p)
}

// flushLin adds the octets that were appended to lin since the last call as a slice.
func (b *batch) flushLin() {
	if n := len(b.lin); n > b.mark {
		b.iov = append(b.iov, b.lin[b.mark:n:n])
		b.size += n - b.mark
		b.mark = n
	}
}

// end marks the end of an FPDU.
func (b *batch) end() { b.ends = append(b.ends, b.size+len(b.lin)-b.mark) }

// rest returns the slices that are still to be written.
func (b *batch) rest() [][]byte { return b.iov[b.first:] }

// wrote records that n octets of rest were written, and reports whether the batch is
// wholly written.
func (b *batch) wrote(n int) bool {
	b.at += n
	for n > 0 {
		p := b.iov[b.first]
		if n < len(p) {
			b.iov[b.first] = p[n:]
			break
		}
		n -= len(p)
		b.iov[b.first] = nil
		b.first++
	}
	return b.at == b.size
}

// seal drops the FPDUs of which no octet is written, and copies the rest of an FPDU
// that is half written, so that b refers to no memory but its own. It returns the
// length of that rest.
func (b *batch) seal() int {
	end := b.at
	if end > 0 {
		for _, e := range b.ends {
			if e >= b.at {
				end = e
				break
			}
		}
	}
	left := end - b.at
	keep := make([]byte, 0, left)
	for _, p := range b.rest() {
		keep = append(keep, p[:min(len(p), left-len(keep))]...)
	}
	b.reset()
	if left > 0 {
		b.iov = append(b.iov, keep)
		b.size = left
	}
	return left
}

// release copies the octets of mem that are still to be written, so that b no longer
// refers to mem.
func (b *batch) release(mem []byte) {
	s := spanOf(mem)
	for i, p := range b.rest() {
		if spanOf(p).overlaps(s) {
			b.iov[b.first+i] = append([]byte(nil), p...)
		}
	}
}

func (b *batch) reset() {
	clear(b.iov)
	*b = batch{lin: b.lin[:0], iov: b.iov[:0], ends: b.ends[:0], open: b.open}
}

// rump returns a batch with the octets that are still to be written and no room for more. What lies in
// lin is copied. b can be used for something else afterwards.
func (b *batch) rump() *batch {
	i, _ := slices.BinarySearch(b.ends, b.at)
	r := &batch{iov: slices.Clone(b.rest()), ends: slices.Clone(b.ends[i:]), size: b.size, at: b.at}
	r.release(b.lin)
	return r
}

// A batchPool lends batches to connections that have something to write; an idle
// connection holds none. It is safe for concurrent use.
type batchPool struct {
	mu   sync.Mutex // guards the rest; a leaf
	free []*batch
	lent int // batches that are lent, with the room of a new one
	open int // batches of getOpen of which nothing is written yet
}

const (
	// batchesKept bounds the free batches of a pool.
	batchesKept = 32
	// batchesLent bounds those that connections keep until their peers read: beyond it they keep only what
	// is still to be written. A batch has room for 154 KiB, and a peer may leave a few octets unread.
	batchesLent = 32
	// batchesOpen bounds those that connections hold before they write. Many connections that have
	// something to write at the end of one pass need only one, in turn.
	batchesOpen = 16
)

// getOpen lends a batch to a connection that does not write at once, unless many do so.
func (p *batchPool) getOpen() *batch {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.open == batchesOpen {
		return nil
	}
	p.open++
	b := p.take()
	b.open = true
	return b
}

func (p *batchPool) get() *batch {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.take()
}

// take removes a free batch, or makes one. The caller holds mu.
func (p *batchPool) take() *batch {
	p.lent++
	if n := len(p.free); n > 0 {
		b := p.free[n-1]
		p.free = p.free[:n-1]
		return b
	}
	return newBatch()
}

// settle ends the count of b as open: it was written in part, and the peer may leave the rest unread for a
// long time. It returns the batch that has the rest, which is b unless many are lent.
func (p *batchPool) settle(b *batch) *batch {
	p.mu.Lock()
	p.uncount(b)
	many := p.lent > batchesLent && cap(b.lin) == batchLin
	p.mu.Unlock()
	if !many {
		return b
	}
	r := b.rump()
	p.put(b)
	return r
}

// uncount ends the count of b as open. The caller holds mu.
func (p *batchPool) uncount(b *batch) {
	if b.open {
		b.open = false
		p.open--
	}
}

// put takes back a batch that was lent, or a rump of one, which it forgets.
func (p *batchPool) put(b *batch) {
	b.reset()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.uncount(b)
	if cap(b.lin) != batchLin {
		return
	}
	p.lent--
	if len(p.free) < batchesKept {
		p.free = append(p.free, b)
	}
}
