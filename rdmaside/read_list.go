package rdmaside

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
	"github.com/rdmabridge/rdmabridge/rdmaside/rpcrdma"
)

// A readChunk is one normal Read chunk of a Call and its place in the plain Call.
type readChunk struct {
	position    uint32 // in the plain Call
	first, last int    // its segments are header.Reads[first:last]
	length      uint32 // octets to pull
	padding     uint32 // octets of zeros to insert after them
}

// A piece is one RDMA Read, from a part of one segment into the plain Call.
type piece struct {
	from fabric.Region
	at   int // offset in the plain Call
}

var errReadList = errors.New("rdmaside: Read list does not fit the Payload stream")

// layout computes how to assemble the Call in x: from the Payload stream, which
// is x.inline or a Position Zero Read chunk, and from the data items in normal
// Read chunks. It fills x.chunks and x.total. It checks every number against the
// octets that are there and against limit before anything is leased.
//
// "the Responder inserts the first RDMA segment in a Read chunk into the Payload
// stream at the byte offset indicated by its Position field. RDMA segments whose
// Position field value match this offset are concatenated afterwards, until there
// are no more RDMA segments at that Position value." RFC 8166 Section 3.4.5.
func (x *Exchange) layout(limit int) error {
	h := &x.header
	// Positions may come in any order; segments with the same position keep the
	// order of the list.
	slices.SortStableFunc(h.Reads, func(a, b rpcrdma.ReadSegment) int {
		switch {
		case a.Position < b.Position:
			return -1
		case a.Position > b.Position:
			return 1
		}
		return 0
	})
	zero, stream, err := x.stream()
	if err != nil {
		return err
	}
	x.chunks = x.chunks[:0]
	var end, used uint64 // octets placed in the plain Call so far, and how many of them came from the Payload stream
	total := stream      // with the chunks so far
	if total > uint64(limit) {
		return fmt.Errorf("%w: Payload stream of %d octets, %d are allowed", errReadList, total, limit)
	}
	for i := zero; i < len(h.Reads); {
		ch := readChunk{position: h.Reads[i].Position, first: i}
		var n uint64
		for ; i < len(h.Reads) && h.Reads[i].Position == ch.position; i++ {
			n += uint64(h.Reads[i].Length)
		}
		ch.last = i
		if uint64(ch.position) < end {
			return fmt.Errorf("%w: chunks overlap at position %d", errReadList, ch.position)
		}
		if uint64(ch.position) > end+stream-used {
			return fmt.Errorf("%w: position %d is behind its end", errReadList, ch.position)
		}
		if n == 0 {
			continue
		}
		if total += n + -n&3; total > uint64(limit) {
			return fmt.Errorf("%w: call of %d octets and more, %d are allowed", errReadList, total, limit)
		}
		used += uint64(ch.position) - end
		ch.length, ch.padding = uint32(n), uint32(-n&3)
		x.chunks = append(x.chunks, ch)
		end = uint64(ch.position) + n + uint64(ch.padding)
	}
	x.total = int(total)
	return nil
}

// stream finds the Payload stream of the Call in x. It returns the number of
// segments of the Position Zero Read chunk, which come first in the Read list, and
// the length of the Payload stream in octets.
func (x *Exchange) stream() (zero int, length uint64, err error) {
	h := &x.header
	for zero < len(h.Reads) && h.Reads[zero].Position == 0 {
		zero++
	}
	length = uint64(len(x.inline))
	switch {
	case h.Proc == rpcrdma.Msg && zero > 0:
		return 0, 0, fmt.Errorf("%w: RDMA_MSG with a Position Zero Read chunk", errReadList)
	case h.Proc == rpcrdma.NoMsg:
		// "The Payload stream is not included in the Send buffer in this instance."
		// Section 3.5.3.
		if zero == 0 || length != 0 {
			return 0, 0, fmt.Errorf("%w: RDMA_NOMSG without a Position Zero Read chunk or with %d octets inline", errReadList, length)
		}
		length = h.ReadLength(0)
	}
	return zero, length, nil
}

// trim sets the length of a Call's only chunk to the length of its item, once
// the Payload stream has told that length. The roundup may be in the chunk, in
// the stream, or in neither.
func (x *Exchange) trim(length, padding uint32) {
	ch := &x.chunks[0]
	x.total += int(length) + int(padding) - int(ch.length) - int(ch.padding)
	ch.length, ch.padding = length, padding
}

// scatter copies the inline octets into dst, zeroes the roundup, and adds the
// pieces that RDMA Reads must fetch.
func (x *Exchange) scatter(dst []byte) {
	h := &x.header
	x.pieces, x.posted, x.fetched = x.pieces[:0], 0, 0
	inline := x.inline
	seg, off := 0, uint32(0) // current position in the Position Zero Read chunk
	stream := func(at, n int) {
		if h.Proc == rpcrdma.Msg {
			copy(dst[at:at+n], inline)
			inline = inline[n:]
			return
		}
		for n > 0 {
			s := &h.Reads[seg].Segment
			m := min(uint32(n), s.Length-off)
			x.fetch(s, off, m, at)
			at, n, off = at+int(m), n-int(m), off+m
			if off == s.Length {
				seg, off = seg+1, 0
			}
		}
	}
	end := 0
	for i := range x.chunks {
		ch := &x.chunks[i]
		at := int(ch.position)
		stream(end, at-end)
		left := ch.length
		for j := ch.first; j < ch.last && left > 0; j++ {
			s := &h.Reads[j].Segment
			n := min(s.Length, left)
			x.fetch(s, 0, n, at)
			at, left = at+int(n), left-n
		}
		end = at + int(ch.padding)
		clear(dst[at:end])
	}
	stream(end, len(dst)-end)
}

// maxRead is the most octets of one RDMA Read. Completions show the progress of a Call, and with
// longer Reads a slow client would be taken for one that serves none.
const maxRead = 256 << 10

// fetch adds pieces that read n octets of s, from offset off, to offset at of the plain Call. A
// Read of no octets is useless, and some peers fail on it.
func (x *Exchange) fetch(s *rpcrdma.Segment, off, n uint32, at int) {
	for n > 0 {
		m := min(n, maxRead)
		x.pieces = append(x.pieces, piece{
			from: fabric.Region{Handle: fabric.Handle(s.Handle), Offset: s.Offset + uint64(off), Length: m},
			at:   at,
		})
		off, n, at = off+m, n-m, at+int(m)
	}
}

// itemsMatch reports whether each chunk is the item that the count before it
// announces, and an item that may be reduced: "A Requester reduces a
// non-DDP-eligible argument data item. The Responder MUST NOT process this RPC
// Call message". RFC 8166 Section 6.1.
func (x *Exchange) itemsMatch(reg *ulb.Registry) bool {
	if len(x.chunks) == 1 && x.header.Proc == rpcrdma.Msg {
		return true // ulb.RestoreCall has checked it
	}
	x.positions = x.positions[:0]
	for i := range x.chunks {
		ch := &x.chunks[i]
		at := int(ch.position)
		if at < x.call.Args+4 {
			return false
		}
		n := binary.BigEndian.Uint32(x.message[at-4:])
		if n != ch.length && uint64(n)+uint64(-n&3) != uint64(ch.length) {
			return false
		}
		x.positions = append(x.positions, ch.position)
	}
	return reg.Lookup(x.call.Program, x.call.Version).ArgItems(&x.call, x.positions)
}
