package fabrictest

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
)

// Tests of fabric.PlacementTracker.

// A placement is registered memory, and what the peer writes to it.
type placement struct {
	t       *testing.T
	from    *endpoint // writes
	to      *endpoint
	tracker fabric.PlacementTracker
	buf     []byte
	r       fabric.Region
	written []bool
	sent    int // messages so far
}

// stale is what the memory holds before the peer writes to it.
const stale = 0xee

// newPlacement registers size octets of one side. It returns nil when the provider is no
// PlacementTracker.
func newPlacement(t *testing.T, p *pair, accepted bool, size int) *placement {
	t.Helper()
	from, to := p.sides(accepted)
	tracker, ok := ability[fabric.PlacementTracker](t, "PlacementTracker", to.conn)
	if !ok {
		return nil
	}
	m := &placement{
		t: t, from: from, to: to, tracker: tracker,
		buf: bytes.Repeat([]byte{stale}, size), written: make([]bool, size),
	}
	m.r = to.register(m.buf, fabric.RemoteWrite)
	return m
}

// write posts an RDMA Write of octets that are not stale.
func (m *placement) write(off, n int) {
	for i := off; i < off+n; i++ {
		m.written[i] = true
	}
	data := bytes.Repeat([]byte{byte(1 + n%200)}, n)
	m.from.do(func() {
		if _, err := m.from.postWrite(fabric.Write{Parts: [][]byte{data[:n/2], data[n/2:]}, To: at(m.r, int64(off), 0)}); err != nil {
			m.t.Errorf("PostWrite: %v", err)
		}
	})
}

// settle sends a message behind the Writes, and returns when it has come.
func (m *placement) settle(invalidate fabric.Handle) {
	m.t.Helper()
	m.from.do(func() {
		if _, err := m.from.postSend(fabric.Send{Parts: [][]byte{[]byte("placed")}, Invalidate: invalidate}); err != nil {
			m.t.Errorf("PostSend: %v", err)
		}
		m.from.conn.Flush()
	})
	m.sent++
	m.to.waitMessages(m.sent)
}

// placed asks the provider.
func (m *placement) placed() (n int) {
	m.to.do(func() { n = int(m.tracker.Placed(m.r.Handle)) })
	return n
}

// check compares n, what the provider says is placed, with what the peer has written. When the
// peer has written in no order, the provider may have cleared octets.
func (m *placement) check(what string, n int, ordered bool) {
	m.t.Helper()
	run := 0
	for run < len(m.written) && m.written[run] {
		run++
	}
	if n < run || ordered && n != run || n > len(m.buf) {
		m.t.Fatalf("%s: %d octets are placed, the peer has written %d", what, n, run)
	}
	for i, b := range m.buf[:n] {
		if b == stale {
			m.t.Fatalf("%s: %d octets are placed, and octet %d is what was there before", what, n, i)
		}
	}
	for i, w := range m.written {
		if w && (m.buf[i] == stale || m.buf[i] == 0) {
			m.t.Fatalf("%s: octet %d was written and is %#x", what, i, m.buf[i])
		}
	}
}

// remoteInvalidated returns Completion.Placed of the message that invalidated the memory.
func (m *placement) remoteInvalidated() int {
	m.to.mu.Lock()
	defer m.to.mu.Unlock()
	for _, c := range m.to.completions {
		if c.Op == fabric.OpReceive && c.Invalidated == m.r.Handle {
			return int(c.Placed)
		}
	}
	m.t.Fatal("no message invalidated the handle")
	return 0
}

// testPlaced checks what a provider says is placed, by Placed and in the Completion of a Send
// with Invalidate.
func testPlaced(t *testing.T, f *Fixture) {
	const size = 200 << 10
	for _, tt := range []struct {
		name   string
		writes [][2]int // offset, length
	}{
		{"nothing", nil},
		{"everything", [][2]int{{0, size}}},
		{"all but the last octet", [][2]int{{0, size - 1}}},
		{"all but the first octet", [][2]int{{1, size - 1}}},
		{"the start, in two Writes", [][2]int{{0, 5000}, {5000, 70000}}},
		{"no octets", [][2]int{{0, 0}, {5, 0}}},
		{"with a hole", [][2]int{{0, 70000}, {70001, size - 70001}}},
		{"with a hole that is filled", [][2]int{{0, 70000}, {70001, size - 70001}, {70000, 1}}},
		{"backwards", [][2]int{{150000, size - 150000}, {100000, 50000}, {3, 99997}, {0, 3}}},
		{"the last part first, and no more", [][2]int{{150000, size - 150000}}},
		{"repeated", [][2]int{{0, 10000}, {0, 10000}, {5000, 5000}, {20000, 1}, {20000, 1}}},
		{"overlapping", [][2]int{{0, 10000}, {5000, 10000}, {30000, 10000}, {25000, 10000}, {12000, 14000}}},
	} {
		for _, remote := range []bool{false, true} {
			for _, accepted := range []bool{true, false} {
				p := f.connect(t, pairOptions{quiet: false})
				m := newPlacement(t, p, accepted, size)
				if m == nil {
					return
				}
				m.sent = len(m.to.messages)
				for _, w := range tt.writes {
					m.write(w[0], w[1])
				}
				if remote {
					m.settle(m.r.Handle)
					m.check(tt.name+", Send with Invalidate", m.remoteInvalidated(), true)
				} else {
					m.settle(0)
					m.check(tt.name, m.placed(), true)
					m.to.invalidate(m.r.Handle)
				}
				if n := m.placed(); n != 0 {
					t.Errorf("%s: %d octets placed through a dead handle", tt.name, n)
				}
			}
		}
	}
}

