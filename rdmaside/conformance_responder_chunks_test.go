package rdmaside

import (
	"bytes"
	"slices"

	"github.com/rdmabridge/rdmabridge/rdmaside/rpcrdma"
)

// responderChunkRules are the rules of Section 4.3: the chunk lists.
var responderChunkRules = []responderRule{
	{section: "4.3.1", says: "Responders MUST leave the Read list empty in all replies: a Call with two Read chunks", run: twoReadChunks},
	{section: "4.3.2", says: "when a Requester provides a Write list, the Responder MUST push DDP-eligible results and removes them from the Payload stream", same: TestResponderWriteChunk},
	writes("4.3.2", "MUST push DDP-eligible results: an item of a few octets, too", writesCase{results: []result{shortRead}, writes: [][]int{{8}}, proc: rpcrdma.Msg}),
	writes("4.3.2", "a Write list that is not there: everything is returned inline or in the Reply chunk", writesCase{
		results: []result{shortRead, linkText, longRead}, reply: []int{8000}, proc: rpcrdma.NoMsg,
	}),
	writes("4.3.2.1", "multiple Write chunks: one DDP-eligible result in each until there are no more results", writesCase{
		results: []result{longRead, linkText}, writes: [][]int{{6001}, {33}, {100, 100}, {5}}, proc: rpcrdma.Msg,
	}),
	writes("4.3.2.1", "multiple Write chunks: one DDP-eligible result in each until there are no more chunks", writesCase{
		results: []result{longRead, linkText, shortRead}, writes: [][]int{{6001}, {33}}, proc: rpcrdma.Msg,
	}),
	{section: "4.3.2.1", says: "multiple Write chunks: 300 random COMPOUNDs with random Write lists", same: TestResponderWriteChunksRandom},
	writes("4.3.2.2", "a subsequent DDP-eligible result MUST be placed in the unconsumed Write chunk: results before it have none", writesCase{
		results: []result{putFH, manyAttributes, putFH, longRead}, writes: [][]int{{6001}}, reply: []int{6000}, proc: rpcrdma.NoMsg,
	}),
	writes("4.3.2.2", "the last or only Write chunk, unconsumed, MUST be returned as an unused Write chunk", writesCase{
		results: []result{putFH, failedRead}, writes: [][]int{{10, 6001}}, proc: rpcrdma.Msg,
	}),
	{section: "4.3.2.2", says: "MUST be returned as an unused Write chunk: an RPC error, an NFS error, a procedure and a program without such results", same: TestResponderWriteListUnused},
	writes("4.3.2.3", "an empty Write chunk: MUST return the result inline and an empty Write chunk in that position", writesCase{
		results: []result{longRead, linkText, longRead}, writes: [][]int{{6001}, {}, {6001}}, proc: rpcrdma.Msg,
	}),
	writes("4.3.2.3", "an empty Write chunk whose result makes the reply too long: must prepare for a Long Reply", writesCase{
		results: []result{linkText, longRead}, writes: [][]int{{33}, {}}, reply: []int{8000}, proc: rpcrdma.NoMsg,
	}),
	{section: "4.3.3", says: "MUST copy the Reply chunk into the reply's header, with the actual lengths: used in part, and not used", run: replyChunkLengths},
	writes("4.3.3", "a Reply chunk of no segments: MUST be copied, and the reply fits inline", writesCase{
		results: []result{shortRead}, reply: []int{}, proc: rpcrdma.Msg,
	}),
	writes("4.3.3", "a Reply chunk of no segments has no room: ERR_CHUNK", writesCase{results: []result{longRead}, reply: []int{}, proc: rpcrdma.Error}),
	writes("4.3", "a Write list of 64 chunks, the first three with items, all others unused", writesCase{
		results: []result{shortRead, linkText, longRead}, writes: append([][]int{{7}, {33}, {6001}}, slices.Repeat([][]int{{4}}, 61)...), proc: rpcrdma.Msg,
	}),
	{section: "4.3", says: "all lists at once: a Long Call, two Read chunks, segments of no octets among them, three Write chunks and a Reply chunk", run: allListsAtOnce},
}

