package rdmaside

import (
	"bytes"

	"github.com/rdmabridge/rdmabridge/rdmaside/rpcrdma"
)

// responderMessageRules are the rules of Sections 3.5, 4.1 and 4.2: the forms of
// messages and the fields of the header.
var responderMessageRules = []responderRule{
	{section: "3.5.3", says: "MUST use RDMA Read or Write to convey a Payload stream that is too large; MUST use the Reply chunk provided", same: TestResponderReplyChunk},
	writes("3.5.3", "the reply is first reduced; if it is still too large it goes into the Reply chunk, the item into its Write chunk", writesCase{
		results: []result{longRead, manyAttributes}, writes: [][]int{{6001}}, reply: []int{3000, 8000}, proc: rpcrdma.NoMsg,
	}),
	writes("3.5.3", "the reply is first reduced; if it fits then it is a Short Message and the Reply chunk is not used", writesCase{
		results: []result{longRead}, writes: [][]int{{6001}}, reply: []int{8000}, proc: rpcrdma.Msg,
	}),
	writes("3.5.3", "such chunks MUST include XDR roundup padding: an item of 6001 octets that is not reduced, in a Reply chunk", writesCase{
		results: []result{longRead, putFH}, reply: []int{8000}, proc: rpcrdma.NoMsg,
	}),
	{section: "3.5.3", says: "a Requester may use a Long Call at any time: one of 76 octets, in segments of any length", run: shortLongCall},
	errChunkRule("3.5.3", "every segment of a Position Zero Read chunk MUST contain zero in its Position field: RDMA_NOMSG with another Position alone", func(tc *responderCase) [][]byte {
		return message(rpcrdma.NoMsg, nil, func(h *rpcrdma.Header) { addReads(h, 4, tc.pulled(getAttrCall(1))) })
	}),
	{section: "4", says: "the header MUST be XDR encoded: octets of a Reply with a Write list and a Reply chunk", run: replyHeaderOctets},
	errChunkRule("4.2.1", "this XID MUST be the same as the XID in the RPC message: another one inline", func(*responderCase) [][]byte {
		return message(rpcrdma.Msg, getAttrCall(2), func(*rpcrdma.Header) {})
	}),
	errChunkRule("4.2.1", "this XID MUST be the same as the XID in the RPC message: another one in a Long Call", func(tc *responderCase) [][]byte {
		return message(rpcrdma.NoMsg, nil, func(h *rpcrdma.Header) { addReads(h, 0, tc.pulled(getAttrCall(2))) })
	}),
	errChunkRule("4.2.4", "RDMA_NOMSG: one list MUST be present and MUST hold the Payload stream: none is", func(*responderCase) [][]byte {
		return [][]byte{words(1, 1, 8, 1, 0, 0, 0)}
	}),
	errChunkRule("4.2.4", "RDMA_NOMSG: one list MUST hold the Payload stream: there is a Reply chunk only", func(*responderCase) [][]byte {
		return message(rpcrdma.NoMsg, nil, func(h *rpcrdma.Header) { h.SetReply(rpcrdma.Segment{Handle: 1, Length: 5000}) })
	}),
	errChunkRule("4.2.4", "RDMA_NOMSG: one list MUST hold the Payload stream: an empty Position Zero Read chunk", func(*responderCase) [][]byte {
		return message(rpcrdma.NoMsg, nil, func(h *rpcrdma.Header) { h.AddRead(0, rpcrdma.Segment{Handle: 1}) })
	}),
	errChunkRule("4.2.4", "RDMA_NOMSG has no Payload stream behind its lists", func(tc *responderCase) [][]byte {
		return message(rpcrdma.NoMsg, writeOf1000, func(h *rpcrdma.Header) { addReads(h, 0, tc.pulled(writeOf1000)) })
	}),
	{section: "RFC 5531 9", says: "RPC_MISMATCH: the RPC version is not 2, inline, in a Long Call and with a Read chunk", run: otherRPCVersions},
	silence("4.2.4", "a Responder MUST silently discard RDMA_ERROR procedures", words(1, 1, 8, 4, 2), words(1, 1, 8, 4, 1, 1, 1), words(0xfeed, 1, 8, 4, 2)),
	{section: "4.2.4", says: "a Responder MUST silently discard RDMA_ERROR procedures: with the XID of a Call that is being served", run: errorForServedCall},
	{section: "4.2.4", says: "the total length of the gathered buffers cannot exceed the inline threshold: Replies of lengths around it, in one part and in three", run: repliesAroundThreshold},
}

