package iwarp

import (
	"bytes"
	"encoding/binary"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/testkit"

	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
	"github.com/rdmabridge/rdmabridge/rdmaside/iwarp/wire"
)

// S16 and S17: every segment of a Response matches the Read Request exactly.
func TestS16_ShortResponse(t *testing.T) { badResponses(t, "short") }

func TestS17_ResponseSegments(t *testing.T) { badResponses(t, "bad", "long") }

func badResponses(t *testing.T, kinds ...string) {
	type seg struct {
		last bool
		stag uint32 // added to the right one
		off  int64
		n    int
	}
	for _, v := range []struct {
		name string
		segs []seg
		code wire.Code
	}{
		{"short in one", []seg{{true, 0, 0, 99}}, wire.CodeTaggedBounds},
		{"short in two", []seg{{false, 0, 0, 50}, {true, 0, 50, 49}}, wire.CodeTaggedBounds},
		{"short, nothing at all", []seg{{true, 0, 0, 0}}, wire.CodeTaggedBounds},
		{"short, last segment empty", []seg{{false, 0, 0, 50}, {true, 0, 50, 0}}, wire.CodeTaggedBounds},
		{"long in one", []seg{{true, 0, 0, 101}}, wire.CodeTaggedBounds},
		{"long in two", []seg{{false, 0, 0, 50}, {true, 0, 50, 51}}, wire.CodeTaggedBounds},
		{"long without last", []seg{{false, 0, 0, 100}, {true, 0, 100, 1}}, wire.CodeTaggedBounds},
		{"bad STag, first", []seg{{true, 1, 0, 100}}, wire.CodeTaggedSTag},
		{"bad STag, second", []seg{{false, 0, 0, 50}, {true, 1, 50, 50}}, wire.CodeTaggedBounds},
		{"bad TO, first", []seg{{true, 0, 1, 100}}, wire.CodeTaggedBounds},
		{"bad TO, before", []seg{{true, 0, -1, 100}}, wire.CodeTaggedBounds},
		{"bad TO, second", []seg{{false, 0, 0, 50}, {true, 0, 51, 50}}, wire.CodeTaggedBounds},
		{"bad TO, repeated", []seg{{false, 0, 0, 50}, {true, 0, 0, 50}}, wire.CodeTaggedBounds},
	} {
		if !slices.ContainsFunc(kinds, func(k string) bool { return strings.HasPrefix(v.name, k) }) {
			continue
		}
		t.Run(v.name, func(t *testing.T) {
			g, mem, r := readRig(t, 100, rigOptions{})
			for _, s := range v.segs {
				g.write(g.tagged(wire.OpReadResponse, s.last, r.SinkSTag()+s.stag, r.SinkTO()+uint64(s.off), make([]byte, s.n)...))
			}
			g.killed(v.code)
			mem.guards(t)
			if c := g.u.completion(77); !errors.Is(c.Err, fabric.ErrFlushed) {
				t.Errorf("the Read: %+v", c)
			}
		})
	}
}

// TestResponseSegments sends a correct Response, with a Send and empty segments in
// between.
func TestResponseSegments(t *testing.T) {
	g, mem, r := readRig(t, 100, rigOptions{})
	data := testkit.Pattern(100, 4)
	g.write(g.tagged(wire.OpReadResponse, false, 0, 0)) // nothing: not looked at
	g.write(g.tagged(wire.OpReadResponse, false, r.SinkSTag(), r.SinkTO(), data[:33]...))
	g.send(1)
	g.write(g.tagged(wire.OpReadResponse, false, r.SinkSTag(), r.SinkTO()+33, data[33:]...))
	g.u.good(1)
	if len(g.u.left()) != 0 {
		t.Error("the Read is done before its last segment")
	}
	g.write(g.tagged(wire.OpReadResponse, true, r.SinkSTag(), r.SinkTO()+100))
	g.u.good(77)
	wantBytes(t, "Read", mem.buf, data)
}

