package iwarp

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/testkit"

	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
	"github.com/rdmabridge/rdmabridge/rdmaside/iwarp/wire"
)

// S2: an STag is valid on its own connection only.
func TestS02_OtherConnection(t *testing.T) {
	victim := newRig(t, rigOptions{})
	mem := guard(64)
	reg := victim.u.register(mem.buf, fabric.RemoteRead|fabric.RemoteWrite)
	stag := uint32(reg.Handle)
	for name, attack := range map[string]func(g *rig) wire.Code{
		"Write": func(g *rig) wire.Code { g.put(stag, reg.Offset, 1, 2, 3); return wire.CodeTaggedSTag },
		"Read": func(g *rig) wire.Code {
			g.read(wire.Read{Size: 8, SrcSTag: stag, SrcTO: reg.Offset})
			return wire.CodeReadSTag
		},
		"Send with Invalidate": func(g *rig) wire.Code { g.sendInv(stag, 1); return wire.CodeOpInvalidate },
	} {
		t.Run(name, func(t *testing.T) {
			g := newRig(t, rigOptions{})
			g.killed(attack(g))
		})
	}
	mem.untouched(t)
	victim.put(stag, reg.Offset, 9)
	victim.send()
	victim.u.good(1)
	if mem.buf[0] != 9 {
		t.Error("the owner's handle died")
	}
}

// S3: all 32 bits count, for every use.
func TestS03_EveryBit(t *testing.T) {
	for bit := range 32 {
		for use := range 3 {
			g := newRig(t, rigOptions{})
			mem := guard(64)
			reg := g.u.register(mem.buf, fabric.RemoteRead|fabric.RemoteWrite)
			stag := uint32(reg.Handle) ^ 1<<bit
			switch use {
			case 0:
				g.put(stag, reg.Offset, 1)
				g.killed(wire.CodeTaggedSTag)
			case 1:
				g.read(wire.Read{Size: 8, SrcSTag: stag, SrcTO: reg.Offset})
				g.killed(wire.CodeReadSTag)
			case 2:
				g.sendInv(stag)
				g.killed(wire.CodeOpInvalidate)
			}
			mem.untouched(t)
		}
	}
}

// S4: access rights.
func TestS04_Rights(t *testing.T) {
	for _, a := range []fabric.Access{0, fabric.RemoteRead, fabric.RemoteWrite} {
		for _, op := range []wire.Opcode{wire.OpWrite, wire.OpReadRequest, wire.OpReadResponse} {
			t.Run(fmt.Sprintf("%d/%v", a, op), func(t *testing.T) {
				g := newRig(t, rigOptions{})
				mem := guard(64)
				reg := g.u.register(mem.buf, a)
				stag := uint32(reg.Handle)
				switch op {
				case wire.OpWrite:
					g.put(stag, reg.Offset, 1)
					if a == fabric.RemoteWrite {
						g.send()
						g.u.good(1)
						return
					}
					g.killed(wire.CodeTaggedSTag)
				case wire.OpReadRequest:
					g.read(wire.Read{SinkSTag: 5, SinkTO: 6, Size: 8, SrcSTag: stag, SrcTO: reg.Offset})
					if a == fabric.RemoteRead {
						if f := g.want(wire.OpReadResponse); !bytes.Equal(f.payload, mem.buf[:8]) {
							t.Errorf("%x", f.payload)
						}
						return
					}
					g.killed(wire.CodeReadRights)
				default:
					g.write(g.tagged(wire.OpReadResponse, true, stag, reg.Offset, 1))
					g.killed(wire.CodeOpcode)
				}
				mem.untouched(t)
			})
		}
	}
}

// readRig has one Read of our side outstanding, with the Request as it arrived.
func readRig(t *testing.T, size int, o rigOptions) (*rig, guarded, wire.ReadRequest) {
	t.Helper()
	o.conn.ORD = 4
	g := newRig(t, o)
	mem := guard(size)
	g.u.do(func(c fabric.Conn) {
		if err := c.PostRead(77, fabric.Read{Into: mem.buf, From: fabric.Region{Handle: 9, Offset: 1 << 40, Length: uint32(size)}}); err != nil {
			t.Error(err)
		}
	})
	return g, mem, wire.ReadRequest(g.want(wire.OpReadRequest).head)
}

