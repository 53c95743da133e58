package rdmaside

import (
	"bytes"
	"slices"
	"testing"

	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
	"github.com/rdmabridge/rdmabridge/rdmaside/rpcrdma"
)

func TestResponderWriteChunk(t *testing.T) {
	responderTest(t, nil, func(tc *responderCase) {
		xid := uint32(0)
		for _, n := range []int{1, 2, 3, 4, 8000, 8001, 8002, 8003, 1 << 20} {
			for _, segments := range [][]int{{n}, {n + 4}, {n, 4}, {n/2 + 1, 0, n}} {
				for _, cuts := range [][]int{nil, {30, 100}} {
					xid++
					var segs []rpcrdma.Segment
					var bufs [][]byte
					for _, length := range segments {
						bufs = append(bufs, make([]byte, length))
						segs = append(segs, tc.offer(bufs[len(bufs)-1], fabric.RemoteWrite))
					}
					tc.peer.send(0, header(xid, 128, rpcrdma.Msg, func(h *rpcrdma.Header) { h.AddWrite(segs...) }), readCall(xid, n))
					data := pattern(n, byte(xid))
					whole, pos := readReply(xid, data)
					tc.answer(tc.wantCall("READ", readCall(xid, n)), whole, cuts...)
					s := tc.peer.wantSend("the reply")
					if s.Proc != rpcrdma.Msg || len(s.Writes) != 1 || len(s.Writes[0].Segments) != len(segs) {
						t.Fatalf("header %+v: want the Write chunk back", &s.Header)
					}
					var got []byte
					for i, seg := range s.Writes[0].Segments {
						if seg.Handle != segs[i].Handle || seg.Offset != segs[i].Offset || int(seg.Length) > segments[i] {
							t.Errorf("segment %+v, offered %+v", seg, segs[i])
						}
						got = append(got, bufs[i][:seg.Length]...)
						if rest := bufs[i][seg.Length:]; len(rest) > 0 && !bytes.Equal(rest, make([]byte, len(rest))) {
							t.Error("written beyond the data")
						}
					}
					if !bytes.Equal(got, data) {
						t.Errorf("%d octets written, not the %d of the data", len(got), len(data))
					}
					if !bytes.Equal(s.payload, cut(whole, pos, n)) {
						t.Errorf("payload %x", s.payload)
					}
				}
			}
		}
	})
}

func TestResponderWriteListUnused(t *testing.T) {
	responderTest(t, nil, func(tc *responderCase) {
		whole, _ := readReply(1, pattern(100, 1))
		for _, tt := range []struct {
			name  string
			call  []byte
			reply []byte
			edit  func(h *rpcrdma.Header)
		}{
			{"an error has no item", readCall(1, 100), accepted(1, words(70, 0)), func(h *rpcrdma.Header) {
				h.AddWrite(tc.offer(make([]byte, 100), fabric.RemoteWrite))
			}},
			{"a denied call has none", readCall(1, 100), words(1, 1, 1, 1, 5), func(h *rpcrdma.Header) {
				h.AddWrite(tc.offer(make([]byte, 100), fabric.RemoteWrite))
			}},
			{"GETATTR has none", getAttrCall(1), getAttrReply(1), func(h *rpcrdma.Header) {
				h.AddWrite(tc.offer(make([]byte, 100), fabric.RemoteWrite))
			}},
			{"an empty Write chunk asks for the item inline", readCall(1, 100), whole, func(h *rpcrdma.Header) { h.AddWrite() }},
			{"an unknown program", opaqueCall(1, 8), accepted(1, pattern(40, 1)), func(h *rpcrdma.Header) {
				h.AddWrite(tc.offer(make([]byte, 100), fabric.RemoteWrite), tc.offer(make([]byte, 8), fabric.RemoteWrite))
				h.AddWrite()
			}},
		} {
			tc.peer.send(0, header(1, 128, rpcrdma.Msg, tt.edit), tt.call)
			tc.answer(tc.wantCall(tt.name, tt.call), tt.reply)
			s := tc.peer.wantSend(tt.name)
			if len(s.Writes) == 0 || s.Writes[0].Length() != 0 {
				t.Errorf("%s: %+v", tt.name, &s.Header)
			}
			if !bytes.Equal(s.payload, tt.reply) {
				t.Errorf("%s: payload %x", tt.name, s.payload)
			}
		}
	})
}

