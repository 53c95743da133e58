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
	{"3.3.1", "the granted value MUST NOT be zero", func(m *sentMessage) bool { return m.words[2] == 0 }},
	{"3.3.3", "no more than 4096 octets, or 1024 without private data, in one Send", func(m *sentMessage) bool { return len(m.octets) > 4096 }},
	{"4", "the header MUST be XDR encoded", func(m *sentMessage) bool {
		return !m.ok && m.words[3] != uint32(rpcrdma.Error) || len(m.octets)%4 != 0
	}},
	{"4.2.1", "this XID MUST be the same as the XID in the RPC message", func(m *sentMessage) bool {
		return len(m.payload) > 0 && (len(m.payload) < 4 || binary.BigEndian.Uint32(m.payload) != m.words[0])
	}},
	{"4.2.2", "this field MUST contain the value one, but for an RDMA_ERROR about another", func(m *sentMessage) bool {
		return m.words[1] != 1 && (len(m.octets) != 28 || !bytes.Equal(m.octets[12:], words(4, 1, 1, 1)))
	}},
	{"4.2.4", "RDMA_NOMSG: one chunk list MUST be present and MUST hold the Payload stream; nothing is inline", func(m *sentMessage) bool {
		return m.words[3] == uint32(rpcrdma.NoMsg) && (m.header.Reply == nil || m.header.Reply.Length() < oncrpc.MinReply || len(m.payload) != 0)
	}},
	{"4.3.1", "Responders MUST leave the Read list empty in all replies", func(m *sentMessage) bool { return len(m.header.Reads) != 0 }},
	{"4.6.1", "senders MUST NOT send RDMA_MSGP", func(m *sentMessage) bool { return m.words[3] == uint32(rpcrdma.MsgP) }},
	{"4.6.2", "senders MUST NOT send RDMA_DONE", func(m *sentMessage) bool { return m.words[3] == uint32(rpcrdma.Done) }},
}

type responderRule = conformanceCase[*responderCase]

// noPrivateData makes the Requester one that knows nothing of RFC 8797.
func noPrivateData(tc *responderCase) { tc.dial.PrivateData = nil }

// answered has one Call answered, so that the grant is more than one.
func (tc *responderCase) answered() {
	tc.t.Helper()
	tc.peer.send(0, plain(0xfeed, 128), getAttrCall(0xfeed))
	tc.answer(tc.wantCall("the first call", getAttrCall(0xfeed)), getAttrReply(0xfeed))
	tc.peer.wantSend("the first reply")
}

// alive shows that the connection serves Calls.
func (tc *responderCase) alive() {
	tc.t.Helper()
	tc.wantUp("the connection goes on")
	tc.peer.send(0, plain(0xa11e, 8), getAttrCall(0xa11e))
	tc.answer(tc.wantCall("the next call", getAttrCall(0xa11e)), getAttrReply(0xa11e))
	tc.peer.wantSend("its reply")
}

// writes is a rule that a COMPOUND with a Write list shows.
func writes(section, says string, w writesCase) responderRule {
	w.name = says
	return responderRule{section: section, says: says, run: func(tc *responderCase) { w.run(tc, 0x51) }}
}

// departing is r, which is not kept, and why.
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

// drained makes what was seen end before alive.
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

// message is a header with the XID 1 and what follows it.
func message(proc rpcrdma.Proc, payload []byte, edit func(h *rpcrdma.Header)) [][]byte {
	return [][]byte{header(1, 8, proc, edit), payload}
}

