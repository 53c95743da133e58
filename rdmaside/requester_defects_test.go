package rdmaside

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
	"github.com/rdmabridge/rdmabridge/rdmaside/rpcrdma"
)

// TestRequesterEndedByReply: a message for which RDMA ends the connection costs its own Call a Reply, and the others the
// connection alone.
func TestRequesterEndedByReply(t *testing.T) {
	const other = 0x77
	beyond := func(tc *requesterCase, seg rpcrdma.Segment) {
		seg.Length += 4
		tc.peer.write(seg, pattern(int(seg.Length), 1))
	}
	for _, tt := range []struct {
		name string
		call []byte
		is   error
		why  refusalReason
		end  func(tc *requesterCase, s *wantedSend)
	}{
		{"reply longer than a Receive", defectAttr, errReplyTooLong, reasonTooLong, func(tc *requesterCase, s *wantedSend) {
			tc.peer.send(0, plain(defectXID, 8), accepted(defectXID, pattern(20<<10, 1)))
		}},
		{"write beyond the Write chunk", defectRead, errInvalidReply, reasonAccess, func(tc *requesterCase, s *wantedSend) {
			beyond(tc, s.Writes[0].Segments[0])
		}},
		{"write into a Read chunk", writeCall(defectXID, data8000), errInvalidReply, reasonAccess, func(tc *requesterCase, s *wantedSend) {
			tc.peer.write(s.Reads[0].Segment, pattern(4, 1))
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			requesterTest(t, nil, func(tc *requesterCase) {
				tc.open(8)
				tc.send(getAttrCall(other))
				tc.peer.wantSend("another call")
				tc.send(tt.call)
				tt.end(tc, tc.peer.wantSend("the call"))
				fates := map[uint32]doneCall{}
				for range 2 {
					d := tc.nextDone("both calls end with the connection")
					fates[d.err.XID] = d
				}
				if d := fates[other].err; d == nil || d.Fate != InLimbo {
					t.Errorf("the other call: %v", d)
				}
				if d := fates[defectXID].err; d == nil || d.Fate != Answered || !errors.Is(d.Err, tt.is) {
					t.Errorf("the call: %v, want answered: %v", d, tt.is)
				}
				if n := tc.opts.Metrics.refusals[tt.why].Value(); n != 1 {
					t.Errorf("%d refused for %s, want 1", n, refusalNames[tt.why])
				}
			})
		})
	}
}

// A replyDefect is an answer to a Call that RFC 8166 does not allow.
type replyDefect struct {
	name   string
	reason refusalReason
	call   []byte
	answer func(tc *requesterCase, s *wantedSend) [][]byte
}

// The Calls of replyDefects, and a Reply to the READ.
const defectXID = 0x42

var (
	defectRead   = readCall(defectXID, 8192)
	defectOpaque = opaqueCall(defectXID, 100)
	defectAttr   = getAttrCall(defectXID)

	defectWhole, defectPos = readReply(defectXID, data8000)
	defectBase             = cut(defectWhole, defectPos, len(data8000))
)

func defectMsg(edit func(h *rpcrdma.Header), payload []byte) [][]byte {
	return [][]byte{header(defectXID, 8, rpcrdma.Msg, edit), payload}
}

func defectNoMsg(edit func(h *rpcrdma.Header), payload []byte) [][]byte {
	return [][]byte{header(defectXID, 8, rpcrdma.NoMsg, edit), payload}
}

