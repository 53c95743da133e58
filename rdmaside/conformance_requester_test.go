package rdmaside

import (
	"bytes"
	"encoding/binary"
	"errors"
	"slices"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/rdmaside/rpcrdma"
)

func TestConformanceRequester(t *testing.T) {
	cases := requesterRules()
	wantSections(t, cases, requesterSentRules, `
		3.3.1 3.3.3 3.4.2 3.4.4.1 3.4.4.2 3.4.4.3 3.4.4.4 3.4.5 3.4.5.2 3.4.6 3.4.6.2 3.5.3
		4 4.2.1 4.2.2 4.2.4 4.3.1 4.3.2 4.3.2.2 4.3.3 4.4.1 4.5 4.5.2 4.5.4 4.6.1 4.6.2`)
	conform(t, "Requester", requesterTest, cases, requesterSentRules)
}

// requesterSentRules hold for everything a Requester sends.
var requesterSentRules = []sentRule{
	{"3.4.5", "the Position field MUST be a multiple of four", func(m *sentMessage) bool {
		return slices.ContainsFunc(m.header.Reads, func(r rpcrdma.ReadSegment) bool { return r.Position%4 != 0 }) || !m.ok && len(m.octets) >= 24 && m.words[3] < 2 && misplaced(m.octets)
	}, []*sentMessage{broken(header(1, 8, rpcrdma.Msg, readAtPosition(42, 8)), getAttrCall(1))}},
	{"3.5.3", "every segment of a Position Zero Read chunk MUST contain zero in its Position field", func(m *sentMessage) bool {
		return m.words[3] == uint32(rpcrdma.NoMsg) && (len(m.header.Reads) == 0 || slices.ContainsFunc(m.header.Reads, func(r rpcrdma.ReadSegment) bool { return r.Position != 0 }))
	}, []*sentMessage{
		broken(header(1, 8, rpcrdma.NoMsg, readAtPosition(4, 100))), broken(header(1, 8, rpcrdma.NoMsg, readAtPosition(0, 100), readAtPosition(100, 100))), broken(header(1, 8, rpcrdma.NoMsg, replyOf(100))),
	}},
	{"3.5.3", "a Position Zero Read chunk MUST include appropriate XDR roundup padding", func(m *sentMessage) bool {
		return m.header.ReadLength(0)%4 != 0
	}, []*sentMessage{broken(header(1, 8, rpcrdma.NoMsg, readAtPosition(0, 100, 41)))}},
	{"4", "the header MUST be XDR encoded", func(m *sentMessage) bool { return !m.ok || len(m.octets)%4 != 0 }, []*sentMessage{
		broken(words(1, 1, 8, 0, 2, 0, 0)), broken(plain(1, 8), make([]byte, 41)),
	}},
	{"4.2.1", "this XID MUST be the same as the XID in the RPC message", func(m *sentMessage) bool {
		return m.words[3] == uint32(rpcrdma.Msg) && (len(m.payload) < 4 || binary.BigEndian.Uint32(m.payload) != m.words[0])
	}, []*sentMessage{broken(plain(1, 8), getAttrCall(2)), broken(plain(1, 8))}},
	{"4.2.2", "this field MUST contain the value one", func(m *sentMessage) bool { return m.words[1] != 1 }, []*sentMessage{broken(words(1, 2, 8, 0, 0, 0, 0), getAttrCall(1))}},
	{"4.2.4", "the total length of the gathered buffers cannot exceed the inline threshold: 4096, or 1024 without private data", func(m *sentMessage) bool { return len(m.octets) > m.inline }, []*sentMessage{
		newSentMessage(make([]byte, 4100), false, 0), newSentMessage(make([]byte, 1028), false, 1024),
	}},
	{"4.2.4", "RDMA_NOMSG: one chunk list MUST be present and MUST hold the Payload stream; nothing is inline", func(m *sentMessage) bool {
		return m.words[3] == uint32(rpcrdma.NoMsg) && (m.header.ReadLength(0) < oncrpc.CallHeaderMin || len(m.payload) != 0)
	}, []*sentMessage{
		broken(header(1, 8, rpcrdma.NoMsg)), broken(header(1, 8, rpcrdma.NoMsg, readAtPosition(0, 8))), broken(header(1, 8, rpcrdma.NoMsg, readAtPosition(0, 100)), getAttrCall(1)),
	}},
	{"4.2.4", "a Requester MUST NOT send RDMA_ERROR: not one but in answer to a reverse Call, RFC 8167 Section 5.3", func(m *sentMessage) bool {
		return m.words[3] == uint32(rpcrdma.Error) && !m.reverse
	}, []*sentMessage{broken(words(1, 1, 8, 4, 2))}},
	{"4.6.1", "senders MUST NOT send RDMA_MSGP", func(m *sentMessage) bool { return m.words[3] == uint32(rpcrdma.MsgP) }, []*sentMessage{broken(header(1, 8, rpcrdma.MsgP))}},
	{"4.6.2", "senders MUST NOT send RDMA_DONE", func(m *sentMessage) bool { return m.words[3] == uint32(rpcrdma.Done) }, []*sentMessage{broken(words(1, 1, 8, 3))}},
	{"8267 6.4.2", "clients SHOULD send no more than a Position Zero Read chunk and another, one Write chunk, sixteen segments in each", manyChunks, []*sentMessage{
		broken(header(1, 8, rpcrdma.NoMsg, readAtPosition(0, 100), readAtPosition(40, 8), readAtPosition(60, 8))),
		broken(header(1, 8, rpcrdma.Msg, readAtPosition(40, 8), readAtPosition(60, 8)), getAttrCall(1)),
		broken(header(1, 8, rpcrdma.NoMsg, readAtPosition(0, slices.Repeat([]uint32{4}, 17)...))),
		broken(header(1, 8, rpcrdma.Msg, func(h *rpcrdma.Header) { h.AddWrite(); h.AddWrite() }), getAttrCall(1)),
		broken(header(1, 8, rpcrdma.Msg, func(h *rpcrdma.Header) { h.AddWrite(make([]rpcrdma.Segment, 17)...) }), getAttrCall(1)),
		broken(header(1, 8, rpcrdma.Msg, func(h *rpcrdma.Header) { h.SetReply(make([]rpcrdma.Segment, 17)...) }), getAttrCall(1)),
	}},
}

