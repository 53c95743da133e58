package rdmaside

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/rdmabridge/rdmabridge/rdmaside/rpcrdma"
)

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
	{"no segments of one", reasonChunks, defectRead, func(tc *requesterCase, s *wantedSend) [][]byte {
		return defectMsg(func(h *rpcrdma.Header) { h.AddWrite() }, defectWhole)
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
	{"Reply chunk of two segments", reasonChunks, defectOpaque, func(tc *requesterCase, s *wantedSend) [][]byte {
		seg := s.Reply.Segments[0]
		return defectNoMsg(func(h *rpcrdma.Header) { h.SetReply(shortened(seg, 100), shortened(seg, 0)) }, nil)
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

// run answers a Call with the defect while another Call is outstanding.
func (d *replyDefect) run(tc *requesterCase, async bool) {
	tc.open(8)
	tc.provider.AsyncInvalidate(async)
	tc.send(d.call)
	s := tc.peer.wantSend("the call")
	tc.send(getAttrCall(0x99))
	answer := d.answer(tc, s)
	tc.logs.Reset()
	tc.peer.send(0, answer...)
	tc.wantEnded(d.name, errInvalidReply)
	tc.wantFate("the call that was answered so", defectXID, InLimbo, errInvalidReply)
	tc.wantFate("another call", 0x99, InLimbo, errInvalidReply)
	if n := tc.opts.Metrics.refusals[d.reason].Value(); n != 1 {
		tc.t.Errorf("refusals for reason %s: %d, want 1; %v", refusalNames[d.reason], n, tc.endedErr)
	}
	if n := bytes.Count(tc.logs.Bytes(), []byte("\n")); n != 1 {
		tc.t.Errorf("%d log lines, want 1:\n%s", n, tc.logs.String())
	}
}

// Every defect of a Reply closes its connection, once, counted and logged, with
// the Call in limbo and all memory returned.
func TestRequesterReplyDefects(t *testing.T) {
	for _, tt := range replyDefects {
		for _, async := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/async=%v", tt.name, async), func(t *testing.T) {
				requesterTest(t, nil, func(tc *requesterCase) { tt.run(tc, async) })
			})
		}
	}
}
