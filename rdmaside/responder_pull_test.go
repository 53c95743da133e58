package rdmaside

import (
	"bytes"
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric/fabrictest"
	"github.com/rdmabridge/rdmabridge/rdmaside/rpcrdma"
)

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

// Each of several Read chunks must be an item that may be reduced.
func TestResponderReadChunksEligible(t *testing.T) {
	first, second := pattern(801, 1), pattern(700, 2)
	fh := append(words(22), opaque(pattern(128, 3))...)
	m := compoundCall(1, fh, writeOp(first), fh, writeOp(second))
	fhAt := 52 + 8 // of the first file handle
	firstAt := 52 + len(fh) + 32 + 4
	secondAt := len(m) - len(second)
	if !bytes.Equal(m[firstAt:firstAt+4], first[:4]) || !bytes.Equal(m[fhAt:fhAt+2], fh[8:10]) {
		t.Fatal("the offsets of this test are wrong")
	}
	for _, tt := range []struct {
		name   string
		chunks [][2]int // position, length
		long   bool
		good   bool
	}{
		{"both WRITEs", [][2]int{{firstAt, 801}, {secondAt, 700}}, false, true},
		{"both WRITEs, a Long Call", [][2]int{{firstAt, 801}, {secondAt, 700}}, true, true},
		{"one WRITE, a Long Call", [][2]int{{secondAt, 700}}, true, true},
		{"a file handle and a WRITE", [][2]int{{fhAt, 128}, {secondAt, 700}}, false, false},
		{"a file handle, a Long Call", [][2]int{{fhAt, 128}}, true, false},
		{"a file handle", [][2]int{{fhAt, 128}}, false, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			responderTest(t, nil, func(tc *responderCase) {
				base := bytes.Clone(m)
				for i := len(tt.chunks) - 1; i >= 0; i-- {
					base = cut(base, tt.chunks[i][0], tt.chunks[i][1])
				}
				proc := rpcrdma.Msg
				if tt.long {
					proc = rpcrdma.NoMsg
				}
				h := header(1, 8, proc, func(h *rpcrdma.Header) {
					for _, ch := range tt.chunks {
						addReads(h, ch[0], tc.pulled(m[ch[0]:ch[0]+ch[1]]))
					}
					if tt.long {
						addReads(h, 0, tc.pulled(base))
					}
				})
				if tt.long {
					tc.peer.send(0, h)
				} else {
					tc.peer.send(0, h, base)
				}
				if tt.good {
					tc.answer(tc.wantCall(tt.name, m), accepted(1))
					tc.peer.wantSend("its reply")
					return
				}
				tc.wantNoCall("what is not eligible must not be reduced")
				if s := tc.peer.wantSend("GARBAGE_ARGS"); !bytes.Equal(s.payload, append(accepted(1)[:20], words(oncrpc.GarbageArguments)...)) {
					t.Errorf("payload %x", s.payload)
				}
			})
		})
	}
}

// An RPC Reply with GARBAGE_ARGS has no verifier that a GSS client would accept,
// so the answer is ERR_CHUNK.
func TestResponderGarbageGSS(t *testing.T) {
	responderTest(t, nil, func(tc *responderCase) {
		m := writeCall(1, pattern(1000, 1))
		gss := append(words(1, 0, 2, oncrpc.ProgramNFS, 3, procWrite, 6, 20, 1, 0, 1, 1, 0, 0, 0), m[40:]...)
		pos := len(gss) - 1000
		tc.peer.send(0, header(1, 8, rpcrdma.Msg, func(h *rpcrdma.Header) { addReads(h, pos, tc.pulled(pattern(900, 1))) }), gss[:pos])
		tc.wantNoCall("the chunk is shorter than its item")
		tc.wantError("GSS", 1, rpcrdma.ErrChunk)
		tc.peer.send(0, header(1, 8, rpcrdma.Msg, func(h *rpcrdma.Header) { addReads(h, pos, tc.pulled(pattern(1000, 1))) }), gss[:pos])
		tc.answer(tc.wantCall("service none may be reduced", gss), accepted(1))
		tc.peer.wantSend("its reply")
	})
}