// S18: every pair of control octets has the right outcome; reserved bits have
// none.
func TestS18_ControlOctets(t *testing.T) {
	for c := range 256 {
		for d := range 256 {
			q, got := bareQP(qpConfig{crc: true, receives: 4, sends: 4, handlesN: 4})
			if err := q.postReceive(1, make([]byte, 64)); err != nil {
				t.Fatal(err)
			}
			b := make([]byte, 2+wire.ReadRequestULPDU)
			op := wire.Opcode(d & 15)
			copy(b, wire.AppendReadRequest(nil, 1, wire.Read{}))
			binary.BigEndian.PutUint32(b[8:], op.Queue())
			b[2], b[3] = byte(c), byte(d)
			if op.Tagged() {
				binary.BigEndian.PutUint16(b, wire.TaggedLen-2)
				b = b[:wire.TaggedLen]
			}
			b = wire.AppendCRC(b, wire.Checksum(b))
			q.input(b)

			tagged := c&0x80 != 0
			var want wire.Code
			switch {
			case c&3 != 1 && tagged:
				want = wire.CodeTaggedVersion
			case c&3 != 1:
				want = wire.CodeUntaggedVersion
			case d>>6 != 1:
				want = wire.CodeRDMAPVersion
			case op > 7, op.Tagged() != tagged, op == wire.OpReadResponse:
				want = wire.CodeOpcode
			case op == wire.OpReadRequest && c&0x40 == 0:
				want = wire.CodeTooLong
			case op.Invalidates() && c&0x40 != 0:
				want = wire.CodeOpInvalidate
			}
			if op == wire.OpTerminate && want == (wire.Code{}) {
				if e := new(terminateError); !errors.As(q.err, &e) || !e.Received {
					t.Fatalf("%02x %02x: a Terminate came to %v", c, d, q.err)
				}
				continue
			}
			if code := got(); code != want {
				t.Fatalf("%02x %02x: %v, want %v", c, d, code, want)
			}
		}
	}
}

// bareQP is a qp in RTS without a connection, and a function that says how it was
// terminated.
func bareQP(cfg qpConfig) (*qp, func() wire.Code) {
	cfg.pool = &testPool
	q := newQP(cfg)
	q.start()
	return q, func() wire.Code {
		var e *terminateError
		if errors.As(q.err, &e) {
			return e.Code
		}
		return wire.Code{}
	}
}

var testPool batchPool

// S19: ULPDU lengths that do not fit, and every split over TCP segments.
func TestS19_Lengths(t *testing.T) {
	for _, crc := range []bool{true, false} {
		for n := range 64 {
			for _, op := range []wire.Opcode{wire.OpWrite, wire.OpSend, wire.OpReadRequest, wire.OpTerminate} {
				q, got := bareQP(qpConfig{crc: crc, receives: 4, sends: 4, handlesN: 4})
				b := make([]byte, 2+n+wire.Pad(n))
				copy(b, []byte{0, byte(n), 0x41, 0x40 | byte(op)})
				if op.Tagged() && len(b) > 2 {
					b[2] |= 0x80
				}
				b = wire.AppendCRC(b, wire.Checksum(b))
				q.input(b)
				code := got()
				if n+2 < op.HeaderLen() {
					// A ULPDU without room for versions has none to complain about.
					if code != wire.CodeMarker {
						t.Errorf("%v, ULPDU of %d: %v, want %v", op, n, code, wire.CodeMarker)
					}
				} else if code == wire.CodeMarker {
					t.Errorf("%v, ULPDU of %d: %v", op, n, code)
				}
			}
		}
	}
	// The longest ULPDU.
	g := newRig(t, rigOptions{})
	mem := guard(wire.MaxULPDU - 14)
	reg := g.u.register(mem.buf, fabric.RemoteWrite)
	data := testkit.Pattern(len(mem.buf), 2)
	g.put(uint32(reg.Handle), reg.Offset, data...)
	g.send()
	g.u.good(1)
	wantBytes(t, "Write", mem.buf, data)
	mem.guards(t)
}

func TestS19_Splits(t *testing.T) {
	stream, mem, check := splitStream(t)
	for step := 1; step <= 70; step++ {
		q := check(nil)
		for at := 0; at < len(stream); at += step {
			if rest := q.input(stream[at:min(at+step, len(stream))]); len(rest) > 0 {
				t.Fatal("octets were left over")
			}
		}
		check(q)
		clear(mem)
	}
}

