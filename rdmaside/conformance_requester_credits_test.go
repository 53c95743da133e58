package rdmaside

import (
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric/fabrictest"
	"github.com/rdmabridge/rdmabridge/rdmaside/rpcrdma"
)

// requesterCreditRules are the rules of Section 3.3: credits and inline thresholds.
var requesterCreditRules = []requesterRule{
	{section: "3.3.1", says: "MUST NOT send unacknowledged requests in excess of the granted credit limit; the lower of requested and granted counts", run: grantObeyed},
	{section: "3.3.1", says: "MUST NOT send in excess of the limit: it falls below what is outstanding", same: TestRequesterCredits},
	{
		section: "3.3.1", says: "MUST maintain enough receive resources to accommodate expected replies: each is answered at once, in any order, with four reverse Calls", reverse: true,
		setup: func(tc *requesterCase) { tc.opts.IdleReceives = 1 }, // by default there are always enough
		run:   receivesForReplies,
	},
	{section: "3.3.1", says: "MUST maintain enough receive resources: Replies that are held on to, and no memory to replace their Receives", same: TestRequesterHeldReplies},
	{section: "3.3.1", says: "MUST maintain enough receive resources: those of an idle connection are fewer, those of a busy one are not", same: TestIdleReceives},
	{section: "3.3.3", says: "MUST NOT assume more than one credit, and MUST receive a valid reply before its next request", run: oneCreditAtFirst},
	{
		section: "3.3.3", says: "MUST support inline thresholds of 1024 bytes, and without private data MUST assume them: Calls of 1024 and 1028, a Reply of 1024",
		setup: func(tc *requesterCase) { tc.priv = rpcrdma.PrivateData{} },
		run:   smallThresholds, inline: 1024,
	},
	{section: "3.3.3", says: "an independent mechanism may be used: thresholds are the smaller of both sides', RFC 8797", same: TestRequesterThresholds},
}

func grantObeyed(tc *requesterCase) {
	tc.open(3)
	for _, granted := range []uint32{3, 8, 0, 1, 2, 0xffffffff, 5, 1000, 1} {
		may := min(tc.r.Grant(), 8)
		for i := range uint32(may) {
			tc.send(getAttrCall(100 + i))
			tc.peer.wantSend("a credit each")
		}
		tc.wantRefused("one more", 200)
		for i := range uint32(may) {
			tc.peer.send(0, plain(100+i, granted), getAttrReply(100+i))
			tc.wantReply("answered", getAttrReply(100+i))
		}
		if want := int(min(max(granted, 1), 8)); tc.r.Grant() != want {
			tc.t.Errorf("granted %d: may send %d, want %d", granted, tc.r.Grant(), want)
		}
	}
}

func receivesForReplies(tc *requesterCase) {
	tc.open(8)
	for range 20 {
		for i := range uint32(8) {
			tc.send(getAttrCall(i))
		}
		fabrictest.Do(tc.peerLoop, func() {
			post := func(m []byte) {
				if err := tc.peer.conn.PostSend(1<<20, fabric.Send{Parts: [][]byte{m}}); err != nil {
					tc.t.Error(err)
				}
			}
			for i := range uint32(4) {
				post(append(plain(i, 4), callback(i, 8)...))
			}
			for i := range uint32(8) {
				post(append(plain(7-i, 8), getAttrReply(7-i)...))
			}
		})
		for i := range uint32(8) {
			tc.wantReply("in the order of the replies", getAttrReply(7-i))
		}
	}
	if n := tc.provider.Counts(tc.r.conn).LowReceives; n < 1 {
		tc.t.Errorf("%d Receives were posted when a message came", n)
	}
	tc.wantUp("12 messages for 12 Receives")
}

func oneCreditAtFirst(tc *requesterCase) {
	tc.send(getAttrCall(1))
	tc.peer.wantSend("the first")
	for _, m := range [][]byte{
		append(plain(2, 8), getAttrReply(2)...), // of no call
		words(1, 1, 8, 3), header(1, 8, rpcrdma.MsgP), words(1, 2, 8, 0, 0, 0, 0), plain(1, 8)[:24],
	} {
		tc.peer.send(0, m)
		tc.wantRefused("no valid reply yet", 3)
	}
	tc.peer.send(0, plain(1, 8), getAttrReply(1))
	tc.wantReply("a valid reply", getAttrReply(1))
	tc.send(getAttrCall(3))
	tc.peer.wantSend("the second")
}

func smallThresholds(tc *requesterCase) {
	long := nfsCall(1, procGetAttr, make([]byte, 1024-28-40))
	tc.send(long)
	if s := tc.peer.wantSend("1024 octets with a Reply chunk are too many"); s.Proc != rpcrdma.NoMsg || len(s.octets) > 1024 {
		tc.t.Errorf("sent %d octets, %+v", len(s.octets), &s.Header)
	}
	reply := accepted(1, pattern(1024-28-24, 1))
	tc.peer.send(0, plain(1, 8), reply)
	tc.wantReply("1024 octets", reply)
	for n := 700; n < 1100; n += 4 {
		m := writeCall(2, pattern(n, 1))
		tc.send(m)
		s := tc.peer.wantSend("WRITE")
		if len(s.octets) > 1024 || (28+len(m) <= 1024) != (len(s.Reads) == 0) {
			tc.t.Errorf("a call of %d octets: sent %d, %+v", len(m), len(s.octets), &s.Header)
		}
		tc.peer.send(0, plain(2, 8), accepted(2))
		tc.wantReply("its reply", accepted(2))
	}
}
