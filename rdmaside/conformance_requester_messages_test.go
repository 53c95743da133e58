package rdmaside

import (
	"bytes"
	"errors"
	"slices"
	"time"

	"github.com/rdmabridge/rdmabridge/rdmaside/rpcrdma"
)

// requesterMessageRules are the rules of Sections 3.5 to 4.4: the forms of messages,
// the chunk lists, and the memory behind them.
var requesterMessageRules = []requesterRule{
	{section: "3.5.3", says: "a Payload stream that is too large when reduced MUST be conveyed by RDMA Read or Write; Long Calls and Long Replies, answered either way", same: TestRequesterLong},
	{section: "3.5.3", says: "such chunks MUST include XDR roundup padding: a Long Call with a WRITE of 8001 octets in it; a Long Reply whose length is not whole units is none", run: longWithRoundup},
	{section: "4", says: "the header MUST be XDR encoded: octets of a Call with a Write chunk, of one with a Read chunk, of one with both long", run: callHeaderOctets},
	{section: "4.3.1", says: "no DDP-eligible argument and no Position Zero Read chunk: the Read list is empty; no possible DDP-eligible result: the Write list is", run: listsEmpty},
	{section: "4.3.2", says: "if there is no possible DDP-eligible result, the Write list is empty: WRITE, and READ of no octets", run: noWriteList},
	{section: "4.3.2.2", says: "MUST NOT assume that the memory regions of a Write chunk have not been modified: written, and returned unused or shorter", run: modifiedChunkIgnored},
	{section: "4.3.2.2", says: "MUST provision each Write chunk for the largest item that can be placed in it: a COMPOUND with two READs is offered none, but a Reply chunk for both", run: twoReadsOneReplyChunk},
	{section: "4.3.3", says: "MUST provide a Reply chunk whenever the reply may be larger than the inline threshold; otherwise it is not present: READDIR of 3800 to 4200 octets", run: replyChunkWhenNeeded},
	{section: "4.4.1", says: "memory regions must be protected from the Responder before the upper layer has access: their handles are dead when the Reply is given", run: handlesInvalidated},
	{section: "4.4.1", says: "protected before the upper layer has access: an invalidation that takes its time keeps the Reply back", same: TestRequesterAsyncInvalidate},
	canceled("those that a lost connection ends", errLost, func(tc *requesterCase) { tc.provider.Break(tc.r.conn, errLost) }),
	canceled("those of a connection that is closed here", errLost, func(tc *requesterCase) { tc.loop.Do(func() { tc.r.Close(errLost) }) }),
	canceled("those that pass their deadline", ErrDeadline, func(tc *requesterCase) { tc.sleep(61 * time.Second) }),
}

var errLost = errors.New("cable cut")

// canceled returns a rule about Calls with chunks of each kind that are canceled: when the upper
// layer hears of the first, the Responder can reach the memory of none.
func canceled(says string, is error, cancel func(tc *requesterCase)) requesterRule {
	return requesterRule{section: "4.4.1", says: "this includes memory of canceled RPCs: " + says, run: func(tc *requesterCase) {
		tc.open(8)
		idle := tc.replies.Used()
		tc.send(readCall(1, 65536))
		tc.send(writeCall(2, data8001))
		tc.send(opaqueCall(3, 100))
		tc.wantHandles("one for each Call", 3)
		tc.peer.write(tc.peer.wantSend("READ").Writes[0].Segments[0], pattern(100, 1))
		if n := tc.replies.Used(); n < idle+65536 {
			tc.t.Errorf("%d octets are lent, %d before", n, idle)
		}
		var live []int
		tc.onDone = func(*Call, *CallError) { live = append(live, tc.provider.Counts(tc.r.conn).Handles) }
		cancel(tc)
		for xid := range uint32(3) {
			tc.wantFate("canceled", xid+1, InLimbo, is)
		}
		if !slices.Equal(live, []int{0, 0, 0}) {
			tc.t.Errorf("%d live handles when the Calls ended", live)
		}
		if n := tc.replies.Used(); n > idle {
			tc.t.Errorf("%d octets are lent at the end, %d before", n, idle)
		}
	}}
}

