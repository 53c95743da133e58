package regmem

import (
	"bytes"
	"fmt"
)

// A Lease is a block of memory on loan. The package comment says which goroutine may use it
// when.
type Lease struct {
	// A Lease is one cache line. Lending and releasing through a stock touches no other.
	slab  *slab
	buf   []byte // the whole block
	acct  *ledger
	stock *stock // the stock that lent it, to which it returns; nil for none

	length int32 // at most MaxLease
	posted int32 // marks of Post
	out    bool  // on loan
	class  uint8 // constant while slab has pages, like index and buf
	index  uint8 // index in slab.leases
	clean  bool  // the block holds only poison; begin checks it
}

// poison fills released blocks when Options.Poison is set.
const poison = 0xdb

// begin puts l, which is free and of the class for n octets, on loan.
func (acct *ledger) begin(l *Lease, n int) *Lease {
	if acct.arena.poison {
		if i := findOther(l.buf, poison); l.clean && i >= 0 {
			panic(fmt.Sprintf("BUG: regmem: block of %d octets was written at %d after its release", len(l.buf), i))
		}
		// Each loan gets a Lease of its own. Otherwise the second release of one loan would
		// look like the first release of the next.
		l = &Lease{slab: l.slab, index: l.index, class: l.class, buf: l.buf, stock: l.stock}
	}
	l.acct, l.length, l.posted = acct, int32(n), 0
	if l.out {
		panic("BUG: regmem: block leased twice")
	}
	l.out = true
	return l
}

// Bytes returns the memory. Its length is the requested length, and its capacity is Cap. The
// caller must not use it after Release.
func (l *Lease) Bytes() []byte { return l.buf[:l.length] }

// Cap returns how many octets the block can hold.
func (l *Lease) Cap() int { return len(l.buf) }

// Size returns how many octets the block takes from the budget: as BlockSize of any length that it is leased for.
func (l *Lease) Size() int { return classSizes[l.class] }

// Resize changes the length of Bytes to n, at most Cap. It does not move the octets.
func (l *Lease) Resize(n int) {
	if n < 0 || n > len(l.buf) {
		panic(fmt.Sprintf("BUG: regmem: resize to %d of a block of %d", n, len(l.buf)))
	}
	l.length = int32(n)
}

// Post marks the block as used by a Work Request. Marks nest: several Work Requests may use
// one block.
func (l *Lease) Post() { l.posted++ }

// Unpost removes one mark, when the Work Request has completed.
func (l *Lease) Unpost() {
	l.posted--
	if l.posted < 0 {
		panic("BUG: regmem: Unpost without Post")
	}
}

// Release gives the block back. The caller must not use its memory any more. On the loop from whose account
// the lease may be, Account.Release costs less.
func (l *Lease) Release() {
	acct := l.acct
	l, st := l.end()
	if st != nil && st.putElsewhere(l) {
		return
	}
	if st == nil {
		acct.leases.Add(-1)
	}
	acct.putBack(l)
}

// end ends the loan of l. It returns the lease for the next loan, and the stock that has lent l, or nil.
func (l *Lease) end() (*Lease, *stock) {
	// "From post to completion the provider owns the buffer": B1.
	if l.posted != 0 {
		panic("BUG: regmem: release of a posted buffer")
	}
	if !l.out {
		panic("BUG: regmem: released twice")
	}
	l.out = false
	acct, st := l.acct, l.stock
	l.acct, l.stock = nil, nil
	l.clean = false
	if acct.arena.poison {
		fill(l.buf, poison)
		l = &l.slab.leases[l.index] // begin made l from it
		l.clean = true
	}
	return l, st
}

// putBack gives the block of l, which is not on loan, to its class.
func (acct *ledger) putBack(l *Lease) {
	a, size := acct.arena, int64(l.Size())
	l.slab.class.put(l, a.epoch.Load(), l.clean)
	acct.used.Add(-size) // not l.Size(): the slab may be gone by now
	a.wake()
}

// fill sets every octet of b to v.
func fill(b []byte, v byte) {
	if len(b) == 0 {
		return
	}
	b[0] = v
	for n := 1; n < len(b); n *= 2 {
		copy(b[n:], b[:n])
	}
}

// findOther returns the index of the first octet of b that is not v, or -1. It compares
// whole pages: with single octets, the race detector makes the release of a megabyte take
// milliseconds.
func findOther(b []byte, v byte) int {
	var buf [pageSize]byte
	page := buf[:min(len(b), pageSize)]
	fill(page, v)
	for i := 0; i < len(b); i += pageSize {
		part := b[i:min(i+pageSize, len(b))]
		if !bytes.Equal(part, page[:len(part)]) {
			return i + firstOther(part, v)
		}
	}
	return -1
}

func firstOther(b []byte, v byte) int {
	for i, x := range b {
		if x != v {
			return i
		}
	}
	return -1
}
