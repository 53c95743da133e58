package fabrictest

import (
	"bytes"
	"testing"
	"unsafe"

	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
)

// testHandles checks that handles are unpredictable, not zero, not reused soon, and
// compared in full, and that offsets are not addresses.
func testHandles(t *testing.T, f *Fixture) {
	t.Run("Values", func(t *testing.T) {
		p := f.connect(t, pairOptions{})
		e := p.dial
		buf := f.memory(64)
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
				if known := f.diverges(AddressOffsets); known != (r.Offset == address) {
					t.Errorf("the offset is %#x, the address of the memory %#x; known as an address: %v", r.Offset, address, known)
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
			from.write(r, bytes.Clone(testkit.Pattern(16, 1)))
		})
	}
	t.Run("Never", func(t *testing.T) {
		violate(t, f, fabric.RemoteWrite, func(_ *pair, from *endpoint, _ fabric.Region) {
			from.write(fabric.Region{}, bytes.Clone(testkit.Pattern(16, 1)))
		})
	})
}

// testForeignHandle checks that a handle is valid only on its own connection.
func testForeignHandle(t *testing.T, f *Fixture) {
	victim := f.connect(t, pairOptions{})
	buf := f.memory(64)
	r := victim.dial.register(buf, fabric.RemoteWrite|fabric.RemoteRead)
	strange := *f
	if f.diverges(SharedHandles) {
		strange.Dialer = f.Stranger
		p := f.connect(t, pairOptions{})
		p.other.write(r, bytes.Clone(testkit.Pattern(64, 1)))
		p.other.send([]byte("shared"))
		p.dial.waitMessages(1)
		if !bytes.Equal(buf, testkit.Pattern(64, 1)) {
			t.Error("a handle of another connection does not work, though it is known to")
		}
		clear(buf)
	}
	for _, kind := range []string{"Write", "Read", "Invalidate"} {
		attack := strange.connect(t, pairOptions{})
		switch kind {
		case "Write":
			attack.other.write(r, bytes.Clone(testkit.Pattern(64, 1)))
		case "Read":
			into := make([]byte, 64)
			attack.other.read(into, r)
		case "Invalidate":
			attack.other.do(func() {
				if _, err := attack.other.postSend(fabric.Send{Parts: [][]byte{make([]byte, 4)}, Invalidate: r.Handle}); err != nil {
					t.Errorf("PostSend: %v", err)
				}
			})
			if f.diverges(ForeignInvalidation) {
				attack.dial.waitMessages(1)
				victim.other.write(r, bytes.Clone(testkit.Pattern(64, 2)))
				if victim.dial.waitClosed() == nil || !bytes.Equal(buf, make([]byte, 64)) {
					t.Error("a handle that another connection has invalidated works, though it is known not to")
				}
				return
			}
		}
		if attack.dial.waitClosed() == nil {
			t.Errorf("%s with a handle of another connection went unnoticed", kind)
		}
		if !bytes.Equal(buf, make([]byte, 64)) {
			t.Fatalf("%s with a handle of another connection changed memory", kind)
		}
	}
	victim.other.write(r, bytes.Clone(testkit.Pattern(64, 2)))
	victim.other.send([]byte("done"))
	victim.dial.waitMessages(1)
	if !bytes.Equal(buf, testkit.Pattern(64, 2)) {
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
		from.write(r, bytes.Clone(testkit.Pattern(16, 1)))
	})
	into := make([]byte, 16)
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
	buf := f.memory(64)
	one, two := p.dial.register(buf[:32], fabric.RemoteWrite), p.dial.register(buf[32:], fabric.RemoteWrite)
	p.dial.invalidate(one.Handle)
	p.other.write(two, bytes.Clone(testkit.Pattern(32, 3)))
	p.other.send([]byte("done"))
	p.dial.waitMessages(1)
	if !bytes.Equal(buf[32:], testkit.Pattern(32, 3)) || !bytes.Equal(buf[:32], make([]byte, 32)) {
		t.Error("the wrong memory was written")
	}
}

// invalidating connects a pair, and reports whether the peer may invalidate handles of the dialling
// side. It checks that the peer is told so.
func invalidating(t *testing.T, f *Fixture) (p *pair, may bool) {
	t.Helper()
	p = f.connect(t, pairOptions{dial: fabric.ConnOptions{PrivateData: []byte("may not"), InvalidatingData: []byte("may")}})
	_, _ = ability[fabric.RemoteInvalidator](t, "RemoteInvalidator", p.dial.conn)
	may = fabric.InvalidatesRemotely(p.dial.conn)
	want := "may not"
	if may {
		want = "may"
	}
	if got := f.unpadded(t, p.other.conn.Info().PrivateData, []byte(want)); string(got) != want {
		t.Errorf("the peer was sent %q, want %q", got, want)
	}
	return p, may
}

func testRemoteInvalidate(t *testing.T, f *Fixture) {
	p, may := invalidating(t, f)
	if !may {
		return
	}
	buf := f.memory(64)
	r := p.dial.register(buf, fabric.RemoteWrite)
	p.other.do(func() {
		if _, err := p.other.postWrite(fabric.Write{Parts: [][]byte{bytes.Clone(testkit.Pattern(64, 1))}, To: r}); err != nil {
			t.Errorf("PostWrite: %v", err)
		}
		if _, err := p.other.postSend(fabric.Send{Parts: [][]byte{bytes.Clone([]byte("yours again"))}, Invalidate: r.Handle}); err != nil {
			t.Errorf("PostSend: %v", err)
		}
		if _, err := p.other.postSend(fabric.Send{Parts: [][]byte{bytes.Clone([]byte("plain"))}}); err != nil {
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
	if !bytes.Equal(buf, testkit.Pattern(64, 1)) {
		t.Error("the Write before the Send is not there")
	}
	p.dial.invalidate(r.Handle) // harmless
	testkit.FillPattern(buf, 2)
	p.other.write(r, bytes.Clone(testkit.Pattern(64, 3)))
	if p.dial.waitClosed() == nil {
		t.Error("a Write through a remotely invalidated handle went unnoticed")
	}
	if !bytes.Equal(buf, testkit.Pattern(64, 2)) {
		t.Error("memory changed through a remotely invalidated handle")
	}
}

func testRemoteInvalidateDead(t *testing.T, f *Fixture) {
	for _, unknown := range []bool{false, true} {
		p, may := invalidating(t, f)
		if !may {
			return
		}
		r := p.dial.register(f.memory(64), fabric.RemoteWrite)
		if unknown {
			r.Handle ^= 0x40
		} else {
			p.dial.invalidate(r.Handle)
		}
		p.other.do(func() {
			if _, err := p.other.postSend(fabric.Send{Parts: [][]byte{bytes.Clone([]byte("x"))}, Invalidate: r.Handle}); err != nil {
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
