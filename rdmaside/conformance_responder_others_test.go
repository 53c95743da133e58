package rdmaside

import (
	"bytes"

	"github.com/rdmabridge/rdmabridge/rdmaside/rpcrdma"
)

// responderOtherRules are the rules of RFC 8267, RFC 8797 and RFC 8167.
var responderOtherRules = []responderRule{
	writes("8267 6.4.1", "the first chunk MUST be used by the first READ operation, the next by the next; READLINK is one", writesCase{
		results: []result{putFH, putFH, longRead, putFH, putFH, linkText, putFH, putFH, longRead}, writes: [][]int{{6001}, {33}, {6001}}, proc: rpcrdma.Msg,
	}),
	writes("8267 6.4.1", "an empty matching Write chunk: that READ MUST return its result inline", writesCase{
		results: []result{putFH, putFH, longRead, putFH, putFH, linkText, putFH, putFH, longRead}, writes: [][]int{{6001}, {}, {6001}}, proc: rpcrdma.Msg,
	}),
	writes("8267 6.4.1", "a READ of no octets has its chunk, returned with no octets, and the next READ the next", writesCase{
		results: []result{emptyRead, longRead}, writes: [][]int{{100}, {6001}}, proc: rpcrdma.Msg,
	}),
	departing(writes("8267 6.4.1", "a READ that fails, with a non-empty Write chunk: MUST return an empty Write chunk in that position", writesCase{
		results: []result{putFH, linkText, failedRead}, writes: [][]int{{33}, {6001}, {6001}}, proc: rpcrdma.Msg,
	}), "an unused one, with its segments, all of no octets: RFC 8166 Sections 3.4.6 and 4.3.2.2 have the segment count copied"),
	writes("8267 6.4.1", "more READs than Write chunks: the remaining ones MUST return their results inline", writesCase{
		results: []result{linkText, linkText, linkText}, writes: [][]int{{33}}, proc: rpcrdma.Msg,
	}),
	{section: "8267 6.4.2", says: "servers MUST accept a Position Zero Read chunk and one Read chunk together, each of up to sixteen segments", run: thirtyTwoSegments},
	writes("8267 6.4.2", "servers MUST accept one Write chunk of up to sixteen segments", writesCase{
		results: []result{longRead}, writes: [][]int{{400, 400, 400, 400, 400, 400, 400, 400, 400, 400, 400, 400, 400, 400, 400, 400}}, proc: rpcrdma.Msg,
	}),
	{section: "8797 4.1", says: "Send With Invalidate only when both peers set the flag, and MUST invalidate a handle of this XID only", same: TestResponderRemoteInvalidation},
	{
		section: "8797 4.1", says: "when either peer clears the flag, MUST use only RDMA Send: the Requester does", setup: func(tc *responderCase) {
			tc.opts.RemoteInvalidation = true
			tc.dial.PrivateData = rpcrdma.AppendPrivateData(nil, rpcrdma.PrivateData{SendSize: 4096, RecvSize: 4096})
		},
		run: requesterClearsInvalidation,
	},
	{section: "8797 4", says: "senders MUST set the reserved bits to zero", run: responderReservedBits},
	{
		section: "8797 4", says: "receivers MUST ignore the reserved bits", setup: func(tc *responderCase) {
			tc.dial.PrivateData = []byte{0xf6, 0xab, 0x0e, 0x18, 1, 0xfe, 3, 3}
		},
		run: reservedBitsIgnored,
	},
	badPrivateData("of version 2", 0xf6, 0xab, 0x0e, 0x18, 2, 1, 3, 3),
	badPrivateData("with another format identifier", 0xf6, 0xab, 0x0e, 0x19, 1, 1, 3, 3),
	badPrivateData("cut short", 0xf6, 0xab, 0x0e, 0x18, 1, 1, 3),
	{section: "8167 5.1", says: "a reverse Call: rdma_vers MUST be that of forward Calls, the RPC Call MUST start with the same XID, its msg_type MUST be CALL", same: TestCallback},
	{section: "8167 4.1", says: "reverse credits are accounted separately: one Call until the first Reply, then what the Requester grants", same: TestCallbackCredits},
	{section: "8167 5.3", says: "without chunks, reverse Calls can be no larger than what can be sent inline; what is no Reply to them is none", same: TestCallbackRefusals},
	{section: "8167 5.4", says: "a Requester that does not answer reverse Calls: what waits is bounded", same: TestCallbackUnanswered},
	silence("8167 4.1", "the direction is that of the RPC message: a Reply that answers no reverse Call is dropped, and its credits are not a request",
		append(plain(1, 1), getAttrReply(1)...), append(header(1, 1, rpcrdma.Msg, func(h *rpcrdma.Header) { h.AddWrite() }), getAttrReply(1)...)),
}

func thirtyTwoSegments(tc *responderCase) {
	data := pattern(16000, 1)
	m := compoundCall(1, writeOp(data), words(9, 1, 0x10))
	at := len(m) - 12 - 16000
	base := cut(m, at, 16000)
	sixteen := func(n int) (cuts []int) {
		for i := 1; i < 16; i++ {
			cuts = append(cuts, i*n/16)
		}
		return cuts
	}
	tc.peer.send(0, header(1, 8, rpcrdma.NoMsg, func(h *rpcrdma.Header) {
		addReads(h, 0, tc.pulled(base, sixteen(len(base))...))
		addReads(h, at, tc.pulled(data, sixteen(len(data))...))
	}))
	tc.answer(tc.wantCall("a COMPOUND in 32 segments", m), accepted(1))
	tc.peer.wantSend("its reply")
}

func requesterClearsInvalidation(tc *responderCase) {
	tc.peer.send(0, header(1, 8, rpcrdma.Msg, func(h *rpcrdma.Header) { h.SetReply(tc.chunk(8000).segments...) }), opaqueCall(1, 8))
	tc.answer(tc.wantCall("a call", opaqueCall(1, 8)), accepted(1, pattern(5000, 1)))
	if s := tc.peer.wantSend("its reply"); s.invalidated != 0 {
		tc.t.Errorf("invalidated %#x", uint32(s.invalidated))
	}
}

func responderReservedBits(tc *responderCase) {
	b := tc.peer.conn.Info().PrivateData
	i := bytes.Index(b, []byte{0xf6, 0xab, 0x0e, 0x18})
	if i < 0 || len(b) < i+8 || b[i+4] != 1 || b[i+5]&^1 != 0 {
		tc.t.Fatalf("private data %x", b)
	}
	tc.alive()
}

func reservedBitsIgnored(tc *responderCase) {
	tc.peer.send(0, plain(1, 8), opaqueCall(1, 8))
	tc.answer(tc.wantCall("a call", opaqueCall(1, 8)), accepted(1, pattern(4096-28-24, 1)))
	if s := tc.peer.wantSend("its reply"); len(s.octets) != 4096 {
		tc.t.Errorf("sent %d octets", len(s.octets))
	}
}

// badPrivateData returns a rule about a Requester with the private data b.
func badPrivateData(name string, b ...byte) responderRule {
	return responderRule{
		section: "8797 5.1", says: "private data that does not conform: MUST behave as if there were none: " + name, inline: 1024,
		setup: func(tc *responderCase) { tc.dial.PrivateData = b },
		run: func(tc *responderCase) {
			tc.peer.send(0, plain(1, 8), opaqueCall(1, 8))
			tc.answer(tc.wantCall("a call", opaqueCall(1, 8)), accepted(1, pattern(1028-28-24, 1)))
			tc.wantError("1028 octets", 1, rpcrdma.ErrChunk)
		},
	}
}