var replyDefects = []replyDefect{
	{"a Read list", reasonChunks, defectAttr, func(tc *requesterCase, s *wantedSend) [][]byte {
		return defectMsg(func(h *rpcrdma.Header) { h.AddRead(4, rpcrdma.Segment{Handle: 1, Length: 4}) }, getAttrReply(defectXID))
	}},
	{"a Write chunk not offered", reasonChunks, defectAttr, func(tc *requesterCase, s *wantedSend) [][]byte {
		return defectMsg(func(h *rpcrdma.Header) { h.AddWrite(rpcrdma.Segment{Handle: 1}) }, getAttrReply(defectXID))
	}},
	{"a Reply chunk not offered", reasonChunks, defectAttr, func(tc *requesterCase, s *wantedSend) [][]byte {
		return defectNoMsg(func(h *rpcrdma.Header) { h.SetReply(rpcrdma.Segment{Handle: 1, Length: 100}) }, nil)
	}},
	{"RDMA_NOMSG with nothing offered", reasonChunks, defectAttr, func(tc *requesterCase, s *wantedSend) [][]byte {
		return defectNoMsg(func(h *rpcrdma.Header) { h.AddWrite(rpcrdma.Segment{Handle: 1, Length: 100}) }, nil)
	}},
	{"two Write chunks of one", reasonChunks, defectRead, func(tc *requesterCase, s *wantedSend) [][]byte {
		seg := s.Writes[0].Segments[0]
		return defectMsg(func(h *rpcrdma.Header) { h.AddWrite(shortened(seg, 0)); h.AddWrite(shortened(seg, 0)) }, defectWhole)
	}},
	{"two segments of one", reasonChunks, defectRead, func(tc *requesterCase, s *wantedSend) [][]byte {
		seg := s.Writes[0].Segments[0]
		return defectMsg(func(h *rpcrdma.Header) { h.AddWrite(shortened(seg, 4000), shortened(seg, 4000)) }, defectBase)
	}},
	{"more written than there is room", reasonChunks, defectRead, func(tc *requesterCase, s *wantedSend) [][]byte {
		seg := s.Writes[0].Segments[0]
		return defectMsg(func(h *rpcrdma.Header) { h.AddWrite(shortened(seg, int(seg.Length)+1)) }, defectBase)
	}},
	{"RDMA_NOMSG for a Write chunk", reasonChunks, defectRead, func(tc *requesterCase, s *wantedSend) [][]byte {
		return defectNoMsg(func(h *rpcrdma.Header) { h.AddWrite(s.Writes[0].Segments[0]) }, nil)
	}},
	{"less written than the item", reasonPayload, defectRead, func(tc *requesterCase, s *wantedSend) [][]byte {
		return defectMsg(func(h *rpcrdma.Header) { h.AddWrite(shortened(s.Writes[0].Segments[0], 7000)) }, defectBase)
	}},
	{"written and inline", reasonPayload, defectRead, func(tc *requesterCase, s *wantedSend) [][]byte {
		short, _ := readReply(defectXID, data8000[:100])
		return defectMsg(func(h *rpcrdma.Header) { h.AddWrite(shortened(s.Writes[0].Segments[0], 8000)) }, short)
	}},
	{"written for an error", reasonPayload, defectRead, func(tc *requesterCase, s *wantedSend) [][]byte {
		return defectMsg(func(h *rpcrdma.Header) { h.AddWrite(shortened(s.Writes[0].Segments[0], 8000)) }, accepted(defectXID, words(70, 0)))
	}},
	{"written for a denied call", reasonPayload, defectRead, func(tc *requesterCase, s *wantedSend) [][]byte {
		return defectMsg(func(h *rpcrdma.Header) { h.AddWrite(shortened(s.Writes[0].Segments[0], 8000)) }, words(defectXID, 1, 1, 1, 1))
	}},
	{"base cut short", reasonPayload, defectRead, func(tc *requesterCase, s *wantedSend) [][]byte {
		return defectMsg(func(h *rpcrdma.Header) { h.AddWrite(shortened(s.Writes[0].Segments[0], 8000)) }, defectBase[:len(defectBase)-8])
	}},
	{"RDMA_MSG and octets in the Reply chunk", reasonChunks, defectOpaque, func(tc *requesterCase, s *wantedSend) [][]byte {
		return defectMsg(func(h *rpcrdma.Header) { h.SetReply(shortened(s.Reply.Segments[0], 100)) }, accepted(defectXID))
	}},
	{"RDMA_NOMSG and an inline payload", reasonChunks, defectOpaque, func(tc *requesterCase, s *wantedSend) [][]byte {
		return defectNoMsg(func(h *rpcrdma.Header) { h.SetReply(shortened(s.Reply.Segments[0], 100)) }, accepted(defectXID))
	}},
	{"Reply chunk longer than offered", reasonChunks, defectOpaque, func(tc *requesterCase, s *wantedSend) [][]byte {
		seg := s.Reply.Segments[0]
		return defectNoMsg(func(h *rpcrdma.Header) { h.SetReply(shortened(seg, int(seg.Length)+4)) }, nil)
	}},
	{"Reply chunk of three segments of two", reasonChunks, defectOpaque, func(tc *requesterCase, s *wantedSend) [][]byte {
		seg := s.Reply.Segments[0]
		tc.peer.write(seg, accepted(defectXID, pattern(100, 1)))
		return defectNoMsg(func(h *rpcrdma.Header) { h.SetReply(shortened(seg, 124), shortened(seg, 0), shortened(seg, 0)) }, nil)
	}},
	{"Reply chunk whose second segment is longer than offered", reasonChunks, defectOpaque, func(tc *requesterCase, s *wantedSend) [][]byte {
		a, b := s.Reply.Segments[0], s.Reply.Segments[1]
		return defectNoMsg(func(h *rpcrdma.Header) { h.SetReply(a, shortened(b, int(b.Length)+4)) }, nil)
	}},
	{"Reply chunk with a gap between its segments", reasonChunks, defectOpaque, func(tc *requesterCase, s *wantedSend) [][]byte {
		a, b := s.Reply.Segments[0], s.Reply.Segments[1]
		tc.peer.write(a, accepted(defectXID, pattern(100, 1)))
		tc.peer.write(b, pattern(100, 1))
		return defectNoMsg(func(h *rpcrdma.Header) { h.SetReply(shortened(a, 124), shortened(b, 100)) }, nil)
	}},
	{"Reply chunk that was not written", reasonUnwritten, defectOpaque, func(tc *requesterCase, s *wantedSend) [][]byte {
		return defectNoMsg(func(h *rpcrdma.Header) { h.SetReply(shortened(s.Reply.Segments[0], 124)) }, nil)
	}},
	{"Reply chunk of which the last unit was not written", reasonUnwritten, defectOpaque, func(tc *requesterCase, s *wantedSend) [][]byte {
		tc.peer.write(s.Reply.Segments[0], accepted(defectXID, pattern(100, 1)))
		return defectNoMsg(func(h *rpcrdma.Header) { h.SetReply(shortened(s.Reply.Segments[0], 128)) }, nil)
	}},
	{"Reply chunk whose second segment was not written", reasonUnwritten, defectOpaque, func(tc *requesterCase, s *wantedSend) [][]byte {
		a, b := s.Reply.Segments[0], s.Reply.Segments[1]
		tc.peer.write(a, accepted(defectXID, pattern(int(a.Length)-24, 1)))
		return defectNoMsg(func(h *rpcrdma.Header) { h.SetReply(a, shortened(b, 400)) }, nil)
	}},
	{"Write chunk that was not written", reasonUnwritten, defectRead, func(tc *requesterCase, s *wantedSend) [][]byte {
		return defectMsg(func(h *rpcrdma.Header) { h.AddWrite(shortened(s.Writes[0].Segments[0], 8000)) }, defectBase)
	}},
	{"Write chunk with a hole", reasonUnwritten, defectRead, func(tc *requesterCase, s *wantedSend) [][]byte {
		seg := s.Writes[0].Segments[0]
		tc.peer.write(shortened(seg, 100), data8000[:100])
		seg.Offset += 101
		tc.peer.write(shortened(seg, 7899), data8000[101:])
		return defectMsg(func(h *rpcrdma.Header) { h.AddWrite(shortened(s.Writes[0].Segments[0], 8000)) }, defectBase)
	}},
	{"Write chunk whose first octet was not written", reasonUnwritten, defectRead, func(tc *requesterCase, s *wantedSend) [][]byte {
		seg := s.Writes[0].Segments[0]
		seg.Offset++
		tc.peer.write(shortened(seg, 7999), data8000[1:])
		return defectMsg(func(h *rpcrdma.Header) { h.AddWrite(shortened(s.Writes[0].Segments[0], 8000)) }, defectBase)
	}},
	{"empty Reply chunk", reasonPayload, defectOpaque, func(tc *requesterCase, s *wantedSend) [][]byte {
		return defectNoMsg(func(h *rpcrdma.Header) { h.SetReply(shortened(s.Reply.Segments[0], 0)) }, nil)
	}},
	{"reply of another XID in the Reply chunk", reasonPayload, defectOpaque, func(tc *requesterCase, s *wantedSend) [][]byte {
		tc.peer.write(s.Reply.Segments[0], accepted(defectXID+1, pattern(100, 1)))
		return defectNoMsg(func(h *rpcrdma.Header) { h.SetReply(shortened(s.Reply.Segments[0], 124)) }, nil)
	}},
	{"odd length in the Reply chunk", reasonPayload, defectOpaque, func(tc *requesterCase, s *wantedSend) [][]byte {
		tc.peer.write(s.Reply.Segments[0], accepted(defectXID, pattern(101, 1)))
		return defectNoMsg(func(h *rpcrdma.Header) { h.SetReply(shortened(s.Reply.Segments[0], 125)) }, nil)
	}},
	{"a Call in the Reply chunk", reasonPayload, defectOpaque, func(tc *requesterCase, s *wantedSend) [][]byte {
		tc.peer.write(s.Reply.Segments[0], getAttrCall(defectXID))
		return defectNoMsg(func(h *rpcrdma.Header) { h.SetReply(shortened(s.Reply.Segments[0], 76)) }, nil)
	}},
	{"another XID inside", reasonPayload, defectAttr, func(tc *requesterCase, s *wantedSend) [][]byte { return defectMsg(noChunks, getAttrReply(defectXID+1)) }},
	{"message type 2", reasonPayload, defectAttr, func(tc *requesterCase, s *wantedSend) [][]byte {
		return defectMsg(noChunks, words(defectXID, 2, 0, 0, 0, 0))
	}},
	{"no payload", reasonPayload, defectAttr, func(tc *requesterCase, s *wantedSend) [][]byte { return defectMsg(noChunks, nil) }},
	{"16 octets of payload", reasonPayload, defectAttr, func(tc *requesterCase, s *wantedSend) [][]byte {
		return defectMsg(noChunks, getAttrReply(defectXID)[:16])
	}},
	{"odd length", reasonPayload, defectAttr, func(tc *requesterCase, s *wantedSend) [][]byte {
		return defectMsg(noChunks, getAttrReply(defectXID)[:27])
	}},
}

