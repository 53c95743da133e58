package fabrictest

import (
	"bytes"
	"hash/crc32"
	"math/rand/v2"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
)

// Tests of registered memory, RDMA Write and RDMA Read.

// at is n octets of r from offset on.
func at(r fabric.Region, offset int64, n int) fabric.Region {
	return fabric.Region{Handle: r.Handle, Offset: r.Offset + uint64(offset), Length: uint32(n)}
}

// testWriteThenSend checks that a Send is delivered after the octets of the Writes before
// it have been placed.
func testWriteThenSend(t *testing.T, f *Fixture) {
	for _, accepted := range []bool{true, false} {
		buf := f.memory(256 << 10)
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
				data := bytes.Clone(testkit.Pattern(size, byte(size+offset)))
				from.do(func() {
					copy(want[offset:], data)
					cut := size / 3
					if _, err := from.postWrite(fabric.Write{Parts: [][]byte{data[:cut], nil, data[cut:]}, To: at(r, int64(offset), 0)}); err != nil {
						t.Errorf("PostWrite: %v", err)
					}
					if _, err := from.postSend(fabric.Send{Parts: [][]byte{bytes.Clone([]byte("written"))}}); err != nil {
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
		buf := f.clone(testkit.Pattern(256<<10, 3))
		r := to.register(buf, fabric.RemoteRead)
		for _, size := range []int{0, 1, 2, 3, 4, 1431, 1432, 1433, 4096, 65536, len(buf)} {
			for _, offset := range []int{0, 1, 4099, len(buf) - size} {
				if offset < 0 || offset+size > len(buf) {
					continue
				}
				into := make([]byte, size+64)
				testkit.FillPattern(into, 9)
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
			if err := from.conn.PostRead(1<<20, fabric.Read{Into: make([]byte, 4), From: at(r, 0, 5)}); err == nil {
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
	buf := f.clone(testkit.Pattern(reads*size, 5))
	r := to.register(buf, fabric.RemoteRead)
	into := make([]byte, len(buf))
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
		if _, err := from.postSend(fabric.Send{Parts: [][]byte{bytes.Clone([]byte("behind"))}}); err != nil {
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

// testZeroLength checks that a Write or Read of zero octets needs no valid handle. RFC
// 5040 Section 5.3, RFC 5041 Section 5.1.
func testZeroLength(t *testing.T, f *Fixture) {
	p := f.connect(t, pairOptions{})
	from, to := p.sides(true)
	nowhere := fabric.Region{Handle: 0x12345678, Offset: 42}
	if c := from.waitDone(from.write(nowhere)); c.Err != nil {
		t.Errorf("Write of no parts: %v", c.Err)
	}
	if c := from.waitDone(from.write(nowhere, make([]byte, 0))); c.Err != nil {
		t.Errorf("Write of an empty part: %v", c.Err)
	}
	if c := from.waitDone(from.read(nil, nowhere)); c.Err != nil {
		t.Errorf("Read of nothing: %v", c.Err)
	}
	from.send(bytes.Clone([]byte("alive")))
	to.waitMessages(1)
}

func testBigTransfers(t *testing.T, f *Fixture) {
	size := 4 << 20
	for _, accepted := range []bool{true, false} {
		p := f.connect(t, pairOptions{})
		from, to := p.sides(accepted)
		source := f.clone(testkit.Pattern(size, 21))
		want := crc32.ChecksumIEEE(source)
		sink := f.memory(size)
		w := to.register(sink, fabric.RemoteWrite)
		from.write(w, source[:size/2], source[size/2:])
		from.send(bytes.Clone([]byte("done")))
		to.waitMessages(1)
		if got := crc32.ChecksumIEEE(sink); got != want {
			t.Errorf("%s: written octets have CRC %08x, want %08x", from.name, got, want)
		}
		r := to.register(source, fabric.RemoteRead)
		back := make([]byte, size)
		if c := from.waitDone(from.read(back, r)); c.Err != nil {
			t.Fatalf("Read: %v", c.Err)
		}
		if got := crc32.ChecksumIEEE(back); got != want {
			t.Errorf("%s: read octets have CRC %08x, want %08x", from.name, got, want)
		}
	}
}

// testMixed makes both sides Write, Read and Send at random at the same time, and
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
	var s [2]mixedSide
	for i, e := range []*endpoint{p.dial, p.other} {
		s[i] = mixedSide{
			e: e, sink: f.memory(area), source: f.clone(testkit.Pattern(area, byte(i+1))),
			wrote: make([]byte, area), reads: make(map[uint64]mixedRead),
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
					if err := me.post(f, peer, rnd); err != nil {
						t.Errorf("post: %v", err)
					}
				}
				me.e.conn.Flush()
			})
		}
		last := bytes.Clone([]byte("last"))
		me.sent = append(me.sent, []byte("last"))
		me.e.send(last)
	}
	for i := range s {
		s[i].check(t, &s[1-i])
	}
}

// A mixedSide is one side of testMixed.
type mixedSide struct {
	e            *endpoint
	sink, source []byte
	w, r         fabric.Region        // of sink and source
	wrote        []byte               // the expected contents of the peer's sink
	sent         [][]byte             // messages, in order
	reads        map[uint64]mixedRead // by ID
}

type mixedRead struct{ into, want []byte }

// post posts a random Write, Read or Send. Loop only.
func (me *mixedSide) post(f *Fixture, peer *mixedSide, rnd *rand.Rand) (err error) {
	offset := rnd.IntN(len(me.sink))
	n := min(rnd.IntN(5000), len(me.sink)-offset)
	switch rnd.IntN(3) {
	case 0:
		b := bytes.Clone(testkit.Pattern(n, byte(rnd.Uint32())))
		copy(me.wrote[offset:], b)
		_, err = me.e.postWrite(fabric.Write{Parts: [][]byte{b[:n/2], b[n/2:]}, To: at(peer.w, int64(offset), 0)})
	case 1:
		into := make([]byte, n)
		var id uint64
		id, err = me.e.postRead(fabric.Read{Into: into, From: at(peer.r, int64(offset), n)})
		me.reads[id] = mixedRead{into, peer.source[offset:][:n]}
	case 2:
		b := bytes.Clone(testkit.Pattern(min(n, 2048), byte(rnd.Uint32())))
		me.sent = append(me.sent, bytes.Clone(b))
		_, err = me.e.postSend(fabric.Send{Parts: [][]byte{b}})
	}
	return err
}

// check waits for the work of me, and checks its results.
func (me *mixedSide) check(t *testing.T, peer *mixedSide) {
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
		if c := me.e.waitDone(id); c.Err != nil || !bytes.Equal(read.into, read.want) {
			t.Fatalf("%s: Read %d: %v, or other octets", me.e.name, id, c.Err)
		}
	}
}
