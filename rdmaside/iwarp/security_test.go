package iwarp

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/testkit"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
	"github.com/rdmabridge/rdmabridge/rdmaside/iwarp/wire"
)

// The security checklist: RFC 5042, RFC 5040 Section 8.1, RFC 5041 Section 8.3. A
// test has the number of its item. After an attack each test wants a Terminate, the end
// of the connection, and unchanged memory.

// S1: STags are unpredictable, sparse, over all 32 bits, and not reused soon.
func TestS01_STags(t *testing.T) {
	tab := &table{limit: 1 << 20}
	order := mintMany(t, tab, 100000)
	checkSpread(t, order)
	checkSteps(t, order)
	rand.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
	removeAll(t, tab, order)
	checkRetired(t, tab)
}

// mintMany adds n regions, and returns their STags in order.
func mintMany(t *testing.T, tab *table, n int) (order []uint32) {
	buf := make([]byte, 8)
	live := make(map[uint32]bool)
	for range n {
		r, err := tab.add(buf, fabric.RemoteRead)
		if err != nil {
			t.Fatal(err)
		}
		s := r.stag
		if s == 0 || live[s] {
			t.Fatalf("STag %#x: zero or a duplicate", s)
		}
		if r.to&4095 != 0 || r.to >= 1<<47 {
			t.Fatalf("Tagged Offset %#x", r.to)
		}
		live[s] = true
		order = append(order, s)
	}
	return order
}

// checkSpread checks that each octet of the STags is spread evenly. A chi square of 255
// degrees of freedom has mean 255 and standard deviation 22.6.
func checkSpread(t *testing.T, stags []uint32) {
	var counts [4][256]int
	for _, s := range stags {
		for i := range 4 {
			counts[i][byte(s>>(8*i))]++
		}
	}
	want := float64(len(stags)) / 256
	for i := range counts {
		chi := 0.0
		for _, c := range counts[i] {
			d := float64(c) - want
			chi += d * d / want
		}
		if chi > 255+8*22.6 {
			t.Errorf("octet %d: chi square %.0f", i, chi)
		}
	}
}

// checkSteps checks that no difference between neighbours is frequent.
func checkSteps(t *testing.T, order []uint32) {
	steps := make(map[uint32]int)
	for i := 1; i < len(order); i++ {
		steps[order[i]-order[i-1]]++
	}
	for d, c := range steps {
		if c > 3 {
			t.Errorf("difference %#x occurs %d times", d, c)
		}
	}
}

// removeAll removes the STags from a full table, and checks lookups on the way.
func removeAll(t *testing.T, tab *table, order []uint32) {
	for i, s := range order {
		if r := tab.find(s); r == nil || r.stag != s {
			t.Fatalf("STag %#x is lost", s)
		}
		if _, ok := tab.remove(s); !ok {
			t.Fatalf("STag %#x cannot be removed", s)
		}
		if tab.find(s) != nil {
			t.Fatalf("STag %#x lives on", s)
		}
		if i%97 == 0 && i+1 < len(order) && tab.find(order[i+1]) == nil {
			t.Fatalf("STag %#x went with another", order[i+1])
		}
	}
	if tab.live != 0 || tab.used != retiredMax {
		t.Errorf("%d live, %d used; want 0 and %d", tab.live, tab.used, retiredMax)
	}
}

// checkRetired checks that a retired STag does not return before retiredMax others were
// retired.
func checkRetired(t *testing.T, tab *table) {
	buf := make([]byte, 8)
	r, _ := tab.add(buf, fabric.RemoteRead)
	old := r.stag
	tab.remove(old)
	for range retiredMax - 1 {
		r, _ := tab.add(buf, fabric.RemoteRead)
		if r.stag == old {
			t.Fatal("a retired STag came back")
		}
		tab.remove(r.stag)
		if i := tab.slot(old); i < 0 || tab.slots[i].region >= 0 {
			t.Fatal("a retired STag was forgotten")
		}
	}
}

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

// S5: a Read's sink takes that Read's Response and nothing else.
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

// S6: bounds are exact to the octet, and checked for the whole segment before its
// first octet is stored.
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
		// No base is ever there; the arithmetic holds all the same.
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

// S8: what is zero octets long needs no STag and touches nothing.
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

