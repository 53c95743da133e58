package rdmaside

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/regmem"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
	"github.com/rdmabridge/rdmabridge/rdmaside/rpcrdma"
)

// A fuzz input is a sequence of messages, each after its length in two octets.

func pack(messages ...[]byte) (b []byte) {
	for _, m := range messages {
		b = binary.BigEndian.AppendUint16(b, uint16(len(m)))
		b = append(b, m...)
	}
	return b
}

func unpack(b []byte) (messages [][]byte) {
	for len(b) >= 2 && len(messages) < 64 {
		n := min(int(binary.BigEndian.Uint16(b)), len(b)-2)
		messages = append(messages, b[2:2+n])
		b = b[2+n:]
	}
	return messages
}

// seedResponder adds messages with chunks of all kinds to the corpus.
func seedResponder(f *testing.F) {
	first := append(plain(1, 8), getAttrCall(1)...)
	data := pattern(200, 1)
	m := writeCall(2, data)
	pos := len(m) - len(data)
	seg := rpcrdma.Segment{Handle: 7, Length: 200, Offset: 1 << 33}
	f.Add(pack(first), uint8(0))
	f.Add(pack(first, append(header(2, 8, rpcrdma.Msg, func(h *rpcrdma.Header) { h.AddRead(uint32(pos), seg) }), m[:pos]...)), uint8(1))
	f.Add(pack(first, append(header(2, 8, rpcrdma.Msg, func(h *rpcrdma.Header) { h.AddWrite(seg, seg) }), readCall(2, 200)...)), uint8(2))
	f.Add(pack(first, header(2, 8, rpcrdma.NoMsg, func(h *rpcrdma.Header) {
		h.AddRead(0, seg)
		h.AddRead(44, shortened(seg, 40))
		h.AddWrite()
		h.SetReply(seg, seg, seg)
	})), uint8(3))
	f.Add(pack(words(1, 2, 8, 0, 0, 0, 0), header(3, 8, rpcrdma.MsgP), header(4, 8, rpcrdma.Done), plain(1, 8)[:20]), uint8(4))
	f.Add(pack(first, append(plain(1, 3), accepted(1)...), words(2, 1, 8, 4, 2), first, append(plain(3, 3), accepted(3)[:20]...), append(plain(3, 3), accepted(3)...)), uint8(64))

	several := compoundCall(2, readOp(500), readOp(500), readOp(500))
	f.Add(pack(first, append(header(2, 8, rpcrdma.Msg, func(h *rpcrdma.Header) {
		h.AddWrite(seg, seg, seg)
		h.AddWrite()
		h.AddWrite(seg, seg, seg)
	}), several...)), uint8(128))
	f.Add(pack(first, append(header(2, 8, rpcrdma.Msg, func(h *rpcrdma.Header) {
		h.AddWrite(seg, seg, seg)
		h.AddWrite(seg)
		h.SetReply(seg, seg, seg, seg)
	}), several...)), uint8(128+16))
}

// fuzzAnswers are Replies for the Calls of FuzzResponder, all with another XID.
type fuzzAnswers struct{ short, long, many []byte }

func newFuzzAnswers() (a fuzzAnswers) {
	a.long, _ = readReply(0, pattern(6000, 3))
	a.short, _ = readReply(0, pattern(200, 3))
	a.many, _ = compoundReply(0, readResult(pattern(501, 1)), readlinkResult(pattern(200, 2)), readResult(pattern(102, 3)))
	return a
}

// answer completes x in the way that seed says.
func (a *fuzzAnswers) answer(x *Exchange, seed uint8) {
	var m []byte
	switch seed % 4 {
	case 0:
		m = accepted(x.XID())
	case 1:
		m = bytes.Clone(a.short)
	case 2:
		m = bytes.Clone(a.long)
	case 3:
		x.Abort()
		return
	}
	if seed&128 != 0 {
		m = bytes.Clone(a.many)
	}
	binary.BigEndian.PutUint32(m, x.XID())
	if seed&16 != 0 {
		x.Reply([][]byte{m[:8], m[8:]}, nil)
		return
	}
	x.Reply([][]byte{m}, nil)
}

