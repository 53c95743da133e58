package rdmaside

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric/fabrictest"
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
		for i := range m.header.Reads {
			if m.header.Reads[i].Position%4 != 0 {
				return true
			}
		}
		return false
	}},
	{"3.5.3", "every segment of a Position Zero Read chunk MUST contain zero in its Position field", func(m *sentMessage) bool {
		return m.words[3] == uint32(rpcrdma.NoMsg) && (len(m.header.Reads) == 0 || m.header.Reads[0].Position != 0)
	}},
	{"3.5.3", "a Position Zero Read chunk MUST include appropriate XDR roundup padding", func(m *sentMessage) bool {
		return m.header.ReadLength(0)%4 != 0
	}},
	{"4", "the header MUST be XDR encoded", func(m *sentMessage) bool { return !m.ok || len(m.octets)%4 != 0 }},
	{"4.2.1", "this XID MUST be the same as the XID in the RPC message", func(m *sentMessage) bool {
		return m.words[3] == uint32(rpcrdma.Msg) && (len(m.payload) < 4 || binary.BigEndian.Uint32(m.payload) != m.words[0])
	}},
	{"4.2.2", "this field MUST contain the value one", func(m *sentMessage) bool { return m.words[1] != 1 }},
	{"4.2.4", "the total length of the gathered buffers cannot exceed the inline threshold, 4096 in these cases", func(m *sentMessage) bool { return len(m.octets) > 4096 }},
	{"4.2.4", "RDMA_NOMSG: one chunk list MUST be present and MUST hold the Payload stream; nothing is inline", func(m *sentMessage) bool {
		return m.words[3] == uint32(rpcrdma.NoMsg) && (m.header.ReadLength(0) < oncrpc.CallHeaderMin || len(m.payload) != 0)
	}},
	{"4.2.4", "a Requester MUST NOT send RDMA_ERROR: not one but in answer to a reverse Call, RFC 8167 Section 5.3", func(m *sentMessage) bool {
		return m.words[3] == uint32(rpcrdma.Error) && !m.reverse
	}},
	{"4.6.1", "senders MUST NOT send RDMA_MSGP", func(m *sentMessage) bool { return m.words[3] == uint32(rpcrdma.MsgP) }},
	{"4.6.2", "senders MUST NOT send RDMA_DONE", func(m *sentMessage) bool { return m.words[3] == uint32(rpcrdma.Done) }},
	{"8267 6.4.2", "clients SHOULD send no more than a Position Zero Read chunk and another, one Write chunk, sixteen segments in each", func(m *sentMessage) bool {
		if len(m.header.Writes) > 1 || len(m.header.Reads) > 16 {
			return true
		}
		for i := range m.header.Writes {
			if len(m.header.Writes[i].Segments) > 16 {
				return true
			}
		}
		return m.header.Reply != nil && len(m.header.Reply.Segments) > 16
	}},
}

type requesterRule = conformanceCase[*requesterCase]

// alive shows that the connection carries Calls.
func (tc *requesterCase) alive() {
	tc.t.Helper()
	tc.wantUp("the connection goes on")
	tc.send(getAttrCall(0xa11e))
	tc.peer.wantSend("the next call")
	tc.peer.send(0, plain(0xa11e, 8), getAttrReply(0xa11e))
	tc.wantReply("its reply", getAttrReply(0xa11e))
}

// wantRefused asserts that no more is sent for want of credits.
func (tc *requesterCase) wantRefused(why string, xid uint32) {
	tc.t.Helper()
	if err := tc.try(getAttrCall(xid)); !errors.Is(err, ErrNoCredit) {
		tc.t.Errorf("%s: %v, want ErrNoCredit", why, err)
	}
	tc.peer.wantIdle(why)
}

// discarded is a rule about messages that have no effect: a Call with the XID 1
// waits, and is answered when all of them have come.
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

// refused is a rule about answers to a Call that are none: no octet of them gets
// anywhere.
func refused(section, says string, call []byte, answer func(s *wantedSend) [][]byte) requesterRule {
	return requesterRule{section: section, says: says, run: func(tc *requesterCase) {
		tc.send(call)
		tc.peer.send(0, answer(tc.peer.wantSend("a call"))...)
		tc.peer.wantIdle("nothing is sent back")
		tc.wantEnded(says, errInvalidReply)
		tc.wantFate(says, binary.BigEndian.Uint32(call), InLimbo, errInvalidReply)
	}}
}