// S5: only its own Response reaches a Read's sink.
func TestS05_ReadSink(t *testing.T) {
	for name, attack := range map[string]func(g *rig, r wire.ReadRequest) wire.Code{
		"Write": func(g *rig, r wire.ReadRequest) wire.Code {
			g.put(r.SinkSTag(), r.SinkTO(), 1, 2)
			return wire.CodeTaggedSTag
		},
		"Read Request": func(g *rig, r wire.ReadRequest) wire.Code {
			g.read(wire.Read{Size: 8, SrcSTag: r.SinkSTag(), SrcTO: r.SinkTO()})
			return wire.CodeReadSTag
		},
		"Send with Invalidate": func(g *rig, r wire.ReadRequest) wire.Code {
			g.sendInv(r.SinkSTag())
			return wire.CodeOpInvalidate
		},
		"second Response": func(g *rig, r wire.ReadRequest) wire.Code {
			g.write(g.tagged(wire.OpReadResponse, true, r.SinkSTag(), r.SinkTO(), bytes.Repeat([]byte{0xa5}, 64)...))
			g.u.good(77)
			g.write(g.tagged(wire.OpReadResponse, true, r.SinkSTag(), r.SinkTO(), 1))
			return wire.CodeOpcode
		},
	} {
		t.Run(name, func(t *testing.T) {
			g, mem, r := readRig(t, 64, rigOptions{})
			g.killed(attack(g, r))
			mem.untouched(t)
		})
	}
}

// S6: bounds are exact to the octet. They are checked for the whole segment before its
// first octet is placed.
func TestS06_Bounds(t *testing.T) {
	const size = 64
	for _, v := range []struct {
		off, n int
		good   bool
	}{
		{0, size, true},
		{size - 1, 1, true},
		{0, size + 1, false},
		{-1, size, false},
		{-1, 1, false},
		{size, 1, false},
		{size - 1, 2, false},
		{1, size, false},
		{-4, size + 8, false},
		{1 << 20, 4, false},
	} {
		t.Run(fmt.Sprintf("Write %d+%d", v.off, v.n), func(t *testing.T) {
			g := newRig(t, rigOptions{})
			mem := guard(size)
			reg := g.u.register(mem.buf, fabric.RemoteWrite)
			g.put(uint32(reg.Handle), reg.Offset+uint64(v.off), make([]byte, v.n)...)
			if v.good {
				g.send()
				g.u.good(1)
				if mem.buf[max(v.off, 0)] != 0 {
					t.Error("not written")
				}
				mem.guards(t)
				return
			}
			g.killed(wire.CodeTaggedBounds)
			mem.untouched(t)
		})
		t.Run(fmt.Sprintf("Read %d+%d", v.off, v.n), func(t *testing.T) {
			g := newRig(t, rigOptions{})
			mem := guard(size)
			reg := g.u.register(mem.buf, fabric.RemoteRead)
			g.read(wire.Read{SinkSTag: 3, Size: uint32(v.n), SrcSTag: uint32(reg.Handle), SrcTO: reg.Offset + uint64(v.off)})
			if v.good {
				if f := g.want(wire.OpReadResponse); len(f.payload) != v.n {
					t.Errorf("%d octets", len(f.payload))
				}
				return
			}
			term := g.killed(wire.CodeReadBounds)
			if len(term.RDMAP) != 28 || len(term.DDP) != 18 || term.SegLen != wire.ReadRequestULPDU || !term.HasLen {
				t.Errorf("Terminate quotes %d and %d octets", len(term.DDP), len(term.RDMAP))
			}
		})
	}
}

// S7: TO + length does not wrap around.
func TestS07_TOWrap(t *testing.T) {
	t.Run("Write", func(t *testing.T) {
		g := newRig(t, rigOptions{})
		mem := guard(64)
		reg := g.u.register(mem.buf, fabric.RemoteWrite)
		g.put(uint32(reg.Handle), 1<<64-8, make([]byte, 16)...)
		g.killed(wire.CodeTaggedWrap)
		mem.untouched(t)
	})
	t.Run("Read", func(t *testing.T) {
		g := newRig(t, rigOptions{})
		reg := g.u.register(make([]byte, 64), fabric.RemoteRead)
		g.read(wire.Read{Size: 16, SrcSTag: uint32(reg.Handle), SrcTO: 1<<64 - 8})
		g.killed(wire.CodeReadWrap)
	})
	t.Run("Read of 4 GiB", func(t *testing.T) {
		g := newRig(t, rigOptions{})
		reg := g.u.register(make([]byte, 64), fabric.RemoteRead)
		g.read(wire.Read{Size: 1<<32 - 1, SrcSTag: uint32(reg.Handle), SrcTO: reg.Offset + 1})
		g.killed(wire.CodeReadBounds)
	})
	t.Run("base near the end", func(t *testing.T) {
		// table.base returns no such base; within must be right for it all the same.
		r := region{buf: make([]byte, 16), to: 1<<64 - 17}
		if _, ok := r.within(1<<64-17, 16); !ok {
			t.Error("the region itself is out of bounds")
		}
		for _, to := range []uint64{0, 1, 1<<64 - 18, 1<<64 - 16} {
			if _, ok := r.within(to, 16); ok {
				t.Errorf("16 octets at %#x are within", to)
			}
		}
	})
}

