package tcpframe

import (
	"bytes"
	"encoding/binary"
	"slices"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/testkit"
)

// A dropper is a recorder that has faulty records dropped. It knows records that begin with 0x77.
type dropper struct {
	*recorder
	heads   [][]byte
	reasons []string
}

func (d *dropper) Dropped(_ *Conn, head []byte, reason string, _ error) bool {
	d.heads, d.reasons = append(d.heads, bytes.Clone(head)), append(d.reasons, reason)
	return len(head) > 0 && head[0] == 0x77
}

// TestDropped: a record with a fault is read to its end, and those before and behind it are delivered, however the
// stream is cut.
func TestDropped(t *testing.T) {
	const most = 4096
	good := fragment(true, pattern(100, 1))
	known := append([]byte{0x77}, pattern(5*most, 2)...)
	long := pattern(2*most, 3)
	for _, tt := range []struct {
		name   string
		in     []byte
		head   []byte
		reason reason
	}{
		{"too long", fragment(true, long), long[:8], reasonTooLong},
		{"too long in two fragments", append(fragment(false, long[:most]), fragment(true, long[most:])...), long[:8], reasonTooLong},
		{"too long in many", slices.Concat(fragment(false, long[:3]), bytes.Repeat(fragment(false, long[3:4]), 4), fragment(true, long)), append(long[:3:3], long[3], long[3], long[3], long[3], long[0]), reasonTooLong},
		{"too long, with an empty end", slices.Concat(fragment(false, long), fragment(false, nil), fragment(true, nil)), long[:8], reasonTooLong},
		{"as long as a known one may be", fragment(true, known), known[:8], reasonTooLong},
		{"too many marks", slices.Concat(fragment(false, long[:9]), make([]byte, most), fragment(true, long[9:20])), long[:8], reasonFragments},
		{"too many marks before the first octet", slices.Concat(make([]byte, most+4), fragment(true, long[:20])), long[:8], reasonFragments},
		{"no octets", fragment(true, nil), nil, reasonTooShort},
		{"no octets in two fragments", slices.Concat(fragment(false, nil), fragment(true, nil)), nil, reasonTooShort},
		{"four octets", fragment(true, long[:4]), long[:4], reasonTooShort},
		{"seven octets", slices.Concat(fragment(false, long[:4]), fragment(true, long[4:7])), long[:7], reasonTooShort},
		{"four octets and an empty end", slices.Concat(fragment(false, long[:4]), fragment(true, nil)), long[:4], reasonTooShort},
	} {
		t.Run(tt.name, func(t *testing.T) {
			in := slices.Concat(good, tt.in, good, tt.in, good)
			for _, piece := range []int{1, 2, 3, 5, 7, 100, 1000, len(in)} {
				mem, d, got := &testMemory{}, &dropper{recorder: newRecorder()}, 0
				d.record = func(_ *Conn, b Buffer) {
					if !bytes.Equal(b.Bytes(), good[markLen:]) {
						t.Errorf("record %d is not the one that was sent", got)
					}
					got++
					b.Release()
				}
				c := offlineConn(ConnOptions{Memory: lend(mem), MaxRecord: most}, d)
				for p := range slices.Chunk(in, piece) {
					c.pass(p)
				}
				if got != 3 || c.state != open || c.split.begun() || mem.Used() != 0 {
					t.Fatalf("pieces of %d: %d records, state %d, begun %v, %d octets on loan", piece, got, c.state, c.split.begun(), mem.Used())
				}
				if len(d.heads) != 2 || !bytes.Equal(d.heads[0], tt.head) || !bytes.Equal(d.heads[1], tt.head) || d.reasons[0] != string(tt.reason) {
					t.Fatalf("pieces of %d: dropped %x for %q, want %x for %q", piece, d.heads, d.reasons, tt.head, tt.reason)
				}
			}
		})
	}
}

// TestDroppedOutOfStep: a record that the handler does not know, and that is longer than any that could be one, ends the
// connection when the handler has been told of it.
func TestDroppedOutOfStep(t *testing.T) {
	const most = 4096
	end := func(name string, in []byte, told bool) {
		t.Helper()
		d := &dropper{recorder: newRecorder()}
		c := offlineConn(ConnOptions{MaxRecord: most}, d)
		c.pass(in)
		if c.state == open || (len(d.heads) == 1) != told {
			t.Errorf("%s: state %d, dropped %x", name, c.state, d.heads)
		}
	}
	end("HTTP", []byte("HTTP/1.1 400 Bad Request\r\n"), true)
	end("a mark of 2 GiB", testkit.Unhex(t, "ffffffff 00000001 00000001"), true)
	end("fragments without end", bytes.Repeat(fragment(false, pattern(most, 1)), 5), true)
	end("a known one without end", slices.Concat(testkit.Unhex(t, "00000008 77000001 00000001 7fffffff")), true)
	end("no first octets", slices.Concat(testkit.Unhex(t, "00000004 77000001 7fffffff")), false)
}

