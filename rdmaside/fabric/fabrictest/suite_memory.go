package fabrictest

import (
	"bytes"
	"errors"
	"hash/crc32"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
)

// Tests of registered memory, RDMA Write and RDMA Read.

// at is n octets of r from offset on.
func at(r fabric.Region, offset int64, n int) fabric.Region {
	return fabric.Region{Handle: r.Handle, Offset: r.Offset + uint64(offset), Length: uint32(n)}
}

// testWriteThenSend: a Send is delivered after the Writes before it, and their
// octets are there when it is.
func testWriteThenSend(t *testing.T, f *Fixture) {
	for _, accepted := range []bool{true, false} {
		buf := f.alloc(256 << 10)
		want := make([]byte, len(buf))
		checked := make(chan struct{}, 1)
		check := func(_ *endpoint, msg []byte) {
			if string(msg) != "written" {
				return
			}
			if !bytes.Equal(buf, want) {
				t.Error("the Send was delivered before the Writes")
			}
			checked <- struct{}{}
		}
		p := f.connect(t, pairOptions{prepare: func(dial, other *endpoint) { dial.onReceive, other.onReceive = check, check }})
		from, to := p.sides(accepted)
		r := to.register(buf, fabric.RemoteWrite)
		if r.Length != uint32(len(buf)) || r.Handle == 0 {
			t.Fatalf("Register: %+v", r)
		}
		n := 0
		for _, size := range []int{1, 2, 3, 4, 1431, 1432, 1433, 4096, 65536, len(buf)} {
			for _, offset := range []int{0, 1, 4099, len(buf) - size} {
				if offset < 0 || offset+size > len(buf) {
					continue
				}
				data := f.copyOf(pattern(size, byte(size+offset)))
				from.do(func() {
					copy(want[offset:], data)
					cut := size / 3
					if _, err := from.postWrite(fabric.Write{Parts: [][]byte{data[:cut], nil, data[cut:]}, To: at(r, int64(offset), 0)}); err != nil {
						t.Errorf("PostWrite: %v", err)
					}
					if _, err := from.postSend(fabric.Send{Parts: [][]byte{f.copyOf([]byte("written"))}}); err != nil {
						t.Errorf("PostSend: %v", err)
					}
				})
				n++
				to.waitMessages(n)
				<-checked
			}
		}
		checkOrder(t, from, fabric.OpWrite)
	}
}

func testRead(t *testing.T, f *Fixture) {
	for _, accepted := range []bool{true, false} {
		p := f.connect(t, pairOptions{})
		from, to := p.sides(accepted)
		buf := f.copyOf(pattern(256<<10, 3))
		r := to.register(buf, fabric.RemoteRead)
		for _, size := range []int{0, 1, 2, 3, 4, 1431, 1432, 1433, 4096, 65536, len(buf)} {
			for _, offset := range []int{0, 1, 4099, len(buf) - size} {
				if offset < 0 || offset+size > len(buf) {
					continue
				}
				into := f.alloc(size + 64)
				fillPattern(into, 9)
				guard := bytes.Clone(into)
				if c := from.waitDone(from.read(into, at(r, int64(offset), size))); c.Err != nil {
					t.Fatalf("Read of %d octets at %d: %v", size, offset, c.Err)
				}
				if !bytes.Equal(into[:size], buf[offset:][:size]) {
					t.Errorf("Read of %d octets at %d got something else", size, offset)
				}
				if !bytes.Equal(into[size:], guard[size:]) {
					t.Errorf("Read of %d octets wrote behind its end", size)
				}
			}
		}
		from.do(func() {
			if err := from.conn.PostRead(1<<20, fabric.Read{Into: f.alloc(4), From: at(r, 0, 5)}); err == nil {
				t.Error("a Read into less memory than it asks for was taken")
			}
		})
	}
}