// A Responder that receives anything does not panic, and answers every Call or
// closes the connection.
func FuzzResponder(f *testing.F) {
	seedResponder(f)
	arena, err := regmem.New(regmem.Options{Budget: 32 << 20})
	if err != nil {
		f.Fatal(err)
	}
	account := arena.Account("calls", 1<<20)
	answers := newFuzzAnswers()
	m := writeCall(2, pattern(200, 1))
	f.Fuzz(func(t *testing.T, in []byte, seed uint8) {
		var held []*Exchange
		s := newStubResponder(t, account, callFunc(func(x *Exchange) {
			if seed&32 != 0 {
				held = append(held, x)
				return
			}
			answers.answer(x, seed)
		}), func(o *ResponderOptions) { o.MaxCall = 64 << 10; o.Credits = 4 })
		s.conn.onRead = func(into []byte) {
			// Chunks hold what the input holds, so that a Call may come together.
			for len(into) > 0 {
				n := copy(into, m)
				into = into[n:]
			}
		}
		var back fuzzReverse
		for i, message := range unpack(in) {
			if seed&64 != 0 {
				back.call(s, uint32(i/2+1)) // each comes twice
			}
			s.conn.deliver(message, 0)
			s.conn.step()
			s.conn.step()
		}
		s.conn.settle(s.loop)
		for len(held) > 0 { // an answer may let another Call come, which waited for it
			x := held[0]
			held = held[1:]
			answers.answer(x, seed)
			s.conn.settle(s.loop)
		}
		s.wantServed(t)
		s.Close(nil)
		s.conn.settle(s.loop)
		if back.taken != back.given || back.taken != back.ended {
			t.Errorf("%d reverse calls were taken, %d given back and %d ended", back.taken, back.given, back.ended)
		}
		if n := account.Outstanding(); n != 0 {
			account = arena.Account("calls", 1<<20) // each input answers for its own leases
			t.Errorf("%d leases outstanding", n)
		}
	})
}

// wantServed asserts that the connection, if it is up, has answered every Call and
// has all its Receives posted.
func (s *stubResponder) wantServed(t *testing.T) {
	t.Helper()
	if s.state != up {
		return
	}
	if s.Outstanding() != 0 {
		t.Errorf("%d calls are neither answered nor is the connection ended", s.Outstanding())
	}
	if n, want := len(s.conn.receives), s.receives()-s.responder.opts.ReverseCredits+s.reverse.receives+s.extra; n != want {
		t.Errorf("%d Receives posted of %d", n, want)
	}
}

// A fuzzReverse makes reverse Calls and counts how they end.
type fuzzReverse struct{ taken, given, ended int }

// call makes a reverse Call. One that is a retransmission is taken, and ends with
// the first.
func (b *fuzzReverse) call(s *stubResponder, xid uint32) {
	again := s.reverse.find(xid) >= 0
	if s.ReverseCall(callback(xid, 8), b, b) == nil {
		b.taken++
		if again {
			b.ended++
		}
	}
}

func (b *fuzzReverse) Release() { b.given++ }

func (b *fuzzReverse) ReverseDone(_ *ResponderConn, _ uint32, m *regmem.Lease, _ error) {
	b.ended++
	if m != nil {
		m.Release()
	}
}