// testPlacedAtRandom writes pieces in no order.
func testPlacedAtRandom(t *testing.T, f *Fixture) {
	rnd := rand.New(rand.NewPCG(3, 4))
	for _, piece := range []int{1, 7, 100, 3000} {
		p := f.connect(t, pairOptions{})
		size := 200 * piece
		m := newPlacement(t, p, true, size)
		if m == nil {
			return
		}
		m.sent = len(m.to.messages)
		for i, at := range rnd.Perm(200) {
			m.write(at*piece, piece)
			if i%10 == 9 {
				m.settle(0)
				m.check("at random", m.placed(), false)
			}
		}
		m.settle(0)
		if n := m.placed(); n != size {
			t.Errorf("%d octets placed when all %d are written", n, size)
		}
	}
}

// testPlacedInPart asks for a handle's octets while its peer is still writing them: a Send that
// came before a Write does not tell that the Write has arrived.
func testPlacedInPart(t *testing.T, f *Fixture) {
	const size = 1 << 20
	for range 20 {
		p := f.connect(t, pairOptions{})
		m := newPlacement(t, p, true, size)
		if m == nil {
			return
		}
		for i := range m.written {
			m.written[i] = true
		}
		seen := make(chan string, 1)
		m.to.do(func() {
			m.to.onReceive = func(_ *endpoint, msg []byte) {
				if string(msg) != "first" {
					return
				}
				n := int(m.tracker.Placed(m.r.Handle))
				if i := bytes.IndexByte(m.buf[:n], stale); i >= 0 {
					t.Errorf("%d octets are placed, and octet %d is what was there before", n, i)
				}
				seen <- ""
			}
		})
		data := bytes.Repeat([]byte{1}, size)
		m.from.do(func() {
			if _, err := m.from.postSend(fabric.Send{Parts: [][]byte{[]byte("first")}}); err != nil {
				t.Errorf("PostSend: %v", err)
			}
			if _, err := m.from.postWrite(fabric.Write{Parts: [][]byte{data}, To: m.r}); err != nil {
				t.Errorf("PostWrite: %v", err)
			}
			m.from.conn.Flush()
		})
		<-seen
	}
}

// testPlacedAtTheEnd checks that a message of a connection that ends right behind it still comes
// with the number of octets that were written before.
func testPlacedAtTheEnd(t *testing.T, f *Fixture) {
	const size = 10000
	for range 10 {
		p := f.connect(t, pairOptions{})
		m := newPlacement(t, p, true, size)
		if m == nil {
			return
		}
		placed := make(chan int, 1)
		m.to.do(func() {
			m.to.onReceive = func(_ *endpoint, msg []byte) {
				if string(msg) == "last" {
					placed <- int(m.tracker.Placed(m.r.Handle))
				}
			}
		})
		m.from.do(func() {
			for _, err := range []error{
				m.from.conn.PostWrite(0, fabric.Write{Parts: [][]byte{make([]byte, size)}, To: m.r}),
				m.from.conn.PostSend(0, fabric.Send{Parts: [][]byte{[]byte("last")}}),
				m.from.conn.PostWrite(0, fabric.Write{Parts: [][]byte{{1}}, To: at(m.r, size, 1)}), // out of bounds
			} {
				if err != nil {
					t.Errorf("post: %v", err)
				}
			}
			m.from.conn.Flush()
		})
		_ = m.to.waitClosed()
		select {
		case n := <-placed:
			if n != size {
				t.Fatalf("%d octets placed, want %d", n, size)
			}
		default:
			t.Fatal("the message before the end did not come")
		}
	}
}