func responderRules() []responderRule {
	short, text, long := readResult(pattern(7, 4)), readlinkResult(pattern(33, 2)), readResult(pattern(6001, 3))
	fh, fails := plainResult(22, 0), plainResult(25, 70)
	many := result{octets: append(words(9, 0, 0), opaque(pattern(5000, 5))...)}
	write := writeCall(1, pattern(1000, 1))
	pos := len(write) - 1000
	return append(append([]responderRule{
		{section: "3.3.1", says: "the granted value MUST NOT be zero, whatever is requested", run: func(tc *responderCase) {
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
		}},
		{
			section: "3.3.1", says: "an increase in receive resources MUST be effected before the next Reply: as many Calls as the Reply granted, at once, are received",
			run: func(tc *responderCase) {
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
			},
		},
		{section: "3.3.1", says: "an increase in receive resources MUST be effected before the next Reply, and the granted value is never exceeded by what it falls from: random use by honest Requesters", same: TestCreditsInvariant},
		{section: "3.3.1", says: "the granted value MAY be adjusted to available resources: a Requester that uses all it has does not have what others need", same: TestCreditsFlood},
		{section: "3.3.1", says: "if the granted value is exceeded, the RDMA layer may terminate the connection: a Requester that overruns its credits", run: func(tc *responderCase) {
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
			synctest.Wait()
			if tc.ended != 1 || tc.endedErr == nil || tc.c.Outstanding() > int(granted)+1 {
				tc.t.Errorf("ended %d times: %v; %d outstanding, %d granted", tc.ended, tc.endedErr, tc.c.Outstanding(), granted)
			}
		}},
		{section: "3.3.1", says: "Responders have to be prepared for no receive resources on a Requester with no pending RPC: a silent Requester hears nothing", run: func(tc *responderCase) {
			tc.sleep(24 * time.Hour)
			tc.peer.wantIdle("nothing was asked")
			tc.wantUp("how long a Requester may idle is the listener's to say")
		}},
		{section: "3.3.1", says: "a slow Requester, whose Sends do not complete here, is held to a bounded number of answers", run: func(tc *responderCase) {
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
		}},
		{
			section: "3.3.3", says: "receivers MUST support inline thresholds of 1024 bytes, and without private data MUST assume them", setup: noPrivateData,
			run: func(tc *responderCase) {
				call := opaqueCall(1, 1024-28-40)
				tc.peer.send(0, plain(1, 8), call)
				reply := accepted(1, pattern(1024-28-24, 3))
				tc.answer(tc.wantCall("1024 octets", call), reply)
				if s := tc.peer.wantSend("1024 octets"); len(s.octets) != 1024 || !bytes.Equal(s.payload, reply) {
					tc.t.Errorf("sent %d octets", len(s.octets))
				}
			},
		},
		{
			section: "3.3.3", says: "in the absence of such a mechanism senders MUST assume 1024 bytes: a Reply of 1028 is not sent inline", setup: noPrivateData,
			run: func(tc *responderCase) {
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
			},
		},
		{section: "3.3.3", says: "each connection provides one message at a time in the beginning: the second Call before the first Reply is an overrun", run: func(tc *responderCase) {
			tc.peer.send(0, plain(1, 128), getAttrCall(1))
			tc.peer.send(0, plain(2, 128), getAttrCall(2))
			tc.wantEnded("two calls before the first reply", errOverrun)
		}},

		{section: "3.4.2", says: "all other XDR data items MUST NOT be reduced: Replies of READDIR, GETATTR, an unknown program, with a Write chunk offered", run: func(tc *responderCase) {
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
		}},
		{section: "3.4.2", says: "all other XDR data items MUST NOT be reduced: results under RPCSEC_GSS integrity and privacy", same: TestResponderWriteListProtected},
		garbageArgs("3.4.2", "all other XDR data items MUST NOT be reduced: a file handle in a Read chunk", func(tc *responderCase) [][]byte {
			m := getAttrCall(1)
			return message(rpcrdma.Msg, m[:44], func(h *rpcrdma.Header) { addReads(h, 44, tc.pulled(m[44:])) })
		}),
		{section: "3.4.2", says: "all other XDR data items MUST NOT be reduced: several Read chunks, each DDP-eligible or the Call is refused", same: TestResponderReadChunksEligible},
		errChunkRule("3.4.2", "all other XDR data items MUST NOT be reduced: arguments under RPCSEC_GSS integrity", func(tc *responderCase) [][]byte {
			gss := append(words(1, 0, 2, oncrpc.ProgramNFS, 3, procWrite, 6, 20, 1, 0, 1, 2, 0, 0, 0), write[40:]...)
			return message(rpcrdma.Msg, gss[:pos+20], func(h *rpcrdma.Header) { addReads(h, pos+20, tc.pulled(pattern(1000, 1))) })
		}),

		{section: "3.4.4.1", says: "the count of array elements MUST remain in the Payload stream, the elements MUST be moved to the chunk", run: func(tc *responderCase) {
			o := tc.chunk(1000)
			tc.peer.send(0, header(1, 8, rpcrdma.Msg, func(h *rpcrdma.Header) { h.AddWrite(o.segments...) }), readCall(1, 1000))
			whole, at := readReply(1, pattern(999, 2))
			tc.answer(tc.wantCall("READ", readCall(1, 1000)), whole)
			s := tc.peer.wantSend("its reply")
			o.wantFilled(tc.t, "the elements", &s.Writes[0], whole[at:at+999])
			if len(s.payload) != at || binary.BigEndian.Uint32(s.payload[at-4:]) != 999 {
				tc.t.Errorf("payload %x, want it to end with the count", s.payload)
			}
		}},
		{section: "3.4.4.2", says: "the \"is present\" field of optional-data MUST remain in the Payload stream: post_op_attr of READ, present and not", run: func(tc *responderCase) {
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
		}},
		{section: "3.4.4.3", says: "a union MUST NOT be DDP-eligible, but arms may be: the discriminant of READ's result stays, and so does the arm of failure", run: func(tc *responderCase) {
			o := tc.chunk(1000)
			tc.peer.send(0, header(1, 8, rpcrdma.Msg, func(h *rpcrdma.Header) { h.AddWrite(o.segments...) }), readCall(1, 1000))
			failed := accepted(1, words(70, 0))
			tc.answer(tc.wantCall("READ", readCall(1, 1000)), failed)
			s := tc.peer.wantSend("its reply")
			o.wantFilled(tc.t, "the chunk", &s.Writes[0], nil)
			if !bytes.Equal(s.payload, failed) {
				tc.t.Errorf("payload %x, want %x", s.payload, failed)
			}
		}},
		writes("3.4.4.4", "a chunk MUST contain exactly one XDR data item: two items, one chunk with room for both", writesCase{
			results: []result{short, text}, writes: [][]int{{8000}}, proc: rpcrdma.Msg,
		}),
		writes("3.4.4.4", "the sender MUST remove XDR roundup padding, so that what remains begins on four-byte alignment", writesCase{
			results: []result{readResult(pattern(1, 1)), fh, readResult(pattern(2, 1)), fh, readResult(pattern(3, 1)), fh, readResult(pattern(4, 1)), fh},
			writes:  [][]int{{9}, {9}, {9}, {9}}, proc: rpcrdma.Msg,
		}),

		{section: "3.4.5", says: "Position is computed from the beginning of the unreduced Payload stream; segments of one Position are concatenated in list order", same: TestResponderManyChunks},
		{section: "3.4.5", says: "segments of one Position are concatenated in list order, wherever in the list they are: two chunks and a Position Zero Read chunk, 60 segments in turns", run: func(tc *responderCase) {
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
		}},
		errChunkRule("3.4.5", "the value in this field MUST be a multiple of four", func(tc *responderCase) [][]byte {
			return message(rpcrdma.Msg, write[:pos], func(h *rpcrdma.Header) { addReads(h, pos+2, tc.pulled(pattern(1000, 1))) })
		}),
		{section: "3.4.5.2", says: "a chunk's length MUST be that of the item, or of the item and its roundup: both are taken, however they are cut", same: TestResponderReadChunk},
		garbageArgs("3.4.5.2", "a chunk's length MUST be that of the item: it is longer", func(tc *responderCase) [][]byte {
			return message(rpcrdma.Msg, write[:pos], func(h *rpcrdma.Header) { addReads(h, pos, tc.pulled(pattern(1004, 1))) })
		}),
		garbageArgs("3.4.5.2", "a chunk's length MUST be that of the item: it is shorter", func(tc *responderCase) [][]byte {
			return message(rpcrdma.Msg, write[:pos], func(h *rpcrdma.Header) { addReads(h, pos, tc.pulled(pattern(900, 1))) })
		}),
		garbageArgs("3.4.5.2", "a chunk's length MUST be that of the item: it is shorter, in a reduced Long Call", func(tc *responderCase) [][]byte {
			return message(rpcrdma.NoMsg, nil, func(h *rpcrdma.Header) {
				addReads(h, 0, tc.pulled(write[:pos]))
				addReads(h, pos, tc.pulled(pattern(900, 1)))
			})
		}),

		writes("3.4.6", "the Responder MUST copy the segment count and all segments, and updates each length; it fills them contiguously and in order", writesCase{
			results: []result{long}, writes: [][]int{{1, 0, 3000, 3001, 500}}, proc: rpcrdma.Msg,
		}),
		writes("3.4.6", "an unused Write chunk has its segments, all empty", writesCase{results: []result{fh}, writes: [][]int{{100, 200}}, proc: rpcrdma.Msg}),
		writes("3.4.6.2", "MUST NOT write XDR roundup padding into a Write chunk, even if the Requester made space; its total length MUST be that of the item", writesCase{
			results: []result{readResult(pattern(1001, 1)), readResult(pattern(1002, 1)), readResult(pattern(1003, 1)), readResult(pattern(1004, 1))},
			writes:  [][]int{{1004}, {1002, 2}, {1003, 1}, {1004, 4}}, proc: rpcrdma.Msg,
		}),

		{section: "3.5.3", says: "MUST use RDMA Read or Write to convey a Payload stream that is too large; MUST use the Reply chunk provided", same: TestResponderReplyChunk},
		writes("3.5.3", "the reply is first reduced; if it is still too large it goes into the Reply chunk, the item into its Write chunk", writesCase{
			results: []result{long, many}, writes: [][]int{{6001}}, reply: []int{3000, 8000}, proc: rpcrdma.NoMsg,
		}),
		writes("3.5.3", "the reply is first reduced; if it fits then it is a Short Message and the Reply chunk is not used", writesCase{
			results: []result{long}, writes: [][]int{{6001}}, reply: []int{8000}, proc: rpcrdma.Msg,
		}),
		writes("3.5.3", "such chunks MUST include XDR roundup padding: an item of 6001 octets that is not reduced, in a Reply chunk", writesCase{
			results: []result{long, fh}, reply: []int{8000}, proc: rpcrdma.NoMsg,
		}),
		{section: "3.5.3", says: "a Requester may use a Long Call at any time: one of 76 octets, in segments of any length", run: func(tc *responderCase) {
			m := getAttrCall(1)
			tc.peer.send(0, header(1, 8, rpcrdma.NoMsg, func(h *rpcrdma.Header) { addReads(h, 0, tc.pulled(m, 1, 1, 4, 39)) }))
			tc.answer(tc.wantCall("a Long Call", m), getAttrReply(1))
			tc.peer.wantSend("its reply")
		}},
		errChunkRule("3.5.3", "every segment of a Position Zero Read chunk MUST contain zero in its Position field: RDMA_NOMSG with another Position alone", func(tc *responderCase) [][]byte {
			return message(rpcrdma.NoMsg, nil, func(h *rpcrdma.Header) { addReads(h, 4, tc.pulled(getAttrCall(1))) })
		}),

		{section: "4", says: "the header MUST be XDR encoded: octets of a Reply with a Write list and a Reply chunk", run: func(tc *responderCase) {
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
		}},
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
			return message(rpcrdma.NoMsg, write, func(h *rpcrdma.Header) { addReads(h, 0, tc.pulled(write)) })
		}),
		silence("4.2.4", "a Responder MUST silently discard RDMA_ERROR procedures", words(1, 1, 8, 4, 2), words(1, 1, 8, 4, 1, 1, 1), words(0xfeed, 1, 8, 4, 2)),
		{section: "4.2.4", says: "a Responder MUST silently discard RDMA_ERROR procedures: with the XID of a Call that is being served", run: func(tc *responderCase) {
			tc.peer.send(0, plain(1, 8), getAttrCall(1))
			x := tc.wantCall("a call", getAttrCall(1))
			tc.peer.send(0, words(1, 1, 8, 4, 2))
			tc.peer.wantIdle("discarded")
			tc.answer(x, getAttrReply(1))
			tc.peer.wantSend("the call is answered all the same")
			tc.alive()
		}},
		{section: "4.2.4", says: "the total length of the gathered buffers cannot exceed the inline threshold: Replies of lengths around it, in one part and in three", run: func(tc *responderCase) {
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
		}},

		{section: "4.3.1", says: "Responders MUST leave the Read list empty in all replies: a Call with two Read chunks", run: func(tc *responderCase) {
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
		}},
		{section: "4.3.2", says: "when a Requester provides a Write list, the Responder MUST push DDP-eligible results and removes them from the Payload stream", same: TestResponderWriteChunk},
		writes("4.3.2", "MUST push DDP-eligible results: an item of a few octets, too", writesCase{results: []result{short}, writes: [][]int{{8}}, proc: rpcrdma.Msg}),
		writes("4.3.2", "a Write list that is not there: everything is returned inline or in the Reply chunk", writesCase{
			results: []result{short, text, long}, reply: []int{8000}, proc: rpcrdma.NoMsg,
		}),
		writes("4.3.2.1", "multiple Write chunks: one DDP-eligible result in each until there are no more results", writesCase{
			results: []result{long, text}, writes: [][]int{{6001}, {33}, {100, 100}, {5}}, proc: rpcrdma.Msg,
		}),
		writes("4.3.2.1", "multiple Write chunks: one DDP-eligible result in each until there are no more chunks", writesCase{
			results: []result{long, text, short}, writes: [][]int{{6001}, {33}}, proc: rpcrdma.Msg,
		}),
		{section: "4.3.2.1", says: "multiple Write chunks: 300 random COMPOUNDs with random Write lists", same: TestResponderWriteChunksRandom},
		writes("4.3.2.2", "a subsequent DDP-eligible result MUST be placed in the unconsumed Write chunk: results before it have none", writesCase{
			results: []result{fh, many, fh, long}, writes: [][]int{{6001}}, reply: []int{6000}, proc: rpcrdma.NoMsg,
		}),
		writes("4.3.2.2", "the last or only Write chunk, unconsumed, MUST be returned as an unused Write chunk", writesCase{
			results: []result{fh, fails}, writes: [][]int{{10, 6001}}, proc: rpcrdma.Msg,
		}),
		{section: "4.3.2.2", says: "MUST be returned as an unused Write chunk: an RPC error, an NFS error, a procedure and a program without such results", same: TestResponderWriteListUnused},
		writes("4.3.2.3", "an empty Write chunk: MUST return the result inline and an empty Write chunk in that position", writesCase{
			results: []result{long, text, long}, writes: [][]int{{6001}, {}, {6001}}, proc: rpcrdma.Msg,
		}),
		writes("4.3.2.3", "an empty Write chunk whose result makes the reply too long: must prepare for a Long Reply", writesCase{
			results: []result{text, long}, writes: [][]int{{33}, {}}, reply: []int{8000}, proc: rpcrdma.NoMsg,
		}),
		{section: "4.3.3", says: "MUST copy the Reply chunk into the reply's header, with the actual lengths: used in part, and not used", run: func(tc *responderCase) {
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
		}},
		writes("4.3.3", "a Reply chunk of no segments: MUST be copied, and the reply fits inline", writesCase{
			results: []result{short}, reply: []int{}, proc: rpcrdma.Msg,
		}),
		writes("4.3.3", "a Reply chunk of no segments has no room: ERR_CHUNK", writesCase{results: []result{long}, reply: []int{}, proc: rpcrdma.Error}),
		writes("4.3", "a Write list of 64 chunks, the first three with items, all others unused", writesCase{
			results: []result{short, text, long}, writes: append([][]int{{7}, {33}, {6001}}, slices.Repeat([][]int{{4}}, 61)...), proc: rpcrdma.Msg,
		}),
		{section: "4.3", says: "all lists at once: a Long Call, two Read chunks, segments of no octets among them, three Write chunks and a Reply chunk", run: func(tc *responderCase) {
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
			whole, items := compoundReply(1, plainResult(38, 0, 1, 2, 3, 4), plainResult(38, 0, 1, 2, 3, 4), readResult(pattern(5000, 3)), long, plainResult(38, 0, 1, 2, 3, 4))
			tc.answer(tc.wantCall("everything", m), whole)
			s := tc.peer.wantSend("its reply")
			if s.Proc != rpcrdma.NoMsg || len(s.Writes) != 3 || len(s.payload) != 0 {
				tc.t.Fatalf("%+v", &s.Header)
			}
			offers[0].wantFilled(tc.t, "the first Write chunk", &s.Writes[0], pattern(5000, 3))
			offers[1].wantFilled(tc.t, "the empty one", &s.Writes[1], nil)
			offers[2].wantFilled(tc.t, "the unused one", &s.Writes[2], nil)
			offers[3].wantFilled(tc.t, "the Reply chunk", s.Reply, cut(whole, items[0][0], 5000))
		}},

		{section: "4.5", says: "a message shorter than 28 bytes MUST be silently discarded before any parsing: every length, of a version not spoken too", run: func(tc *responderCase) {
			for _, m := range [][]byte{plain(1, 8), words(1, 2, 8, 0, 0, 0, 0), words(1, 1, 8, 7, 0, 0, 0), words(1, 1, 8, 1, 0, 0, 0)} {
				for n := range 28 {
					tc.peer.send(0, m[:n])
					tc.wantNoCall("too short")
					tc.peer.wantIdle("discarded")
				}
			}
			tc.alive()
			tc.drained()
		}},
		{section: "4.5", says: "RDMA_ERROR: rdma_xid and rdma_vers MUST be those of the failing request, rdma_proc MUST be RDMA_ERROR", run: func(tc *responderCase) {
			for _, xid := range []uint32{0, 1, 0x80000000, 0xffffffff} {
				tc.peer.send(0, words(xid, 1, 8, 9, 0, 0, 0))
				m, _ := tc.peer.next()
				if len(m.octets) != 20 || !bytes.Equal(m.octets[:8], words(xid, 1)) || !bytes.Equal(m.octets[12:], words(4, 2)) {
					tc.t.Errorf("sent %x", m.octets)
				}
				tc.peer.send(0, words(xid, 7, 8, 0, 0, 0, 0))
				m, _ = tc.peer.next()
				if len(m.octets) != 28 || !bytes.Equal(m.octets[:8], words(xid, 7)) || !bytes.Equal(m.octets[12:], words(4, 1, 1, 1)) {
					tc.t.Errorf("sent %x", m.octets)
				}
			}
			tc.alive()
			tc.drained()
		}},
		silence("4.5", "an RDMA_ERROR that cannot be decoded MUST be silently discarded",
			words(1, 1, 8, 4), words(1, 1, 8, 4, 0), words(1, 1, 8, 4, 3, 0, 0), words(1, 1, 8, 4, 1), words(1, 1, 8, 4, 1, 1), words(1, 2, 8, 4, 1, 1, 1)),
		{section: "4.5.1", says: "a version that is not supported: MUST reply RDMA_ERROR, ERR_VERS, with the low and high versions supported", run: func(tc *responderCase) {
			for _, v := range []uint32{0, 2, 3, 0x01000000, 0xffffffff} {
				for _, proc := range []uint32{0, 1, 2, 3, 99} {
					tc.peer.send(0, words(5, v, 8, proc, 0xffffffff, 1, 2))
					m, _ := tc.peer.next()
					if len(m.octets) != 28 || !bytes.Equal(m.octets[:8], words(5, v)) || !bytes.Equal(m.octets[12:], words(4, 1, 1, 1)) {
						tc.t.Errorf("version %d, procedure %d: sent %x", v, proc, m.octets)
					}
				}
			}
			tc.wantNoCall("none was one")
			tc.alive()
			tc.drained()
		}},
	}, responderHeaderRules()...), responderEndRules()...)
}

