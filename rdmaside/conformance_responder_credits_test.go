package rdmaside

import (
	"bytes"
	"testing/synctest"
	"time"

	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric/fabrictest"
	"github.com/rdmabridge/rdmabridge/rdmaside/rpcrdma"
)

// responderCreditRules are the rules of Section 3.3: credits and inline thresholds.
var responderCreditRules = []responderRule{
	{section: "3.3.1", says: "the granted value MUST NOT be zero, whatever is requested", run: grantsNeverZero},
	{
		section: "3.3.1", says: "an increase in receive resources MUST be effected before the next Reply: as many Calls as the Reply granted, at once, are received",
		run: grantedCallsReceived,
	},
	{section: "3.3.1", says: "an increase in receive resources MUST be effected before the next Reply, and the granted value is never exceeded by what it falls from: random use by honest Requesters", same: TestCreditsInvariant},
	{section: "3.3.1", says: "the granted value MAY be adjusted to available resources: a Requester that uses all it has does not have what others need", same: TestCreditsFlood},
	{section: "3.3.1", says: "if the granted value is exceeded, the RDMA layer may terminate the connection: a Requester that overruns its credits again and again", run: creditOverrun},
	{section: "3.3.1", says: "if the granted value is exceeded, the RDMA layer may signal an error, and need not: a Requester that was interrupted sends as many Calls as it was granted once more, and all are answered, in order", run: interruptedRequester},
	{section: "3.3.1", says: "Responders have to be prepared for no receive resources on a Requester with no pending RPC: a silent Requester hears nothing", run: silentRequester},
	{section: "3.3.1", says: "a slow Requester, whose Sends do not complete here, is held to a bounded number of answers", run: slowRequesterBounded},
	{
		section: "3.3.3", says: "receivers MUST support inline thresholds of 1024 bytes, and without private data MUST assume them", setup: noPrivateData,
		run: defaultThresholds, inline: 1024,
	},
	{
		section: "3.3.3", says: "in the absence of such a mechanism senders MUST assume 1024 bytes: a Reply of 1028 is not sent inline", setup: noPrivateData,
		run: defaultThresholdLongReply, inline: 1024,
	},
	{section: "3.3.3", says: "each connection provides one message at a time in the beginning: the second Call before the first Reply waits for it, the third is an overrun", run: secondCallBeforeReply},
}

func grantsNeverZero(tc *responderCase) {
	for i, requested := range []uint32{0, 1, 5, 0xffffffff, 0} {
		xid := uint32(i + 1)
		tc.peer.send(0, plain(xid, requested), getAttrCall(xid))
		tc.answer(tc.wantCall("a call", getAttrCall(xid)), getAttrReply(xid))
		if s := tc.peer.wantSend("a reply"); s.Credits == 0 || s.Credits > max(requested, 1) {
			tc.t.Errorf("%d requested, %d granted", requested, s.Credits)
		}
		tc.peer.send(0, header(xid, requested, rpcrdma.MsgP))
		tc.wantError("an error grants too", xid, rpcrdma.ErrChunk)
	}
}

func grantedCallsReceived(tc *responderCase) {
	for _, requested := range []uint32{1, 2, 3, 5, 8, 128, 4, 128} {
		tc.peer.send(0, plain(1, requested), getAttrCall(1))
		tc.answer(tc.wantCall("a call", getAttrCall(1)), getAttrReply(1))
		granted := tc.peer.wantSend("a reply").Credits
		fabrictest.Do(tc.peerLoop, func() {
			for i := range granted {
				m := append(plain(100+i, requested), getAttrCall(100+i)...)
				if err := tc.peer.conn.PostSend(uint64(100+i), fabric.Send{Parts: [][]byte{m}}); err != nil {
					tc.t.Error(err)
				}
			}
		})
		tc.wantUp("it was granted")
		for i := range granted {
			tc.answer(tc.wantCall("one of those granted", getAttrCall(100+i)), getAttrReply(100+i))
			tc.peer.wantSend("its reply")
		}
	}
}

func creditOverrun(tc *responderCase) {
	tc.answered()
	granted := uint32(0)
	tc.peer.send(0, plain(1, 128), getAttrCall(1))
	tc.answer(tc.wantCall("a call", getAttrCall(1)), getAttrReply(1))
	granted = tc.peer.wantSend("a reply").Credits
	for i := range granted {
		tc.peer.send(0, plain(10+i, 128), getAttrCall(10+i))
	}
	tc.wantUp("it was granted")
	for i := range uint32(64) { // credits may be granted and not used yet
		tc.peer.send(0, plain(100+i, 128), getAttrCall(100+i))
	}
	tc.wantEnded("the Responder has seen it, before the provider had no Receive", errOverrun)
	if n := tc.c.Outstanding(); n > int(granted)+1 {
		tc.t.Errorf("%d outstanding, %d granted", n, granted)
	}
}