// run answers a Call with the defect while another Call is outstanding. remote is whether the
// answer invalidates the Call's handle.
func (d *replyDefect) run(tc *requesterCase, async, remote bool) {
	tc.open(4)
	tc.provider.AsyncInvalidate(async)
	tc.send(d.call)
	s := tc.peer.wantSend("the call")
	tc.send(getAttrCall(0x99))
	answer := d.answer(tc, s)
	tc.logs.Reset()
	var inv fabric.Handle
	switch {
	case !remote:
	case len(s.Writes) == 1:
		inv = fabric.Handle(s.Writes[0].Segments[0].Handle)
	case s.Reply != nil:
		inv = fabric.Handle(s.Reply.Segments[0].Handle)
	}
	tc.peer.send(inv, answer...)
	done := tc.nextDone(d.name)
	if err := done.err; done.xid != defectXID || err == nil || err.Fate != Answered || !err.Local || !errors.Is(err, errInvalidReply) {
		tc.t.Errorf("call %#x: %v, want call %#x refused here", done.xid, err, defectXID)
	}
	tc.wantNotDone("the other Call is not concerned")
	tc.wantUp("one Reply is no reason to end the connection")
	tc.wantHandles("those of the refused Call are dead", 0)
	if n := tc.r.Outstanding(); n != 1 {
		tc.t.Errorf("%d Calls outstanding, want the other one", n)
	}
	if n := tc.r.Grant(); n != 4 {
		tc.t.Errorf("grant %d, want 4: a Reply that is refused raises none", n)
	}
	if n := tc.opts.Metrics.refusals[d.reason].Value(); n != 1 {
		tc.t.Errorf("refusals for reason %s: %d, want 1; %v", refusalNames[d.reason], n, done.err)
	}
	if n := bytes.Count(tc.logs.Bytes(), []byte("\n")); n != 1 {
		tc.t.Errorf("%d log lines, want 1:\n%s", n, tc.logs.String())
	}
	tc.peer.send(0, plain(0x99, 8), getAttrReply(0x99))
	tc.wantReply("the other Call", getAttrReply(0x99))
	if n := tc.r.Grant(); n != 8 {
		tc.t.Errorf("grant %d after a valid Reply, want 8", n)
	}
	tc.peer.send(0, plain(defectXID, 8), getAttrReply(defectXID))
	tc.wantNotDone("a second Reply to the refused Call answers none")
	tc.send(getAttrCall(defectXID))
	tc.peer.send(0, plain(defectXID, 8), getAttrReply(defectXID))
	tc.wantReply("the XID may be used again", getAttrReply(defectXID))
}