// responderHeaderRules are about Section 4.5.2: malformed headers of every kind.
func responderHeaderRules() []responderRule {
	m := writeCall(1, pattern(1000, 1))
	pos := len(m) - 1000
	var rules []responderRule
	parsing := func(name string, build func(tc *responderCase) [][]byte) {
		rules = append(rules, errChunkRule("4.5.2", "an XDR parsing error: MUST reply ERR_CHUNK: "+name, build))
	}
	raw := func(name string, ws ...uint32) {
		parsing(name, func(*responderCase) [][]byte { return [][]byte{words(ws...)} })
	}
	raw("rdma_proc 5", 1, 1, 8, 5, 0, 0, 0)
	raw("rdma_proc 2^32-1", 1, 1, 8, 0xffffffff, 0, 0, 0)
	raw("RDMA_NOMSG, all lists not present", 1, 1, 8, 1, 0, 0, 0)
	raw("Read list, discriminator 2", 1, 1, 8, 0, 2, 0, 0)
	raw("Read list, second discriminator 7", 1, 1, 8, 0, 1, 40, 1, 4, 0, 0, 7, 0, 0)
	raw("Read list, cut short in a segment", 1, 1, 8, 0, 1, 40, 1)
	raw("Read list without an end", 1, 1, 8, 0, 1, 40, 1, 4, 0, 0)
	raw("Write list, discriminator 2", 1, 1, 8, 0, 0, 2, 0)
	raw("Write list without an end", 1, 1, 8, 0, 0, 1, 1, 1, 4, 0, 0)
	raw("Write chunk, one segment more than there is", 1, 1, 8, 0, 0, 1, 2, 1, 4, 0, 0, 0, 0)
	raw("Write chunk of 2^32-1 segments", 1, 1, 8, 0, 0, 1, 0xffffffff, 0, 0)
	raw("Write chunk of 2^28 segments, whose octets are 2^32", 1, 1, 8, 0, 0, 1, 0x10000000, 0, 0)
	raw("Reply chunk, discriminator -1", 1, 1, 8, 0, 0, 0, 0xffffffff)
	raw("Reply chunk, cut short", 1, 1, 8, 0, 0, 0, 1, 1, 1, 4)
	raw("Reply chunk of 2^31 segments", 1, 1, 8, 0, 0, 0, 1, 0x80000000)
	parsing("5 segments short of 1,000 in a Reply chunk", func(*responderCase) [][]byte {
		return [][]byte{words(1, 1, 8, 0, 0, 0, 1, 200), make([]byte, 195*16)}
	})
	parsing("more Write chunks than are taken", func(*responderCase) [][]byte {
		return message(rpcrdma.Msg, getAttrCall(1), func(h *rpcrdma.Header) {
			for range 64 + 1 {
				h.AddWrite(rpcrdma.Segment{Handle: 1, Length: 4})
			}
		})
	})
	parsing("no RPC message behind RDMA_MSG", func(*responderCase) [][]byte {
		return message(rpcrdma.Msg, nil, func(*rpcrdma.Header) {})
	})
	parsing("RDMA_MSG with a Position Zero Read chunk", func(tc *responderCase) [][]byte {
		return message(rpcrdma.Msg, m[:pos], func(h *rpcrdma.Header) { addReads(h, 0, tc.pulled(pattern(1000, 1))) })
	})
	parsing("Read chunk behind the end of the Payload stream", func(tc *responderCase) [][]byte {
		return message(rpcrdma.Msg, m[:pos], func(h *rpcrdma.Header) { addReads(h, pos+4, tc.pulled(pattern(1000, 1))) })
	})
	parsing("Read chunk at the last Position there is", func(tc *responderCase) [][]byte {
		return message(rpcrdma.Msg, m[:pos], func(h *rpcrdma.Header) { addReads(h, 0xfffffffc, tc.pulled(pattern(1000, 1))) })
	})
	parsing("Read chunks that overlap", func(tc *responderCase) [][]byte {
		return message(rpcrdma.Msg, m[:pos], func(h *rpcrdma.Header) {
			addReads(h, pos, tc.pulled(pattern(1000, 1)))
			addReads(h, pos+500, tc.pulled(pattern(100, 1)))
		})
	})
	parsing("Read chunk of 4 GiB", func(*responderCase) [][]byte {
		return message(rpcrdma.Msg, m[:pos], func(h *rpcrdma.Header) { h.AddRead(uint32(pos), rpcrdma.Segment{Handle: 1, Length: 0xffffffff}) })
	})
	parsing("Position Zero Read chunk of 16 times 4 GiB", func(*responderCase) [][]byte {
		return message(rpcrdma.NoMsg, nil, func(h *rpcrdma.Header) {
			for range 16 {
				h.AddRead(0, rpcrdma.Segment{Handle: 1, Length: 0xffffffff})
			}
		})
	})
	garbage := func(name string, build func(tc *responderCase) [][]byte) {
		rules = append(rules, garbageArgs("4.5.2", "the ULP cannot parse the arguments: SHOULD return GARBAGE_ARGS in RDMA_MSG: "+name, build))
	}
	garbage("the Payload stream ends before the item's count", func(tc *responderCase) [][]byte {
		return message(rpcrdma.Msg, m[:pos-8], func(h *rpcrdma.Header) { addReads(h, pos-8, tc.pulled(pattern(1000, 1))) })
	})
	garbage("octets behind the item that do not belong there", func(tc *responderCase) [][]byte {
		return message(rpcrdma.Msg, append(bytes.Clone(m[:pos]), words(1, 2)...), func(h *rpcrdma.Header) { addReads(h, pos, tc.pulled(pattern(1000, 1))) })
	})
	garbage("a chunk where another item is", func(tc *responderCase) [][]byte {
		return message(rpcrdma.Msg, append(bytes.Clone(m[:44]), m[76:]...), func(h *rpcrdma.Header) { addReads(h, 44, tc.pulled(m[44:76])) })
	})
	return rules
}

