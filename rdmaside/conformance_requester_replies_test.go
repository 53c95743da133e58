package rdmaside

import (
	"time"

	"github.com/rdmabridge/rdmabridge/rdmaside/rpcrdma"
)

// requesterDiscardRules are the rules of Section 4.5 about messages that have no effect.
var requesterDiscardRules = []requesterRule{
	discarded("4.5", "a message shorter than 28 bytes MUST be silently discarded: every length", tooShort()...),
	discarded("4.5", "errors in the header of a Reply: MUST silently discard: versions 0, 2 and 2^32-1",
		append(words(1, 0, 8, 0, 0, 0, 0), getAttrReply(1)...), append(words(1, 2, 8, 0, 0, 0, 0), getAttrReply(1)...), words(1, 0xffffffff, 8, 1, 0, 0, 0)),
	discarded("4.5", "errors in the header of a Reply: MUST silently discard: unknown procedures, RDMA_NOMSG without chunks",
		append(words(1, 1, 8, 5, 0, 0, 0), getAttrReply(1)...), words(1, 1, 8, 0xffffffff, 0, 0, 0), words(1, 1, 8, 1, 0, 0, 0)),
	discarded("4.5", "errors in the header of a Reply: MUST silently discard: lists cut short, without an end, with impossible counts and flags",
		words(1, 1, 8, 0, 0, 1, 1), words(1, 1, 8, 0, 0, 1, 0xffffffff, 0, 0), words(1, 1, 8, 0, 2, 0, 0), words(1, 1, 8, 0, 0, 7, 0),
		words(1, 1, 8, 0, 0, 0, 9), words(1, 1, 8, 0, 1, 3, 1, 4, 0, 0, 0, 0, 0), words(1, 1, 8, 0, 0, 0, 1, 0x10000000, 0, 0)),
	discarded("4.5", "an RDMA_ERROR that cannot be decoded MUST be silently discarded",
		words(1, 1, 8, 4), words(1, 1, 8, 4, 0), words(1, 1, 8, 4, 99), words(1, 1, 8, 4, 1, 1), words(1, 2, 8, 4, 2, 0, 0)),
	discarded("4.5", "an RDMA_ERROR, or a Reply, for an XID that no Call has",
		words(2, 1, 8, 4, 2), words(2, 1, 8, 4, 1, 1, 1), append(plain(2, 8), getAttrReply(2)...), append(plain(0x01000000, 8), getAttrReply(0x01000000)...)),
	{section: "4.5", says: "receipt of RDMA_ERROR completes the RPC transaction with its XID, and no other; it is a permanent error", same: TestRequesterErrors},
	{section: "4.5", says: "a second Reply to the same Call answers none", run: secondReply},
}

func secondReply(tc *requesterCase) {
	tc.open(8)
	tc.send(attrCall)
	tc.send(getAttrCall(2))
	for range 3 {
		tc.peer.send(0, plain(1, 8), getAttrReply(1))
	}
	tc.wantReply("once", getAttrReply(1))
	tc.wantNotDone("and only once")
	tc.peer.send(0, plain(2, 8), getAttrReply(2))
	tc.wantReply("the other", getAttrReply(2))
}