// interruptedRequester plays Linux whose processes are killed twice, with time between for the
// Responder to answer.
func interruptedRequester(tc *responderCase) {
	tc.answered()
	tc.peer.send(0, plain(1, 128), getAttrCall(1))
	tc.answer(tc.wantCall("a call", getAttrCall(1)), getAttrReply(1))
	granted := tc.peer.wantSend("a reply").Credits
	for round := range uint32(2) {
		first := 1000 * (round + 1)
		for i := range 2 * granted {
			tc.peer.send(0, plain(first+i, 128), getAttrCall(first+i))
		}
		tc.wantUp("it was interrupted once")
		if n := tc.c.Outstanding(); n != int(granted) {
			tc.t.Errorf("%d calls are outstanding under a grant of %d", n, granted)
		}
		for i := range 2 * granted {
			tc.answer(tc.wantCall("one of all", getAttrCall(first+i)), getAttrReply(first+i))
			if s := tc.peer.wantSend("its reply"); s.XID != first+i || s.Credits != granted {
				tc.t.Fatalf("the reply to %d grants %d; want that to %d, and %d", s.XID, s.Credits, first+i, granted)
			}
		}
	}
}

func silentRequester(tc *responderCase) {
	tc.sleep(24 * time.Hour)
	tc.peer.wantIdle("nothing was asked")
	tc.wantUp("how long a Requester may idle is the listener's to say")
}

func slowRequesterBounded(tc *responderCase) {
	tc.answered()
	tc.provider.Inject(func(op fabrictest.Operation) fabrictest.Verdict {
		if !op.Dialed {
			return fabrictest.Hold
		}
		return fabrictest.Pass
	})
	for xid := range uint32(500) {
		if synctest.Wait(); tc.ended != 0 {
			break
		}
		tc.peer.send(0, plain(xid, 8), getAttrCall(xid))
		if synctest.Wait(); len(tc.exchanges) > 0 {
			tc.answer2(tc.exchanges[0], getAttrReply(xid))
			tc.exchanges = tc.exchanges[1:]
		}
	}
	synctest.Wait()
	if n := len(tc.c.exchanges); tc.ended != 1 || n > 4*tc.opts.Credits+len(tc.c.recvs.buffers) {
		tc.t.Errorf("ended %d times, %d exchanges", tc.ended, n)
	}
}

func defaultThresholds(tc *responderCase) {
	call := opaqueCall(1, 1024-28-40)
	tc.peer.send(0, plain(1, 8), call)
	reply := accepted(1, pattern(1024-28-24, 3))
	tc.answer(tc.wantCall("1024 octets", call), reply)
	if s := tc.peer.wantSend("1024 octets"); len(s.octets) != 1024 || !bytes.Equal(s.payload, reply) {
		tc.t.Errorf("sent %d octets", len(s.octets))
	}
}

func defaultThresholdLongReply(tc *responderCase) {
	o := tc.chunk(2000)
	tc.peer.send(0, header(1, 8, rpcrdma.Msg, func(h *rpcrdma.Header) { h.SetReply(o.segments...) }), opaqueCall(1, 8))
	reply := accepted(1, pattern(1028-28-24, 3))
	tc.answer(tc.wantCall("a call", opaqueCall(1, 8)), reply)
	s := tc.peer.wantSend("a Long Reply")
	if s.Proc != rpcrdma.NoMsg {
		tc.t.Fatalf("%+v", &s.Header)
	}
	o.wantFilled(tc.t, "the Reply chunk", s.Reply, reply)
	tc.peer.send(0, plain(2, 8), opaqueCall(2, 8))
	tc.answer(tc.wantCall("a call", opaqueCall(2, 8)), accepted(2, pattern(1028-28-24, 3)))
	tc.wantError("there is no room for it", 2, rpcrdma.ErrChunk)
}

func secondCallBeforeReply(tc *responderCase) {
	tc.peer.send(0, plain(1, 128), getAttrCall(1))
	tc.peer.send(0, plain(2, 128), getAttrCall(2))
	tc.wantUp("the first call may have been given up")
	if n := tc.c.Outstanding(); n != 1 {
		tc.t.Errorf("%d calls are outstanding under a grant of 1", n)
	}
	tc.peer.send(0, plain(3, 128), getAttrCall(3))
	tc.wantEnded("three calls before the first reply", errOverrun)
}