func twoReadChunks(tc *responderCase) {
	m := compoundCall(1, writeOp(pattern(100, 1)), writeOp(pattern(200, 2)))
	second := len(m) - 200
	first := second - 36 - 100
	base := cut(cut(m, second, 200), first, 100)
	tc.peer.send(0, header(1, 8, rpcrdma.Msg, func(h *rpcrdma.Header) {
		addReads(h, first, tc.pulled(pattern(100, 1)))
		addReads(h, second, tc.pulled(pattern(200, 2)))
	}), base)
	tc.answer(tc.wantCall("two WRITEs", m), accepted(1))
	if s := tc.peer.wantSend("its reply"); len(s.Reads) != 0 {
		tc.t.Errorf("%+v", &s.Header)
	}
}

func replyChunkLengths(tc *responderCase) {
	for i, n := range []int{5000, 40} {
		xid := uint32(i + 1)
		o := tc.chunk(1000, 0, 3000, 3000, 100)
		tc.peer.send(0, header(xid, 8, rpcrdma.Msg, func(h *rpcrdma.Header) { h.SetReply(o.segments...) }), opaqueCall(xid, 8))
		m := accepted(xid, pattern(n, 4))
		tc.answer(tc.wantCall("a call", opaqueCall(xid, 8)), m)
		s := tc.peer.wantSend("its reply")
		if s.Reply == nil || (s.Proc == rpcrdma.NoMsg) != (n == 5000) {
			tc.t.Fatalf("%+v", &s.Header)
		}
		if s.Proc == rpcrdma.Msg {
			m = nil
		}
		o.wantFilled(tc.t, "the Reply chunk", s.Reply, m)
	}
}

func allListsAtOnce(tc *responderCase) {
	first, second := pattern(801, 1), pattern(702, 2)
	m := compoundCall(1, writeOp(first), writeOp(second), readOp(5000), readOp(6001), writeOp(nil))
	at, firstAt := bytes.Index(m, second), bytes.Index(m, first)
	base := cut(cut(m, at, 702), firstAt, 801)
	var offers []offered
	tc.peer.send(0, header(1, 8, rpcrdma.NoMsg, func(h *rpcrdma.Header) {
		addReads(h, firstAt, tc.pulled(first, 0, 0, 400, 801))
		addReads(h, 0, tc.pulled(base, 0, 60, 60))
		addReads(h, at, tc.pulled(second, 700))
		addReads(h, len(m), []rpcrdma.Segment{{Handle: 99}}) // the data of the last WRITE
		for _, lengths := range [][]int{{0, 5000}, {}, {9}} {
			o := tc.chunk(lengths...)
			offers = append(offers, o)
			h.AddWrite(o.segments...)
		}
		o := tc.chunk(0, 4000, 4000)
		offers = append(offers, o)
		h.SetReply(o.segments...)
	}))
	whole, items := compoundReply(1, plainResult(38, 0, 1, 2, 3, 4), plainResult(38, 0, 1, 2, 3, 4), readResult(pattern(5000, 3)), longRead, plainResult(38, 0, 1, 2, 3, 4))
	tc.answer(tc.wantCall("everything", m), whole)
	s := tc.peer.wantSend("its reply")
	if s.Proc != rpcrdma.NoMsg || len(s.Writes) != 3 || len(s.payload) != 0 {
		tc.t.Fatalf("%+v", &s.Header)
	}
	offers[0].wantFilled(tc.t, "the first Write chunk", &s.Writes[0], pattern(5000, 3))
	offers[1].wantFilled(tc.t, "the empty one", &s.Writes[1], nil)
	offers[2].wantFilled(tc.t, "the unused one", &s.Writes[2], nil)
	offers[3].wantFilled(tc.t, "the Reply chunk", s.Reply, cut(whole, items[0][0], 5000))
}
