package rdmaside

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
	"github.com/rdmabridge/rdmabridge/rdmaside/rpcrdma"
)

// Tests of Write lists of several chunks: RFC 8166 Section 4.3.2, RFC 8267
// Section 6.4.

// compoundCall returns a COMPOUND of NFSv4.0 under AUTH_NONE.
func compoundCall(xid uint32, ops ...[]byte) []byte {
	b := words(xid, 0, 2, oncrpc.ProgramNFS, 4, 1, 0, 0, 0, 0, 0, 0, uint32(len(ops)))
	return append(b, bytes.Join(ops, nil)...)
}

func readOp(count int) []byte { return append(words(25), words(0, 0, 0, 0, 0, 0, uint32(count))...) }

func writeOp(data []byte) []byte {
	return append(words(38, 0, 0, 0, 0, 0, 0, 2), opaque(data)...)
}

// A result is the result of one operation.
type result struct {
	octets []byte
	item   []byte // the DDP-eligible item; nil for none
	at     int    // offset of item in octets
}

func readResult(data []byte) result {
	b := words(25, 0, 1)
	return result{append(b, opaque(data)...), data[:len(data):len(data)], len(b) + 4}
}

func readlinkResult(text []byte) result {
	b := words(27, 0)
	return result{append(b, opaque(text)...), text, len(b) + 4}
}

func plainResult(ws ...uint32) result { return result{octets: words(ws...)} }

// compoundReply returns a Reply with the given results, and where their items
// are.
func compoundReply(xid uint32, results ...result) (m []byte, items [][2]int) {
	last := results[len(results)-1].octets
	m = accepted(xid, last[4:8], words(0, uint32(len(results))))
	for _, r := range results {
		if r.item != nil {
			items = append(items, [2]int{len(m) + r.at, len(r.item)})
		}
		m = append(m, r.octets...)
	}
	return m, items
}

// An offered is the fake Requester's side of a chunk.
type offered struct {
	segments []rpcrdma.Segment
	bufs     [][]byte
}

func (tc *responderCase) chunk(lengths ...int) (o offered) {
	for _, n := range lengths {
		b := make([]byte, n)
		o.bufs = append(o.bufs, b)
		o.segments = append(o.segments, tc.offer(b, fabric.RemoteWrite))
	}
	return o
}

func (o *offered) room() (n int) {
	for _, b := range o.bufs {
		n += len(b)
	}
	return n
}

// wantFilled asserts that w is o as the Responder returned it: filled with data
// from front to back, and with nothing else.
func (o *offered) wantFilled(t *testing.T, why string, w *rpcrdma.WriteChunk, data []byte) {
	t.Helper()
	if len(w.Segments) != len(o.segments) {
		t.Fatalf("%s: %d segments, %d were offered", why, len(w.Segments), len(o.segments))
	}
	left := data
	for i, s := range w.Segments {
		n := min(len(left), len(o.bufs[i]))
		if s.Handle != o.segments[i].Handle || s.Offset != o.segments[i].Offset || int(s.Length) != n {
			t.Errorf("%s: segment %d is %+v, offered %+v, want %d octets in it", why, i, s, o.segments[i], n)
		}
		if !bytes.Equal(o.bufs[i][:n], left[:n]) {
			t.Errorf("%s: segment %d holds something else", why, i)
		}
		if rest := o.bufs[i][n:]; !bytes.Equal(rest, make([]byte, len(rest))) {
			t.Errorf("%s: segment %d is written beyond the data", why, i)
		}
		left = left[n:]
	}
}

// A writesCase is a COMPOUND with a Write list, and the expected form of its
// Reply.
type writesCase struct {
	name    string
	results []result
	writes  [][]int // segments of each Write chunk
	reply   []int   // segments of the Reply chunk; nil for none
	cuts    []int   // where the plain Reply is cut into parts
	proc    rpcrdma.Proc
}