// manyChunks reports whether m has more chunks, or more segments in one, than an NFSv4 server
// has to take.
func manyChunks(m *sentMessage) bool {
	segments := map[uint32]int{} // of Read chunks, by Position
	for i := range m.header.Reads {
		segments[m.header.Reads[i].Position]++
	}
	items := 0
	for position, n := range segments {
		if position != 0 {
			items++
		}
		if n > 16 {
			return true
		}
	}
	if items > 1 || len(m.header.Writes) > 1 {
		return true
	}
	for i := range m.header.Writes {
		if len(m.header.Writes[i].Segments) > 16 {
			return true
		}
	}
	return m.header.Reply != nil && len(m.header.Reply.Segments) > 16
}

// misplaced reports whether b begins with a header whose first Read segment has a Position that
// is no multiple of four. Header.Decode refuses such a header.
func misplaced(b []byte) bool {
	return binary.BigEndian.Uint32(b[16:]) == 1 && binary.BigEndian.Uint32(b[20:])%4 != 0
}

type requesterRule = conformanceCase[*requesterCase]

// alive asserts that the connection carries Calls.
func (tc *requesterCase) alive() {
	tc.t.Helper()
	tc.wantUp("the connection goes on")
	tc.send(getAttrCall(0xa11e))
	tc.peer.wantSend("the next call")
	tc.peer.send(0, plain(0xa11e, 8), getAttrReply(0xa11e))
	tc.wantReply("its reply", getAttrReply(0xa11e))
}

// wantRefused asserts that the Requester sends no further Call because it has no
// credit.
func (tc *requesterCase) wantRefused(why string, xid uint32) {
	tc.t.Helper()
	if err := tc.try(getAttrCall(xid)); !errors.Is(err, ErrNoCredit) {
		tc.t.Errorf("%s: %v, want ErrNoCredit", why, err)
	}
	tc.peer.wantIdle(why)
}

