package fabrictest

import (
	"bytes"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
)

// violate connects two pairs, and registers memory of one side of each with the given access. post
// makes the other side break a rule: the accepting side of one pair, and the dialling side of the other.
// violate checks that both connections end and no octet has moved.
func violate(t *testing.T, f *Fixture, access fabric.Access, post func(p *pair, from *endpoint, r fabric.Region)) {
	t.Helper()
	type victim struct {
		from, to    *endpoint
		whole, want []byte
	}
	var victims []victim
	for _, accepted := range []bool{true, false} {
		p := f.connect(t, pairOptions{})
		from, to := p.sides(accepted)
		whole := f.memory(3 * 512)
		testkit.FillPattern(whole, 11)
		victims = append(victims, victim{from, to, whole, bytes.Clone(whole)})
		post(p, from, to.register(whole[512:1024:1024], access))
	}
	for _, v := range victims { // the ends take their time side by side
		if err := v.to.waitClosed(); err == nil {
			t.Errorf("%s: Closed(nil) after a violation by the peer", v.to.name)
		}
		if err := v.from.waitClosed(); err == nil {
			t.Errorf("%s: Closed(nil) after its violation", v.from.name)
		}
		if !bytes.Equal(v.whole, v.want) {
			t.Errorf("%s: memory changed", v.to.name)
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
				from.write(at(r, s.offset, 0), bytes.Clone(testkit.Pattern(s.n, 1)))
			})
		})
		t.Run("Read"+s.name, func(t *testing.T) {
			into := make([]byte, s.n)
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
	testWrap(t, f)
	t.Run("Exact", func(t *testing.T) { testExactBounds(t, f, size) })
}

func testWrap(t *testing.T, f *Fixture) {
	t.Run("ReadWrap", func(t *testing.T) {
		into := make([]byte, 1024)
		violate(t, f, fabric.RemoteRead, func(_ *pair, from *endpoint, r fabric.Region) {
			wrap := fabric.Region{Handle: r.Handle, Offset: ^uint64(0) - 7, Length: 1024}
			if c := from.waitDone(from.read(into, wrap)); c.Err == nil {
				t.Error("the Read succeeded")
			}
		})
	})
	t.Run("WriteWrap", func(t *testing.T) {
		violate(t, f, fabric.RemoteWrite, func(_ *pair, from *endpoint, r fabric.Region) {
			from.write(fabric.Region{Handle: r.Handle, Offset: ^uint64(0) - 7}, make([]byte, 1024))
		})
	})
}

// testExactBounds writes and reads a whole region, and its last octet.
func testExactBounds(t *testing.T, f *Fixture, size int) {
	p := f.connect(t, pairOptions{})
	from, to := p.sides(true)
	buf := f.memory(size)
	r := to.register(buf, fabric.RemoteWrite|fabric.RemoteRead)
	from.write(at(r, 0, 0), bytes.Clone(testkit.Pattern(size, 1)))
	from.write(at(r, int64(size-1), 0), []byte{0xee})
	into := make([]byte, size)
	if c := from.waitDone(from.read(into, at(r, 0, size))); c.Err != nil {
		t.Fatalf("Read: %v", c.Err)
	}
	if want := append(testkit.Pattern(size-1, 1), 0xee); !bytes.Equal(into, want) {
		t.Error("wrote and read back something else")
	}
}

func testRights(t *testing.T, f *Fixture) {
	t.Run("WriteToReadOnly", func(t *testing.T) {
		violate(t, f, fabric.RemoteRead, func(_ *pair, from *endpoint, r fabric.Region) {
			from.write(at(r, 0, 0), bytes.Clone(testkit.Pattern(16, 1)))
		})
	})
	t.Run("ReadOfWriteOnly", func(t *testing.T) {
		into := make([]byte, 16)
		if f.diverges(WeakRights) {
			p := f.connect(t, pairOptions{})
			r := p.dial.register(f.clone(testkit.Pattern(16, 1)), fabric.RemoteWrite)
			if c := p.other.waitDone(p.other.read(into, r)); c.Err != nil {
				t.Errorf("the Read failed, though it is known to succeed: %v", c.Err)
			}
			return
		}
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