// splitStream returns a stream of FPDUs of all kinds, and a function that makes a qp for
// it, or checks the qp that has received it.
func splitStream(t testing.TB) ([]byte, []byte, func(*qp) *qp) {
	r := &rawPeer{t: t, crc: true, msn: [3]uint32{1, 1, 1}}
	mem, recv, sink := make([]byte, 300), make([]byte, 64), make([]byte, 90)
	const stag, to = 0x01020304, 1 << 40
	data := testkit.Pattern(300, 8)
	var stream []byte
	add := func(b []byte) { stream = append(stream, b...) }
	add(r.tagged(wire.OpWrite, false, stag, to, data[:101]...))
	add(r.seal(r.sendHead(wire.OpSend, false, 0, 0, 7), data[:7]...))
	add(r.tagged(wire.OpWrite, true, stag, to+101, data[101:]...))
	add(r.seal(r.sendHead(wire.OpSend, true, 0, 7, 30), data[7:37]...))
	add(r.tagged(wire.OpReadResponse, false, 5, 6, data[:41]...))
	add(r.seal(wire.AppendReadRequest(nil, 1, wire.Read{SinkSTag: 9, Size: 300, SrcSTag: stag, SrcTO: to})))
	add(r.tagged(wire.OpWrite, true, 0, 0)[:0])
	add(r.tagged(wire.OpReadResponse, true, 5, 6+41, data[41:90]...))
	add(r.seal(r.sendHead(wire.OpSendEvent, true, 0, 0, 0)))
	return stream, mem, func(q *qp) *qp {
		if q == nil {
			q, _ = bareQP(qpConfig{crc: true, receives: 4, sends: 4, handlesN: 4, ird: 4, ord: 4})
			q.stags.insert(slot{stag, 0})
			q.stags.regions = []region{{buf: mem, to: to, stag: stag, access: fabric.RemoteRead | fabric.RemoteWrite}}
			for id := range uint64(3) {
				if err := q.postReceive(id+1, recv); err != nil {
					t.Fatal(err)
				}
			}
			if err := q.postRead(9, sink, fabric.Region{Length: 90}); err != nil {
				t.Fatal(err)
			}
			*q.reads.at(0) = readWR{id: 9, into: sink, req: wire.Read{SinkSTag: 5, SinkTO: 6, Size: 90}}
			q.asked = 1
			return q
		}
		if q.err != nil {
			t.Fatalf("the stream ended with %v", q.err)
		}
		cs := q.take()
		want := []fabric.Completion{
			{ID: 1, Op: fabric.OpReceive, Bytes: 37}, {ID: 9, Op: fabric.OpRead}, {ID: 2, Op: fabric.OpReceive},
		}
		if !reflect.DeepEqual(cs, want) {
			t.Fatalf("completions %+v, want %+v", cs, want)
		}
		if !bytes.Equal(mem, data) || !bytes.Equal(sink, data[:90]) || !bytes.Equal(recv[:37], data[:37]) {
			t.Fatal("octets went astray")
		}
		if q.irq.len() != 1 || q.irq.at(0).Size != 300 {
			t.Fatal("the Read Request was lost")
		}
		return q
	}
}

// FuzzSplit cuts the stream at any places: the outcome is the same.
func FuzzSplit(f *testing.F) {
	f.Add([]byte{1, 2, 3, 4, 20, 60, 0, 200})
	f.Fuzz(func(t *testing.T, cuts []byte) {
		stream, _, check := splitStream(t)
		q := check(nil)
		for _, n := range cuts {
			n := min(int(n), len(stream))
			q.input(stream[:n])
			stream = stream[n:]
		}
		q.input(stream)
		check(q)
	})
}