func testReadsBeyondORD(t *testing.T, f *Fixture) {
	p := f.connect(t, pairOptions{
		accept: fabric.ConnOptions{ORD: 2, IRD: 2},
		dial:   fabric.ConnOptions{ORD: 2, IRD: 2},
	})
	from, to := p.sides(true)
	if ord := from.conn.Info().ORD; ord < 1 || ord > 2 {
		t.Errorf("ORD = %d, want 1 or 2", ord)
	}
	const reads, size = 64, 3000
	buf := f.copyOf(pattern(reads*size, 5))
	r := to.register(buf, fabric.RemoteRead)
	into := f.alloc(len(buf))
	var ids []uint64
	from.do(func() {
		for i := range reads {
			id, err := from.postRead(fabric.Read{Into: into[i*size:][:size], From: at(r, int64(i*size), size)})
			if err != nil {
				t.Errorf("PostRead %d: %v", i, err)
				return
			}
			ids = append(ids, id)
		}
		// A Send behind Reads that have to wait arrives nevertheless.
		if _, err := from.postSend(fabric.Send{Parts: [][]byte{f.copyOf([]byte("behind"))}}); err != nil {
			t.Errorf("PostSend: %v", err)
		}
	})
	for _, id := range ids {
		if c := from.waitDone(id); c.Err != nil {
			t.Fatalf("Read: %v", c.Err)
		}
	}
	if !bytes.Equal(into, buf) {
		t.Error("Reads got something else")
	}
	to.waitMessages(1)
	checkOrder(t, from, fabric.OpRead)
}

// testZeroLength: a Write or Read of nothing needs no valid handle. RFC 5040
// Section 5.3, RFC 5041 Section 5.1.
func testZeroLength(t *testing.T, f *Fixture) {
	p := f.connect(t, pairOptions{})
	from, to := p.sides(true)
	nowhere := fabric.Region{Handle: 0x12345678, Offset: 42}
	if c := from.waitDone(from.write(nowhere)); c.Err != nil {
		t.Errorf("Write of no parts: %v", c.Err)
	}
	if c := from.waitDone(from.write(nowhere, f.alloc(0))); c.Err != nil {
		t.Errorf("Write of an empty part: %v", c.Err)
	}
	if c := from.waitDone(from.read(nil, nowhere)); c.Err != nil {
		t.Errorf("Read of nothing: %v", c.Err)
	}
	from.send(f.copyOf([]byte("alive")))
	to.waitMessages(1)
}

// violate connects a pair, has the accepting side break a rule against memory
// that the dialling side registered with the access given, and checks that the
// connection ends and no octet has moved.
func violate(t *testing.T, f *Fixture, access fabric.Access, post func(p *pair, from *endpoint, r fabric.Region)) {
	t.Helper()
	for _, accepted := range []bool{true, false} {
		p := f.connect(t, pairOptions{})
		from, to := p.sides(accepted)
		whole := f.alloc(3 * 512)
		fillPattern(whole, 11)
		want := bytes.Clone(whole)
		r := to.register(whole[512:1024:1024], access)
		post(p, from, r)
		if err := to.waitClosed(); err == nil {
			t.Errorf("%s: Closed(nil) after a violation by the peer", to.name)
		}
		if err := from.waitClosed(); err == nil {
			t.Errorf("%s: Closed(nil) after its violation", from.name)
		}
		if !bytes.Equal(whole, want) {
			t.Errorf("%s: memory changed", to.name)
		}
	}
}