func (w *writesCase) run(tc *responderCase, xid uint32) {
	t := tc.t
	t.Helper()
	var ops [][]byte
	for range w.results {
		ops = append(ops, readOp(1<<20)) // the length of the READ does not matter here
	}
	call := compoundCall(xid, ops...)
	whole, items := compoundReply(xid, w.results...)
	var writes []offered
	var reply offered
	tc.peer.send(0, header(xid, 8, rpcrdma.Msg, func(h *rpcrdma.Header) {
		for _, lengths := range w.writes {
			o := tc.chunk(lengths...)
			writes = append(writes, o)
			h.AddWrite(o.segments...)
		}
		if w.reply != nil {
			reply = tc.chunk(w.reply...)
			h.SetReply(reply.segments...)
		}
	}), call)
	tc.answer(tc.wantCall(w.name, call), whole, w.cuts...)
	if w.proc == rpcrdma.Error {
		tc.wantError(w.name, xid, rpcrdma.ErrChunk)
		return
	}
	s := tc.peer.wantSend(w.name)
	if s.Proc != w.proc || len(s.Reads) != 0 || len(s.Writes) != len(writes) || (s.Reply != nil) != (w.reply != nil) {
		t.Fatalf("%s: header %+v", w.name, &s.Header)
	}
	want := bytes.Clone(whole)
	for i := len(items) - 1; i >= 0; i-- {
		if i < len(writes) && writes[i].room() > 0 {
			want = cut(want, items[i][0], items[i][1])
		}
	}
	for i := range writes {
		var data []byte
		if i < len(items) && writes[i].room() > 0 {
			data = whole[items[i][0]:][:items[i][1]]
		}
		writes[i].wantFilled(t, fmt.Sprintf("%s: Write chunk %d", w.name, i), &s.Writes[i], data)
	}
	payload := s.payload
	if w.reply != nil {
		var long []byte
		if w.proc == rpcrdma.NoMsg {
			long, payload = want, append(payload, want...)
		}
		reply.wantFilled(t, w.name+": Reply chunk", s.Reply, long)
	}
	if !bytes.Equal(payload, want) {
		t.Errorf("%s: payload\n%x\nwant\n%x", w.name, payload, want)
	}
}

func TestResponderWriteChunks(t *testing.T) {
	a, b, c := readResult(pattern(5000, 1)), readlinkResult(pattern(33, 2)), readResult(pattern(6001, 3))
	none, short := readResult([]byte{}), readResult(pattern(7, 4))
	fh, fails := plainResult(22, 0), plainResult(25, 70)
	attrs := result{octets: append(words(9, 0, 0), opaque(pattern(5000, 5))...)}
	const msg, noMsg, failed = rpcrdma.Msg, rpcrdma.NoMsg, rpcrdma.Error
	responderTest(t, nil, func(tc *responderCase) {
		for i, w := range []writesCase{
			{name: "one item each", results: []result{fh, a, fh, b, fh, c}, writes: [][]int{{5000}, {33}, {6001}}, proc: msg},
			{name: "room for roundup stays empty", results: []result{b, c}, writes: [][]int{{33, 3}, {6001, 3}}, proc: msg},
			{name: "segments of any length", results: []result{fh, a, c}, writes: [][]int{{1, 0, 4999, 8}, {3000, 3000, 3000}}, proc: msg},
			{name: "the middle one inline", results: []result{fh, a, fh, b, fh, c}, writes: [][]int{{5000}, {}, {6001}}, proc: msg},
			{name: "the first inline", results: []result{short, a}, writes: [][]int{{}, {5000}}, proc: msg},
			{name: "the last inline", results: []result{a, short}, writes: [][]int{{5000}, {}}, proc: msg},
			{name: "all inline", results: []result{short, b}, writes: [][]int{{}, {}}, proc: msg},
			{name: "segments of no octets are no room", results: []result{short, a}, writes: [][]int{{0, 0}, {5000}}, proc: msg},
			{name: "more items than chunks", results: []result{a, short, b}, writes: [][]int{{8000}}, proc: msg},
			{name: "more items than two chunks", results: []result{a, short, b}, writes: [][]int{{8000}, {7}}, proc: msg},
			{name: "more chunks than items", results: []result{fh, a}, writes: [][]int{{8000}, {8000, 4}, {}}, proc: msg},
			{name: "no octets use a chunk", results: []result{none, a}, writes: [][]int{{100}, {5000}}, proc: msg},
			{name: "no octets in the end", results: []result{a, none}, writes: [][]int{{5000}, {100}}, proc: msg},
			{name: "no octets alone", results: []result{none}, writes: [][]int{{100}}, proc: msg},
			{name: "the second READ fails", results: []result{a, fails}, writes: [][]int{{5000}, {5000}}, proc: msg},
			{name: "the first READ fails", results: []result{fh, fails}, writes: [][]int{{5000}, {5000}}, proc: msg},
			{name: "what has no item takes no chunk", results: []result{fh, attrs, b}, writes: [][]int{{33}, {9}}, reply: []int{6000}, proc: noMsg},
			{name: "a Reply chunk for the rest", results: []result{a, attrs, c}, writes: [][]int{{5000}, {6001}}, reply: []int{3000, 3000}, proc: noMsg},
			{name: "a Reply chunk for one item inline", results: []result{a, b, c}, writes: [][]int{{}, {40}, {6001}}, reply: []int{8192}, proc: noMsg},
			{name: "a Reply chunk that is not needed", results: []result{a, c}, writes: [][]int{{5000}, {6001}}, reply: []int{8192, 8192}, proc: msg},
			{name: "a Reply chunk for everything", results: []result{a, c}, writes: [][]int{}, reply: []int{8192, 8192}, proc: noMsg},
			{name: "the rest fits nothing", results: []result{a, attrs, c}, writes: [][]int{{5000}, {6001}}, reply: []int{4000}, proc: failed},
			{name: "the first item is too long", results: []result{a, c}, writes: [][]int{{4999}, {6001}}, reply: []int{20000}, proc: failed},
			{name: "the second item is too long", results: []result{a, c}, writes: [][]int{{5000}, {6000}}, proc: failed},
			{name: "in parts", results: []result{fh, a, b, c}, writes: [][]int{{5000}, {33}, {6001}}, cuts: []int{100, 4000}, proc: msg},
			{name: "in parts of base and item", results: []result{fh, a}, writes: [][]int{{}, {6001}}, cuts: []int{60}, reply: []int{6000}, proc: noMsg},
			{name: "the only item in its own part", results: []result{fh, a}, writes: [][]int{{6001}, {6001}}, cuts: []int{60}, proc: msg},
			{name: "the last item in its own part", results: []result{b, a}, writes: [][]int{{33}, {6001}}, cuts: []int{104}, proc: msg},
		} {
			w.run(tc, uint32(i)+1)
		}
		tc.wantUp("ERR_CHUNK is about one call")
	})
}

