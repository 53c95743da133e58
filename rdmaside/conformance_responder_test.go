package rdmaside

import (
	"bytes"
	"encoding/binary"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/regmem"
	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric/fabrictest"
	"github.com/rdmabridge/rdmabridge/rdmaside/rpcrdma"
)

func TestConformanceResponder(t *testing.T) {
	cases := responderRules()
	wantSections(t, cases, responderSentRules, `
		3.3.1 3.3.3 3.4.2 3.4.4.1 3.4.4.2 3.4.4.3 3.4.4.4 3.4.5 3.4.5.2 3.4.6 3.4.6.2 3.5.3
		4 4.2.1 4.2.2 4.2.4 4.3.1 4.3.2 4.3.2.1 4.3.2.2 4.3.2.3 4.3.3 4.5 4.5.1 4.5.2 4.5.3 4.5.4 4.6.1 4.6.2`)
	conform(t, "Responder", responderTest, cases, responderSentRules)
}

// responderSentRules hold for everything a Responder sends.
var responderSentRules = []sentRule{
	{"3.3.1", "the granted value MUST NOT be zero", func(m *sentMessage) bool { return m.words[2] == 0 }, []*sentMessage{broken(plain(1, 0), getAttrReply(1))}},
	{"3.3.3", "no more than 4096 octets, or 1024 without private data, in one Send", func(m *sentMessage) bool { return len(m.octets) > m.inline }, []*sentMessage{
		newSentMessage(make([]byte, 4100), false, 0), newSentMessage(make([]byte, 1028), false, 1024),
	}},
	{"4", "the header MUST be XDR encoded", func(m *sentMessage) bool {
		return !m.ok && m.words[3] != uint32(rpcrdma.Error) || len(m.octets)%4 != 0
	}, []*sentMessage{broken(words(1, 1, 8, 0, 2, 0, 0)), broken(plain(1, 8), make([]byte, 41))}},
	{"4.2.1", "this XID MUST be the same as the XID in the RPC message", func(m *sentMessage) bool {
		return len(m.payload) > 0 && (len(m.payload) < 4 || binary.BigEndian.Uint32(m.payload) != m.words[0])
	}, []*sentMessage{broken(plain(1, 8), getAttrReply(2)), broken(plain(1, 8), []byte{0})}},
	{"4.2.2", "this field MUST contain the value one, but for an RDMA_ERROR about another", func(m *sentMessage) bool {
		return m.words[1] != 1 && (len(m.octets) != 28 || !bytes.Equal(m.octets[12:], words(4, 1, 1, 1)))
	}, []*sentMessage{broken(words(1, 2, 8, 0, 0, 0, 0), getAttrReply(1)), broken(words(1, 2, 8, 4, 2)), broken(words(1, 2, 8, 4, 1, 1, 2))}},
	{"4.2.4", "RDMA_NOMSG: one chunk list MUST be present and MUST hold the Payload stream; nothing is inline", func(m *sentMessage) bool {
		return m.words[3] == uint32(rpcrdma.NoMsg) && (m.header.Reply == nil || m.header.Reply.Length() < oncrpc.MinReply || len(m.payload) != 0)
	}, []*sentMessage{
		broken(header(1, 8, rpcrdma.NoMsg)), broken(header(1, 8, rpcrdma.NoMsg, replyOf(8))), broken(header(1, 8, rpcrdma.NoMsg, replyOf(100)), getAttrReply(1)),
	}},
	{"4.3.1", "Responders MUST leave the Read list empty in all replies", func(m *sentMessage) bool { return len(m.header.Reads) != 0 }, []*sentMessage{
		broken(header(1, 8, rpcrdma.Msg, readAtPosition(40, 8)), getAttrReply(1)),
	}},
	{"4.6.1", "senders MUST NOT send RDMA_MSGP", func(m *sentMessage) bool { return m.words[3] == uint32(rpcrdma.MsgP) }, []*sentMessage{broken(header(1, 8, rpcrdma.MsgP))}},
	{"4.6.2", "senders MUST NOT send RDMA_DONE", func(m *sentMessage) bool { return m.words[3] == uint32(rpcrdma.Done) }, []*sentMessage{broken(words(1, 1, 8, 3))}},
}

// replyOf adds a Reply chunk of n octets to a header.
func replyOf(n uint32) func(h *rpcrdma.Header) {
	return func(h *rpcrdma.Header) { h.SetReply(rpcrdma.Segment{Handle: 1, Length: n}) }
}

// readAtPosition adds segments of the given lengths to a header, all at one Position.
func readAtPosition(position uint32, lengths ...uint32) func(h *rpcrdma.Header) {
	return func(h *rpcrdma.Header) {
		for _, n := range lengths {
			h.AddRead(position, rpcrdma.Segment{Handle: 1, Length: n})
		}
	}
}

type responderRule = conformanceCase[*responderCase]

// noPrivateData makes the Requester one without the private data of RFC 8797.
func noPrivateData(tc *responderCase) { tc.dial.PrivateData = nil }

// answered makes and answers one Call, so that the grant is more than one.
func (tc *responderCase) answered() {
	tc.t.Helper()
	tc.peer.send(0, plain(0xfeed, 128), getAttrCall(0xfeed))
	tc.answer(tc.wantCall("the first call", getAttrCall(0xfeed)), getAttrReply(0xfeed))
	tc.peer.wantSend("the first reply")
}