func testBounds(t *testing.T, f *Fixture) {
	const size = 512
	spots := []struct {
		name   string
		offset int64
		n      int
	}{
		{"OneBefore", -1, 1},
		{"StartsBefore", -1, 2},
		{"OneBehind", size, 1},
		{"EndsBehind", size - 1, 2},
		{"WholeAndOne", 0, size + 1},
		{"FarBefore", -1 << 40, 4},
		{"FarBehind", 1 << 40, 4},
		{"HalfTheSpace", -1 << 63, 4},
	}
	for _, s := range spots {
		t.Run("Write"+s.name, func(t *testing.T) {
			violate(t, f, fabric.RemoteWrite, func(_ *pair, from *endpoint, r fabric.Region) {
				from.write(at(r, s.offset, 0), f.copyOf(pattern(s.n, 1)))
			})
		})
		t.Run("Read"+s.name, func(t *testing.T) {
			into := f.alloc(s.n)
			violate(t, f, fabric.RemoteRead, func(_ *pair, from *endpoint, r fabric.Region) {
				if c := from.waitDone(from.read(into, at(r, s.offset, s.n))); c.Err == nil {
					t.Error("the Read succeeded")
				}
			})
			if !bytes.Equal(into, make([]byte, s.n)) {
				t.Error("octets were read")
			}
		})
	}
	t.Run("ReadWrap", func(t *testing.T) {
		into := f.alloc(1024)
		violate(t, f, fabric.RemoteRead, func(_ *pair, from *endpoint, r fabric.Region) {
			wrap := fabric.Region{Handle: r.Handle, Offset: ^uint64(0) - 7, Length: 1024}
			if c := from.waitDone(from.read(into, wrap)); c.Err == nil {
				t.Error("the Read succeeded")
			}
		})
	})
	t.Run("WriteWrap", func(t *testing.T) {
		violate(t, f, fabric.RemoteWrite, func(_ *pair, from *endpoint, r fabric.Region) {
			from.write(fabric.Region{Handle: r.Handle, Offset: ^uint64(0) - 7}, f.alloc(1024))
		})
	})
	t.Run("Exact", func(t *testing.T) {
		p := f.connect(t, pairOptions{})
		from, to := p.sides(true)
		buf := f.alloc(size)
		r := to.register(buf, fabric.RemoteWrite|fabric.RemoteRead)
		from.write(at(r, 0, 0), f.copyOf(pattern(size, 1)))
		from.write(at(r, size-1, 0), []byte{0xee})
		into := f.alloc(size)
		if c := from.waitDone(from.read(into, at(r, 0, size))); c.Err != nil {
			t.Fatalf("Read: %v", c.Err)
		}
		if want := append(pattern(size-1, 1), 0xee); !bytes.Equal(into, want) {
			t.Error("wrote and read back something else")
		}
	})
}

func testRights(t *testing.T, f *Fixture) {
	t.Run("WriteToReadOnly", func(t *testing.T) {
		violate(t, f, fabric.RemoteRead, func(_ *pair, from *endpoint, r fabric.Region) {
			from.write(at(r, 0, 0), f.copyOf(pattern(16, 1)))
		})
	})
	t.Run("ReadOfWriteOnly", func(t *testing.T) {
		into := f.alloc(16)
		violate(t, f, fabric.RemoteWrite, func(_ *pair, from *endpoint, r fabric.Region) {
			if c := from.waitDone(from.read(into, at(r, 0, 16))); c.Err == nil {
				t.Error("the Read succeeded")
			}
		})
		if !bytes.Equal(into, make([]byte, 16)) {
			t.Error("octets were read")
		}
	})
}

// testHandles: handles are unpredictable, not zero, not reused soon, and compared
// in full; offsets are not addresses.
func testHandles(t *testing.T, f *Fixture) {
	t.Run("Values", func(t *testing.T) {
		p := f.connect(t, pairOptions{})
		e := p.dial
		buf := f.alloc(64)
		seen := make(map[fabric.Handle]int)
		steps := make(map[fabric.Handle]int)
		var last fabric.Handle
		address := uint64(uintptr(unsafe.Pointer(unsafe.SliceData(buf))))
		e.do(func() {
			for i := range 4000 {
				r, err := e.conn.Register(buf, fabric.RemoteRead)
				if err != nil {
					t.Errorf("Register %d: %v", i, err)
					return
				}
				if r.Handle == 0 {
					t.Error("handle 0")
				}
				if n, ok := seen[r.Handle]; ok && i-n < 1000 {
					t.Errorf("handle %#x of registration %d again at %d", r.Handle, n, i)
				}
				if r.Offset == address {
					t.Error("the offset is the address of the memory")
				}
				seen[r.Handle] = i
				steps[r.Handle-last]++
				last = r.Handle
				if done, err := e.conn.Invalidate(e.begin(fabric.OpInvalidate), r.Handle); err != nil {
					t.Errorf("Invalidate: %v", err)
					return
				} else if done {
					_, _ = e.posted(e.nextID, fabric.ErrClosed)
				}
			}
		})
		for step, n := range steps {
			if n > 100 {
				t.Errorf("%d of 4000 handles are %#x more than the one before", n, step)
			}
		}
	})
	for _, bit := range []uint{0, 7, 8, 15, 23, 31} {
		violate(t, f, fabric.RemoteWrite, func(_ *pair, from *endpoint, r fabric.Region) {
			r.Handle ^= 1 << bit
			from.write(r, f.copyOf(pattern(16, 1)))
		})
	}
	t.Run("Never", func(t *testing.T) {
		violate(t, f, fabric.RemoteWrite, func(_ *pair, from *endpoint, _ fabric.Region) {
			from.write(fabric.Region{}, f.copyOf(pattern(16, 1)))
		})
	})
}

