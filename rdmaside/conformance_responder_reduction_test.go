package rdmaside

import (
	"bytes"
	"encoding/binary"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/rdmaside/rpcrdma"
)

// responderReductionRules are the rules of Section 3.4: which data items are reduced,
// and what chunks hold.
var responderReductionRules = []responderRule{
	{section: "3.4.2", says: "all other XDR data items MUST NOT be reduced: Replies of READDIR, GETATTR, an unknown program, with a Write chunk offered", run: ineligibleResultsInline},
	{section: "3.4.2", says: "all other XDR data items MUST NOT be reduced: results under RPCSEC_GSS integrity and privacy", same: TestResponderWriteListProtected},
	garbageArgs("3.4.2", "all other XDR data items MUST NOT be reduced: a file handle in a Read chunk", func(tc *responderCase) [][]byte {
		m := getAttrCall(1)
		return message(rpcrdma.Msg, m[:44], func(h *rpcrdma.Header) { addReads(h, 44, tc.pulled(m[44:])) })
	}),
	{section: "3.4.2", says: "all other XDR data items MUST NOT be reduced: several Read chunks, each DDP-eligible or the Call is refused", same: TestResponderReadChunksEligible},
	errChunkRule("3.4.2", "all other XDR data items MUST NOT be reduced: arguments under RPCSEC_GSS integrity", func(tc *responderCase) [][]byte {
		gss := append(words(1, 0, 2, oncrpc.ProgramNFS, 3, procWrite, 6, 20, 1, 0, 1, 2, 0, 0, 0), writeOf1000[40:]...)
		return message(rpcrdma.Msg, gss[:writePos+20], func(h *rpcrdma.Header) { addReads(h, writePos+20, tc.pulled(pattern(1000, 1))) })
	}),
	{section: "3.4.4.1", says: "the count of array elements MUST remain in the Payload stream, the elements MUST be moved to the chunk", run: elementCountStays},
	{section: "3.4.4.2", says: "the \"is present\" field of optional-data MUST remain in the Payload stream: post_op_attr of READ, present and not", run: isPresentStays},
	{section: "3.4.4.3", says: "a union MUST NOT be DDP-eligible, but arms may be: the discriminant of READ's result stays, and so does the arm of failure", run: discriminantStays},
	writes("3.4.4.4", "a chunk MUST contain exactly one XDR data item: two items, one chunk with room for both", writesCase{
		results: []result{shortRead, linkText}, writes: [][]int{{8000}}, proc: rpcrdma.Msg,
	}),
	writes("3.4.4.4", "the sender MUST remove XDR roundup padding, so that what remains begins on four-byte alignment", writesCase{
		results: []result{readResult(pattern(1, 1)), putFH, readResult(pattern(2, 1)), putFH, readResult(pattern(3, 1)), putFH, readResult(pattern(4, 1)), putFH},
		writes:  [][]int{{9}, {9}, {9}, {9}}, proc: rpcrdma.Msg,
	}),
	{section: "3.4.5", says: "Position is computed from the beginning of the unreduced Payload stream; segments of one Position are concatenated in list order", same: TestResponderManyChunks},
	{section: "3.4.5", says: "segments of one Position are concatenated in list order, wherever in the list they are: two chunks and a Position Zero Read chunk, 60 segments in turns", run: interleavedSegments},
	errChunkRule("3.4.5", "the value in this field MUST be a multiple of four", func(tc *responderCase) [][]byte {
		// It lies inside the Payload stream: a Position behind the end is refused for that.
		return message(rpcrdma.Msg, writeOf1000[:writePos], func(h *rpcrdma.Header) { addReads(h, writePos-2, tc.pulled(pattern(1000, 1))) })
	}),
	{section: "3.4.5.2", says: "a chunk's length MUST be that of the item, or of the item and its roundup: both are taken, however they are cut", same: TestResponderReadChunk},
	garbageArgs("3.4.5.2", "a chunk's length MUST be that of the item: it is longer", func(tc *responderCase) [][]byte {
		return message(rpcrdma.Msg, writeOf1000[:writePos], func(h *rpcrdma.Header) { addReads(h, writePos, tc.pulled(pattern(1004, 1))) })
	}),
	garbageArgs("3.4.5.2", "a chunk's length MUST be that of the item: it is shorter", func(tc *responderCase) [][]byte {
		return message(rpcrdma.Msg, writeOf1000[:writePos], func(h *rpcrdma.Header) { addReads(h, writePos, tc.pulled(pattern(900, 1))) })
	}),
	garbageArgs("3.4.5.2", "a chunk's length MUST be that of the item: it is shorter, in a reduced Long Call", func(tc *responderCase) [][]byte {
		return message(rpcrdma.NoMsg, nil, func(h *rpcrdma.Header) {
			addReads(h, 0, tc.pulled(writeOf1000[:writePos]))
			addReads(h, writePos, tc.pulled(pattern(900, 1)))
		})
	}),
	writes("3.4.6", "the Responder MUST copy the segment count and all segments, and updates each length; it fills them contiguously and in order", writesCase{
		results: []result{longRead}, writes: [][]int{{1, 0, 3000, 3001, 500}}, proc: rpcrdma.Msg,
	}),
	writes("3.4.6", "an unused Write chunk has its segments, all empty", writesCase{results: []result{putFH}, writes: [][]int{{100, 200}}, proc: rpcrdma.Msg}),
	writes("3.4.6.2", "MUST NOT write XDR roundup padding into a Write chunk, even if the Requester made space; its total length MUST be that of the item", writesCase{
		results: []result{readResult(pattern(1001, 1)), readResult(pattern(1002, 1)), readResult(pattern(1003, 1)), readResult(pattern(1004, 1))},
		writes:  [][]int{{1004}, {1002, 2}, {1003, 1}, {1004, 4}}, proc: rpcrdma.Msg,
	}),
}