// Every defect of a Reply fails its own Call, once, counted and logged. The Call was answered,
// so that nobody sends it again; the connection and its other Calls go on.
func TestRequesterReplyDefects(t *testing.T) {
	for _, tt := range replyDefects {
		for _, async := range []bool{false, true} {
			for _, remote := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/async=%v/remote=%v", tt.name, async, remote), func(t *testing.T) {
					requesterTest(t, func(tc *requesterCase) {
						tc.opts.RemoteInvalidation, tc.priv.RemoteInvalidation = true, true
					}, func(tc *requesterCase) { tt.run(tc, async, remote) })
				})
			}
		}
	}
}

// A refused Reply may lower the grant, which the Requester must heed, and never raises it: no
// valid Reply has told how many credits there are.
func TestRequesterRefusedGrant(t *testing.T) {
	requesterTest(t, nil, func(tc *requesterCase) {
		bad := func(credits uint32) {
			tc.send(getAttrCall(1))
			tc.peer.send(0, plain(1, credits), getAttrReply(2))
			tc.wantFate("refused", 1, Answered, errInvalidReply)
		}
		bad(8)
		if n := tc.r.Grant(); n != 1 {
			t.Errorf("grant %d before a valid Reply, want 1", n)
		}
		tc.open(8)
		bad(3)
		if n := tc.r.Grant(); n != 3 {
			t.Errorf("grant %d, want 3", n)
		}
		bad(8)
		if n := tc.r.Grant(); n != 3 {
			t.Errorf("grant %d, want 3 still", n)
		}
		tc.open(8)
		bad(0)
		if n := tc.r.Grant(); n != 1 {
			t.Errorf("grant %d, want 1", n)
		}
	})
}