// testForeignHandle: a handle is for the peer of its own connection.
func testForeignHandle(t *testing.T, f *Fixture) {
	victim := f.connect(t, pairOptions{})
	buf := f.alloc(64)
	r := victim.dial.register(buf, fabric.RemoteWrite|fabric.RemoteRead)
	for _, kind := range []string{"Write", "Read", "Invalidate"} {
		attack := f.connect(t, pairOptions{})
		switch kind {
		case "Write":
			attack.other.write(r, f.copyOf(pattern(64, 1)))
		case "Read":
			into := f.alloc(64)
			attack.other.read(into, r)
		case "Invalidate":
			attack.other.do(func() {
				if _, err := attack.other.postSend(fabric.Send{Parts: [][]byte{f.alloc(4)}, Invalidate: r.Handle}); err != nil {
					t.Errorf("PostSend: %v", err)
				}
			})
		}
		if attack.dial.waitClosed() == nil {
			t.Errorf("%s with a handle of another connection went unnoticed", kind)
		}
		if !bytes.Equal(buf, make([]byte, 64)) {
			t.Fatalf("%s with a handle of another connection changed memory", kind)
		}
	}
	victim.other.write(r, f.copyOf(pattern(64, 2)))
	victim.other.send([]byte("done"))
	victim.dial.waitMessages(1)
	if !bytes.Equal(buf, pattern(64, 2)) {
		t.Error("the handle does not work on its own connection any more")
	}
}

func testInvalidate(t *testing.T, f *Fixture) {
	violate(t, f, fabric.RemoteWrite, func(p *pair, from *endpoint, r fabric.Region) {
		to := p.dial
		if from == p.dial {
			to = p.other
		}
		to.invalidate(r.Handle)
		to.invalidate(r.Handle) // harmless
		from.write(r, f.copyOf(pattern(16, 1)))
	})
	into := f.alloc(16)
	violate(t, f, fabric.RemoteRead, func(p *pair, from *endpoint, r fabric.Region) {
		to := p.dial
		if from == p.dial {
			to = p.other
		}
		to.invalidate(r.Handle)
		if c := from.waitDone(from.read(into, at(r, 0, 16))); c.Err == nil {
			t.Error("Read through a dead handle succeeded")
		}
	})
	// One handle dies, another on the same memory lives.
	p := f.connect(t, pairOptions{})
	buf := f.alloc(64)
	one, two := p.dial.register(buf[:32], fabric.RemoteWrite), p.dial.register(buf[32:], fabric.RemoteWrite)
	p.dial.invalidate(one.Handle)
	p.other.write(two, f.copyOf(pattern(32, 3)))
	p.other.send([]byte("done"))
	p.dial.waitMessages(1)
	if !bytes.Equal(buf[32:], pattern(32, 3)) || !bytes.Equal(buf[:32], make([]byte, 32)) {
		t.Error("the wrong memory was written")
	}
}

