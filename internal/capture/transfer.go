package capture

import (
	"cmp"
	"encoding/binary"
	"slices"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/rdmaside/iwarp/wire"
	"github.com/rdmabridge/rdmabridge/rdmaside/rpcrdma"
)

// transfers follows the chunks of one connection: a Requester advertises handles
// in a Call, a Responder reads and writes through them, and says in the Reply how
// much it wrote.
type transfers struct {
	header   rpcrdma.Header // scratch
	messages []Message
	sides    [2]side   // by the stream of the end that advertised
	reads    []reading // unanswered, the oldest first
}

// A side has the handles that one end has advertised.
type side struct {
	readable map[uint32]target // by handle
	writable map[uint32]target
}

// A target is a segment of a chunk.
type target struct {
	segment rpcrdma.Segment
	at      int64 // offset of the segment in the chunk
	chunk   *chunk
}

// A chunk collects the octets that moved. Its parts may come in any order.
type chunk struct{ parts []part }

type part struct {
	at   int64
	data []byte
}

// A reading is a Read Request.
type reading struct {
	wire.Read
	stream int // of the Read Request
	target target
	left   int64
}

// maxReadings bounds the unanswered Read Requests. Peers agree on far fewer. Each Read Response
// is compared with all unanswered Read Requests.
const maxReadings = 256

func newTransfers() *transfers {
	t := new(transfers)
	for i := range t.sides {
		t.sides[i] = side{make(map[uint32]target), make(map[uint32]target)}
	}
	return t
}

// run handles the events of a connection in order.
func (t *transfers) run(events []event) []Message {
	var finish []func()
	for i := range events {
		e := &events[i]
		if e.send != nil {
			if f := t.send(e.stream, e.send); f != nil {
				finish = append(finish, f)
			}
			t.messages = append(t.messages, *e.send)
			continue
		}
		switch b := e.data; wire.Control(b).Opcode() {
		case wire.OpWrite:
			w := wire.Tagged(b)
			if to, ok := t.sides[1-e.stream].writable[w.STag()]; ok {
				to.put(w.TO(), b[wire.TaggedLen:])
			}
		case wire.OpReadRequest:
			q := wire.ReadRequest(b)
			if from, ok := t.sides[1-e.stream].readable[q.SrcSTag()]; ok {
				if len(t.reads) == maxReadings {
					t.reads = slices.Delete(t.reads, 0, 1)
				}
				t.reads = append(t.reads, reading{
					Read:   wire.Read{SinkSTag: q.SinkSTag(), SinkTO: q.SinkTO(), Size: q.Size(), SrcSTag: q.SrcSTag(), SrcTO: q.SrcTO()},
					stream: e.stream, target: from, left: int64(q.Size()),
				})
			}
		case wire.OpReadResponse:
			t.response(e.stream, wire.Tagged(b))
		}
	}
	for _, f := range finish {
		f()
	}
	return t.messages
}

// response adds the data of a Read Response, which came on stream, to the chunk of its Read
// Request.
func (t *transfers) response(stream int, b wire.Tagged) {
	for i := range t.reads {
		q := &t.reads[i]
		off := b.TO() - q.SinkTO
		if q.stream != 1-stream || q.SinkSTag != b.STag() || off >= uint64(q.Size) {
			continue
		}
		q.target.put(q.SrcTO+off, b[wire.TaggedLen:])
		if q.left -= int64(max(b.Len(), 1)); q.left <= 0 {
			t.reads = slices.Delete(t.reads, i, i+1)
		}
		return
	}
}

// put adds octets that moved to or from this offset of the segment.
func (t *target) put(offset uint64, data []byte) {
	off := offset - t.segment.Offset
	if off >= uint64(t.segment.Length) || len(data) == 0 {
		return
	}
	data = data[:min(uint64(len(data)), uint64(t.segment.Length)-off)]
	t.chunk.parts = append(t.chunk.parts, part{t.at + int64(off), data})
}

// join returns the first n octets of a chunk, or fewer if there is a hole before.
func (c *chunk) join(n int64) []byte {
	slices.SortStableFunc(c.parts, func(a, b part) int { return cmp.Compare(a.at, b.at) })
	var have int64
	for _, p := range c.parts {
		if p.at > have {
			break
		}
		have = max(have, p.at+int64(len(p.data)))
	}
	have = min(have, n)
	if have == 0 {
		return nil
	}
	if b := c.parts[0].data; int64(len(b)) >= have { // one part has all of it
		return b[:have:have]
	}
	out := make([]byte, 0, have)
	for _, p := range c.parts {
		if skip := int64(len(out)) - p.at; skip >= 0 && skip < int64(len(p.data)) {
			out = append(out, p.data[skip:min(int64(len(p.data)), skip+have-int64(len(out)))]...)
		}
	}
	return out
}