// FuzzInput feeds a qp anything: it never panics, and never places outside.
func FuzzInput(f *testing.F) {
	stream, _, _ := splitStream(f)
	f.Add(stream, false)
	f.Add(stream, true)
	r := &rawPeer{crc: true, msn: [3]uint32{1, 1, 1}}
	f.Add(r.seal(wire.AppendUntagged(nil, wire.OpTerminate, true, 0, 1, 0, 4), 0x20, 2, 0, 0), true)
	f.Add(r.tagged(wire.OpWrite, true, 0x01020304, 1<<40+60, make([]byte, 10)...), false)
	f.Fuzz(func(t *testing.T, b []byte, crc bool) {
		mem, recv := guard(64), guard(32)
		q, _ := bareQP(qpConfig{crc: crc, receives: 4, sends: 4, handlesN: 4, ird: 2, ord: 2})
		q.stags.insert(slot{0x01020304, 0})
		q.stags.regions = []region{{buf: mem.buf, to: 1 << 40, stag: 0x01020304, access: fabric.RemoteRead | fabric.RemoteWrite}}
		_ = q.postReceive(1, recv.buf)
		_ = q.postRead(2, make([]byte, 16), fabric.Region{Length: 16})
		for len(b) > 0 {
			b = q.input(b)
			q.take()
			for out := q.output(); len(out) > 0; out = q.output() {
				n := 0
				for _, p := range out {
					n += len(p)
				}
				q.wrote(n)
			}
			if !q.hungry() {
				break
			}
		}
		mem.guards(t)
		recv.guards(t)
	})
}

// S20: one flipped bit anywhere, and nothing is delivered.
func TestS20_FlippedBit(t *testing.T) {
	r := &rawPeer{t: t, crc: true, msn: [3]uint32{1, 1, 1}}
	good := r.seal(r.sendHead(wire.OpSend, true, 0, 0, 21), testkit.Pattern(21, 1)...)
	more := make([]byte, 70000) // in case the length is hit, and the FPDU grows
	for bit := range len(good) * 8 {
		q, got := bareQP(qpConfig{crc: true, receives: 4, sends: 4, handlesN: 4})
		if err := q.postReceive(1, make([]byte, 64)); err != nil {
			t.Fatal(err)
		}
		b := bytes.Clone(good)
		b[bit/8] ^= 1 << (bit % 8)
		q.input(b)
		if bit < 16 {
			q.input(more)
		}
		if code := got(); code != wire.CodeCRC {
			t.Errorf("bit %d: %v, want %v", bit, code, wire.CodeCRC)
		}
		for _, c := range q.take() {
			if c.Err == nil {
				t.Errorf("bit %d: delivered %+v", bit, c)
			}
		}
	}
	// Over a connection, with the Terminate.
	g := newRig(t, rigOptions{})
	good[25] ^= 4
	g.write(good)
	if term := g.killed(wire.CodeCRC); term.DDP != nil {
		t.Error("a CRC error's Terminate quotes headers that cannot be trusted")
	}
	// With the CRC off, the field means nothing.
	f := plain()
	f.Flags &^= wire.FlagCRC
	g = newRig(t, rigOptions{provider: Options{CRCOff: true}, request: &f})
	b := g.seal(g.sendHead(wire.OpSend, true, 0, 0, 1), 1)
	copy(b[len(b)-4:], "rand")
	g.write(b)
	g.u.good(1)
}

// A step sends one FPDU of an attack on the region of 64 octets at to of stag.
type step func(g *rig, stag uint32, to uint64)

// put writes a segment of n octets of an RDMA Write.
func put(last bool, off int64, n int) step {
	return func(g *rig, stag uint32, to uint64) {
		g.write(g.tagged(wire.OpWrite, last, stag, to+uint64(off), make([]byte, n)...))
	}
}

// send writes a segment of n octets of a Send.
func send(op wire.Opcode, last bool, msn, mo uint32, n int) step {
	return func(g *rig, _ uint32, _ uint64) {
		g.write(g.seal(wire.AppendUntagged(nil, op, last, 0, msn, mo, n), make([]byte, n)...))
	}
}

// sendTo writes a Send with the queue number qn.
func sendTo(qn uint32) step {
	return func(g *rig, _ uint32, _ uint64) {
		h := wire.AppendUntagged(nil, wire.OpSend, true, 0, 1, 0, 0)
		binary.BigEndian.PutUint32(h[8:], qn)
		g.write(g.seal(h))
	}
}