func shortLongCall(tc *responderCase) {
	m := getAttrCall(1)
	tc.peer.send(0, header(1, 8, rpcrdma.NoMsg, func(h *rpcrdma.Header) { addReads(h, 0, tc.pulled(m, 1, 1, 4, 39)) }))
	tc.answer(tc.wantCall("a Long Call", m), getAttrReply(1))
	tc.peer.wantSend("its reply")
}

func replyHeaderOctets(tc *responderCase) {
	write, reply := tc.chunk(100, 20), tc.chunk(60)
	tc.peer.send(0, header(0xabcdef01, 1, rpcrdma.Msg, func(h *rpcrdma.Header) {
		h.AddWrite(write.segments...)
		h.AddWrite()
		h.SetReply(reply.segments...)
	}), readCall(0xabcdef01, 120))
	whole, at := readReply(0xabcdef01, pattern(110, 1))
	tc.answer(tc.wantCall("READ", readCall(0xabcdef01, 120)), whole)
	var want []byte
	segment := func(s rpcrdma.Segment, n uint32) {
		want = append(want, words(s.Handle, n, uint32(s.Offset>>32), uint32(s.Offset))...)
	}
	want = append(want, words(0xabcdef01, 1, 1, 0, 0)...) // 1 credit, RDMA_MSG, no Read list
	want = append(want, words(1, 2)...)                   // a Write chunk of 2 segments
	segment(write.segments[0], 100)
	segment(write.segments[1], 10)
	want = append(want, words(1, 0, 0)...) // an empty one, the end of the list
	want = append(want, words(1, 1)...)    // a Reply chunk of 1 segment
	segment(reply.segments[0], 0)
	if s := tc.peer.wantSend("its reply"); !bytes.Equal(s.octets, append(want, whole[:at]...)) {
		tc.t.Errorf("sent\n%x\nwant\n%x", s.octets, want)
	}
}

func otherRPCVersions(tc *responderCase) {
	for _, version := range []uint32{0, 1, 3, 0xffffffff} {
		inline, data := getAttrCall(1), append([]byte(nil), writeOf1000...)
		copy(inline[8:], words(version))
		copy(data[8:], words(version))
		for what, m := range map[string][][]byte{
			"inline":            message(rpcrdma.Msg, inline, func(*rpcrdma.Header) {}),
			"its version alone": message(rpcrdma.Msg, inline[:12], func(*rpcrdma.Header) {}),
			"a Long Call":       message(rpcrdma.NoMsg, nil, func(h *rpcrdma.Header) { addReads(h, 0, tc.pulled(inline)) }),
			"a Read chunk":      message(rpcrdma.Msg, data[:writePos], func(h *rpcrdma.Header) { addReads(h, writePos, tc.pulled(data[writePos:])) }),
		} {
			tc.peer.send(0, m...)
			tc.wantNoCall("it is of another version")
			s := tc.peer.wantSend("its reply")
			if want := words(1, 1, 1, 0, 2, 2); s.Proc != rpcrdma.Msg || !bytes.Equal(s.payload, want) {
				tc.t.Errorf("RPC version %d, %s: %+v %x, want RPC_MISMATCH", version, what, &s.Header, s.payload)
			}
		}
	}
	tc.alive()
	tc.drained()
}

func errorForServedCall(tc *responderCase) {
	tc.peer.send(0, plain(1, 8), getAttrCall(1))
	x := tc.wantCall("a call", getAttrCall(1))
	tc.peer.send(0, words(1, 1, 8, 4, 2))
	tc.peer.wantIdle("discarded")
	tc.answer(x, getAttrReply(1))
	tc.peer.wantSend("the call is answered all the same")
	tc.alive()
}

func repliesAroundThreshold(tc *responderCase) {
	for n := 3900; n <= 4200; n += 4 {
		o := tc.chunk(5000)
		tc.peer.send(0, header(1, 8, rpcrdma.Msg, func(h *rpcrdma.Header) { h.SetReply(o.segments...) }), opaqueCall(1, 8))
		m := accepted(1, pattern(n-24, 3))
		var cuts []int
		if n%8 == 0 {
			cuts = []int{24, 100}
		}
		tc.answer(tc.wantCall("a call", opaqueCall(1, 8)), m, cuts...)
		s := tc.peer.wantSend("its reply")
		if len(s.octets) > 4096 || (s.Proc == rpcrdma.Msg) != (28+4+16+n <= 4096) {
			tc.t.Errorf("a reply of %d octets: %+v, sent %d", n, &s.Header, len(s.octets))
		}
	}
}