func ineligibleResultsInline(tc *responderCase) {
	opaqueResult := accepted(1, words(0, 0), opaque(pattern(400, 1)))
	for _, tt := range []struct{ call, reply []byte }{
		{nfsCall(1, procReaddir, handle32, words(0, 0, 0, 0, 4096)), opaqueResult},
		{getAttrCall(1), getAttrReply(1)},
		{opaqueCall(1, 8), opaqueResult},
	} {
		o := tc.chunk(4096)
		tc.peer.send(0, header(1, 8, rpcrdma.Msg, func(h *rpcrdma.Header) { h.AddWrite(o.segments...) }), tt.call)
		tc.answer(tc.wantCall("a call", tt.call), tt.reply)
		s := tc.peer.wantSend("its reply")
		if !bytes.Equal(s.payload, tt.reply) {
			tc.t.Errorf("payload %x", s.payload)
		}
		o.wantFilled(tc.t, "the Write chunk", &s.Writes[0], nil)
	}
}

func elementCountStays(tc *responderCase) {
	o := tc.chunk(1000)
	tc.peer.send(0, header(1, 8, rpcrdma.Msg, func(h *rpcrdma.Header) { h.AddWrite(o.segments...) }), readCall(1, 1000))
	whole, at := readReply(1, pattern(999, 2))
	tc.answer(tc.wantCall("READ", readCall(1, 1000)), whole)
	s := tc.peer.wantSend("its reply")
	o.wantFilled(tc.t, "the elements", &s.Writes[0], whole[at:at+999])
	if len(s.payload) != at || binary.BigEndian.Uint32(s.payload[at-4:]) != 999 {
		tc.t.Errorf("payload %x, want it to end with the count", s.payload)
	}
}

func isPresentStays(tc *responderCase) {
	for _, attributes := range [][]byte{append(words(1), pattern(84, 1)...), words(0)} {
		o := tc.chunk(1000)
		tc.peer.send(0, header(1, 8, rpcrdma.Msg, func(h *rpcrdma.Header) { h.AddWrite(o.segments...) }), readCall(1, 1000))
		base := accepted(1, words(0), attributes, words(1000, 0, 1000))
		tc.answer(tc.wantCall("READ", readCall(1, 1000)), append(bytes.Clone(base), pattern(1000, 2)...))
		s := tc.peer.wantSend("its reply")
		o.wantFilled(tc.t, "the data", &s.Writes[0], pattern(1000, 2))
		if !bytes.Equal(s.payload, base) {
			tc.t.Errorf("payload %x, want %x", s.payload, base)
		}
	}
}

func discriminantStays(tc *responderCase) {
	o := tc.chunk(1000)
	tc.peer.send(0, header(1, 8, rpcrdma.Msg, func(h *rpcrdma.Header) { h.AddWrite(o.segments...) }), readCall(1, 1000))
	// The attributes of the failure begin with 80, so that they could be an item of 80 octets.
	failed := accepted(1, words(70, 1, 80), pattern(80, 1))
	tc.answer(tc.wantCall("READ", readCall(1, 1000)), failed)
	s := tc.peer.wantSend("its reply")
	o.wantFilled(tc.t, "the chunk", &s.Writes[0], nil)
	if !bytes.Equal(s.payload, failed) {
		tc.t.Errorf("payload %x, want %x", s.payload, failed)
	}
}

func interleavedSegments(tc *responderCase) {
	first, second := pattern(801, 1), pattern(700, 2)
	m := compoundCall(1, writeOp(first), writeOp(second))
	at := len(m) - 700
	firstAt := bytes.Index(m, first)
	base := cut(cut(m, at, 700), firstAt, 801)
	twenty := func(b []byte) []rpcrdma.Segment {
		var cuts []int
		for i := 1; i < 20; i++ {
			cuts = append(cuts, i*len(b)/20)
		}
		return tc.pulled(b, cuts...)
	}
	chunks := [][]rpcrdma.Segment{twenty(second), twenty(base), twenty(first)}
	tc.peer.send(0, header(1, 8, rpcrdma.NoMsg, func(h *rpcrdma.Header) {
		for i := range 20 {
			for k, position := range []int{at, 0, firstAt} {
				h.AddRead(uint32(position), chunks[k][i])
			}
		}
	}))
	tc.answer(tc.wantCall("two WRITEs", m), accepted(1))
	tc.peer.wantSend("its reply")
}