// requesterContradictionRules are about Replies whose chunks do not match those offered.
var requesterContradictionRules = []requesterRule{
	contradiction("4.3.1", "a Read list, which Responders MUST leave empty", attrCall, func(*wantedSend) [][]byte {
		return inMsg(getAttrReply(1), func(h *rpcrdma.Header) { h.AddRead(4, rpcrdma.Segment{Handle: 1, Length: 4}) })
	}),
	contradiction("4.3.2", "a Write chunk that was not offered", attrCall, func(*wantedSend) [][]byte {
		return inMsg(getAttrReply(1), func(h *rpcrdma.Header) { h.AddWrite(rpcrdma.Segment{Handle: 1}) })
	}),
	contradiction("4.3.3", "a Reply chunk that was not offered", attrCall, func(*wantedSend) [][]byte {
		return inNoMsg(func(h *rpcrdma.Header) { h.SetReply(rpcrdma.Segment{Handle: 1, Length: 100}) })
	}),
	contradiction("4.3.2", "two Write chunks of one", read8192, func(s *wantedSend) [][]byte {
		seg := shortened(s.Writes[0].Segments[0], 0)
		return inMsg(readWhole, func(h *rpcrdma.Header) { h.AddWrite(seg); h.AddWrite(seg) })
	}),
	contradiction("3.4.6", "a Write chunk of two segments of one, whose count MUST be copied", read8192, func(s *wantedSend) [][]byte {
		seg := s.Writes[0].Segments[0]
		return inMsg(readBase, func(h *rpcrdma.Header) { h.AddWrite(shortened(seg, 8000), shortened(seg, 0)) })
	}),
	contradiction("3.4.6", "more octets in a Write chunk than it has room for", read8192, func(s *wantedSend) [][]byte {
		seg := s.Writes[0].Segments[0]
		return inMsg(readBase, func(h *rpcrdma.Header) { h.AddWrite(shortened(seg, int(seg.Length)+1)) })
	}),
	contradiction("4.3.3", "more octets in a Reply chunk than it has room for", opaqueOf100, func(s *wantedSend) [][]byte {
		seg := s.Reply.Segments[0]
		return inNoMsg(func(h *rpcrdma.Header) { h.SetReply(shortened(seg, int(seg.Length)+4)) })
	}),
	contradiction("4.3.3", "RDMA_MSG with octets in the Reply chunk", opaqueOf100, func(s *wantedSend) [][]byte {
		return inMsg(accepted(1), func(h *rpcrdma.Header) { h.SetReply(shortened(s.Reply.Segments[0], 100)) })
	}),
	contradiction("4.2.4", "RDMA_NOMSG with a Payload stream behind it", opaqueOf100, func(s *wantedSend) [][]byte {
		return append(inNoMsg(func(h *rpcrdma.Header) { h.SetReply(shortened(s.Reply.Segments[0], 100)) }), accepted(1))
	}),
}

// contradiction returns a rule about an answer that contradicts what its Call
// offered.
func contradiction(section, says string, call []byte, answer func(s *wantedSend) [][]byte) requesterRule {
	return refused(section, "a Reply that contradicts what was offered is not taken: "+says, reasonChunks, call, answer)
}