func longWithRoundup(tc *requesterCase) {
	tc.open(8)
	m := gssCall(1, 2, data8001)
	tc.send(m)
	s := tc.peer.wantSend("a Long Call")
	if s.ReadLength(0) != uint64(len(m)) || len(m)%4 != 0 || !bytes.Equal(tc.peer.read(s.Reads[0].Segment), m) {
		tc.t.Fatalf("%+v", &s.Header)
	}
	tc.send(opaqueCall(2, 100))
	seg := tc.peer.wantSend("a call").Reply.Segments[0]
	tc.peer.write(shortened(seg, 125), accepted(2, pattern(101, 1)))
	tc.peer.send(0, header(2, 8, rpcrdma.NoMsg, func(h *rpcrdma.Header) { h.SetReply(shortened(seg, 125)) }))
	tc.wantFate("125 octets are no Payload stream", 2, Answered, errInvalidReply)
}

func callHeaderOctets(tc *requesterCase) {
	tc.open(8)
	check := func(why string, m []byte, header func(s *wantedSend) []byte, payload []byte) {
		tc.t.Helper()
		tc.send(m)
		s := tc.peer.wantSend(why)
		if want := append(header(s), payload...); !bytes.Equal(s.octets, want) {
			tc.t.Errorf("%s: sent\n%x\nwant\n%x", why, s.octets, want)
		}
	}
	segment := func(s rpcrdma.Segment) []byte {
		return words(s.Handle, s.Length, uint32(s.Offset>>32), uint32(s.Offset))
	}
	check("READ", read8192, func(s *wantedSend) []byte {
		return bytes.Join([][]byte{words(1, 1, 8, 0, 0, 1, 1), segment(s.Writes[0].Segments[0]), words(0, 0)}, nil)
	}, read8192)
	w := writeCall(2, data8001)
	at := len(w) - 8004
	check("WRITE", w, func(s *wantedSend) []byte {
		return bytes.Join([][]byte{words(2, 1, 8, 0, 1, uint32(at)), segment(s.Reads[0].Segment), words(0, 0, 0)}, nil)
	}, w[:at])
	check("a Long Call", opaqueCall(3, 9000), func(s *wantedSend) []byte {
		return bytes.Join([][]byte{words(3, 1, 8, 1, 1, 0), segment(s.Reads[0].Segment), words(0, 0, 1, 2), segment(s.Reply.Segments[0]), segment(s.Reply.Segments[1])}, nil)
	}, nil)
}

func listsEmpty(tc *requesterCase) {
	tc.open(8)
	for _, m := range [][]byte{getAttrCall(1), nfsCall(1, procNull), nfsCall(1, procPathconf, handle32), nfsCall(1, procReaddir, handle32, words(0, 0, 0, 0, 32768))} {
		tc.send(m)
		s := tc.peer.wantSend("a call without items")
		if len(s.Reads) != 0 || len(s.Writes) != 0 {
			tc.t.Errorf("%+v", &s.Header)
		}
		tc.peer.send(0, header(1, 8, rpcrdma.Msg, func(h *rpcrdma.Header) {
			if s.Reply != nil {
				h.SetReply(shortened(s.Reply.Segments[0], 0))
			}
		}), accepted(1))
		tc.wantReply("its reply", accepted(1))
	}
}

func noWriteList(tc *requesterCase) {
	tc.open(8)
	for _, m := range [][]byte{writeCall(1, data8001), readCall(1, 0)} {
		tc.send(m)
		if s := tc.peer.wantSend("a call"); len(s.Writes) != 0 {
			tc.t.Errorf("%+v", &s.Header)
		}
		tc.peer.send(0, plain(1, 8), accepted(1, words(70, 0, 0)))
		tc.wantReply("its reply", accepted(1, words(70, 0, 0)))
	}
}