// alive asserts that the connection serves Calls.
func (tc *responderCase) alive() {
	tc.t.Helper()
	tc.wantUp("the connection goes on")
	tc.peer.send(0, plain(0xa11e, 8), getAttrCall(0xa11e))
	tc.answer(tc.wantCall("the next call", getAttrCall(0xa11e)), getAttrReply(0xa11e))
	tc.peer.wantSend("its reply")
}

// writes returns a rule that a COMPOUND with a Write list shows.
func writes(section, says string, w writesCase) responderRule {
	w.name = says
	return responderRule{section: section, says: says, run: func(tc *responderCase) { w.run(tc, 0x51) }}
}

// departing returns r as a rule that is not kept, for the given reason.
func departing(r responderRule, why string) responderRule {
	r.departs = why
	return r
}

// errChunkRule returns a rule whose message is answered ERR_CHUNK.
func errChunkRule(section, says string, build func(tc *responderCase) [][]byte) responderRule {
	return responderRule{section: section, says: says, run: func(tc *responderCase) {
		tc.peer.send(0, build(tc)...)
		tc.wantNoCall("the call must not be processed")
		tc.wantError(says, 1, rpcrdma.ErrChunk)
		tc.alive()
		tc.drained()
	}}
}

// drained removes the message that alive added to the history.
func (tc *responderCase) drained() {
	tc.peer.mu.Lock()
	defer tc.peer.mu.Unlock()
	tc.peer.history = tc.peer.history[:len(tc.peer.history)-1]
}

func garbageArgs(section, says string, build func(tc *responderCase) [][]byte) responderRule {
	return responderRule{section: section, says: says, run: func(tc *responderCase) {
		tc.peer.send(0, build(tc)...)
		tc.wantNoCall("the call must not be processed")
		s := tc.peer.wantSend(says)
		if want := append(accepted(1)[:20], 0, 0, 0, 4); s.Proc != rpcrdma.Msg || !bytes.Equal(s.payload, want) {
			tc.t.Errorf("%+v %x, want GARBAGE_ARGS in RDMA_MSG", &s.Header, s.payload)
		}
		tc.alive()
		tc.drained()
	}}
}

func silence(section, says string, octets ...[]byte) responderRule {
	return responderRule{section: section, says: says, run: func(tc *responderCase) {
		for _, b := range octets {
			tc.peer.send(0, b)
			tc.wantNoCall(says)
			tc.peer.wantIdle(says)
		}
		if n := tc.c.Outstanding(); n != 0 {
			tc.t.Errorf("%d calls outstanding", n)
		}
		tc.alive()
		tc.drained()
	}}
}

// message returns a header with the XID 1, and payload.
func message(proc rpcrdma.Proc, payload []byte, edit func(h *rpcrdma.Header)) [][]byte {
	return [][]byte{header(1, 8, proc, edit), payload}
}

// responderRules returns all rules, in the order of the table.
func responderRules() []responderRule {
	return slices.Concat(responderCreditRules, responderReductionRules, responderMessageRules, responderChunkRules,
		responderErrorRules, responderHeaderRules, responderFailureRules, responderOtherRules)
}

// Results and Calls that the rules use.
var (
	shortRead  = readResult(pattern(7, 4))
	longRead   = readResult(pattern(6001, 3))
	emptyRead  = readResult([]byte{})
	failedRead = plainResult(25, 70)
	linkText   = readlinkResult(pattern(33, 2))
	putFH      = plainResult(22, 0)

	// manyAttributes is a long result of GETATTR, which may not be reduced.
	manyAttributes = result{octets: append(words(9, 0, 0), opaque(pattern(5000, 5))...)}

	// writeOf1000 is a WRITE whose data begin at writePos.
	writeOf1000 = writeCall(1, pattern(1000, 1))
	writePos    = len(writeOf1000) - 1000
)

// smallMemory gives the Responder little memory.
func smallMemory(tc *responderCase) {
	tc.replies = tc.arena.Account("small", 192<<10)
	tc.opts.Memory = tc.replies
}

// sleep lets time pass. The race detector must see that the test's reads so far
// come before what the loop does meanwhile.
func (tc *responderCase) sleep(d time.Duration) {
	tc.loop.Do(func() {})
	time.Sleep(d)
}

// holdReads makes the fake Requester serve n RDMA Reads only, and more each time
// serve is called.
func (tc *responderCase) holdReads(n int32) (serve func(more int32)) {
	var left atomic.Int32
	left.Store(n)
	tc.provider.Inject(func(op fabrictest.Operation) fabrictest.Verdict {
		if op.Op == fabric.OpRead && left.Add(-1) < 0 {
			left.Store(0)
			return fabrictest.Hold
		}
		return fabrictest.Pass
	})
	return func(more int32) {
		left.Add(more)
		tc.provider.Resume(tc.c.conn)
		synctest.Wait()
	}
}

// hold leases the Responder's memory until less than n octets in a row are left.
func (tc *responderCase) hold(n int) *held {
	h := &held{}
	for size := 128 << 10; size >= n; size /= 2 {
		for {
			l, err := tc.opts.Memory.Lease(size)
			if err != nil {
				break
			}
			h.leases = append(h.leases, l)
		}
	}
	return h
}

type held struct{ leases []*regmem.Lease }

func (h *held) Release() {
	for _, l := range h.leases {
		l.Release()
	}
}

// answer2 is like answer, for a Reply whose memory is not released yet.
func (tc *responderCase) answer2(x *Exchange, m []byte) {
	b := tc.lend(m)
	tc.loop.Do(func() { x.Reply([][]byte{b}, nil) })
	synctest.Wait()
}