// requesterReplyRules are about other Replies, and about Replies that never come.
var requesterReplyRules = []requesterRule{
	{
		section: "4.5", says: "errors in the header of a Reply: MUST silently discard: lists that can be decoded and contradict what was offered",
		departs: "such a Reply is discarded, and its Call fails: Section 6.1 requires that the RPC is terminated, and its Call would have to wait for its deadline",
		same:    TestRequesterReplyDefects,
	},
	refused("4.2.1", "this XID MUST be the same as the XID in the RPC message: another one inline", reasonPayload, attrCall, func(*wantedSend) [][]byte {
		return inMsg(getAttrReply(2), noChunks)
	}),
	{section: "4.2.1", says: "this XID MUST be the same as the XID in the RPC message: another one in the Reply chunk", run: otherXIDInChunk},
	refused("4.2.4", "RDMA_NOMSG: one list MUST hold the Payload stream: the Reply chunk is empty", reasonPayload, opaqueOf100, func(s *wantedSend) [][]byte {
		return inNoMsg(func(h *rpcrdma.Header) { h.SetReply(shortened(s.Reply.Segments[0], 0)) })
	}),
	refused("4.5.2", "the Payload stream is no RPC Reply: 16 octets", reasonPayload, attrCall, func(*wantedSend) [][]byte { return inMsg(getAttrReply(1)[:16], noChunks) }),
	refused("4.5.2", "the Payload stream is no RPC Reply: message type 2", reasonPayload, attrCall, func(*wantedSend) [][]byte { return inMsg(words(1, 2, 0, 0, 0, 0), noChunks) }),
	refused("6.1", "a Responder reduces a result that is not DDP-eligible: the RPC MUST be terminated: octets written for an error", reasonPayload, read8192, func(s *wantedSend) [][]byte {
		return inMsg(accepted(1, words(70, 0)), func(h *rpcrdma.Header) { h.AddWrite(shortened(s.Writes[0].Segments[0], 8000)) })
	}),
	refused("3.4.6.2", "a returned Write chunk's total length MUST be that of the item: fewer octets written than its count says", reasonPayload, read8192, func(s *wantedSend) [][]byte {
		return inMsg(readBase, func(h *rpcrdma.Header) { h.AddWrite(shortened(s.Writes[0].Segments[0], 7000)) })
	}),
	{
		section: "6.1", says: "a Responder does not reduce an eligible result into an available Write chunk: MUST terminate the RPC",
		departs: "it is taken: what it means is plain, and the chunk is taken back like any",
		run:     resultInline,
	},
	{section: "4.5.4", says: "unable to construct and transmit a Call: the RPC transaction fails immediately", same: TestRequesterRegisterFails},
	{section: "4.5.4", says: "unable to invalidate a memory region: MUST close the connection before the RPC transaction is complete", same: TestRequesterInvalidateFails},
	discarded("4.6.1", "RDMA_MSGP: Requesters MUST silently discard the message", header(1, 8, rpcrdma.MsgP), append(header(1, 8, rpcrdma.MsgP), getAttrReply(1)...)),
	discarded("4.6.2", "receivers MUST silently discard RDMA_DONE", words(1, 1, 8, 3), words(1, 1, 8, 3, 0, 0, 0), append(words(1, 1, 8, 3, 0, 0, 0), getAttrReply(1)...)),
	{section: "3.3.1", says: "RPC calls complete in any order: a slow Responder answers the last first", run: anyOrder},
	{section: "4.5", says: "a silent Responder: no Call waits for ever, the connection ends and the Call is in limbo", run: silentResponder},
	{section: "4.5", says: "a Responder whose Replies cannot be decoded is a silent one: the discarded Reply's Call has its deadline", run: undecodableReplies},
}

func otherXIDInChunk(tc *requesterCase) {
	tc.send(opaqueOf100)
	seg := tc.peer.wantSend("a call").Reply.Segments[0]
	tc.peer.write(shortened(seg, 124), accepted(2, pattern(100, 1)))
	tc.peer.send(0, inNoMsg(func(h *rpcrdma.Header) { h.SetReply(shortened(seg, 124)) })...)
	tc.wantFate("no octet of it gets anywhere", 1, Answered, errInvalidReply)
	tc.alive()
}

func resultInline(tc *requesterCase) {
	tc.send(read8192)
	seg := tc.peer.wantSend("READ").Writes[0].Segments[0]
	short, _ := readReply(1, data8000[:100])
	tc.peer.send(0, inMsg(short, func(h *rpcrdma.Header) { h.AddWrite(shortened(seg, 0)) })...)
	tc.wantReply("inline", short)
}

func anyOrder(tc *requesterCase) {
	tc.open(8)
	for i := range uint32(8) {
		tc.send(getAttrCall(i))
	}
	for i := range uint32(8) {
		tc.sleep(time.Second)
		tc.peer.send(0, plain(7-i, 8), getAttrReply(7-i))
		tc.wantReply("in the order of the replies", getAttrReply(7-i))
	}
}

func silentResponder(tc *requesterCase) {
	tc.open(8)
	tc.send(attrCall)
	tc.sleep(59 * time.Second)
	tc.wantUp("59 s")
	tc.sleep(2 * time.Second)
	tc.wantEnded("61 s", ErrDeadline)
	tc.wantFate("the call", 1, InLimbo, ErrDeadline)
}

func undecodableReplies(tc *requesterCase) {
	tc.open(8)
	tc.send(attrCall)
	tc.peer.send(0, append(words(1, 2, 8, 0, 0, 0, 0), getAttrReply(1)...))
	tc.sleep(61 * time.Second)
	tc.wantEnded("61 s", ErrDeadline)
	tc.wantFate("the call", 1, InLimbo, ErrDeadline)
}