// send decodes the Transport header of a Send on stream and records the handles that it
// advertises. It may return a function, which fills in the data that moved. The caller
// calls that at the end of the connection.
func (t *transfers) send(stream int, m *Message) func() {
	r, h := m.RDMA, &t.header
	r.Payload, r.Err = h.Decode(m.Data)
	r.XID, r.Version = h.XID, h.Version
	if r.Err != nil {
		return nil
	}
	r.Credits, r.Proc, r.Code, r.Low, r.High = h.Credits, h.Proc, h.Err, h.Low, h.High
	payload := m.Data[r.Payload:]
	switch {
	case h.Proc == rpcrdma.Msg && len(payload) >= minRecord:
		r.Call = binary.BigEndian.Uint32(payload[4:]) == oncrpc.TypeCall
	default:
		// A Long Call has a Read list, a Long Reply has none.
		r.Call = len(h.Reads) > 0
	}
	for i := range h.Reads {
		g := &h.Reads[i]
		k := slices.IndexFunc(r.Reads, func(m Moved) bool { return m.Position == g.Position })
		if k < 0 {
			k = len(r.Reads)
			r.Reads = append(r.Reads, Moved{Position: g.Position})
		}
		r.Reads[k].Segments = append(r.Reads[k].Segments, g.Segment)
		r.Reads[k].Length += int64(g.Length)
	}
	slices.SortStableFunc(r.Reads, func(a, b Moved) int { return cmp.Compare(a.Position, b.Position) })
	chunk := func(w *rpcrdma.WriteChunk) Moved {
		return Moved{Segments: slices.Clone(w.Segments), Length: int64(w.Length())}
	}
	for i := range h.Writes {
		r.Writes = append(r.Writes, chunk(&h.Writes[i]))
	}
	if h.Reply != nil {
		c := chunk(h.Reply)
		r.Reply = &c
	}
	if r.Call {
		return t.sides[stream].call(r)
	}
	t.sides[1-stream].reply(r)
	return nil
}

// call records the handles that a Call advertises. The function that it returns fills in
// the data of Read chunks.
func (s *side) call(r *RDMA) func() {
	advertise := func(handles map[uint32]target, m *Moved) *chunk {
		c, at := new(chunk), int64(0)
		for _, g := range m.Segments {
			handles[g.Handle] = target{g, at, c}
			at += int64(g.Length)
		}
		return c
	}
	for i := range r.Writes {
		advertise(s.writable, &r.Writes[i])
	}
	if r.Reply != nil {
		advertise(s.writable, r.Reply)
	}
	if len(r.Reads) == 0 {
		return nil
	}
	reads := make([]*chunk, len(r.Reads))
	for i := range r.Reads {
		reads[i] = advertise(s.readable, &r.Reads[i])
	}
	return func() {
		for i, c := range reads {
			r.Reads[i].Data = c.join(r.Reads[i].Length)
		}
	}
}

// reply finds the data written into the chunks that a Reply returns. After that their
// handles are invalid.
func (s *side) reply(r *RDMA) {
	fill := func(m *Moved) {
		// A Responder fills one segment after the other, so the lengths that it returns
		// for them, put end to end, are the item.
		var c *chunk
		var n int64
		for _, g := range m.Segments {
			to, ok := s.writable[g.Handle]
			if delete(s.writable, g.Handle); !ok || g.Length == 0 || c != nil && to.chunk != c || to.at != n {
				continue
			}
			c, n = to.chunk, n+int64(g.Length)
		}
		if c != nil {
			m.Data = c.join(n)
		}
	}
	for i := range r.Writes {
		fill(&r.Writes[i])
	}
	if r.Reply != nil {
		fill(r.Reply)
	}
}

// Payload returns the RPC message that m carries. A Call is returned whole, with its Read
// chunks in their places. A Reply is returned without the data of Write chunks. Payload
// allocates if there are Read chunks. whole is false when octets are missing: b ends before
// the first missing octet.
func (m *Message) Payload() (b []byte, whole bool) {
	if m.RDMA == nil {
		return m.Data, m.Missing == 0 && m.Wrong == ""
	}
	r := m.RDMA
	if r.Err != nil {
		return nil, false
	}
	whole = m.Missing == 0 && m.Wrong == ""
	if r.Proc == rpcrdma.Msg {
		b = m.Data[r.Payload:]
	}
	if !r.Call {
		if r.Proc == rpcrdma.NoMsg {
			if r.Reply == nil {
				return nil, false
			}
			return r.Reply.Data, whole && r.Reply.whole()
		}
		return b, whole
	}
	reads := r.Reads
	if r.Proc == rpcrdma.NoMsg {
		if len(reads) == 0 || reads[0].Position != 0 {
			return nil, false
		}
		if b, reads = reads[0].Data, reads[1:]; !r.Reads[0].whole() {
			return b, false
		}
	}
	if len(reads) == 0 {
		return b, whole
	}
	// Positions are those in the whole Call, so each chunk goes behind everything
	// before it, earlier chunks included. RFC 8166 Section 3.4.5.
	var out []byte
	for i := range reads {
		n := int64(reads[i].Position) - int64(len(out))
		if n < 0 || n > int64(len(b)) {
			return append(out, b...), false
		}
		out = append(out, b[:n]...)
		b = b[n:]
		out = append(out, reads[i].Data...)
		if !reads[i].whole() {
			return out, false
		}
		out = append(out, make([]byte, -len(out)&3)...) // a chunk need not have its roundup
	}
	return append(out, b...), whole
}