// S8: Writes and Reads of zero octets need no STag and access no memory.
func TestS08_ZeroLength(t *testing.T) {
	g := newRig(t, rigOptions{conn: fabric.ConnOptions{IRD: -1}})
	g.put(0xdeadbeef, 1<<63)
	g.put(0, 1<<64-1)
	for i := range 3 {
		g.read(wire.Read{SinkSTag: 0x1111, SinkTO: 0x2222, SrcSTag: 0xdeadbeef, SrcTO: 1<<64 - 1})
		f := g.want(wire.OpReadResponse)
		h := wire.Tagged(f.head)
		if len(f.payload) != 0 || h.STag() != 0x1111 || h.TO() != 0x2222 || !h.Control().Last() {
			t.Errorf("Response %d: %x", i, f.head)
		}
	}
	g.send()
	if c := g.u.good(1); c.Bytes != 0 {
		t.Errorf("%+v", c)
	}
}

// S9 and S10: after Invalidate has returned nothing moves, not even the rest of an
// FPDU that is half in. It returns at once.
func TestS10_InvalidateStopsPlacement(t *testing.T) {
	g := newRig(t, rigOptions{})
	mem := guard(60000)
	reg := g.u.register(mem.buf, fabric.RemoteWrite)
	b := g.tagged(wire.OpWrite, true, uint32(reg.Handle), reg.Offset, make([]byte, 60000)...)
	g.write(b[:30000])
	testkit.Eventually(t, "half of it is placed", func() bool {
		var n int
		g.u.do(func(c fabric.Conn) { n = c.(*conn).qp.rx.left })
		return n > 0 && n <= 60016-30000
	})
	g.u.do(func(c fabric.Conn) {
		if done, err := c.Invalidate(1, reg.Handle); !done || err != nil {
			t.Errorf("Invalidate: %v, %v", done, err)
		}
		copy(mem.buf, bytes.Repeat([]byte{0xa5}, 60000))
	})
	g.write(b[30000:])
	g.killed(wire.CodeTaggedSTag)
	mem.untouched(t)
}

// S9, the other direction: the rest of a segment that is half sent comes from a copy.
func TestS09_InvalidateStopsReading(t *testing.T) {
	g := newRig(t, rigOptions{})
	const size = 32 << 20
	mem := bytes.Repeat([]byte{7}, size)
	reg := g.u.register(mem, fabric.RemoteRead)
	g.read(wire.Read{SinkSTag: 1, Size: size, SrcSTag: uint32(reg.Handle), SrcTO: reg.Offset})
	testkit.Eventually(t, "the socket is full", func() (full bool) {
		g.u.do(func(c fabric.Conn) { full = c.(*conn).blocked })
		return full
	})
	g.u.do(func(c fabric.Conn) {
		_, _ = c.Invalidate(1, reg.Handle)
		clear(mem)
	})
	g.takeAll()
	got := 0
	for {
		f, err := g.next()
		if err != nil {
			t.Fatal(err)
		}
		if f.op() == wire.OpTerminate {
			term, _ := wire.ParseTerminate(f.payload)
			if term.Code != wire.CodeReadSTag {
				t.Errorf("Terminate %v", term.Code)
			}
			left := binary.BigEndian.Uint32(term.RDMAP[12:])
			to := binary.BigEndian.Uint64(term.RDMAP[20:])
			if int(left) != size-got || to != reg.Offset+uint64(got) {
				t.Errorf("Terminate says %d octets left at %#x, want %d at %#x", left, to, size-got, reg.Offset+uint64(got))
			}
			break
		}
		for _, b := range f.payload {
			if b != 7 {
				t.Fatal("memory was read after Invalidate")
			}
		}
		got += len(f.payload)
	}
	if got == 0 || got >= size {
		t.Errorf("%d octets of the Response came", got)
	}
	g.u.ended()
}