// S9, the other direction: what is half sent from a region is sent from a copy.
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

// S12: the provider sends exactly what is registered or posted; pads are zero.
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

// S16 and S17: a Response is exactly what was asked for, in every segment.
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

// TestResponseSegments: the good ones, with a Send and empty segments in between.
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
	// The longest there is.
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

// splitStream makes a stream of FPDUs of all kinds, and a function that makes a qp
// for it, or checks what a qp made of it.
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
		if !slices.Equal(cs, want) {
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

// S22: inbound Reads are bounded, and no Response is ever held in memory.
func TestS22_ReadsBounded(t *testing.T) {
	f := plain()
	f.Enhanced.ORD = 4
	g := newRig(t, rigOptions{request: &f})
	const size = 64 << 20
	mem := make([]byte, size)
	reg := g.u.register(mem, fabric.RemoteRead)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	// The first fills the socket; four more wait; one more is too many. Which one
	// that is depends on whether the first is still being answered.
	for range 6 {
		g.read(wire.Read{SinkSTag: 1, Size: size, SrcSTag: uint32(reg.Handle), SrcTO: reg.Offset})
	}
	var te *terminateError
	if err := g.u.ended(); !errors.As(err, &te) || te.Code != wire.CodeNoBuffer {
		t.Errorf("Closed(%v)", err)
	}
	runtime.ReadMemStats(&after)
	if grew := int64(after.TotalAlloc - before.TotalAlloc); grew > 8<<20 {
		t.Errorf("%d octets allocated for Responses", grew)
	}
	runtime.KeepAlive(mem)
}

func TestS22_HugeReads(t *testing.T) {
	g := newRig(t, rigOptions{})
	reg := g.u.register(make([]byte, 64), fabric.RemoteRead)
	g.read(wire.Read{SinkSTag: 1, Size: 1<<32 - 1, SrcSTag: uint32(reg.Handle), SrcTO: reg.Offset})
	g.killed(wire.CodeReadBounds)
}

// S23 and S24: queues belong to a connection. One that is flooded ends alone.
func TestS23_FloodedAlone(t *testing.T) {
	on := newLoop(t)
	p := newProvider(Options{})
	var us []*user
	accept := make(chan *user, 2)
	addr := listen(t, p, fabric.ListenOptions{}, fabric.ConnOptions{}, func(fabric.Incoming) (loop.Loop, fabric.Handler) {
		u := <-accept
		return u.loop, u
	})
	var raws []*rawPeer
	for range 2 {
		u := newUser(t, on)
		u.receives(4, 64)
		accept <- u
		r := rawDial(t, addr)
		if _, err := r.request(plain()); err != nil {
			t.Fatal(err)
		}
		us, raws = append(us, u), append(raws, r)
	}
	for range 5 {
		raws[0].send(1)
	}
	raws[0].wantTerminate(wire.CodeNoBuffer)
	us[0].ended()
	raws[1].send(2)
	us[1].good(1)
}

func TestS24_CompletionsBounded(t *testing.T) {
	q, _ := bareQP(qpConfig{crc: true, receives: 4, sends: 4, handlesN: 4})
	r := &rawPeer{t: t, crc: true, msn: [3]uint32{1, 1, 1}}
	// Completions that nobody takes keep their places.
	for i := range 8 {
		err := q.postReceive(uint64(i+1), make([]byte, 8))
		if want := i >= 4; errors.Is(err, fabric.ErrQueueFull) != want {
			t.Errorf("Receive %d: %v", i, err)
		}
		if err == nil {
			q.input(r.seal(r.sendHead(wire.OpSend, true, 0, 0, 1), 1))
		}
		if err := q.post(uint64(i+1), wire.OpSend, nil, 0, 0); errors.Is(err, fabric.ErrQueueFull) != (i >= 4) {
			t.Errorf("Send %d: %v", i, err)
		}
		for out := q.output(); len(out) > 0; out = q.output() {
			n := 0
			for _, p := range out {
				n += len(p)
			}
			q.wrote(n)
		}
	}
	if n := len(q.take()); n != 8 {
		t.Errorf("%d completions, want 8", n)
	}
	if err := q.postReceive(1, nil); err != nil {
		t.Error(err)
	}
}

// refusals counts what a listener turned away.
type refusals struct{ address, conns, starting, addr, timeout, request atomic.Int32 }

func (r *refusals) refused(_ netip.AddrPort, reason string, _ error) {
	map[string]*atomic.Int32{
		refusedAddress: &r.address, refusedConnections: &r.conns, refusedStarting: &r.starting,
		refusedStartingAddr: &r.addr, refusedTimeout: &r.timeout, refusedRequest: &r.request,
	}[reason].Add(1)
}

// S25: connections whose peer sends nothing, or octets one by one, are bounded in number
// and time.
func TestS25_SilentStrangers(t *testing.T) {
	var ref refusals
	p := newProvider(Options{AcceptTimeout: 300 * time.Millisecond})
	addr := listen(t, p, fabric.ListenOptions{MaxStarting: 64, MaxStartingPerAddr: 32, Refused: ref.refused}, fabric.ConnOptions{},
		func(fabric.Incoming) (loop.Loop, fabric.Handler) {
			t.Error("a stranger got through")
			return nil, nil
		})
	before := runtime.NumGoroutine()
	const n = 1000
	var conns []net.Conn
	for i := range n {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		conns = append(conns, c)
		if g := runtime.NumGoroutine(); g > before+64+8 {
			t.Fatalf("%d goroutines after %d connections", g, i)
		}
	}
	testkit.Eventually(t, "all are gone", func() bool {
		return int(ref.addr.Load()+ref.starting.Load()+ref.timeout.Load()) == n
	})
	timeouts := ref.timeout.Load()
	if timeouts < 32 || ref.addr.Load() == 0 {
		t.Errorf("%d timed out, %d were too many", timeouts, ref.addr.Load())
	}
	for _, c := range conns {
		_ = c.SetReadDeadline(time.Now().Add(patience))
		if _, err := c.Read(make([]byte, 1)); err == nil {
			t.Fatal("a silent stranger was answered")
		}
	}
	if c := p.limits.conns.Load(); c != 0 {
		t.Errorf("%d connections still counted", c)
	}
	sendSlowly(t, addr, &ref.timeout)
}

// sendSlowly sends a Request octet by octet, and checks that the deadline is for the
// whole Request.
func sendSlowly(t *testing.T, addr string, timedOut *atomic.Int32) {
	timeouts := timedOut.Load()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	f := plain()
	f.Private = make([]byte, 400)
	for i, b := range f.Append(nil) {
		if timedOut.Load() > timeouts {
			break
		}
		if i == 400 {
			t.Fatal("a slow stranger stays")
		}
		_, _ = c.Write([]byte{b}) // until the connection is reset
		time.Sleep(30 * time.Millisecond)
	}
	_ = c.SetReadDeadline(time.Now().Add(patience))
	if _, err := c.Read(make([]byte, 1)); err == nil {
		t.Error("a slow Request was answered")
	}
}

// S26: a peer that asks and never reads ends in time, with flat memory.
func TestS26_NeverReads(t *testing.T) {
	const size = 64 << 20
	mem := make([]byte, size)
	ask := func(o Options) *rig {
		g := newRig(t, rigOptions{provider: o})
		reg := g.u.register(mem, fabric.RemoteRead)
		g.read(wire.Read{SinkSTag: 1, Size: size, SrcSTag: uint32(reg.Handle), SrcTO: reg.Offset})
		return g
	}
	g := ask(Options{ProgressTimeout: 300 * time.Millisecond})
	if err := g.u.ended(); !errors.Is(err, errStalled) {
		t.Errorf("Closed(%v), want %v", err, errStalled)
	}
	g.flushed2(8)

	// Our side goes on listening meanwhile.
	g = ask(Options{})
	testkit.Eventually(t, "the socket is full", func() (full bool) {
		g.u.do(func(c fabric.Conn) { full = c.(*conn).blocked })
		return full
	})
	g.send(1)
	g.u.good(1)
}

// flushed2 is flushed when some were taken.
func (g *rig) flushed2(n int) {
	g.t.Helper()
	g.u.mu.Lock()
	defer g.u.mu.Unlock()
	if len(g.u.cs) != n {
		g.t.Errorf("%d completions, want %d", len(g.u.cs), n)
	}
}

// S27: a peer that stops inside an FPDU ends in time; one that is idle does not.
func TestS27_SlowSender(t *testing.T) {
	o := rigOptions{provider: Options{ProgressTimeout: 200 * time.Millisecond}}
	idle := newRig(t, o)
	g := newRig(t, o)
	g.write(g.seal(g.sendHead(wire.OpSend, true, 0, 0, 100), make([]byte, 100)...)[:50])
	if err := g.u.ended(); !errors.Is(err, errStalled) {
		t.Errorf("Closed(%v), want %v", err, errStalled)
	}
	if _, err := g.next(); err == nil || errors.Is(err, io.EOF) {
		t.Errorf("want RST, got %v", err)
	}
	idle.send(1)
	idle.u.good(1)
	if time.Since(idle.u.c.(*conn).last) > time.Minute {
		t.Error("LastActivity")
	}
}

// S28: what peers do wrong is logged, not too often, without their octets.
func TestS28_LogRate(t *testing.T) {
	var lines atomic.Int32
	log := zerolog.New(writerFunc(func(b []byte) (int, error) {
		lines.Add(1)
		if len(b) > 400 || bytes.Contains(b, []byte("secret")) {
			t.Errorf("log line %s", b)
		}
		return len(b), nil
	}))
	g := newRig(t, rigOptions{provider: Options{Log: log}})
	c := g.u.c.(*conn)
	for range 500 {
		c.p.logEnd(c, &terminateError{Code: wire.CodeMSN, Raw: []byte("secret")})
	}
	if n := lines.Load(); n < 1 || n > logBurst+1 {
		t.Errorf("%d lines", n)
	}
	if _, dropped := c.p.logs.allow(time.Now().Add(time.Minute)); dropped < 480 {
		t.Errorf("%d suppressed", dropped)
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

// S29: LastActivity moves when the peer is heard.
func TestS29_LastActivity(t *testing.T) {
	g := newRig(t, rigOptions{})
	var before, after time.Time
	g.send(1)
	g.u.good(1)
	g.u.do(func(c fabric.Conn) { before = c.LastActivity() })
	time.Sleep(5 * time.Millisecond)
	g.send(1)
	g.u.good(2)
	g.u.do(func(c fabric.Conn) { after = c.LastActivity() })
	if d := after.Sub(before); d < 4*time.Millisecond || time.Since(after) > time.Minute {
		t.Errorf("before %v, after %v", before, after)
	}
}

// S30: nothing grows with what peers send.
func TestS30_NoGrowth(t *testing.T) {
	q, _ := bareQP(qpConfig{crc: false, receives: 4, sends: 4, handlesN: 16, ird: 4})
	r := &rawPeer{t: t, msn: [3]uint32{1, 1, 1}}
	buf := make([]byte, 64)
	spin := func(n int) {
		for range n {
			reg, err := q.register(buf, fabric.RemoteRead|fabric.RemoteWrite)
			if err != nil {
				t.Fatal(err)
			}
			_ = q.postReceive(1, buf)
			stag := uint32(reg.Handle)
			q.input(r.tagged(wire.OpWrite, true, stag, reg.Offset, 1, 2, 3, 4))
			q.input(r.tagged(wire.OpWrite, true, rand.Uint32(), rand.Uint64()))
			q.input(r.seal(wire.AppendReadRequest(nil, r.msn[1], wire.Read{Size: 4, SrcSTag: stag, SrcTO: reg.Offset})))
			r.msn[1]++
			for out := q.output(); len(out) > 0; out = q.output() {
				k := 0
				for _, p := range out {
					k += len(p)
				}
				q.wrote(k)
			}
			q.input(r.seal(r.sendHead(wire.OpSendInvalidate, true, stag, 0, 0)))
			q.take()
		}
	}
	spin(3 * retiredMax)
	slots, regions, irq := len(q.stags.slots), len(q.stags.regions), len(q.irq.buf)
	spin(3 * retiredMax)
	if q.err != nil {
		t.Fatal(q.err)
	}
	if len(q.stags.slots) != slots || len(q.stags.regions) != regions || len(q.irq.buf) != irq || slots > 4*retiredMax || q.stags.used > retiredMax+16 {
		t.Errorf("%d slots (%d used), %d regions, %d Reads; were %d, %d, %d", len(q.stags.slots), q.stags.used, len(q.stags.regions), len(q.irq.buf), slots, regions, irq)
	}
}

// S31: limits over all connections, and what ends gives back its share.
func TestS31_ProviderLimits(t *testing.T) {
	p := newProvider(Options{MaxConnections: 3, MaxHandles: 5, MaxRegistered: 1000})
	on := newLoop(t)
	var ref refusals
	var acceptors []*user
	accepted := make(chan *user, 8)
	addr := listen(t, p, fabric.ListenOptions{Refused: ref.refused}, fabric.ConnOptions{}, func(fabric.Incoming) (loop.Loop, fabric.Handler) {
		u := newUser(t, on)
		accepted <- u
		return on, u
	})
	a := newUser(t, on)
	if _, err := p.Dial(t.Context(), on, addr, fabric.ConnOptions{}, a); err != nil { // both ends count
		t.Fatal(err)
	}
	acceptors = append(acceptors, <-accepted)
	b := newUser(t, on)
	if _, err := p.Dial(t.Context(), on, addr, fabric.ConnOptions{}, b); err == nil {
		t.Error("a fourth connection was made")
	}
	testkit.Eventually(t, "the listener refuses it", func() bool { return ref.conns.Load() > 0 })
	acceptors[0].wait("Setup", func() bool { return acceptors[0].c != nil })
	a.do(func(c fabric.Conn) {
		if _, err := c.Register(make([]byte, 1001), fabric.RemoteRead); !errors.Is(err, fabric.ErrLimit) {
			t.Errorf("1001 octets: %v", err)
		}
		for range 2 {
			if _, err := c.Register(make([]byte, 400), fabric.RemoteRead); err != nil {
				t.Error(err)
			}
		}
		if _, err := c.Register(make([]byte, 400), fabric.RemoteRead); !errors.Is(err, fabric.ErrLimit) {
			t.Errorf("1200 octets: %v", err)
		}
		for i := range 4 {
			_, err := acceptors[0].c.Register(nil, fabric.RemoteRead)
			if want := i == 3; errors.Is(err, fabric.ErrLimit) != want {
				t.Errorf("handle %d: %v", i+3, err)
			}
		}
		c.Close(nil)
	})
	a.ended()
	acceptors[0].ended()
	testkit.Eventually(t, "everything is given back", func() bool {
		return p.limits.conns.Load() == 0 && p.limits.handles.Load() == 0 && p.limits.octets.Load() == 0
	})
}

// TestListenLimit: MaxConnections of a listener.
func TestListenLimit(t *testing.T) {
	p := newProvider(Options{})
	on := newLoop(t)
	var ref refusals
	addr := listen(t, p, fabric.ListenOptions{MaxConnections: 2, Refused: ref.refused}, fabric.ConnOptions{}, func(fabric.Incoming) (loop.Loop, fabric.Handler) {
		return on, newUser(t, on)
	})
	for i := range 3 {
		_, err := p.Dial(t.Context(), on, addr, fabric.ConnOptions{}, newUser(t, on))
		if want := i == 2; (err != nil) != want {
			t.Errorf("connection %d: %v", i, err)
		}
	}
	if ref.conns.Load() == 0 {
		t.Error("nothing was refused")
	}
}

// S33: the access list decides before anything is answered.
func TestS33_AccessList(t *testing.T) {
	var ref refusals
	var asked atomic.Value
	addr := listen(t, newProvider(Options{}), fabric.ListenOptions{
		Allow:   func(a netip.Addr) bool { asked.Store(a); return false },
		Refused: ref.refused,
	}, fabric.ConnOptions{}, nil)
	r := rawDial(t, addr)
	f := plain()
	_, _ = r.nc.Write(f.Append(nil))
	if _, err := r.nc.Read(make([]byte, 1)); !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("want the end, got %v", err)
	}
	testkit.Eventually(t, "it is counted", func() bool { return ref.address.Load() == 1 })
	if a := asked.Load().(netip.Addr); a != netip.MustParseAddr("127.0.0.1") {
		t.Errorf("Allow was asked about %v", a)
	}
}
