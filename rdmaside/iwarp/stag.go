package iwarp

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
)

// errAliased is the error of Register and PostRead for memory that the peer can already
// write through another handle.
var errAliased = errors.New("iwarp: memory is writable through another handle")

// A table holds the STags of one connection: its protection domain. It belongs to
// the connection's loop.
//
// An STag is 32 random bits, never 0. It is not used again before retiredMax other STags
// have been retired. Live and retired STags share one open-addressed hash table, whose
// hash is the STag itself. That is safe because this side draws the STags at random: a
// peer can only look STags up, and cannot make any collide.
type table struct {
	limit  int  // most live STags
	dead   bool // no STag is live, nor ever will be
	shared *limits

	slots   []slot // length a power of two, at most three quarters used
	used    int
	regions []region
	free    []int32 // unused elements of regions
	live    int

	retired     []uint32 // ring of dead STags
	retiredHead int

	spans []span // memory that the peer may write, by address: regions and Read sinks

	islands []*islands // unused; as many as regions ever needed at once

	// Random octets are drawn in batches, so that most registrations need no system
	// call. The number of octets makes a qp as long as a size class of Go's heap.
	random [448]byte
	left   int
}

// retiredMax is the number of dead STags that are not used again.
const retiredMax = 2048

type slot struct {
	stag   uint32 // 0: unused
	region int32  // negative: retired
}

// A region is the memory of an STag.
type region struct {
	buf    []byte
	to     uint64 // Tagged Offset of buf[0]; buf ends far below 2^64
	stag   uint32
	access fabric.Access
	placed placement
}

// known returns the STag of r, or 0 if r is nil.
func (r *region) known() uint32 {
	if r == nil {
		return 0
	}
	return r.stag
}

// within returns the n octets at to. It reports false when they are not all inside the
// region. The caller makes sure that to+n does not wrap.
func (r *region) within(to uint64, n uint64) ([]byte, bool) {
	size := uint64(len(r.buf))
	if to < r.to || to-r.to > size || n > size-(to-r.to) {
		return nil, false
	}
	off := to - r.to
	return r.buf[off : off+n : off+n], true
}

// draw returns n random octets, n at most 8.
func (t *table) draw(n int) []byte {
	if t.left < n {
		_, _ = rand.Read(t.random[:]) // never returns an error: it crashes the program instead
		t.left = len(t.random)
	}
	t.left -= n
	b := t.random[t.left : t.left+n]
	return b
}

// mint returns an STag that is neither live nor retired.
func (t *table) mint() uint32 {
	for {
		if v := binary.NativeEndian.Uint32(t.draw(4)); v != 0 && t.slot(v) < 0 {
			return v
		}
	}
}

// base returns a Tagged Offset for the start of a buffer: a random page below 2^47, so
// that no length wraps and the peer learns no address.
func (t *table) base() uint64 {
	return binary.NativeEndian.Uint64(t.draw(8)) & (1<<47 - 1) &^ 4095
}

// slot returns the index of stag in slots, or -1.
func (t *table) slot(stag uint32) int {
	if len(t.slots) == 0 || stag == 0 {
		return -1
	}
	mask := len(t.slots) - 1
	for i := int(stag) & mask; ; i = (i + 1) & mask {
		switch t.slots[i].stag {
		case stag:
			return i
		case 0:
			return -1
		}
	}
}

// find returns the live region of stag, or nil. The pointer is valid until the next
// add.
func (t *table) find(stag uint32) *region {
	i := t.slot(stag)
	if i < 0 || t.slots[i].region < 0 || t.dead {
		return nil
	}
	return &t.regions[t.slots[i].region]
}

// add gives buf an STag.
func (t *table) add(buf []byte, a fabric.Access) (*region, error) {
	if uint64(len(buf)) > math.MaxUint32 {
		return nil, fmt.Errorf("iwarp: region of %d octets", len(buf))
	}
	if t.live >= t.limit {
		return nil, fmt.Errorf("%w: %d handles of this connection", fabric.ErrLimit, t.limit)
	}
	if a&fabric.RemoteWrite != 0 && !t.addSpan(buf) {
		return nil, errAliased
	}
	if err := t.shared.handle(len(buf)); err != nil {
		if a&fabric.RemoteWrite != 0 {
			t.dropSpan(buf)
		}
		return nil, err
	}
	stag := t.mint()
	var i int32
	if n := len(t.free); n > 0 {
		i, t.free = t.free[n-1], t.free[:n-1]
	} else {
		i = int32(len(t.regions))
		t.regions = append(t.regions, region{})
	}
	t.insert(slot{stag, i})
	t.live++
	r := &t.regions[i]
	*r = region{buf: buf, to: t.base(), stag: stag, access: a}
	return r, nil
}

// remove invalidates stag and returns its memory.
func (t *table) remove(stag uint32) (buf []byte, ok bool) {
	i := t.slot(stag)
	if i < 0 || t.slots[i].region < 0 || t.dead {
		return nil, false
	}
	ri := t.slots[i].region
	r := &t.regions[ri]
	buf = r.buf
	if r.access&fabric.RemoteWrite != 0 {
		t.dropSpan(buf)
	}
	t.forgetIslands(&r.placed)
	*r = region{}
	t.free = append(t.free, ri)
	t.live--
	t.shared.handleDone(len(buf))

	t.slots[i].region = -1
	if len(t.retired) < retiredMax {
		t.retired = append(t.retired, stag)
		return buf, true
	}
	t.forget(t.retired[t.retiredHead])
	t.retired[t.retiredHead] = stag
	t.retiredHead = (t.retiredHead + 1) % retiredMax
	return buf, true
}

// clear invalidates every STag for good. Only placed knows them from now on: a message that came
// before the connection ended is delivered after this.
func (t *table) clear() {
	if t.dead {
		return
	}
	for i := range t.regions {
		if r := &t.regions[i]; r.stag != 0 {
			t.shared.handleDone(len(r.buf))
			r.buf, r.access, r.placed.more = nil, 0, nil
		}
	}
	t.free, t.retired, t.spans, t.islands = nil, nil, nil, nil
	t.live, t.limit, t.dead = 0, 0, true
}

func (t *table) insert(s slot) {
	if 4*(t.used+1) > 3*len(t.slots) {
		old := t.slots
		t.slots = make([]slot, max(64, 2*len(old)))
		for _, o := range old {
			if o.stag != 0 {
				t.place(o)
			}
		}
	}
	t.place(s)
	t.used++
}

func (t *table) place(s slot) {
	mask := len(t.slots) - 1
	i := int(s.stag) & mask
	for t.slots[i].stag != 0 {
		i = (i + 1) & mask
	}
	t.slots[i] = s
}

// forget deletes a slot and closes the gap: slots that were displaced past it move back.
func (t *table) forget(stag uint32) {
	i := t.slot(stag)
	if i < 0 {
		return
	}
	mask := len(t.slots) - 1
	for j := (i + 1) & mask; t.slots[j].stag != 0; j = (j + 1) & mask {
		home := int(t.slots[j].stag) & mask
		if (j-home)&mask >= (j-i)&mask {
			t.slots[i] = t.slots[j]
			i = j
		}
	}
	t.slots[i] = slot{}
	t.used--
}