// S11: once the Receive's completion names the handle as invalidated, or
// Invalidate has returned, a later Write has no effect.
func TestS11_WriteAfterSend(t *testing.T) {
	for _, remote := range []bool{true, false} {
		g := newRig(t, rigOptions{})
		mem := guard(64)
		reg := g.u.register(mem.buf, fabric.RemoteWrite)
		stag := uint32(reg.Handle)
		if remote {
			// The Write is in the very same TCP segment as the Send.
			g.write(append(
				g.seal(g.sendHead(wire.OpSendInvalidate, true, stag, 0, 0)),
				g.tagged(wire.OpWrite, true, stag, reg.Offset, 1)...,
			))
			if c := g.u.good(1); c.Invalidated != reg.Handle {
				t.Errorf("%+v", c)
			}
		} else {
			g.send()
			g.u.good(1)
			g.u.do(func(c fabric.Conn) { _, _ = c.Invalidate(0, reg.Handle) })
			g.put(stag, reg.Offset, 1)
		}
		g.wantTerminate(wire.CodeTaggedSTag)
		mem.untouched(t)
	}
}

// S11: a Write over octets that are written already changes nothing that the ULP reads when it
// handles a Send that came before, also when its CRC shows that it is damaged, or when it does not
// come whole.
func TestS11_WriteOverWritten(t *testing.T) {
	for _, tt := range []struct {
		name   string
		before int // octets written before the Send
		at     int // where the last Write begins
		late   int // octets of it that come later
		damage func(b []byte) []byte
	}{
		{"damaged, in pieces", 64, 0, 1, func(b []byte) []byte { b[len(b)-9] ^= 1; return b }},
		{"damaged at the end, in pieces", 64, 60, 1, func(b []byte) []byte { b[len(b)-5] ^= 1; return b }},
		{"damaged", 64, 0, 0, func(b []byte) []byte { b[len(b)-9] ^= 1; return b }},
		{"damaged at the end", 64, 60, 0, func(b []byte) []byte { b[len(b)-5] ^= 1; return b }},
		{"half", 64, 0, 0, func(b []byte) []byte { return b[:len(b)-20] }},
		{"whole", 64, 0, 0, func(b []byte) []byte { return b }},
		{"behind a gap", -32, 32, 0, func(b []byte) []byte { return b }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := &rawPeer{t: t, crc: true, msn: [3]uint32{1, 1, 1}}
			q, _ := bareQP(qpConfig{crc: true, receives: 4, sends: 4, handlesN: 4})
			if err := q.postReceive(1, make([]byte, 64)); err != nil {
				t.Fatal(err)
			}
			buf := make([]byte, 64)
			reg, err := q.register(buf, fabric.RemoteWrite)
			if err != nil {
				t.Fatal(err)
			}
			from, n := 0, tt.before
			if n < 0 { // the end alone
				from, n = len(buf)+n, -n
			}
			good := testkit.Pattern(n, byte(1))
			b := r.tagged(wire.OpWrite, true, uint32(reg.Handle), reg.Offset+uint64(from), good...)
			b = append(b, r.seal(r.sendHead(wire.OpSend, true, 0, 0, 0))...)
			b = append(b, tt.damage(r.tagged(wire.OpWrite, true, uint32(reg.Handle), reg.Offset+uint64(tt.at), bytes.Repeat([]byte{0xaa}, len(buf)-tt.at)...))...)
			rest := q.input(b[:len(b)-tt.late])
			if cs := q.take(); len(cs) != 1 || cs[0].Err != nil {
				t.Fatalf("completions %+v, want that of the Send", cs)
			}
			if !bytes.Equal(buf[from:from+n], good) {
				t.Errorf("the Send finds % x, and % x was written before it", buf[from:from+n], good)
			}
			refused := q.state == stateTerminate // the CRC was compared first
			if refused != (tt.late == 0 && strings.HasPrefix(tt.name, "damaged")) {
				t.Errorf("the Write was refused: %t", refused)
			}
			if !refused && !q.hungry() {
				t.Fatal("the qp does not wait until the Send is handled")
			}
			q.invalidate(uint32(reg.Handle))
			q.input(append(rest, b[len(b)-tt.late:]...))
			if !bytes.Equal(buf[from:from+n], good) {
				t.Errorf("after the handle was invalidated there is % x", buf[from:from+n])
			}
		})
	}
}