// gssCall is a WRITE under RPCSEC_GSS with the service given.
func gssCall(xid, service uint32, data []byte) []byte {
	b := words(xid, 0, 2, oncrpc.ProgramNFS, 3, procWrite, 6, 20, 1, 0, 1, service, 0, 0, 0)
	args := bytes.Join([][]byte{words(1), handle32, words(0, 0, uint32(len(data)), 2), opaque(data)}, nil)
	b = append(b, opaque(args)...)
	return append(b, opaque(pattern(28, 1))...)
}

func requesterRules() []requesterRule {
	data := pattern(8001, 3)
	read := readCall(1, 8192)
	return append([]requesterRule{
		{section: "3.3.1", says: "MUST NOT send unacknowledged requests in excess of the granted credit limit; the lower of requested and granted counts", run: func(tc *requesterCase) {
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
		}},
		{section: "3.3.1", says: "MUST NOT send in excess of the limit: it falls below what is outstanding", same: TestRequesterCredits},
		{section: "3.3.1", says: "MUST maintain enough receive resources to accommodate expected replies: each is answered at once, in any order, with four reverse Calls", reverse: true, run: func(tc *requesterCase) {
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
		}},
		{section: "3.3.1", says: "MUST maintain enough receive resources: Replies that are held on to, and no memory to replace their Receives", same: TestRequesterHeldReplies},
		{section: "3.3.1", says: "MUST maintain enough receive resources: those of an idle connection are fewer, those of a busy one are not", same: TestIdleReceives},
		{section: "3.3.3", says: "MUST NOT assume more than one credit, and MUST receive a valid reply before its next request", run: func(tc *requesterCase) {
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
		}},
		{
			section: "3.3.3", says: "MUST support inline thresholds of 1024 bytes, and without private data MUST assume them: Calls of 1024 and 1028, a Reply of 1024",
			setup: func(tc *requesterCase) { tc.priv = rpcrdma.PrivateData{} },
			run: func(tc *requesterCase) {
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
			},
		},
		{section: "3.3.3", says: "an independent mechanism may be used: thresholds are the smaller of both sides', RFC 8797", same: TestRequesterThresholds},

		{section: "3.4.2", says: "all other XDR data items MUST NOT be reduced: an unknown program, a long name, a WRITE under GSS integrity and privacy go whole", run: func(tc *requesterCase) {
			tc.open(8)
			for _, m := range [][]byte{
				opaqueCall(1, 9000), nfsCall(1, 3, handle32, opaque(pattern(5000, 1))),
				gssCall(1, 2, data), gssCall(1, 3, data),
			} {
				tc.send(m)
				s := tc.peer.wantSend("a Long Call")
				if s.Proc != rpcrdma.NoMsg || s.ReadLength(0) != uint64(len(m)) || len(s.Reads) != 1 || len(s.Writes) != 0 {
					tc.t.Fatalf("%+v", &s.Header)
				}
				if !bytes.Equal(tc.peer.read(s.Reads[0].Segment), m) {
					tc.t.Error("the Position Zero Read chunk is not the call")
				}
				tc.peer.send(0, header(1, 8, rpcrdma.Msg, func(h *rpcrdma.Header) {
					if s.Reply != nil {
						h.SetReply(shortened(s.Reply.Segments[0], 0))
					}
				}), accepted(1))
				tc.wantReply("its reply", accepted(1))
			}
		}},
		{section: "3.4.4.1", says: "the count of array elements MUST remain in the Payload stream, the elements MUST be moved to the chunk", run: func(tc *requesterCase) {
			m := writeCall(1, data)
			tc.send(m)
			s := tc.peer.wantSend("WRITE")
			at := len(m) - len(data) - 3
			if len(s.Reads) != 1 || !bytes.Equal(s.payload, m[:at]) || binary.BigEndian.Uint32(s.payload[at-4:]) != uint32(len(data)) {
				tc.t.Fatalf("%+v, payload %x", &s.Header, s.payload)
			}
			if !bytes.Equal(tc.peer.read(s.Reads[0].Segment), data) {
				tc.t.Error("the chunk is not the elements")
			}
		}},
		{section: "3.4.4.2", says: "the \"is present\" field of optional-data MUST remain in the Payload stream, and what it says is present: no binding has an eligible one; LAYOUTCOMMIT, which has two, before a WRITE", run: func(tc *requesterCase) {
			for _, optional := range [][]byte{words(1, 0, 5, 1, 0, 6, 7), words(0, 0)} {
				commit := bytes.Join([][]byte{words(49, 0, 0, 0, 100, 0, 0, 0, 0, 0), optional, words(1), opaque(nil)}, nil)
				m := compoundCall(1, commit, writeOp(data))
				copy(m[44:], words(1)) // minor version 1
				tc.send(m)
				s := tc.peer.wantSend("LAYOUTCOMMIT, WRITE")
				at := len(m) - len(data) - 3
				if len(s.Reads) != 1 || int(s.Reads[0].Position) != at || !bytes.Equal(s.payload, m[:at]) {
					tc.t.Errorf("%+v, payload %x", &s.Header, s.payload)
				}
				tc.peer.send(0, header(1, 8, rpcrdma.Msg, func(h *rpcrdma.Header) {
					if s.Reply != nil {
						h.SetReply(shortened(s.Reply.Segments[0], 0))
					}
				}), accepted(1))
				tc.wantReply("its reply", accepted(1))
			}
		}},
		{section: "3.4.4.3", says: "a union MUST NOT be DDP-eligible, but arms may be: the link text of CREATE, an arm, may be and is not reduced", run: func(tc *requesterCase) {
			m := compoundCall(1, bytes.Join([][]byte{words(6, 5), opaque(pattern(5000, 1)), opaque([]byte("link")), words(0, 0)}, nil))
			tc.send(m)
			if s := tc.peer.wantSend("CREATE"); s.Proc != rpcrdma.NoMsg || s.ReadLength(0) != uint64(len(m)) {
				tc.t.Errorf("%+v", &s.Header)
			}
		}},
		{section: "3.4.4.4", says: "a chunk MUST contain exactly one XDR data item; roundup MUST be removed from the Payload stream: WRITE 100, WRITE 8001, GETATTR", run: func(tc *requesterCase) {
			tail := words(9, 1, 0x10)
			m := compoundCall(1, writeOp(pattern(100, 1)), writeOp(data), tail)
			tc.send(m)
			s := tc.peer.wantSend("two WRITEs")
			at := len(m) - len(tail) - 8004
			if len(s.Reads) != 1 || int(s.Reads[0].Position) != at || !bytes.Equal(s.payload, cut(m, at, len(data))) {
				tc.t.Fatalf("%+v, payload %x", &s.Header, s.payload)
			}
			if !bytes.Equal(tc.peer.read(s.Reads[0].Segment), data) {
				tc.t.Error("the chunk is not the longer item")
			}
		}},
		{section: "3.4.5", says: "Position MUST be computed from the beginning of the unreduced Payload stream", run: func(tc *requesterCase) {
			tc.open(8)
			for n := range 4 {
				for _, name := range []int{1, 30, 128} {
					m := compoundCall(1, append(words(22), opaque(pattern(name, 1))...), writeOp(pattern(8000+n, 2)))
					tc.send(m)
					s := tc.peer.wantSend("PUTFH, WRITE")
					if len(s.Reads) != 1 || !bytes.Equal(m[s.Reads[0].Position:][:8000+n], tc.peer.read(s.Reads[0].Segment)) {
						tc.t.Errorf("%+v", &s.Header)
					}
					tc.peer.send(0, plain(1, 8), accepted(1))
					tc.wantReply("its reply", accepted(1))
				}
			}
		}},
		{section: "3.4.5.2", says: "SHOULD NOT include roundup padding in the chunk; its total length MUST be that of the item", same: TestRequesterWriteByReadChunk},
		{section: "3.4.6", says: "MUST register Write chunks long enough to accommodate the maximum possible size of each returned data item", run: func(tc *requesterCase) {
			tc.open(8)
			for _, count := range []int{3969, 4096, 8191, 8192, 65537, 1 << 20} {
				tc.send(readCall(1, count))
				s := tc.peer.wantSend("READ")
				if len(s.Writes) != 1 || s.Writes[0].Length() < uint64(count) {
					tc.t.Fatalf("READ of %d: %+v", count, &s.Header)
				}
				seg := s.Writes[0].Segments[0]
				want, at := readReply(1, pattern(count, 1))
				tc.peer.write(shortened(seg, count), pattern(count, 1))
				tc.peer.send(0, header(1, 8, rpcrdma.Msg, func(h *rpcrdma.Header) { h.AddWrite(shortened(seg, count)) }), cut(want, at, count))
				tc.wantReply("all of it", want)
			}
		}},
		{
			section: "3.4.6.2", says: "SHOULD NOT include additional space for XDR roundup padding",
			departs: "up to three octets are: they keep a Responder that writes roundup from ending the connection, and Linux clients send them too",
			run: func(tc *requesterCase) {
				tc.send(readCall(1, 8191))
				if n := tc.peer.wantSend("READ").Writes[0].Length(); n != 8192 {
					tc.t.Errorf("Write chunk of %d octets for 8191", n)
				}
			},
		},
		{section: "3.5.3", says: "a Payload stream that is too large when reduced MUST be conveyed by RDMA Read or Write; Long Calls and Long Replies, answered either way", same: TestRequesterLong},
		{section: "3.5.3", says: "such chunks MUST include XDR roundup padding: a Long Call with a WRITE of 8001 octets in it; a Long Reply whose length is not whole units is none", run: func(tc *requesterCase) {
			tc.open(8)
			m := gssCall(1, 2, data)
			tc.send(m)
			s := tc.peer.wantSend("a Long Call")
			if s.ReadLength(0) != uint64(len(m)) || len(m)%4 != 0 || !bytes.Equal(tc.peer.read(s.Reads[0].Segment), m) {
				tc.t.Fatalf("%+v", &s.Header)
			}
			tc.send(opaqueCall(2, 100))
			seg := tc.peer.wantSend("a call").Reply.Segments[0]
			tc.peer.write(shortened(seg, 125), accepted(2, pattern(101, 1)))
			tc.peer.send(0, header(2, 8, rpcrdma.NoMsg, func(h *rpcrdma.Header) { h.SetReply(shortened(seg, 125)) }))
			tc.wantEnded("125 octets are no Payload stream", errInvalidReply)
		}},

		{section: "4", says: "the header MUST be XDR encoded: octets of a Call with a Write chunk, of one with a Read chunk, of one with both long", run: func(tc *requesterCase) {
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
			check("READ", read, func(s *wantedSend) []byte {
				return bytes.Join([][]byte{words(1, 1, 8, 0, 0, 1, 1), segment(s.Writes[0].Segments[0]), words(0, 0)}, nil)
			}, read)
			w := writeCall(2, data)
			at := len(w) - 8004
			check("WRITE", w, func(s *wantedSend) []byte {
				return bytes.Join([][]byte{words(2, 1, 8, 0, 1, uint32(at)), segment(s.Reads[0].Segment), words(0, 0, 0)}, nil)
			}, w[:at])
			check("a Long Call", opaqueCall(3, 9000), func(s *wantedSend) []byte {
				return bytes.Join([][]byte{words(3, 1, 8, 1, 1, 0), segment(s.Reads[0].Segment), words(0, 0, 1, 1), segment(s.Reply.Segments[0])}, nil)
			}, nil)
		}},
		{section: "4.3.1", says: "no DDP-eligible argument and no Position Zero Read chunk: the Read list is empty; no possible DDP-eligible result: the Write list is", run: func(tc *requesterCase) {
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
		}},
		{section: "4.3.2", says: "if there is no possible DDP-eligible result, the Write list is empty: WRITE, and READ of no octets", run: func(tc *requesterCase) {
			tc.open(8)
			for _, m := range [][]byte{writeCall(1, data), readCall(1, 0)} {
				tc.send(m)
				if s := tc.peer.wantSend("a call"); len(s.Writes) != 0 {
					tc.t.Errorf("%+v", &s.Header)
				}
				tc.peer.send(0, plain(1, 8), accepted(1, words(70, 0, 0)))
				tc.wantReply("its reply", accepted(1, words(70, 0, 0)))
			}
		}},
		{section: "4.3.2.2", says: "MUST NOT assume that the memory regions of a Write chunk have not been modified: written, and returned unused or shorter", run: func(tc *requesterCase) {
			tc.open(8)
			failed := accepted(1, words(70, 0))
			tc.send(read)
			seg := tc.peer.wantSend("READ").Writes[0].Segments[0]
			tc.peer.write(seg, bytes.Repeat([]byte{0xee}, int(seg.Length)))
			tc.peer.send(0, header(1, 8, rpcrdma.Msg, func(h *rpcrdma.Header) { h.AddWrite(shortened(seg, 0)) }), failed)
			tc.wantReply("written and then unused", failed)
			for _, n := range []int{101, 8001, 8189} {
				tc.send(read)
				seg = tc.peer.wantSend("READ").Writes[0].Segments[0]
				tc.peer.write(seg, bytes.Repeat([]byte{0xee}, int(seg.Length)))
				tc.peer.write(shortened(seg, n), pattern(n, 1))
				want, at := readReply(1, pattern(n, 1))
				tc.peer.send(0, header(1, 8, rpcrdma.Msg, func(h *rpcrdma.Header) { h.AddWrite(shortened(seg, n)) }), cut(want, at, n))
				tc.wantReply("what was written behind the data, and where roundup goes, is not seen", want)
			}
		}},
		{section: "4.3.2.2", says: "MUST provision each Write chunk for the largest item that can be placed in it: a COMPOUND with two READs is offered none, but a Reply chunk for both", run: func(tc *requesterCase) {
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
		}},
		{section: "4.3.3", says: "MUST provide a Reply chunk whenever the reply may be larger than the inline threshold; otherwise it is not present: READDIR of 3800 to 4200 octets", run: func(tc *requesterCase) {
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
		}},
		{section: "4.4.1", says: "memory regions must be protected from the Responder before the upper layer has access: their handles are dead when the Reply is given", run: func(tc *requesterCase) {
			tc.open(8)
			live := -1
			tc.onDone = func(*Call, *CallError) { live = tc.provider.Counts(tc.r.conn).Handles }
			for _, async := range []bool{false, true} {
				tc.provider.AsyncInvalidate(async)
				tc.send(read)
				seg := tc.peer.wantSend("READ").Writes[0].Segments[0]
				tc.peer.write(shortened(seg, 8001), data)
				want, at := readReply(1, data)
				tc.peer.send(0, header(1, 8, rpcrdma.Msg, func(h *rpcrdma.Header) { h.AddWrite(shortened(seg, 8001)) }), cut(want, at, 8001))
				tc.wantReply("READ", want)
				if live != 0 {
					tc.t.Errorf("%d live handles when the Reply was given", live)
				}
				live = -1
			}
		}},
		{section: "4.4.1", says: "protected before the upper layer has access: an invalidation that takes its time keeps the Reply back", same: TestRequesterAsyncInvalidate},
		{section: "4.4.1", says: "this includes memory of canceled RPCs: those that a lost connection ends", same: TestRequesterLoss},
	}, requesterReplyRules()...)
}