// responderEndRules are about what goes wrong, and about other RFCs.
func responderEndRules() []responderRule {
	text, long := readlinkResult(pattern(33, 2)), readResult(pattern(6001, 3))
	none := readResult([]byte{})
	fh, fails := plainResult(22, 0), plainResult(25, 70)
	small := func(tc *responderCase) {
		tc.replies = tc.arena.Account("small", 192<<10)
		tc.opts.Memory = tc.replies
	}
	return []responderRule{
		writes("4.5.3", "a Reply chunk too small for a Long Reply: detected before writing past its end, ERR_CHUNK", writesCase{
			results: []result{long}, reply: []int{3000, 3000}, proc: rpcrdma.Error,
		}),
		writes("4.5.3", "a Write chunk too small for its item: ERR_CHUNK, no reply is possible", writesCase{
			results: []result{text, long}, writes: [][]int{{33}, {6000}}, reply: []int{9000}, proc: rpcrdma.Error,
		}),
		writes("4.5.3", "no Reply chunk for a reply beyond the inline threshold: ERR_CHUNK", writesCase{results: []result{long}, proc: rpcrdma.Error}),
		{section: "4.5.3", says: "a memory region that is no longer registered: a Remote Access Error, fatal to the connection", run: func(tc *responderCase) {
			tc.peer.send(0, header(1, 8, rpcrdma.NoMsg, func(h *rpcrdma.Header) { h.AddRead(0, rpcrdma.Segment{Handle: 77, Length: 100}) }))
			tc.wantNoCall("it cannot be read")
			if synctest.Wait(); tc.ended != 1 || tc.endedErr == nil {
				tc.t.Errorf("ended %d times, %v", tc.ended, tc.endedErr)
			}
		}},
		{section: "4.5.3", says: "a chunk length that exceeds the end of the registered memory region: fatal to the connection, nothing is answered", run: func(tc *responderCase) {
			o := tc.chunk(5000)
			o.segments[0].Length = 9000
			tc.peer.send(0, header(1, 8, rpcrdma.Msg, func(h *rpcrdma.Header) { h.SetReply(o.segments...) }), opaqueCall(1, 8))
			tc.answer(tc.wantCall("a call", opaqueCall(1, 8)), accepted(1, pattern(8000, 1)))
			tc.peer.wantIdle("the Write failed")
			if synctest.Wait(); tc.ended != 1 || tc.endedErr == nil {
				tc.t.Errorf("ended %d times, %v", tc.ended, tc.endedErr)
			}
		}},
		{section: "4.5.3", says: "a Requester that does not serve RDMA Reads: the memory they are to fill is not lent for ever", run: func(tc *responderCase) {
			tc.answered()
			tc.holdReads(0)
			used := tc.replies.Used()
			tc.peer.send(0, header(1, 8, rpcrdma.NoMsg, func(h *rpcrdma.Header) { addReads(h, 0, tc.pulled(opaqueCall(1, 60000))) }))
			tc.wantNoCall("it is not here")
			if n := tc.replies.Used(); n < used+60000 {
				tc.t.Errorf("%d octets are lent, %d before", n, used)
			}
			tc.sleep(59 * time.Second)
			tc.wantUp("59 s")
			tc.sleep(62 * time.Second)
			tc.wantEnded("121 s", errReadStall)
			if n := tc.replies.Used(); n >= used {
				tc.t.Errorf("%d octets are lent, %d before", n, used)
			}
		}},
		{section: "4.5.3", says: "a slow Requester, which serves an RDMA Read every 50 s, is waited for", run: func(tc *responderCase) {
			tc.answered()
			served := tc.holdReads(0)
			m := opaqueCall(1, 60000)
			tc.peer.send(0, header(1, 8, rpcrdma.NoMsg, func(h *rpcrdma.Header) { addReads(h, 0, tc.pulled(m, 1, 2, 3, 40000, 50000)) }))
			for range 6 {
				tc.wantNoCall("it is not here")
				tc.sleep(50 * time.Second)
				tc.wantUp("a Read every 50 s")
				served(1)
			}
			tc.answer(tc.wantCall("in the end", m), accepted(1))
			tc.peer.wantSend("its reply")
			tc.sleep(time.Hour)
			tc.alive()
		}},
		{section: "4.5", says: "RDMA_ERROR indicates a permanent error: a Call for which there is no memory now waits, and is served", setup: small, run: func(tc *responderCase) {
			tc.answered()
			hold := tc.hold(64 << 10)
			m := opaqueCall(1, 60000)
			tc.peer.send(0, header(1, 8, rpcrdma.NoMsg, func(h *rpcrdma.Header) { addReads(h, 0, tc.pulled(m)) }))
			tc.wantNoCall("there is no memory")
			tc.peer.wantIdle("and that is no answer")
			hold.Release()
			tc.answer(tc.wantCall("there is memory", m), accepted(1))
			tc.peer.wantSend("its reply")
		}},
		{section: "4.5.4", says: "unable to construct and transmit a Reply: MUST close the connection: no memory to put it together", setup: small, run: func(tc *responderCase) {
			tc.answered()
			o := tc.chunk(8000)
			call := compoundCall(1, readOp(8000))
			tc.peer.send(0, header(1, 8, rpcrdma.Msg, func(h *rpcrdma.Header) { h.AddWrite(o.segments...) }), call)
			x := tc.wantCall("a call", call)
			hold := tc.hold(8 << 10)
			defer hold.Release()
			whole, _ := compoundReply(1, readResult(pattern(8000, 1)))
			tc.answer(x, whole, 30, 70)
			tc.peer.wantIdle("ERR_CHUNK would be for good")
			tc.wantEnded("the reply is lost", regmem.ErrBudget)
		}},
		{section: "4.5.4", says: "unable to construct and transmit a Reply: MUST close the connection: nobody answers the Call", same: TestResponderAbort},
		{section: "4.5.4", says: "unable to construct and transmit a Reply: MUST close the connection: its Send cannot be posted", run: func(tc *responderCase) {
			tc.answered()
			tc.peer.send(0, plain(1, 8), getAttrCall(1))
			x := tc.wantCall("a call", getAttrCall(1))
			tc.provider.Inject(func(op fabrictest.Operation) fabrictest.Verdict {
				if op.Dialed {
					return fabrictest.Pass
				}
				return fabrictest.Fail
			})
			tc.answer(x, getAttrReply(1))
			tc.wantEnded("the Send failed", fabrictest.ErrInjected)
		}},
		errChunkRule("4.6.1", "when receiving RDMA_MSGP, Responders SHOULD reply RDMA_ERROR, ERR_CHUNK", func(*responderCase) [][]byte {
			return message(rpcrdma.MsgP, getAttrCall(1), func(h *rpcrdma.Header) { h.Align, h.Thresh = 4, 64 })
		}),
		silence("4.6.2", "receivers MUST silently discard RDMA_DONE", words(1, 1, 8, 3), words(1, 1, 8, 3, 0, 0, 0), append(words(1, 1, 8, 3, 0, 0, 0), getAttrCall(1)...)),

		writes("8267 6.4.1", "the first chunk MUST be used by the first READ operation, the next by the next; READLINK is one", writesCase{
			results: []result{fh, fh, long, fh, fh, text, fh, fh, long}, writes: [][]int{{6001}, {33}, {6001}}, proc: rpcrdma.Msg,
		}),
		writes("8267 6.4.1", "an empty matching Write chunk: that READ MUST return its result inline", writesCase{
			results: []result{fh, fh, long, fh, fh, text, fh, fh, long}, writes: [][]int{{6001}, {}, {6001}}, proc: rpcrdma.Msg,
		}),
		writes("8267 6.4.1", "a READ of no octets has its chunk, returned with no octets, and the next READ the next", writesCase{
			results: []result{none, long}, writes: [][]int{{100}, {6001}}, proc: rpcrdma.Msg,
		}),
		departing(writes("8267 6.4.1", "a READ that fails, with a non-empty Write chunk: MUST return an empty Write chunk in that position", writesCase{
			results: []result{fh, text, fails}, writes: [][]int{{33}, {6001}, {6001}}, proc: rpcrdma.Msg,
		}), "an unused one, with its segments, all of no octets: RFC 8166 Sections 3.4.6 and 4.3.2.2 have the segment count copied"),
		writes("8267 6.4.1", "more READs than Write chunks: the remaining ones MUST return their results inline", writesCase{
			results: []result{text, text, text}, writes: [][]int{{33}}, proc: rpcrdma.Msg,
		}),
		{section: "8267 6.4.2", says: "servers MUST accept a Position Zero Read chunk and one Read chunk together, each of up to sixteen segments", run: func(tc *responderCase) {
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
		}},
		writes("8267 6.4.2", "servers MUST accept one Write chunk of up to sixteen segments", writesCase{
			results: []result{long}, writes: [][]int{{400, 400, 400, 400, 400, 400, 400, 400, 400, 400, 400, 400, 400, 400, 400, 400}}, proc: rpcrdma.Msg,
		}),
		{section: "8797 4.1", says: "Send With Invalidate only when both peers set the flag, and MUST invalidate a handle of this XID only", same: TestResponderRemoteInvalidation},
		{
			section: "8797 4.1", says: "when either peer clears the flag, MUST use only RDMA Send: the Requester does", setup: func(tc *responderCase) {
				tc.opts.RemoteInvalidation = true
				tc.dial.PrivateData = rpcrdma.AppendPrivateData(nil, rpcrdma.PrivateData{SendSize: 4096, RecvSize: 4096})
			},
			run: func(tc *responderCase) {
				tc.peer.send(0, header(1, 8, rpcrdma.Msg, func(h *rpcrdma.Header) { h.SetReply(tc.chunk(8000).segments...) }), opaqueCall(1, 8))
				tc.answer(tc.wantCall("a call", opaqueCall(1, 8)), accepted(1, pattern(5000, 1)))
				if s := tc.peer.wantSend("its reply"); s.invalidated != 0 {
					tc.t.Errorf("invalidated %#x", uint32(s.invalidated))
				}
			},
		},
		{section: "8797 4", says: "senders MUST set the reserved bits to zero", run: func(tc *responderCase) {
			b := tc.peer.conn.Info().PrivateData
			i := bytes.Index(b, []byte{0xf6, 0xab, 0x0e, 0x18})
			if i < 0 || len(b) < i+8 || b[i+4] != 1 || b[i+5]&^1 != 0 {
				tc.t.Fatalf("private data %x", b)
			}
			tc.alive()
		}},
		{
			section: "8797 4", says: "receivers MUST ignore the reserved bits", setup: func(tc *responderCase) {
				tc.dial.PrivateData = []byte{0xf6, 0xab, 0x0e, 0x18, 1, 0xfe, 3, 3}
			},
			run: func(tc *responderCase) {
				tc.peer.send(0, plain(1, 8), opaqueCall(1, 8))
				tc.answer(tc.wantCall("a call", opaqueCall(1, 8)), accepted(1, pattern(4096-28-24, 1)))
				if s := tc.peer.wantSend("its reply"); len(s.octets) != 4096 {
					tc.t.Errorf("sent %d octets", len(s.octets))
				}
			},
		},
		{
			section: "8797 5.1", says: "private data that does not conform: MUST behave as if there were none", setup: func(tc *responderCase) {
				tc.dial.PrivateData = []byte{0xf6, 0xab, 0x0e, 0x18, 2, 1, 3}
			},
			run: func(tc *responderCase) {
				tc.peer.send(0, plain(1, 8), opaqueCall(1, 8))
				tc.answer(tc.wantCall("a call", opaqueCall(1, 8)), accepted(1, pattern(1028-28-24, 1)))
				tc.wantError("1028 octets", 1, rpcrdma.ErrChunk)
			},
		},
		{section: "8167 5.1", says: "a reverse Call: rdma_vers MUST be that of forward Calls, the RPC Call MUST start with the same XID, its msg_type MUST be CALL", same: TestCallback},
		{section: "8167 4.1", says: "reverse credits are accounted separately: one Call until the first Reply, then what the Requester grants", same: TestCallbackCredits},
		{section: "8167 5.3", says: "without chunks, reverse Calls can be no larger than what can be sent inline; what is no Reply to them is none", same: TestCallbackRefusals},
		{section: "8167 5.4", says: "a Requester that does not answer reverse Calls: what waits is bounded", same: TestCallbackUnanswered},
		silence("8167 4.1", "the direction is that of the RPC message: a Reply that answers no reverse Call is dropped, and its credits are not a request",
			append(plain(1, 1), getAttrReply(1)...), append(header(1, 1, rpcrdma.Msg, func(h *rpcrdma.Header) { h.AddWrite() }), getAttrReply(1)...)),
	}
}

// sleep lets time pass. What the test has read so far happened before what the
// loop does meanwhile.
func (tc *responderCase) sleep(d time.Duration) {
	tc.loop.Do(func() {})
	time.Sleep(d)
}

// holdReads has the fake Requester serve n RDMA Reads, and more each time the
// function is called.
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

// hold takes memory of the Responder's until less than n octets are left in a row.
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

// answer2 is answer for a Reply whose memory does not come back yet.
func (tc *responderCase) answer2(x *Exchange, m []byte) {
	b := tc.lend(m)
	tc.loop.Do(func() { x.Reply([][]byte{b}, nil) })
	synctest.Wait()
}