// S21: segments of messages arrive in a wrong order.
func TestS21_Interleaving(t *testing.T) {
	for _, v := range []struct {
		name  string
		steps []step
		code  wire.Code
	}{
		{"gap", []step{put(false, 0, 8), put(true, 12, 8)}, wire.CodeTaggedBounds},
		{"swap", []step{put(false, 8, 8), put(true, 0, 8)}, wire.CodeTaggedBounds},
		{"another region", []step{put(false, 0, 8), func(g *rig, _ uint32, _ uint64) {
			reg := g.u.register(make([]byte, 8), fabric.RemoteWrite)
			g.put(uint32(reg.Handle), reg.Offset, 1)
		}}, wire.CodeTaggedBounds},
		{"Response inside a Write", []step{put(false, 0, 8), func(g *rig, _ uint32, _ uint64) {
			g.u.do(func(c fabric.Conn) {
				_ = c.PostRead(5, fabric.Read{Into: make([]byte, 4), From: fabric.Region{Length: 4}})
			})
			r := wire.ReadRequest(g.want(wire.OpReadRequest).head)
			g.write(g.tagged(wire.OpReadResponse, true, r.SinkSTag(), r.SinkTO(), 1, 2, 3, 4))
		}}, wire.CodeTaggedBounds},
		{"MSN 0", []step{send(wire.OpSend, true, 0, 0, 4)}, wire.CodeMSN},
		{"MSN 2", []step{send(wire.OpSend, true, 2, 0, 4)}, wire.CodeMSN},
		{"MSN again", []step{send(wire.OpSend, true, 1, 0, 4), send(wire.OpSend, true, 1, 0, 4)}, wire.CodeMSN},
		{"MSN changes inside", []step{send(wire.OpSend, false, 1, 0, 4), send(wire.OpSend, true, 2, 4, 4)}, wire.CodeMSN},
		{"opcode changes inside", []step{send(wire.OpSend, false, 1, 0, 4), send(wire.OpSendEvent, true, 1, 4, 4)}, wire.CodeMSN},
		{"MO not 0", []step{send(wire.OpSend, true, 1, 4, 4)}, wire.CodeMO},
		{"MO gap", []step{send(wire.OpSend, false, 1, 0, 4), send(wire.OpSend, true, 1, 5, 4)}, wire.CodeMO},
		{"MO again", []step{send(wire.OpSend, false, 1, 0, 4), send(wire.OpSend, true, 1, 0, 4)}, wire.CodeMO},
		{"MO huge", []step{send(wire.OpSend, false, 1, 0, 4), send(wire.OpSend, true, 1, 1<<32-4, 8)}, wire.CodeMO},
		{"QN 1", []step{sendTo(1)}, wire.CodeQN},
		{"QN 3", []step{sendTo(3)}, wire.CodeQN},
		{"too long", []step{send(wire.OpSend, true, 1, 0, 1025)}, wire.CodeTooLong},
		{"too long in two", []step{send(wire.OpSend, false, 1, 0, 1024), send(wire.OpSend, true, 1, 1024, 1)}, wire.CodeTooLong},
		{"no Receive", []step{func(g *rig, _ uint32, _ uint64) {
			for range 8 {
				g.send()
			}
		}, send(wire.OpSend, true, 9, 0, 0)}, wire.CodeNoBuffer},
		{"Read Request MSN", []step{func(g *rig, _ uint32, _ uint64) { g.msn[1] = 2; g.read(wire.Read{}) }}, wire.CodeMSN},
		{"Read Request with payload", []step{func(g *rig, _ uint32, _ uint64) {
			h := wire.AppendReadRequest(nil, 1, wire.Read{})
			binary.BigEndian.PutUint16(h, wire.ReadRequestULPDU+8)
			g.write(g.seal(h, make([]byte, 8)...))
		}}, wire.CodeTooLong},
	} {
		t.Run(v.name, func(t *testing.T) {
			g := newRig(t, rigOptions{conn: fabric.ConnOptions{ORD: 1}})
			reg := g.u.register(make([]byte, 64), fabric.RemoteWrite)
			for _, s := range v.steps {
				s(g, uint32(reg.Handle), reg.Offset)
			}
			g.killed(v.code)
		})
	}
}