// S12: the provider sends only octets that are registered or posted; pads are zero.
func TestS12_NoStaleMemory(t *testing.T) {
	g := newRig(t, rigOptions{})
	for n := range 9 {
		mem := guard(n + 1)
		reg := g.u.register(mem.buf, fabric.RemoteRead)
		g.read(wire.Read{SinkSTag: 1, Size: uint32(n + 1), SrcSTag: uint32(reg.Handle), SrcTO: reg.Offset})
		b := make([]byte, wire.FPDULen(n+1+14))
		if _, err := io.ReadFull(g.nc, b); err != nil {
			t.Fatal(err)
		}
		pad := b[wire.TaggedLen+n+1 : len(b)-4]
		if !bytes.Equal(pad, make([]byte, len(pad))) {
			t.Errorf("pad % x", pad)
		}
	}
}

// S13: only a live handle of this connection can be invalidated from afar.
func TestS13_RemoteInvalidate(t *testing.T) {
	for name, stag := range map[string]func(g *rig) uint32{
		"zero":    func(*rig) uint32 { return 0 },
		"unknown": func(*rig) uint32 { return 0x12345678 },
		"dead": func(g *rig) uint32 {
			reg := g.u.register(make([]byte, 8), fabric.RemoteRead)
			g.u.do(func(c fabric.Conn) { _, _ = c.Invalidate(0, reg.Handle) })
			return uint32(reg.Handle)
		},
		"twice": func(g *rig) uint32 {
			reg := g.u.register(make([]byte, 8), fabric.RemoteRead)
			g.sendInv(uint32(reg.Handle))
			g.u.good(1)
			return uint32(reg.Handle)
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := newRig(t, rigOptions{})
			g.sendInv(stag(g), 1, 2, 3)
			term := g.wantTerminate(wire.CodeOpInvalidate)
			if len(term.DDP) != 18 {
				t.Errorf("Terminate quotes %d octets", len(term.DDP))
			}
			g.u.ended()
			if c := g.u.completion(2); !errors.Is(c.Err, fabric.ErrFlushed) {
				t.Errorf("the Receive: %+v", c)
			}
		})
	}
}

// S14: memory has at most one handle that can write it.
func TestS14_Aliases(t *testing.T) {
	g := newRig(t, rigOptions{conn: fabric.ConnOptions{ORD: 4}})
	mem := make([]byte, 100)
	reg := g.u.register(mem[20:60], fabric.RemoteWrite)
	g.u.do(func(c fabric.Conn) {
		for _, b := range [][]byte{mem, mem[20:60], mem[59:70], mem[10:21], mem[30:31]} {
			if _, err := c.Register(b, fabric.RemoteWrite|fabric.RemoteRead); !errors.Is(err, errAliased) {
				t.Errorf("Register: %v", err)
			}
			if err := c.PostRead(5, fabric.Read{Into: b, From: fabric.Region{Length: uint32(len(b))}}); !errors.Is(err, errAliased) {
				t.Errorf("PostRead: %v", err)
			}
		}
		for _, b := range [][]byte{mem[:20], mem[60:]} {
			if _, err := c.Register(b, fabric.RemoteWrite); err != nil {
				t.Errorf("Register beside it: %v", err)
			}
		}
		if _, err := c.Register(mem, fabric.RemoteRead); err != nil {
			t.Errorf("Register for reading: %v", err)
		}
		_, _ = c.Invalidate(0, reg.Handle)
		if err := c.PostRead(5, fabric.Read{Into: mem[20:60], From: fabric.Region{Length: 40}}); err != nil {
			t.Errorf("PostRead: %v", err)
		}
		if _, err := c.Register(mem[20:60], fabric.RemoteWrite); !errors.Is(err, errAliased) {
			t.Errorf("Register of a Read's sink: %v", err)
		}
	})
}

// S15: Tagged Offsets tell nothing about addresses.
func TestS15_NoAddresses(t *testing.T) {
	g := newRig(t, rigOptions{})
	mem := make([]byte, 1<<16)
	at := spanOf(mem)
	seen := map[uint64]bool{}
	for range 200 {
		reg := g.u.register(mem, fabric.RemoteRead)
		if to := uintptr(reg.Offset); to>>12 == at.lo>>12 || seen[reg.Offset] {
			t.Fatalf("Tagged Offset %#x for memory at %#x", reg.Offset, at.lo)
		}
		seen[reg.Offset] = true
	}
}