// seedRequester adds answers with chunks of all kinds, and reverse Calls, to the
// corpus.
func seedRequester(f *testing.F) {
	data := pattern(200, 1)
	whole, pos := readReply(2, data)
	seg := rpcrdma.Segment{Handle: 1, Offset: 1 << 40, Length: 200}
	f.Add(pack(append(plain(1, 8), getAttrReply(1)...)), []byte{}, uint8(0))
	f.Add(pack(
		append(plain(1, 8), getAttrReply(1)...),
		append(header(2, 8, rpcrdma.Msg, func(h *rpcrdma.Header) { h.AddWrite(seg) }), cut(whole, pos, 200)...),
		header(3, 8, rpcrdma.NoMsg, func(h *rpcrdma.Header) { h.SetReply(shortened(seg, 124)) }),
		append(plain(4, 8), accepted(4, words(0))...),
		header(5, 8, rpcrdma.Error, func(h *rpcrdma.Header) { h.SetError(5, 1, 8, rpcrdma.ErrChunk) }),
	), append(accepted(3), data...), uint8(1))
	f.Add(pack(append(plain(1, 8), words(1, 0, 2, 1, 1, 1, 0, 0, 0, 0)...)), []byte{}, uint8(2))
	f.Add(pack(append(plain(1, 8), getAttrReply(1)...), words(2, 2, 8, 0, 0, 0, 0), header(3, 8, rpcrdma.MsgP)), []byte{}, uint8(3))
	f.Add(pack(append(plain(7, 2), callback(7, 8)...), append(plain(7, 2), callback(7, 8)...), append(plain(8, 2), callback(8, 8)...)), []byte{}, uint8(32))
	f.Add(pack(
		append(plain(8, 2), callback(8, 8)...), append(plain(9, 2), callback(9, 8)...), append(plain(10, 2), callback(10, 8)...),
		header(1, 2, rpcrdma.NoMsg, func(h *rpcrdma.Header) { h.AddRead(0, seg) }),
		append(header(1, 2, rpcrdma.Msg, func(h *rpcrdma.Header) { h.AddRead(40, seg) }), callback(1, 8)...),
	), []byte{}, uint8(96))
}

// A Requester that receives any answer does not panic, and completes each of its
// Calls exactly once with no handle valid.
func FuzzRequester(f *testing.F) {
	seedRequester(f)
	arena, err := regmem.New(regmem.Options{Budget: 64 << 20})
	if err != nil {
		f.Fatal(err)
	}
	account := arena.Account("replies", 16<<20)
	back := fuzzBack{reply: accepted(7, words(1))}
	f.Fuzz(func(t *testing.T, in, chunk []byte, seed uint8) {
		r := newStubRequester(t, account, func(o *RequesterOptions) {
			o.ReceiveSize = 4096
			if seed&32 != 0 {
				o.Reverse, o.ReverseReceives = &back, 2
			}
			if seed&64 != 0 {
				o.IdleReceives = 1
			}
		})
		d := &counting{}
		calls := [][]byte{getAttrCall(1), readCall(2, 8192), opaqueCall(3, 40), writeCall(4, pattern(8192, 1)), opaqueCall(5, 8192)}
		sent := 0
		next := func() {
			for sent < len(calls) && r.Free() > 0 {
				if err := r.Send(prepare(t, r.Requester, calls[sent], d)); err != nil {
					break
				}
				sent++
			}
		}
		next()
		for i, message := range unpack(in) {
			for _, g := range r.conn.handles {
				if g.access&fabric.RemoteWrite != 0 {
					copy(g.buf, chunk)
				}
			}
			if seed&8 != 0 && i%2 == 1 {
				r.conn.deliver(message, r.lastHandle())
			} else {
				r.conn.deliver(message, 0)
			}
			r.conn.step()
			next()
		}
		r.conn.settle(r.loop)
		r.Close(nil)
		r.conn.settle(r.loop)
		if back.lent != 0 {
			t.Errorf("%d reverse replies were not given back", back.lent)
		}
		if d.n != sent {
			t.Errorf("%d calls sent, %d ended", sent, d.n)
		}
		if n := account.Outstanding(); n != 0 {
			t.Errorf("%d leases outstanding", n)
		}
	})
}

// lastHandle returns the handle that was registered last if it is still valid,
// else 0.
func (r *stubRequester) lastHandle() fabric.Handle {
	if _, ok := r.conn.handles[r.conn.last]; !ok {
		return 0
	}
	return r.conn.last
}

type counting struct{ n int }

func (d *counting) CallDone(c *Call, err *CallError) {
	d.n++
	c.Reply.Release()
}

// fuzzBack is a ReverseHandler. It answers Calls whose XID is 7 modulo 8, refuses
// those whose XID is 6, and leaves the others unanswered.
type fuzzBack struct {
	reply []byte
	lent  int
}

func (h *fuzzBack) ReverseCall(r *Requester, m *regmem.Lease) bool {
	xid := binary.BigEndian.Uint32(m.Bytes())
	if xid%8 == 6 {
		return false
	}
	m.Release()
	if xid%8 == 7 {
		h.lent++
		if r.ReverseReply(xid, h.reply, h) != nil {
			panic("the call is outstanding")
		}
	}
	return true
}

func (h *fuzzBack) Release() { h.lent-- }