// "an NFS version 4 server MUST return an empty Write chunk in that Write list position" when a
// READ returns no data: RFC 8267 Section 6.4.1. Such a chunk, and a Reply chunk without
// segments, is an unused one.
func TestRequesterEmptyChunks(t *testing.T) {
	requesterTest(t, nil, func(tc *requesterCase) {
		tc.open(8)
		empty, _ := readReply(1, nil)
		inline, _ := readReply(1, data8000[:100])
		for name, reply := range map[string][]byte{"no data": empty, "an error": accepted(1, words(70, 0)), "data inline": inline} {
			tc.send(readCall(1, 8192))
			tc.peer.wantSend("READ")
			tc.peer.send(0, header(1, 8, rpcrdma.Msg, func(h *rpcrdma.Header) { h.AddWrite() }), reply)
			tc.wantReply(name, reply)
		}
		tc.send(opaqueCall(1, 100))
		tc.peer.wantSend("a call")
		tc.peer.send(0, header(1, 8, rpcrdma.Msg, func(h *rpcrdma.Header) { h.SetReply() }), accepted(1, words(1, 2)))
		tc.wantReply("an empty Reply chunk", accepted(1, words(1, 2)))
		tc.wantHandles("all are dead", 0)
		for reason, n := range tc.opts.Metrics.refusals {
			if n.Value() != 0 {
				t.Errorf("%d refused for %s", n.Value(), refusalNames[reason])
			}
		}
	})
}