// TestDroppedForMemory: a record for which there is no memory gives back what it has, and the connection goes on.
func TestDroppedForMemory(t *testing.T) {
	mem, d := &testMemory{limit: 200 << 10}, &dropper{recorder: newRecorder()}
	var got []uint32
	d.record = func(_ *Conn, b Buffer) {
		got = append(got, binary.BigEndian.Uint32(b.Bytes()))
		b.Release()
	}
	c := offlineConn(ConnOptions{Memory: lend(mem)}, d)
	c.Loop().memoryTimeout = memoryTimeout
	long := append([]byte{0x77}, pattern(1<<20, 5)...)
	for p := range slices.Chunk(slices.Concat(fragment(true, long), fragment(true, pattern(100, 1))), 20<<10) {
		c.pass(p)
	}
	if c.why&whyMemory == 0 || mem.Used() == 0 {
		t.Fatal("the record does not wait for memory")
	}
	c.checkTimeouts(c.memSince + int64(memoryTimeout) + 1)
	c.endPass()
	if c.state != open || mem.Used() != 0 || len(got) != 1 || c.paused() || len(c.held) > 0 {
		t.Errorf("state %d, %d octets on loan, records %x, paused %v", c.state, mem.Used(), got, c.paused())
	}
	if len(d.reasons) != 1 || d.reasons[0] != string(reasonMemory) || !bytes.Equal(d.heads[0], long[:8]) {
		t.Errorf("dropped %x for %q", d.heads, d.reasons)
	}
	if w := mem.waiting; len(w) > 0 { // its turn comes although it does not wait any more
		w[0]()
		c.endPass()
	}
	if mem.Used() != 0 || c.state != open {
		t.Errorf("%d octets on loan, state %d", mem.Used(), c.state)
	}
}

// TestDroppedThenOutOfStep: a record that is dropped for another reason and then turns out to be longer than any may be
// ends the connection because of its length. No other reason is left for a connection of an upstream: the metric has none.
func TestDroppedThenOutOfStep(t *testing.T) {
	for _, tt := range []struct {
		name   string
		in     []byte
		first  reason
		closed reason
	}{
		{"no memory", slices.Concat(testkit.Unhex(t, "00000004 00000001 00000c00"), make([]byte, 0xc00), testkit.Unhex(t, "3fffffff 00000000")), reasonMemory, reasonTooLong},
		{"marks", slices.Concat(make([]byte, 4096+4), testkit.Unhex(t, "3fffffff 00000001 00000000")), reasonFragments, reasonTooLong},
		{"length", slices.Concat(testkit.Unhex(t, "00001001 00000001 00000000"), make([]byte, 0x1001-8+4*4096+4)), reasonTooLong, reasonFragments},
	} {
		t.Run(tt.name, func(t *testing.T) {
			mem, d := &testMemory{limit: int64(class(4))}, &dropper{recorder: newRecorder()}
			c := offlineConn(ConnOptions{Memory: lend(mem), MaxRecord: 4096}, d)
			c.Loop().memoryTimeout = memoryTimeout
			c.counters = c.counters.set.of(ofUpstream, "test")
			for p := range slices.Chunk(tt.in, 1000) {
				c.pass(p)
			}
			if c.why&whyMemory != 0 { // and the rest is held
				c.checkTimeouts(c.memSince + int64(memoryTimeout) + 1)
				c.endPass()
			}
			if len(d.reasons) != 1 || d.reasons[0] != string(tt.first) {
				t.Errorf("dropped for %q, want %q", d.reasons, tt.first)
			}
			wantReason(t, c.err, tt.closed)
			if _, ok := c.counters.refused[tt.closed]; !ok {
				t.Errorf("upstream_tcp_closed_connections_total has no reason %q", tt.closed)
			}
		})
	}
}

// A secureDropper is a secureEcho that has faulty records dropped.
type secureDropper struct {
	*secureEcho
	heads chan []byte
}

func (d *secureDropper) Dropped(_ *Conn, head []byte, _ string, _ error) bool {
	d.heads <- bytes.Clone(head)
	return true
}

// TestDroppedTLS: the same behind a handshake.
func TestDroppedTLS(t *testing.T) {
	t.Parallel()
	heads := make(chan []byte, 3)
	y := newTLSTest(t, EngineOptions{}, ListenOptions{}, newTLS(t, serverConfig()), nil)
	y.l = listen(t, y.e, ListenOptions{Name: "drops", Conn: ConnOptions{MaxRecord: 4096, Memory: lend(y.mem)}}, func(*Conn) RecordHandler {
		return &secureDropper{newSecureEcho(newTLS(t, serverConfig())), heads}
	})
	p := y.secure(clientConfig())
	for _, n := range []int{5000, 100_000, 5} {
		long := pattern(n, 1)
		p.send(fragment(true, long))
		p.served(4096)
		if got := <-heads; !bytes.Equal(got, long[:min(n, 8)]) {
			t.Errorf("record of %d octets: dropped %x", n, got)
		}
	}
}