// TestLongSend: the Receive that is too short for a Send has the Send's first octets, with and without CRC. An FPDU with a
// bad CRC names nothing.
func TestLongSend(t *testing.T) {
	for _, v := range []struct {
		name     string
		segments []int
		crc, bad bool
		want     int // octets in the Receive; -1 if nothing is known
	}{
		{"in one", []int{1025}, true, false, 1024},
		{"much longer", []int{9000}, true, false, 1024},
		{"in two", []int{1000, 100}, true, false, 1024},
		{"in two, nothing fits", []int{1024, 1}, true, false, 1024},
		{"without CRC", []int{5000}, false, false, 1024},
		{"bad CRC", []int{1025}, true, true, -1},
	} {
		t.Run(v.name, func(t *testing.T) {
			q, _ := bareQP(qpConfig{crc: v.crc, receives: 4, sends: 4, handlesN: 4})
			q.rx.heard = true
			buf := make([]byte, 1024)
			if err := q.postReceive(7, buf); err != nil {
				t.Fatal(err)
			}
			whole := testkit.Pattern(9000, 1)
			r := &rawPeer{t: t, crc: v.crc, msn: [3]uint32{1, 1, 1}}
			at := 0
			for i, n := range v.segments {
				f := r.seal(r.sendHead(wire.OpSend, i == len(v.segments)-1, 0, uint32(at), n), whole[at:at+n]...)
				if v.bad {
					f[len(f)-1]++
				}
				q.input(f[:20])
				q.input(f[20:])
				at += n
			}
			c := q.take()[0]
			if !errors.Is(c.Err, fabric.ErrFlushed) || errors.Is(c.Err, fabric.ErrTooLong) != (v.want >= 0) {
				t.Fatalf("the Receive: %+v", c)
			}
			if v.want >= 0 && (int(c.Bytes) != v.want || !bytes.Equal(buf[:c.Bytes], whole[:c.Bytes])) {
				t.Errorf("%d octets, which begin with %x", c.Bytes, buf[:8])
			}
		})
	}
}

// TestMisusedHandle: a connection that ends because of a valid handle ends with an error that names it.
func TestMisusedHandle(t *testing.T) {
	for _, v := range []struct {
		name   string
		access fabric.Access
		known  bool
		step   func(g *rig, stag uint32, to uint64)
	}{
		{"write beyond", fabric.RemoteWrite, true, func(g *rig, stag uint32, to uint64) {
			g.write(g.tagged(wire.OpWrite, true, stag, to+61, make([]byte, 4)...))
		}},
		{"write before", fabric.RemoteWrite, true, func(g *rig, stag uint32, to uint64) {
			g.write(g.tagged(wire.OpWrite, true, stag, to-1, make([]byte, 4)...))
		}},
		{"write where only reads may go", fabric.RemoteRead, true, func(g *rig, stag uint32, to uint64) {
			g.write(g.tagged(wire.OpWrite, true, stag, to, make([]byte, 4)...))
		}},
		{"read beyond", fabric.RemoteRead, true, func(g *rig, stag uint32, to uint64) {
			g.read(wire.Read{SinkSTag: 1, Size: 65, SrcSTag: stag, SrcTO: to})
		}},
		{"another handle", fabric.RemoteWrite, false, func(g *rig, stag uint32, to uint64) {
			g.write(g.tagged(wire.OpWrite, true, stag+1, to, make([]byte, 4)...))
		}},
	} {
		t.Run(v.name, func(t *testing.T) {
			g := newRig(t, rigOptions{conn: fabric.ConnOptions{ORD: 1, IRD: 1}})
			reg := g.u.register(make([]byte, 64), v.access)
			v.step(g, uint32(reg.Handle), reg.Offset)
			var e *fabric.AccessError
			err := g.u.ended()
			if errors.As(err, &e) != v.known || v.known && e.Handle != reg.Handle {
				t.Errorf("ended with %#v, want handle %#x: %v", err, reg.Handle, v.known)
			}
		})
	}
}

// S21: the MSN after the largest is 0.
func TestS21_MSNWraps(t *testing.T) {
	g := newRig(t, rigOptions{})
	g.u.do(func(c fabric.Conn) { c.(*conn).qp.rx.msn[0] = 1<<32 - 1 })
	g.msn[0] = 1<<32 - 1
	g.send(1)
	g.send(2)
	g.u.good(1)
	g.u.good(2)
}