func testRemoteInvalidate(t *testing.T, f *Fixture) {
	p := f.connect(t, pairOptions{})
	buf := f.alloc(64)
	r := p.dial.register(buf, fabric.RemoteWrite)
	p.other.do(func() {
		if _, err := p.other.postWrite(fabric.Write{Parts: [][]byte{f.copyOf(pattern(64, 1))}, To: r}); err != nil {
			t.Errorf("PostWrite: %v", err)
		}
		if _, err := p.other.postSend(fabric.Send{Parts: [][]byte{f.copyOf([]byte("yours again"))}, Invalidate: r.Handle}); err != nil {
			t.Errorf("PostSend: %v", err)
		}
		if _, err := p.other.postSend(fabric.Send{Parts: [][]byte{f.copyOf([]byte("plain"))}}); err != nil {
			t.Errorf("PostSend: %v", err)
		}
	})
	p.dial.waitMessages(2)
	var got []fabric.Handle
	for _, c := range p.dial.completions {
		if c.Op == fabric.OpReceive {
			got = append(got, c.Invalidated)
		}
	}
	if len(got) != 2 || got[0] != r.Handle || got[1] != 0 {
		t.Errorf("Invalidated = %#x, want %#x and 0", got, r.Handle)
	}
	if !bytes.Equal(buf, pattern(64, 1)) {
		t.Error("the Write before the Send is not there")
	}
	p.dial.invalidate(r.Handle) // harmless
	fillPattern(buf, 2)
	p.other.write(r, f.copyOf(pattern(64, 3)))
	if p.dial.waitClosed() == nil {
		t.Error("a Write through a remotely invalidated handle went unnoticed")
	}
	if !bytes.Equal(buf, pattern(64, 2)) {
		t.Error("memory changed through a remotely invalidated handle")
	}
}

func testRemoteInvalidateDead(t *testing.T, f *Fixture) {
	for _, unknown := range []bool{false, true} {
		p := f.connect(t, pairOptions{})
		r := p.dial.register(f.alloc(64), fabric.RemoteWrite)
		if unknown {
			r.Handle ^= 0x40
		} else {
			p.dial.invalidate(r.Handle)
		}
		p.other.do(func() {
			if _, err := p.other.postSend(fabric.Send{Parts: [][]byte{f.copyOf([]byte("x"))}, Invalidate: r.Handle}); err != nil {
				t.Errorf("PostSend: %v", err)
			}
		})
		if p.dial.waitClosed() == nil || p.other.waitClosed() == nil {
			t.Error("Send With Invalidate of a handle that is not live went unnoticed")
		}
		if len(p.dial.messages) != 0 {
			t.Error("the message was delivered")
		}
	}
}

func testBigTransfers(t *testing.T, f *Fixture) {
	size := f.maxTransfer()
	for _, accepted := range []bool{true, false} {
		p := f.connect(t, pairOptions{})
		from, to := p.sides(accepted)
		source := f.copyOf(pattern(size, 21))
		want := crc32.ChecksumIEEE(source)
		sink := f.alloc(size)
		w := to.register(sink, fabric.RemoteWrite)
		from.write(w, source[:size/2], source[size/2:])
		from.send(f.copyOf([]byte("done")))
		to.waitMessages(1)
		if got := crc32.ChecksumIEEE(sink); got != want {
			t.Errorf("%s: written octets have CRC %08x, want %08x", from.name, got, want)
		}
		r := to.register(source, fabric.RemoteRead)
		back := f.alloc(size)
		if c := from.waitDone(from.read(back, r)); c.Err != nil {
			t.Fatalf("Read: %v", c.Err)
		}
		if got := crc32.ChecksumIEEE(back); got != want {
			t.Errorf("%s: read octets have CRC %08x, want %08x", from.name, got, want)
		}
	}
}