func TestResponderReplyChunk(t *testing.T) {
	responderTest(t, nil, func(tc *responderCase) {
		for i, tt := range []struct {
			reply    int // octets of results
			segments []int
			proc     rpcrdma.Proc
		}{
			{100, []int{200}, rpcrdma.Msg},
			{5000, []int{5024}, rpcrdma.NoMsg},
			{5000, []int{1000, 3, 4100}, rpcrdma.NoMsg},
			{5000, []int{8000, 8000}, rpcrdma.NoMsg},
			{4000, []int{100}, rpcrdma.Msg},
			{5000, []int{5020}, rpcrdma.Error},
			{5000, nil, rpcrdma.Error},
			{1 << 20, []int{1 << 21}, rpcrdma.NoMsg},
		} {
			for _, cuts := range [][]int{nil, {4, 1000 % (tt.reply + 24)}} {
				slices.Sort(cuts)
				xid := uint32(i + 1)
				var bufs [][]byte
				tc.peer.send(0, header(xid, 128, rpcrdma.Msg, func(h *rpcrdma.Header) {
					var segs []rpcrdma.Segment
					for _, n := range tt.segments {
						bufs = append(bufs, make([]byte, n))
						segs = append(segs, tc.offer(bufs[len(bufs)-1], fabric.RemoteWrite))
					}
					if segs != nil {
						h.SetReply(segs...)
					}
				}), opaqueCall(xid, 8))
				m := accepted(xid, pattern(tt.reply, 4))
				tc.answer(tc.wantCall("a call", opaqueCall(xid, 8)), m, cuts...)
				if tt.proc == rpcrdma.Error {
					tc.wantError("it does not fit", xid, rpcrdma.ErrChunk)
					continue
				}
				s := tc.peer.wantSend("a reply")
				if s.Proc != tt.proc || len(s.Reply.Segments) != len(tt.segments) {
					t.Fatalf("%+v: %+v", tt, &s.Header)
				}
				got := bytes.Clone(s.payload)
				for i, seg := range s.Reply.Segments {
					got = append(got, bufs[i][:seg.Length]...)
				}
				if !bytes.Equal(got, m) {
					t.Errorf("%+v: %d octets, not the %d of the reply", tt, len(got), len(m))
				}
			}
		}
		tc.wantUp("ERR_CHUNK is about one call")
	})
}

// A header with more segments than an Exchange has room for.
func TestResponderLongHeader(t *testing.T) {
	responderTest(t, nil, func(tc *responderCase) {
		tc.peer.send(0, header(1, 128, rpcrdma.Msg, func(h *rpcrdma.Header) {
			var segs []rpcrdma.Segment
			for range 150 {
				segs = append(segs, tc.offer(make([]byte, 100), fabric.RemoteWrite))
			}
			h.SetReply(segs...)
		}), opaqueCall(1, 8))
		tc.answer(tc.wantCall("a call", opaqueCall(1, 8)), accepted(1, pattern(10000, 1)))
		if s := tc.peer.wantSend("a reply"); s.Proc != rpcrdma.NoMsg || s.Reply.Length() != 10024 {
			t.Errorf("%+v", &s.Header)
		}
	})
}

func TestResponderRemoteInvalidation(t *testing.T) {
	responderTest(t, func(tc *responderCase) { tc.opts.RemoteInvalidation = true }, func(tc *responderCase) {
		one := func(h *rpcrdma.Header) { h.SetReply(tc.offer(make([]byte, 8000), fabric.RemoteWrite)) }
		two := func(h *rpcrdma.Header) {
			h.SetReply(tc.offer(make([]byte, 8000), fabric.RemoteWrite), tc.offer(make([]byte, 8000), fabric.RemoteWrite))
		}
		same := func(h *rpcrdma.Header) {
			s := tc.offer(make([]byte, 8000), fabric.RemoteWrite)
			second := shortened(s, 4000)
			second.Offset += 4000
			h.SetReply(shortened(s, 4000), second)
		}
		for _, tt := range []struct {
			name    string
			edit    func(h *rpcrdma.Header)
			octets  int
			invalid bool
		}{
			{"one handle", one, 5000, true},
			{"one handle, unused", one, 100, true},
			{"one handle, an error", one, 9000, false},
			{"two handles", two, 5000, false},
			{"one handle, two segments", same, 5000, true},
			{"no handle", func(*rpcrdma.Header) {}, 100, false},
		} {
			tc.peer.send(0, header(1, 128, rpcrdma.Msg, tt.edit), opaqueCall(1, 8))
			tc.answer(tc.wantCall(tt.name, opaqueCall(1, 8)), accepted(1, pattern(tt.octets, 1)))
			if s := tc.peer.wantSend(tt.name); (s.invalidated != 0) != tt.invalid {
				t.Errorf("%s: invalidated %#x", tt.name, uint32(s.invalidated))
			}
		}
	})
}