// A Reply chunk is longer than 1 MiB by default, and comes in segments that are not.
func TestRequesterReplySegments(t *testing.T) {
	requesterTest(t, nil, func(tc *requesterCase) {
		tc.open(8)
		for _, n := range []int{0, 100, 1<<20 - 24, 1<<20 - 20, 1<<20 + 4000} {
			tc.send(opaqueCall(1, 100))
			s := tc.peer.wantSend("a call")
			segments := s.Reply.Segments
			if len(segments) != 2 || segments[0].Length != 1<<20 || segments[1].Handle != segments[0].Handle || segments[1].Offset != segments[0].Offset+1<<20 {
				t.Fatalf("%+v", segments)
			}
			reply := accepted(1, pattern(n, 1))
			first := min(len(reply), 1<<20)
			tc.peer.write(shortened(segments[0], first), reply[:first])
			tc.peer.write(shortened(segments[1], len(reply)-first), reply[first:])
			tc.peer.send(0, header(1, 8, rpcrdma.NoMsg, func(h *rpcrdma.Header) {
				h.SetReply(shortened(segments[0], first), shortened(segments[1], len(reply)-first))
			}))
			tc.wantReply("in both segments", reply)
		}
	})
}

// A provider that cannot tell what its peer has written gets cleared memory: a Responder that
// lies shows a client zeros, and nothing of another client's.
func TestRequesterClearsChunks(t *testing.T) {
	account := newTestArena(t).Account("replies", 32<<20)
	r := newStubRequester(t, account, func(o *RequesterOptions) { o.Credits = 4 })
	for range 8 { // the leases are used again
		got := &stubReply{}
		if err := r.Send(prepare(t, r.Requester, readCall(1, 8192), got)); err != nil {
			t.Fatal(err)
		}
		r.conn.step()
		h := r.conn.last
		stale := false
		for _, b := range r.conn.handles[h].buf {
			stale = stale || b != 0
		}
		if stale {
			t.Fatal("the chunk holds octets of an earlier Call")
		}
		copy(r.conn.handles[h].buf, data8000)
		seg := rpcrdma.Segment{Handle: uint32(h), Offset: 1 << 40, Length: 8000}
		m, at := readReply(1, data8000)
		r.conn.deliver(append(header(1, 8, rpcrdma.Msg, func(h *rpcrdma.Header) { h.AddWrite(seg) }), cut(m, at, 8000)...), 0)
		if !bytes.Equal(got.plain, m) {
			t.Fatalf("%v, %d octets", got.err, len(got.plain))
		}
	}
	r.Close(nil)
	r.conn.settle(r.loop)
}

type stubReply struct {
	plain []byte
	err   error
}

func (d *stubReply) CallDone(c *Call, err *CallError) {
	if err != nil {
		d.err = err
		return
	}
	d.plain = bytes.Join(c.Reply.Parts(), nil)
	c.Reply.Release()
}