// testMixed has both sides Write, Read and Send at random at the same time, and
// compares all memory afterwards.
func testMixed(t *testing.T, f *Fixture) {
	const ops, area = 300, 64 << 10
	p := f.connect(t, pairOptions{
		dial:   fabric.ConnOptions{Receives: ops + 8, Sends: 3 * ops},
		accept: fabric.ConnOptions{Receives: ops + 8, Sends: 3 * ops},
		prepare: func(dial, other *endpoint) {
			dial.receives, other.receives, dial.size, other.size = ops+4, ops+4, 2048, 2048
		},
	})
	type side struct {
		e            *endpoint
		sink, source []byte
		w, r         fabric.Region
		wrote        []byte // what the peer's sink must become
		sent         [][]byte
		reads        map[uint64][2][]byte // into, want
	}
	var s [2]side
	for i, e := range []*endpoint{p.dial, p.other} {
		s[i] = side{
			e: e, sink: f.alloc(area), source: f.copyOf(pattern(area, byte(i+1))),
			wrote: make([]byte, area), reads: make(map[uint64][2][]byte),
		}
		s[i].w = e.register(s[i].sink, fabric.RemoteWrite)
		s[i].r = e.register(s[i].source, fabric.RemoteRead)
	}
	for i := range s {
		me, peer := &s[i], &s[1-i]
		rnd := rand.New(rand.NewPCG(uint64(i), 42))
		for range ops / 10 {
			me.e.do(func() {
				for range 10 {
					offset := rnd.IntN(area)
					n := min(rnd.IntN(5000), area-offset)
					var err error
					switch rnd.IntN(3) {
					case 0:
						b := f.copyOf(pattern(n, byte(rnd.Uint32())))
						copy(me.wrote[offset:], b)
						_, err = me.e.postWrite(fabric.Write{Parts: [][]byte{b[:n/2], b[n/2:]}, To: at(peer.w, int64(offset), 0)})
					case 1:
						into := f.alloc(n)
						var id uint64
						id, err = me.e.postRead(fabric.Read{Into: into, From: at(peer.r, int64(offset), n)})
						me.reads[id] = [2][]byte{into, peer.source[offset:][:n]}
					case 2:
						b := f.copyOf(pattern(min(n, 2048), byte(rnd.Uint32())))
						me.sent = append(me.sent, bytes.Clone(b))
						_, err = me.e.postSend(fabric.Send{Parts: [][]byte{b}})
					}
					if err != nil {
						t.Errorf("post: %v", err)
					}
				}
				me.e.conn.Flush()
			})
		}
		last := f.copyOf([]byte("last"))
		me.sent = append(me.sent, []byte("last"))
		me.e.send(last)
	}
	for i := range s {
		me, peer := &s[i], &s[1-i]
		got := peer.e.waitMessages(len(me.sent))
		for n, want := range me.sent {
			if !bytes.Equal(got[n], want) {
				t.Fatalf("%s: message %d of %d is different", peer.e.name, n, len(me.sent))
			}
		}
		if !bytes.Equal(peer.sink, me.wrote) {
			t.Errorf("%s: written memory is different", peer.e.name)
		}
		for id, read := range me.reads {
			if c := me.e.waitDone(id); c.Err != nil || !bytes.Equal(read[0], read[1]) {
				t.Fatalf("%s: Read %d: %v, or other octets", me.e.name, id, c.Err)
			}
		}
	}
}

// testCloseUnderLoad ends connections at odd moments; the endpoints check that
// everything posted completes and Closed comes last.
func testCloseUnderLoad(t *testing.T, f *Fixture) {
	for round := range 12 {
		var stop atomic.Bool
		pump := func(e *endpoint, msg []byte) {
			if stop.Load() {
				return
			}
			if _, err := e.postSend(fabric.Send{Parts: [][]byte{msg}}); err != nil && !errors.Is(err, fabric.ErrClosed) {
				t.Errorf("PostSend: %v", err)
			}
		}
		p := f.connect(t, pairOptions{prepare: func(dial, other *endpoint) { dial.onReceive, other.onReceive = pump, pump }})
		buf := f.alloc(1 << 20)
		r := p.dial.register(buf, fabric.RemoteRead|fabric.RemoteWrite)
		p.other.do(func() {
			for range 4 {
				// What does not fit any more is not the point here.
				_, _ = p.other.postWrite(fabric.Write{Parts: [][]byte{f.alloc(1 << 20)}, To: r})
				_, _ = p.other.postRead(fabric.Read{Into: f.alloc(1 << 20), From: r})
			}
		})
		for i := range 4 {
			p.dial.do(func() {
				if !p.dial.isClosed() {
					_, _ = p.dial.postSend(fabric.Send{Parts: [][]byte{f.copyOf(pattern(100+i, 1))}})
				}
			})
		}
		time.Sleep(time.Duration(round) * 300 * time.Microsecond)
		why := errors.New("enough")
		if round%3 == 2 {
			why = nil
		}
		from, to := p.sides(round%2 == 0)
		from.close(why)
		err := from.waitClosed()
		if why != nil && err == nil {
			t.Errorf("Closed(nil) after Close(%v)", why)
		}
		stop.Store(true)
		_ = to.waitClosed()
	}
}