// Random COMPOUNDs with random Write lists: items and chunks are paired in all of
// them.
func TestResponderWriteChunksRandom(t *testing.T) {
	r := rand.New(rand.NewPCG(8166, 8267))
	responderTest(t, nil, func(tc *responderCase) {
		for i := range uint32(300) {
			w := writesCase{name: fmt.Sprint("random ", i), reply: []int{20000}, proc: rpcrdma.Msg}
			inline := 60
			var lengths []int
			for range 1 + r.IntN(6) {
				n := r.IntN(1500)
				res := readResult(pattern(n, byte(n)))
				switch r.IntN(4) {
				case 0:
					res = plainResult(22, 0)
				case 1:
					res = readlinkResult(pattern(n, byte(n)))
				}
				if res.item != nil {
					lengths = append(lengths, n)
				}
				w.results = append(w.results, res)
				inline += len(res.octets)
			}
			if r.IntN(4) == 0 {
				w.results = append(w.results, plainResult(25, 70))
				inline += 8
			}
			headers := 28 + 4 + 16
			for k := range r.IntN(6) {
				var chunk []int
				if r.IntN(4) > 0 {
					n := 0
					for need := r.IntN(4); n < 1500 || need > 0; need-- {
						s := r.IntN(1600)
						chunk = append(chunk, s)
						n += s
					}
				}
				w.writes = append(w.writes, chunk)
				headers += 8 + 16*len(chunk)
				if k < len(lengths) && chunk != nil {
					inline -= (lengths[k] + 3) &^ 3
				}
			}
			if headers+inline-8 > 4096 {
				w.proc = rpcrdma.NoMsg
			}
			w.run(tc, i)
		}
	})
}

// Under RPCSEC_GSS integrity the checksum covers the item that would be reduced,
// so nothing is: RFC 8166 Section 8.2.2.3.
func TestResponderWriteListProtected(t *testing.T) {
	responderTest(t, nil, func(tc *responderCase) {
		for i, service := range []uint32{2, 3} {
			xid := uint32(i) + 1
			call := words(xid, 0, 2, oncrpc.ProgramNFS, 4, 1, 6, 20, 1, 0, 1, service, 0, 0, 0, 8, 1, 0)
			whole, _ := compoundReply(xid, readResult(pattern(500, 1)), readResult(pattern(400, 2)))
			var writes []offered
			tc.peer.send(0, header(xid, 8, rpcrdma.Msg, func(h *rpcrdma.Header) {
				for range 2 {
					o := tc.chunk(500)
					writes = append(writes, o)
					h.AddWrite(o.segments...)
				}
			}), call)
			tc.answer(tc.wantCall("a protected call", call), whole)
			s := tc.peer.wantSend("its reply")
			if len(s.Writes) != 2 || !bytes.Equal(s.payload, whole) {
				t.Fatalf("header %+v, payload %x", &s.Header, s.payload)
			}
			for k := range writes {
				writes[k].wantFilled(t, "a protected reply", &s.Writes[k], nil)
			}
		}
	})
}

// Eight chunks cause no allocation in the steady state.
func TestResponderWriteChunksAllocs(t *testing.T) {
	v := newServing(t, 0)
	var results []result
	var ops [][]byte
	for i := range 8 {
		results = append(results, readResult(pattern(1000, byte(i))))
		ops = append(ops, readOp(1000))
	}
	v.call = append(header(1, 8, rpcrdma.Msg, func(h *rpcrdma.Header) {
		for i := range 8 {
			h.AddWrite(rpcrdma.Segment{Handle: uint32(i) + 5, Length: 600}, rpcrdma.Segment{Handle: 4, Length: 600})
		}
	}), compoundCall(1, ops...)...)
	m, _ := compoundReply(1, results...)
	v.h.parts = [][]byte{m}
	for range 100 {
		v.run(t)
	}
	if n := testing.AllocsPerRun(200, func() { v.run(t) }); n != 0 && !testkit.RaceEnabled {
		t.Errorf("%v allocations", n)
	}
}