// discarded returns a rule about messages that have no effect: they come while a
// Call with the XID 1 is outstanding, which is answered after them.
func discarded(section, says string, messages ...[]byte) requesterRule {
	return requesterRule{section: section, says: says, run: func(tc *requesterCase) {
		tc.send(getAttrCall(1))
		tc.peer.wantSend("a call")
		for _, m := range messages {
			tc.peer.send(0, m)
			tc.peer.wantIdle("discarded in silence")
			tc.wantNotDone("discarded")
			tc.wantUp("discarded")
			if tc.r.Grant() != 1 {
				tc.t.Errorf("grant %d after %x", tc.r.Grant(), head(m))
			}
		}
		if n, want := tc.provider.Counts(tc.r.conn).Receives, len(tc.r.recvs.buffers); n != want {
			tc.t.Errorf("%d Receives posted, want %d", n, want)
		}
		tc.peer.send(0, plain(1, 8), getAttrReply(1))
		tc.wantReply("the answer", getAttrReply(1))
	}}
}

// refused returns a rule about invalid answers to a Call: the client gets no octet of them. Only
// the check that has the given reason may refuse them.
func refused(section, says string, reason refusalReason, call []byte, answer func(s *wantedSend) [][]byte) requesterRule {
	return requesterRule{section: section, says: says, run: func(tc *requesterCase) {
		tc.send(call)
		tc.peer.send(0, answer(tc.peer.wantSend("a call"))...)
		tc.peer.wantIdle("nothing is sent back")
		tc.wantFate(says, binary.BigEndian.Uint32(call), Answered, errInvalidReply)
		if tc.opts.Metrics.refusals[reason].Value() != 1 {
			tc.t.Errorf("not refused for its %s", refusalNames[reason])
		}
		tc.wantHandles("the Call has none any more", 0)
		tc.alive()
	}}
}

// gssCall returns a WRITE under RPCSEC_GSS with the given service.
func gssCall(xid, service uint32, data []byte) []byte {
	b := words(xid, 0, 2, oncrpc.ProgramNFS, 3, procWrite, 6, 20, 1, 0, 1, service, 0, 0, 0)
	args := bytes.Join([][]byte{words(1), handle32, words(0, 0, uint32(len(data)), 2), opaque(data)}, nil)
	b = append(b, opaque(args)...)
	return append(b, opaque(pattern(28, 1))...)
}

// requesterRules returns all rules, in the order of the table.
func requesterRules() []requesterRule {
	return slices.Concat(requesterCreditRules, requesterReductionRules, requesterMessageRules,
		requesterDiscardRules, requesterContradictionRules, requesterReplyRules, requesterOtherRules)
}

// Calls and Replies that the rules use.
var (
	data8000 = pattern(8000, 3)
	data8001 = pattern(8001, 3)

	attrCall    = getAttrCall(1)
	read8192    = readCall(1, 8192)
	opaqueOf100 = opaqueCall(1, 100)

	// readWhole is a Reply to read8192 with data8000 at readAt; readBase is the
	// same, reduced.
	readWhole, readAt = readReply(1, data8000)
	readBase          = cut(readWhole, readAt, len(data8000))
)

// inMsg returns an RDMA_MSG that answers the Call with the XID 1.
func inMsg(payload []byte, edit func(h *rpcrdma.Header)) [][]byte {
	return [][]byte{header(1, 8, rpcrdma.Msg, edit), payload}
}

// inNoMsg returns an RDMA_NOMSG that answers the Call with the XID 1.
func inNoMsg(edit func(h *rpcrdma.Header)) [][]byte {
	return [][]byte{header(1, 8, rpcrdma.NoMsg, edit)}
}

func noChunks(*rpcrdma.Header) {}

// tooShort returns the prefixes of a header that are shorter than 28 octets, and
// an empty message.
func tooShort() [][]byte {
	short := [][]byte{nil}
	for n := range 28 {
		short = append(short, plain(1, 8)[:n])
	}
	return short
}
