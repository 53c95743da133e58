package rdmaside

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/rdmabridge/rdmabridge/internal/testkit"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/metrics"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric/fabrictest"
	"github.com/rdmabridge/rdmabridge/rdmaside/rpcrdma"
)

// A responderCase is a connection of a Responder and a fake Requester in a
// bubble.
type responderCase struct {
	*bed
	opts  ResponderOptions
	peer  *fakePeer
	dial  fabric.ConnOptions
	c     *ResponderConn
	logs  bytes.Buffer
	reply func(x *Exchange) // nil means keep x in exchanges

	// Written by callbacks on the loop; read after synctest.Wait.
	exchanges []*Exchange
	opened    int
	ended     int
	endedErr  error
}

func (tc *responderCase) Call(x *Exchange) {
	if tc.opened != 1 || tc.ended != 0 {
		tc.t.Error("a Call outside the life of its connection")
	}
	if tc.reply != nil {
		tc.reply(x)
		return
	}
	tc.exchanges = append(tc.exchanges, x)
}

func (tc *responderCase) Opened(c *ResponderConn) {
	tc.opened++
	tc.c = c
}

func (tc *responderCase) Ended(_ *ResponderConn, err error) {
	tc.ended++
	tc.endedErr = err
}

func responderTest(t *testing.T, setup, f func(tc *responderCase)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		tc := &responderCase{bed: newBed(t, 16<<20)}
		defer tc.strike()
		tc.opts = responderOptions(ResponderOptions{
			Memory: tc.replies, Registry: newRegistry(), Credits: 8,
			Log: zerolog.New(&tc.logs), Metrics: NewResponderMetrics(metrics.New(), "test"),
		})
		tc.dial = fabric.ConnOptions{PrivateData: rpcrdma.AppendPrivateData(nil, rpcrdma.PrivateData{RemoteInvalidation: true, SendSize: 4096, RecvSize: 4096})}
		if setup != nil {
			setup(tc)
		}
		s, err := NewResponder(tc.opts, tc)
		if err != nil {
			t.Fatal(err)
		}
		l, err := tc.provider.Listen("front", fabric.ListenOptions{}, func(in fabric.Incoming) {
			if _, err := s.Accept(context.Background(), in, tc.loop); err != nil {
				t.Error(err)
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		tc.peer = &fakePeer{bed: tc.bed, receives: 64}
		if _, err := tc.provider.Dial(context.Background(), tc.peerLoop, "front", tc.dial, tc.peer); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		f(tc)
		tc.loop.Do(func() {
			tc.c.Close(nil)
			for _, x := range tc.exchanges {
				x.Abort()
			}
		})
		synctest.Wait()
		if tc.ended != 1 {
			t.Errorf("Ended was called %d times", tc.ended)
		}
		if n := tc.c.Outstanding(); n != 0 {
			t.Errorf("%d calls outstanding at the end", n)
		}
	})
}

// offer registers n octets, or data, of the fake Requester's memory.
func (tc *responderCase) offer(buf []byte, a fabric.Access) rpcrdma.Segment {
	tc.t.Helper()
	var g fabric.Region
	var err error
	fabrictest.Do(tc.peerLoop, func() { g, err = tc.peer.conn.Register(buf, a) })
	if err != nil {
		tc.t.Fatal(err)
	}
	return segment(g)
}

func (tc *responderCase) wantCall(why string, m []byte) *Exchange {
	tc.t.Helper()
	synctest.Wait()
	if len(tc.exchanges) == 0 {
		tc.t.Fatalf("no call; want: %s; ended: %v", why, tc.endedErr)
	}
	x := tc.exchanges[0]
	tc.exchanges = tc.exchanges[1:]
	if !bytes.Equal(x.Message(), m) {
		tc.t.Fatalf("%s: call of %d octets\n%x\nwant %d\n%x", why, len(x.Message()), head(x.Message()), len(m), head(m))
	}
	return x
}

func (tc *responderCase) wantNoCall(why string) {
	tc.t.Helper()
	synctest.Wait()
	if len(tc.exchanges) > 0 {
		tc.t.Fatalf("a call; want none: %s", why)
	}
}

// answer replies with m in arena memory, in as many parts as cuts make, and
// asserts that the memory is released once.
func (tc *responderCase) answer(x *Exchange, m []byte, cuts ...int) {
	tc.t.Helper()
	b := tc.lend(m)
	var parts [][]byte
	at := 0
	for _, c := range append(cuts, len(b)) {
		parts = append(parts, b[at:c])
		at = c
	}
	n := &releases{}
	tc.loop.Do(func() { x.Reply(parts, n) })
	synctest.Wait()
	if n.n != 1 {
		tc.t.Errorf("the reply was released %d times", n.n)
	}
}

type releases struct{ n int }

func (r *releases) Release() { r.n++ }

func (tc *responderCase) wantEnded(why string, is error) {
	tc.t.Helper()
	synctest.Wait()
	if tc.ended != 1 || !errors.Is(tc.endedErr, is) {
		tc.t.Errorf("ended %d times, %v; want once, %v: %s", tc.ended, tc.endedErr, is, why)
	}
}

func (tc *responderCase) wantUp(why string) {
	tc.t.Helper()
	synctest.Wait()
	if tc.ended != 0 || tc.c.state != up {
		tc.t.Fatalf("the connection ended: %v; want it up: %s", tc.endedErr, why)
	}
}

func (tc *responderCase) wantError(why string, xid uint32, code rpcrdma.ErrCode) {
	tc.t.Helper()
	m, ok := tc.peer.next()
	if !ok {
		tc.t.Fatalf("nothing was sent; want: %s", why)
	}
	// The answer has the version of the Call.
	if len(m.octets) < 20 || !bytes.Equal(m.octets[:4], words(xid)) || bytes.Equal(m.octets[8:12], words(0)) ||
		!bytes.Equal(m.octets[12:20], words(4, uint32(code))) || m.invalidated != 0 {
		tc.t.Fatalf("%s: %x, want %v for %#x with credits", why, m.octets, code, xid)
	}
}

func TestResponderInline(t *testing.T) {
	responderTest(t, nil, func(tc *responderCase) {
		p, ok := rpcrdma.FindPrivateData(tc.peer.conn.Info().PrivateData)
		if want := (rpcrdma.PrivateData{SendSize: 4096, RecvSize: 4096}); !ok || p != want {
			t.Errorf("private data %+v, want %+v", p, want)
		}
		tc.peer.send(0, plain(0x0a, 128), getAttrCall(0x0a))
		x := tc.wantCall("inline", getAttrCall(0x0a))
		if tc.c.Outstanding() != 1 || x.XID() != 0x0a || x.Conn() != tc.c {
			t.Errorf("outstanding %d, XID %#x", tc.c.Outstanding(), x.XID())
		}
		tc.peer.wantIdle("no answer yet")
		tc.answer(x, getAttrReply(0x0a))
		want := append(testkit.Unhex(t, `
			0000000a 00000001 00000008 00000000   # XID, version 1, 8 credits granted, RDMA_MSG
			00000000 00000000 00000000            # no lists
		`), getAttrReply(0x0a)...)
		if s := tc.peer.wantSend("inline"); !bytes.Equal(s.octets, want) {
			t.Errorf("sent\n%x\nwant\n%x", s.octets, want)
		}
		n := tc.provider.Counts(tc.c.conn)
		if n.Receives != 10 {
			t.Errorf("%d Receives posted, want credits and spare", n.Receives)
		}
	})
}

// pulled offers data in segments, which end at the given cuts.
func (tc *responderCase) pulled(data []byte, cuts ...int) (segs []rpcrdma.Segment) {
	at := 0
	for _, c := range append(cuts, len(data)) {
		segs = append(segs, tc.offer(bytes.Clone(data[at:c]), fabric.RemoteRead))
		at = c
	}
	return segs
}

func addReads(h *rpcrdma.Header, pos int, segs []rpcrdma.Segment) {
	for _, s := range segs {
		h.AddRead(uint32(pos), s)
	}
}

func TestResponderReadChunk(t *testing.T) {
	responderTest(t, nil, func(tc *responderCase) {
		xid := uint32(0)
		for _, n := range []int{1, 2, 3, 4, 5000, 5001, 5002, 5003, 1 << 20} {
			for _, tt := range []struct {
				name   string
				padded bool // roundup in the chunk
				cuts   []int
			}{
				{"one segment", false, nil},
				{"padded", true, nil},
				{"odd segments", false, []int{n / 3, n / 2}},
				{"padding apart", true, []int{n}},
				{"empty segment first", false, []int{0}},
			} {
				xid++
				data := pattern(n, byte(xid))
				m := writeCall(xid, data)
				pos := len(m) - (n+3)&^3
				chunk := data
				if tt.padded {
					chunk = m[pos:]
				}
				segs := tc.pulled(chunk, tt.cuts...)
				tc.peer.send(0, header(xid, 128, rpcrdma.Msg, func(h *rpcrdma.Header) { addReads(h, pos, segs) }), m[:pos])
				x := tc.wantCall(fmt.Sprintf("%d octets, %s", n, tt.name), m)
				tc.answer(x, accepted(xid, words(0)))
				s := tc.peer.wantSend("the reply")
				if len(s.Reads) != 0 {
					t.Error("a Read list in a Reply")
				}
			}
		}
	})
}

// A Call with octets after the data item, and one that kept the roundup inline.
func TestResponderReadChunkTail(t *testing.T) {
	responderTest(t, nil, func(tc *responderCase) {
		// A Call of an unknown program: an opaque, then 12 octets.
		data := pattern(4001, 2)
		m := append(words(1, 0, 2, 400100, 1, 5, 0, 0, 0, 0), append(opaque(data), words(7, 8, 9)...)...)
		pos := 44
		segs := tc.pulled(data, 1000)
		tc.peer.send(0, header(1, 128, rpcrdma.Msg, func(h *rpcrdma.Header) { addReads(h, pos, segs) }), cut(m, pos, len(data)))
		tc.answer(tc.wantCall("a tail", m), accepted(1))
		tc.peer.wantSend("the reply")
	})
}

// Several chunks in any order, alone and with a Position Zero Read chunk: RFC
// 8166 Section 3.4.5.
func TestResponderManyChunks(t *testing.T) {
	a, b, c := pattern(401, 1), pattern(4000, 2), pattern(3, 3)
	m := words(1, 0, 2, 400100, 1, 5, 0, 0, 0, 0)
	m = append(m, opaque(a)...)
	posA := len(m) - 404
	m = append(m, words(5, 6)...)
	m = append(m, opaque(b)...)
	posB := len(m) - 4000
	m = append(m, opaque(c)...)
	posC := len(m) - 4
	m = append(m, words(1, 2, 3)...)
	base := cut(cut(cut(m, posC, 3), posB, 4000), posA, 401)
	chunks := func(tc *responderCase, h *rpcrdma.Header) {
		addReads(h, posC, tc.pulled(c))
		addReads(h, posA, tc.pulled(a, 7, 9))
		addReads(h, posB, tc.pulled(b, 4000))
	}
	responderTest(t, nil, func(tc *responderCase) {
		tc.peer.send(0, header(1, 128, rpcrdma.Msg, func(h *rpcrdma.Header) { chunks(tc, h) }), base)
		tc.answer(tc.wantCall("three chunks", m), accepted(1))
		tc.peer.wantSend("the reply")

		tc.peer.send(0, header(1, 128, rpcrdma.NoMsg, func(h *rpcrdma.Header) {
			chunks(tc, h)
			addReads(h, 0, tc.pulled(base, 3, 45, 60))
		}))
		tc.answer(tc.wantCall("a reduced Long Call", m), accepted(1))
		tc.peer.wantSend("the reply")

		tc.peer.send(0, header(1, 128, rpcrdma.NoMsg, func(h *rpcrdma.Header) { addReads(h, 0, tc.pulled(m, 1000, 1001)) }))
		tc.answer(tc.wantCall("a Long Call", m), accepted(1))
		tc.peer.wantSend("the reply")
	})
}

// A Responder has no more Reads outstanding than the peer serves.
func TestResponderORD(t *testing.T) {
	responderTest(t, func(tc *responderCase) { tc.dial.IRD = 2 }, func(tc *responderCase) {
		tc.peer.send(0, plain(9, 8), getAttrCall(9))
		tc.answer(tc.wantCall("the first call", getAttrCall(9)), getAttrReply(9))
		tc.peer.wantSend("the first reply")
		held := 0
		tc.provider.Inject(func(op fabrictest.Operation) fabrictest.Verdict {
			if op.Op == fabric.OpRead {
				held++
				return fabrictest.Hold
			}
			return fabrictest.Pass
		})
		m := opaqueCall(1, 5000)
		tc.peer.send(0, header(1, 128, rpcrdma.NoMsg, func(h *rpcrdma.Header) { addReads(h, 0, tc.pulled(m, 1, 2, 3, 4, 5)) }))
		tc.peer.send(0, header(2, 128, rpcrdma.NoMsg, func(h *rpcrdma.Header) { addReads(h, 0, tc.pulled(opaqueCall(2, 5000), 1)) }))
		synctest.Wait()
		if n := tc.provider.Counts(tc.c.conn).Posted; n != 2 {
			t.Errorf("%d Reads posted, want 2", n)
		}
		tc.provider.Inject(nil)
		tc.provider.Resume(tc.c.conn)
		tc.answer(tc.wantCall("in the end", m), accepted(1))
		tc.answer(tc.wantCall("and the next", opaqueCall(2, 5000)), accepted(2))
	})
	responderTest(t, func(tc *responderCase) { tc.dial.IRD = -1 }, func(tc *responderCase) {
		tc.peer.send(0, header(1, 128, rpcrdma.NoMsg, func(h *rpcrdma.Header) { addReads(h, 0, tc.pulled(opaqueCall(1, 5000))) }))
		tc.wantError("the peer serves no Reads", 1, rpcrdma.ErrChunk)
	})
}

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

// The octets of an ERR_VERS: RFC 8166 Section 4.5.1.
func TestResponderErrVers(t *testing.T) {
	responderTest(t, nil, func(tc *responderCase) {
		tc.peer.send(0, words(0x77, 9, 5, 0, 0, 0, 0))
		m, _ := tc.peer.next()
		want := testkit.Unhex(t, `
			00000077 00000009 00000005 00000004   # XID and version of the call, RDMA_ERROR
			00000001 00000001 00000001            # ERR_VERS, 1 to 1
		`)
		if !bytes.Equal(m.octets, want) {
			t.Errorf("sent\n%x\nwant\n%x", m.octets, want)
		}
	})
}

func TestResponderCredits(t *testing.T) {
	responderTest(t, nil, func(tc *responderCase) {
		tc.peer.send(0, plain(1, 0), getAttrCall(1))
		tc.answer(tc.wantCall("a call that requests nothing", getAttrCall(1)), getAttrReply(1))
		if s := tc.peer.wantSend("a reply"); s.Credits != 1 {
			t.Errorf("granted %d, want 1, never 0: RFC 8166 3.3.1", s.Credits)
		}
		tc.peer.send(0, plain(2, 0xffffffff), getAttrCall(2))
		tc.answer(tc.wantCall("a call that requests everything", getAttrCall(2)), getAttrReply(2))
		if s := tc.peer.wantSend("a reply"); s.Credits != 8 {
			t.Errorf("granted %d, want the Receives posted, 8", s.Credits)
		}
		for i := range uint32(8) {
			tc.peer.send(0, plain(10+i, 128), getAttrCall(10+i))
		}
		tc.wantUp("8 calls of 8")
		if tc.c.Outstanding() != 8 {
			t.Errorf("outstanding %d", tc.c.Outstanding())
		}
		tc.peer.send(0, plain(20, 128), getAttrCall(20))
		tc.wantEnded("9 calls of 8", errOverrun)
		if tc.opts.Metrics.refusals[reasonCredits].Value() != 1 {
			t.Error("not counted")
		}
	})
	responderTest(t, nil, func(tc *responderCase) {
		tc.peer.send(0, plain(1, 128), getAttrCall(1))
		tc.peer.send(0, plain(2, 128), getAttrCall(2))
		tc.wantEnded("two calls before the first reply: RFC 8166 3.3.3", errOverrun)
	})
}

// There are Receives for the whole grant whenever a Reply is sent, and a Call is
// pulled only into memory that is leased.
func TestResponderStarved(t *testing.T) {
	responderTest(t, func(tc *responderCase) {
		tc.replies = tc.arena.Account("small", 256<<10)
		tc.opts.Memory = tc.replies
		tc.opts.Receives = NewReceivePool(tc.arena.Account("receives", 1<<20))
	}, func(tc *responderCase) {
		tc.peer.send(0, plain(9, 8), getAttrCall(9))
		tc.answer(tc.wantCall("the first call", getAttrCall(9)), getAttrReply(9))
		tc.peer.wantSend("the first reply")
		var msgs [][]byte
		for i := range uint32(6) {
			m := opaqueCall(i+1, 60000)
			msgs = append(msgs, m)
			tc.peer.send(0, header(i+1, 128, rpcrdma.NoMsg, func(h *rpcrdma.Header) { addReads(h, 0, tc.pulled(m)) }))
		}
		synctest.Wait()
		if n := len(tc.exchanges); n == 0 || n >= 6 {
			t.Fatalf("%d of 6 calls of 60 KiB with 256 KiB", n)
		}
		tc.peer.send(0, plain(100, 8), getAttrCall(100))
		synctest.Wait()
		x := tc.exchanges[len(tc.exchanges)-1]
		tc.exchanges = tc.exchanges[:len(tc.exchanges)-1]
		if x.XID() != 100 {
			t.Error("an inline call waits for memory")
		}
		tc.answer(x, getAttrReply(100))
		tc.peer.wantSend("an inline call needs none")
		for i, m := range msgs {
			tc.answer(tc.wantCall("in order", m), accepted(uint32(i+1)))
			tc.peer.wantSend("a reply")
		}
		// This Call can never be answered.
		tc.peer.send(0, header(50, 128, rpcrdma.NoMsg, func(h *rpcrdma.Header) { addReads(h, 0, tc.pulled(opaqueCall(50, 1<<20))) }))
		tc.wantError("beyond the account", 50, rpcrdma.ErrChunk)
	})
}

// The connection is lost while there are Exchanges in every state.
func TestResponderLoss(t *testing.T) {
	lost := errors.New("cable cut")
	responderTest(t, func(tc *responderCase) {
		tc.replies = tc.arena.Account("small", 256<<10)
		tc.opts.Memory = tc.replies
		tc.opts.Receives = NewReceivePool(tc.arena.Account("receives", 1<<20))
	}, func(tc *responderCase) {
		tc.peer.send(0, plain(9, 8), getAttrCall(9))
		tc.answer(tc.wantCall("the first call", getAttrCall(9)), getAttrReply(9))
		tc.peer.send(0, plain(1, 8), getAttrCall(1))
		handed := tc.wantCall("handed", getAttrCall(1))
		tc.peer.send(0, plain(2, 8), getAttrCall(2))
		sending := tc.wantCall("sending", getAttrCall(2))
		tc.provider.Inject(func(op fabrictest.Operation) fabrictest.Verdict {
			if op.Dialed {
				return fabrictest.Pass
			}
			return fabrictest.Hold
		})
		done := &releases{}
		reply := tc.lend(getAttrReply(2))
		tc.loop.Do(func() { sending.Reply([][]byte{reply}, done) })
		for i := range uint32(4) {
			tc.peer.send(0, header(20+i, 128, rpcrdma.NoMsg, func(h *rpcrdma.Header) { addReads(h, 0, tc.pulled(opaqueCall(20+i, 60000))) }))
		}
		tc.wantNoCall("Reads are held")
		if tc.c.starved.first == nil {
			t.Error("no call is starved")
		}
		if done.n != 0 {
			t.Error("released while it is posted: B1")
		}
		tc.provider.Break(tc.c.conn, lost)
		tc.wantEnded("the loss", lost)
		if done.n != 1 {
			t.Errorf("a reply that was posted is released %d times", done.n)
		}
		tc.answer(handed, getAttrReply(1)) // dropped, and released
	})
}

func TestResponderAbort(t *testing.T) {
	responderTest(t, nil, func(tc *responderCase) {
		tc.peer.send(0, plain(1, 8), getAttrCall(1))
		x := tc.wantCall("a call", getAttrCall(1))
		tc.loop.Do(x.Abort)
		tc.wantEnded("RFC 8166 4.5.4", errAborted)
		if closed, err := tc.peer.ended(); !closed || !errors.Is(err, io.EOF) && err == nil {
			t.Errorf("peer: %v %v", closed, err)
		}
	})
	responderTest(t, nil, func(tc *responderCase) {
		tc.peer.send(0, plain(1, 8), getAttrCall(1))
		x := tc.wantCall("a call", getAttrCall(1))
		tc.answer(x, getAttrReply(2))
		if tc.ended != 1 {
			t.Error("a reply with another XID was taken")
		}
	})
}

// Close(nil) lets the posted Sends complete.
func TestResponderCloseOrderly(t *testing.T) {
	responderTest(t, nil, func(tc *responderCase) {
		tc.peer.send(0, plain(1, 8), getAttrCall(1))
		x := tc.wantCall("a call", getAttrCall(1))
		m := tc.lend(getAttrReply(1))
		tc.loop.Do(func() {
			x.Reply([][]byte{m}, nil)
			tc.c.Close(nil)
		})
		tc.peer.wantSend("the reply")
		tc.wantEnded("asked for", nil)
	})
}

func TestResponderOptions(t *testing.T) {
	for _, tt := range []struct {
		name   string
		o      ResponderOptions
		fields []string
	}{
		{
			"out of range",
			ResponderOptions{Credits: -1, CallInline: 1000, ReplyInline: 1 << 20, MaxCall: 5, ORD: -1},
			[]string{"Credits", "CallInline", "ReplyInline", "MaxCall", "ORD", "Memory", "Registry"},
		},
		{"zero", ResponderOptions{}, []string{"Credits", "CallInline", "ReplyInline", "MaxCall", "Memory", "Registry"}},
	} {
		_, err := tt.o.validated()
		for _, field := range tt.fields {
			if err == nil || !strings.Contains(err.Error(), field+" ") {
				t.Errorf("%s: no word about %s in: %v", tt.name, field, err)
			}
		}
	}
}

// An Accept that fails releases what Setup leased.
func TestResponderAcceptFails(t *testing.T) {
	for _, tt := range []struct {
		name   string
		memory int64
		taken  int  // octets of memory that are leased elsewhere
		setup  bool // Setup fails, rather than Accept
	}{
		{"the pool knows", 8 << 10, 0, false},
		{"the pool does not know", 76 << 10, 68 << 10, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBed(t, 16<<20)
				defer b.strike()
				tc := &responderCase{bed: b}
				m := b.arena.Account("tiny", tt.memory)
				if tt.taken > 0 {
					l, err := m.Lease(tt.taken)
					if err != nil {
						t.Fatal(err)
					}
					defer l.Release()
				}
				s, err := NewResponder(responderOptions(ResponderOptions{Memory: m, Registry: newRegistry()}), tc)
				if err != nil {
					t.Fatal(err)
				}
				l, _ := b.provider.Listen("front", fabric.ListenOptions{}, func(in fabric.Incoming) {
					// Three Receives of 4 KiB do not fit.
					if _, err := s.Accept(context.Background(), in, b.loop); !errors.Is(err, ErrNoReceives) {
						t.Errorf("accepted without memory: %v", err)
					}
				})
				defer l.Close()
				_, err = b.provider.Dial(context.Background(), b.peerLoop, "front", fabric.ConnOptions{}, &fakePeer{bed: b})
				if err == nil || errors.Is(err, fabric.ErrRejected) == tt.setup {
					t.Errorf("dialled: %v", err)
				}
				synctest.Wait()
				if tc.opened != tc.ended {
					t.Errorf("opened %d times, ended %d times", tc.opened, tc.ended)
				}
				if p := s.opts.Receives; p.used.Load() != 0 || p.conns.Load() != 0 {
					t.Errorf("%d octets and %d connections are left", p.used.Load(), p.conns.Load())
				}
			})
		})
	}
}