func modifiedChunkIgnored(tc *requesterCase) {
	tc.open(8)
	failed := accepted(1, words(70, 0))
	tc.send(read8192)
	seg := tc.peer.wantSend("READ").Writes[0].Segments[0]
	tc.peer.write(seg, bytes.Repeat([]byte{0xee}, int(seg.Length)))
	tc.peer.send(0, header(1, 8, rpcrdma.Msg, func(h *rpcrdma.Header) { h.AddWrite(shortened(seg, 0)) }), failed)
	tc.wantReply("written and then unused", failed)
	for _, n := range []int{101, 8001, 8189} {
		tc.send(read8192)
		seg = tc.peer.wantSend("READ").Writes[0].Segments[0]
		tc.peer.write(seg, bytes.Repeat([]byte{0xee}, int(seg.Length)))
		tc.peer.write(shortened(seg, n), pattern(n, 1))
		want, at := readReply(1, pattern(n, 1))
		tc.peer.send(0, header(1, 8, rpcrdma.Msg, func(h *rpcrdma.Header) { h.AddWrite(shortened(seg, n)) }), cut(want, at, n))
		tc.wantReply("what was written behind the data, and where roundup goes, is not seen", want)
	}
}

func twoReadsOneReplyChunk(tc *requesterCase) {
	m := compoundCall(1, readOp(9000), readOp(12000))
	tc.send(m)
	s := tc.peer.wantSend("two READs")
	if len(s.Writes) != 0 || s.Reply == nil || s.Reply.Length() < 21000+24+12+2*16 {
		tc.t.Fatalf("%+v", &s.Header)
	}
	whole, _ := compoundReply(1, readResult(pattern(9000, 1)), readResult(pattern(12000, 2)))
	tc.peer.write(shortened(s.Reply.Segments[0], len(whole)), whole)
	tc.peer.send(0, header(1, 8, rpcrdma.NoMsg, func(h *rpcrdma.Header) { h.SetReply(shortened(s.Reply.Segments[0], len(whole))) }))
	tc.wantReply("both", whole)
}

func replyChunkWhenNeeded(tc *requesterCase) {
	tc.open(8)
	for n := 3800; n <= 4200; n += 4 {
		tc.send(nfsCall(1, procReaddir, handle32, words(0, 0, 0, 0, uint32(n))))
		s := tc.peer.wantSend("READDIR")
		// header, RPC header, status, post_op_attr, cookieverf, entries
		if most := 24 + 4 + 88 + 8 + n; (28+most > 4096) != (s.Reply != nil) || s.Reply != nil && s.Reply.Length() < uint64(most) {
			tc.t.Errorf("READDIR of %d: %+v", n, &s.Header)
		}
		tc.peer.send(0, plain(1, 8), accepted(1))
		tc.wantReply("its reply", accepted(1))
	}
}

func handlesInvalidated(tc *requesterCase) {
	tc.open(8)
	live := -1
	tc.onDone = func(*Call, *CallError) { live = tc.provider.Counts(tc.r.conn).Handles }
	for _, async := range []bool{false, true} {
		tc.provider.AsyncInvalidate(async)
		tc.send(read8192)
		seg := tc.peer.wantSend("READ").Writes[0].Segments[0]
		tc.peer.write(shortened(seg, 8001), data8001)
		want, at := readReply(1, data8001)
		tc.peer.send(0, header(1, 8, rpcrdma.Msg, func(h *rpcrdma.Header) { h.AddWrite(shortened(seg, 8001)) }), cut(want, at, 8001))
		tc.wantReply("READ", want)
		if live != 0 {
			tc.t.Errorf("%d live handles when the Reply was given", live)
		}
		live = -1
	}
}