// requesterReplyRules are about what a Responder may send, and must not.
func requesterReplyRules() []requesterRule {
	data := pattern(8000, 3)
	whole, at := readReply(1, data)
	base := cut(whole, at, len(data))
	read, generic, attr := readCall(1, 8192), opaqueCall(1, 100), getAttrCall(1)
	msg := func(payload []byte, edit func(h *rpcrdma.Header)) [][]byte {
		return [][]byte{header(1, 8, rpcrdma.Msg, edit), payload}
	}
	noMsg := func(edit func(h *rpcrdma.Header)) [][]byte { return [][]byte{header(1, 8, rpcrdma.NoMsg, edit)} }
	nop := func(*rpcrdma.Header) {}
	var rules []requesterRule

	short := [][]byte{nil}
	for n := range 28 {
		short = append(short, plain(1, 8)[:n])
	}
	rules = append(rules,
		discarded("4.5", "a message shorter than 28 bytes MUST be silently discarded: every length", short...),
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
		requesterRule{section: "4.5", says: "receipt of RDMA_ERROR completes the RPC transaction with its XID, and no other; it is a permanent error", same: TestRequesterErrors},
		requesterRule{section: "4.5", says: "a second Reply to the same Call answers none", run: func(tc *requesterCase) {
			tc.open(8)
			tc.send(attr)
			tc.send(getAttrCall(2))
			for range 3 {
				tc.peer.send(0, plain(1, 8), getAttrReply(1))
			}
			tc.wantReply("once", getAttrReply(1))
			tc.wantNotDone("and only once")
			tc.peer.send(0, plain(2, 8), getAttrReply(2))
			tc.wantReply("the other", getAttrReply(2))
		}},
	)
	contradict := func(section, says string, call []byte, answer func(s *wantedSend) [][]byte) {
		rules = append(rules, refused(section, says, call, answer))
	}
	contradict("4.3.1", "a Reply that contradicts what was offered is not taken: a Read list, which Responders MUST leave empty", attr, func(*wantedSend) [][]byte {
		return msg(getAttrReply(1), func(h *rpcrdma.Header) { h.AddRead(4, rpcrdma.Segment{Handle: 1, Length: 4}) })
	})
	contradict("4.3.2", "a Reply that contradicts what was offered is not taken: a Write chunk that was not offered", attr, func(*wantedSend) [][]byte {
		return msg(getAttrReply(1), func(h *rpcrdma.Header) { h.AddWrite(rpcrdma.Segment{Handle: 1}) })
	})
	contradict("4.3.3", "a Reply that contradicts what was offered is not taken: a Reply chunk that was not offered", attr, func(*wantedSend) [][]byte {
		return noMsg(func(h *rpcrdma.Header) { h.SetReply(rpcrdma.Segment{Handle: 1, Length: 100}) })
	})
	contradict("4.3.2", "a Reply that contradicts what was offered is not taken: two Write chunks of one", read, func(s *wantedSend) [][]byte {
		seg := shortened(s.Writes[0].Segments[0], 0)
		return msg(whole, func(h *rpcrdma.Header) { h.AddWrite(seg); h.AddWrite(seg) })
	})
	contradict("3.4.6", "a Reply that contradicts what was offered is not taken: a Write chunk of two segments of one, whose count MUST be copied", read, func(s *wantedSend) [][]byte {
		seg := shortened(s.Writes[0].Segments[0], 4000)
		return msg(base, func(h *rpcrdma.Header) { h.AddWrite(seg, seg) })
	})
	contradict("3.4.6", "a Reply that contradicts what was offered is not taken: more octets in a Write chunk than it has room for", read, func(s *wantedSend) [][]byte {
		seg := s.Writes[0].Segments[0]
		return msg(base, func(h *rpcrdma.Header) { h.AddWrite(shortened(seg, int(seg.Length)+1)) })
	})
	contradict("4.3.3", "a Reply that contradicts what was offered is not taken: more octets in a Reply chunk than it has room for", generic, func(s *wantedSend) [][]byte {
		seg := s.Reply.Segments[0]
		return noMsg(func(h *rpcrdma.Header) { h.SetReply(shortened(seg, int(seg.Length)+4)) })
	})
	contradict("4.3.3", "a Reply that contradicts what was offered is not taken: RDMA_MSG with octets in the Reply chunk", generic, func(s *wantedSend) [][]byte {
		return msg(accepted(1), func(h *rpcrdma.Header) { h.SetReply(shortened(s.Reply.Segments[0], 100)) })
	})
	contradict("4.2.4", "a Reply that contradicts what was offered is not taken: RDMA_NOMSG with a Payload stream behind it", generic, func(s *wantedSend) [][]byte {
		return append(noMsg(func(h *rpcrdma.Header) { h.SetReply(shortened(s.Reply.Segments[0], 100)) }), accepted(1))
	})
	rules = append(rules, requesterRule{
		section: "4.5", says: "errors in the header of a Reply: MUST silently discard: lists that can be decoded and contradict what was offered",
		departs: "such a Reply is discarded, and its connection closed besides: Section 6.1 has the RPC terminated, and nobody knows where this Responder has written",
		same:    TestRequesterReplyDefects,
	})
	rules = append(rules,
		refused("4.2.1", "this XID MUST be the same as the XID in the RPC message: another one inline", attr, func(*wantedSend) [][]byte {
			return msg(getAttrReply(2), nop)
		}),
		requesterRule{section: "4.2.1", says: "this XID MUST be the same as the XID in the RPC message: another one in the Reply chunk", run: func(tc *requesterCase) {
			tc.send(generic)
			seg := tc.peer.wantSend("a call").Reply.Segments[0]
			tc.peer.write(shortened(seg, 124), accepted(2, pattern(100, 1)))
			tc.peer.send(0, noMsg(func(h *rpcrdma.Header) { h.SetReply(shortened(seg, 124)) })...)
			tc.wantEnded("no octet of it gets anywhere", errInvalidReply)
			tc.wantFate("the call", 1, InLimbo, errInvalidReply)
		}},
		refused("4.2.4", "RDMA_NOMSG: one list MUST hold the Payload stream: the Reply chunk is empty", generic, func(s *wantedSend) [][]byte {
			return noMsg(func(h *rpcrdma.Header) { h.SetReply(shortened(s.Reply.Segments[0], 0)) })
		}),
		refused("4.5.2", "the Payload stream is no RPC Reply: 16 octets", attr, func(*wantedSend) [][]byte { return msg(getAttrReply(1)[:16], nop) }),
		refused("4.5.2", "the Payload stream is no RPC Reply: message type 2", attr, func(*wantedSend) [][]byte { return msg(words(1, 2, 0, 0, 0, 0), nop) }),
		refused("6.1", "a Responder reduces a result that is not DDP-eligible: the RPC MUST be terminated: octets written for an error", read, func(s *wantedSend) [][]byte {
			return msg(accepted(1, words(70, 0)), func(h *rpcrdma.Header) { h.AddWrite(shortened(s.Writes[0].Segments[0], 8000)) })
		}),
		refused("3.4.6.2", "a returned Write chunk's total length MUST be that of the item: fewer octets written than its count says", read, func(s *wantedSend) [][]byte {
			return msg(base, func(h *rpcrdma.Header) { h.AddWrite(shortened(s.Writes[0].Segments[0], 7000)) })
		}),
		requesterRule{
			section: "6.1", says: "a Responder does not reduce an eligible result into an available Write chunk: MUST terminate the RPC",
			departs: "it is taken: what it means is plain, and the chunk is taken back like any",
			run: func(tc *requesterCase) {
				tc.send(read)
				seg := tc.peer.wantSend("READ").Writes[0].Segments[0]
				short, _ := readReply(1, data[:100])
				tc.peer.send(0, msg(short, func(h *rpcrdma.Header) { h.AddWrite(shortened(seg, 0)) })...)
				tc.wantReply("inline", short)
			},
		},
		requesterRule{section: "4.5.4", says: "unable to construct and transmit a Call: the RPC transaction fails immediately", same: TestRequesterRegisterFails},
		requesterRule{section: "4.5.4", says: "unable to invalidate a memory region: MUST close the connection before the RPC transaction is complete", same: TestRequesterInvalidateFails},
		discarded("4.6.1", "RDMA_MSGP: Requesters MUST silently discard the message", header(1, 8, rpcrdma.MsgP), append(header(1, 8, rpcrdma.MsgP), getAttrReply(1)...)),
		discarded("4.6.2", "receivers MUST silently discard RDMA_DONE", words(1, 1, 8, 3), words(1, 1, 8, 3, 0, 0, 0), append(words(1, 1, 8, 3, 0, 0, 0), getAttrReply(1)...)),
		requesterRule{section: "3.3.1", says: "RPC calls complete in any order: a slow Responder answers the last first", run: func(tc *requesterCase) {
			tc.open(8)
			for i := range uint32(8) {
				tc.send(getAttrCall(i))
			}
			for i := range uint32(8) {
				tc.sleep(time.Second)
				tc.peer.send(0, plain(7-i, 8), getAttrReply(7-i))
				tc.wantReply("in the order of the replies", getAttrReply(7-i))
			}
		}},
		requesterRule{section: "4.5", says: "a silent Responder: no Call waits for ever, the connection ends and the Call is in limbo", run: func(tc *requesterCase) {
			tc.open(8)
			tc.send(attr)
			tc.sleep(59 * time.Second)
			tc.wantUp("59 s")
			tc.sleep(2 * time.Second)
			tc.wantEnded("61 s", ErrDeadline)
			tc.wantFate("the call", 1, InLimbo, ErrDeadline)
		}},
		requesterRule{section: "4.5", says: "a Responder whose Replies cannot be decoded is a silent one: the discarded Reply's Call has its deadline", run: func(tc *requesterCase) {
			tc.open(8)
			tc.send(attr)
			tc.peer.send(0, append(words(1, 2, 8, 0, 0, 0, 0), getAttrReply(1)...))
			tc.sleep(61 * time.Second)
			tc.wantEnded("61 s", ErrDeadline)
			tc.wantFate("the call", 1, InLimbo, ErrDeadline)
		}},

		requesterRule{section: "8797 4.1", says: "remote invalidation: MUST be of a handle of this XID only, or the connection is closed", same: TestRequesterRemoteInvalidation},
		requesterRule{section: "8797 4", says: "senders MUST set the reserved bits to zero; the flag is set when it is meant", setup: func(tc *requesterCase) { tc.opts.RemoteInvalidation = true }, run: func(tc *requesterCase) {
			b := tc.peer.conn.Info().PrivateData
			i := bytes.Index(b, []byte{0xf6, 0xab, 0x0e, 0x18})
			if i < 0 || len(b) < i+8 || b[i+4] != 1 || b[i+5] != 1 {
				tc.t.Fatalf("private data %x", b)
			}
			tc.alive()
		}},
		requesterRule{section: "8797 5.1", says: "no private data: MUST behave as if both sizes were zero, that is 1024", setup: func(tc *requesterCase) { tc.priv = rpcrdma.PrivateData{} }, run: func(tc *requesterCase) {
			if i := tc.r.Info(); i.CallInline != 1024 || i.ReplyInline != 1024 {
				tc.t.Errorf("thresholds %d and %d", i.CallInline, i.ReplyInline)
			}
			tc.alive()
		}},

		requesterRule{section: "8167 4.1", says: "direction is that of the RPC message; credits are accounted separately: a reverse Call's are no grant", reverse: true, run: func(tc *requesterCase) {
			tc.send(attr)
			tc.peer.wantSend("a call")
			tc.peer.send(0, plain(1, 64), callback(1, 8))
			if s := tc.peer.wantSend("an answer"); s.Credits == 0 {
				tc.t.Error("no reverse credits granted")
			}
			tc.wantNotDone("the XID is that of a Call, but not the direction")
			tc.wantRefused("the grant is one still", 2)
			tc.peer.send(0, plain(1, 8), getAttrReply(1))
			tc.wantReply("the forward call", getAttrReply(1))
		}},
		requesterRule{section: "8167 5.2", says: "rdma_vers MUST be that of the Call; the Reply MUST start with the same XID, and its msg_type MUST be REPLY", reverse: true, run: func(tc *requesterCase) {
			for _, xid := range []uint32{0, 7, 0xffffffff} {
				tc.peer.send(0, plain(xid, 2), callback(xid, 40))
				s := tc.peer.wantSend("an answer")
				if s.XID != xid || s.Version != 1 || s.Proc != rpcrdma.Msg || len(s.payload) < 24 || !bytes.Equal(s.payload[:8], words(xid, 1)) {
					tc.t.Errorf("%+v, payload %x", &s.Header, s.payload)
				}
			}
		}},
		requesterRule{section: "8167 5.3", says: "a non-empty chunk list, not supported: MUST reply RDMA_ERROR, ERR_CHUNK", reverse: true, run: func(tc *requesterCase) {
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
		}},
		requesterRule{section: "8167 4.1", says: "a Responder that overruns its reverse credits loses Calls, not the connection", same: TestReverseCredits},
		requesterRule{section: "8167 5.1", says: "the RPC Call header MUST start with the same XID; what is no Call is dropped; an answer that is too long is not sent", same: TestReverseRefusals},
	)
	return rules
}
