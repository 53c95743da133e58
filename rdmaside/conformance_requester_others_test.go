package rdmaside

import (
	"bytes"

	"github.com/rdmabridge/rdmabridge/rdmaside/rpcrdma"
)

// requesterOtherRules are the rules of RFC 8797 and RFC 8167.
var requesterOtherRules = []requesterRule{
	{section: "8797 4.1", says: "remote invalidation: MUST be of a handle of this XID only, or the connection is closed", same: TestRequesterRemoteInvalidation},
	{section: "8797 4", says: "senders MUST set the reserved bits to zero; the flag is set when it is meant", setup: func(tc *requesterCase) { tc.opts.RemoteInvalidation = true }, run: requesterReservedBits},
	{section: "8797 5.1", says: "no private data: MUST behave as if both sizes were zero, that is 1024", setup: func(tc *requesterCase) { tc.priv = rpcrdma.PrivateData{} }, run: noPrivateDataThresholds, inline: 1024},
	{section: "8167 4.1", says: "direction is that of the RPC message; credits are accounted separately: a reverse Call's are no grant", reverse: true, run: reverseCreditsApart},
	{section: "8167 5.2", says: "rdma_vers MUST be that of the Call; the Reply MUST start with the same XID, and its msg_type MUST be REPLY", reverse: true, run: reverseReplyFields},
	{section: "8167 5.3", says: "a non-empty chunk list, not supported: MUST reply RDMA_ERROR, ERR_CHUNK", reverse: true, run: reverseChunksRefused},
	{section: "8167 4.1", says: "a Responder that overruns its reverse credits loses Calls, not the connection", same: TestReverseCredits},
	{section: "8167 5.1", says: "the RPC Call header MUST start with the same XID; what is no Call is dropped; an answer that is too long is not sent", same: TestReverseRefusals},
}

func requesterReservedBits(tc *requesterCase) {
	b := tc.peer.conn.Info().PrivateData
	i := bytes.Index(b, []byte{0xf6, 0xab, 0x0e, 0x18})
	if i < 0 || len(b) < i+8 || b[i+4] != 1 || b[i+5] != 1 {
		tc.t.Fatalf("private data %x", b)
	}
	tc.alive()
}

func noPrivateDataThresholds(tc *requesterCase) {
	if i := tc.r.Info(); i.CallInline != 1024 || i.ReplyInline != 1024 {
		tc.t.Errorf("thresholds %d and %d", i.CallInline, i.ReplyInline)
	}
	tc.alive()
}

func reverseCreditsApart(tc *requesterCase) {
	tc.send(attrCall)
	tc.peer.wantSend("a call")
	tc.peer.send(0, plain(1, 64), callback(1, 8))
	if s := tc.peer.wantSend("an answer"); s.Credits == 0 {
		tc.t.Error("no reverse credits granted")
	}
	tc.wantNotDone("the XID is that of a Call, but not the direction")
	tc.wantRefused("the grant is one still", 2)
	tc.peer.send(0, plain(1, 8), getAttrReply(1))
	tc.wantReply("the forward call", getAttrReply(1))
}

func reverseReplyFields(tc *requesterCase) {
	for _, xid := range []uint32{0, 7, 0xffffffff} {
		tc.peer.send(0, plain(xid, 2), callback(xid, 40))
		s := tc.peer.wantSend("an answer")
		if s.XID != xid || s.Version != 1 || s.Proc != rpcrdma.Msg || len(s.payload) < 24 || !bytes.Equal(s.payload[:8], words(xid, 1)) {
			tc.t.Errorf("%+v, payload %x", &s.Header, s.payload)
		}
	}
}

func reverseChunksRefused(tc *requesterCase) {
	seg := rpcrdma.Segment{Handle: 7, Length: 4096, Offset: 9}
	for i, m := range [][][]byte{
		{header(5, 2, rpcrdma.Msg, func(h *rpcrdma.Header) { h.AddRead(40, seg) }), callback(5, 8)},
		{header(5, 2, rpcrdma.Msg, func(h *rpcrdma.Header) { h.AddWrite(seg) }), callback(5, 8)},
		{header(5, 2, rpcrdma.Msg, func(h *rpcrdma.Header) { h.SetReply(seg) }), callback(5, 8)},
		{header(5, 2, rpcrdma.NoMsg, func(h *rpcrdma.Header) { h.AddRead(0, seg) })},
	} {
		tc.peer.send(0, m...)
		s, ok := tc.peer.next()
		if !ok || len(s.octets) != 20 || !bytes.Equal(s.octets[:8], words(5, 1)) || !bytes.Equal(s.octets[12:], words(4, 2)) {
			tc.t.Errorf("%d: sent %x", i, s.octets)
		}
	}
	tc.alive()
}
