package fabrictest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
)

// Tests of Send and Receive.

func testSendSizes(t *testing.T, f *Fixture) {
	sizes := []int{0, 1, 2, 3, 4, 5, 7, 8, 1000, 1023, 1024, 1025, 1432, 1448, 1460, 4095, 4096, 16384, 65535, 65536, 262144}
	p := f.connect(t, pairOptions{prepare: func(dial, other *endpoint) {
		dial.receives, other.receives = 4, 4
		dial.size, other.size = 262144, 262144
	}})
	for _, accepted := range []bool{false, true} {
		from, to := p.sides(accepted)
		for i, n := range sizes {
			if m := from.conn.Info().MaxMessage; m > 0 && n > m {
				continue
			}
			want := testkit.Pattern(n, byte(i))
			id := from.send(bytes.Clone(want))
			got := to.waitMessages(i + 1)[i]
			if !bytes.Equal(got, want) {
				t.Fatalf("%s: message of %d octets arrived different, %d octets", from.name, n, len(got))
			}
			if c := from.waitDone(id); c.Err != nil {
				t.Fatalf("%s: Send of %d octets: %v", from.name, n, c.Err)
			}
		}
	}
}

func testSendParts(t *testing.T, f *Fixture) {
	p := f.connect(t, pairOptions{})
	most := 6
	if m := p.dial.conn.Info().MaxParts; m > 0 {
		most = min(most, m)
	}
	n := 0
	for parts := range most + 1 {
		for _, size := range []int{0, 1, 13, 500} {
			var list [][]byte
			var want []byte
			for i := range parts {
				part := bytes.Clone(testkit.Pattern((i*size+i)%600, byte(i)))
				if i == 1 {
					part = nil // an empty part among others
				}
				list = append(list, part)
				want = append(want, part...)
			}
			p.dial.send(list...)
			// The slice of slices was lent only until PostSend returned.
			clear(list)
			if got := p.other.waitMessages(n + 1)[n]; !bytes.Equal(got, want) {
				t.Errorf("%d parts: got %d octets %x, want %d", parts, len(got), got, len(want))
			}
			n++
		}
	}
}

func testReceiveOrder(t *testing.T, f *Fixture) {
	const messages = 500
	p := f.connect(t, pairOptions{
		dial:    fabric.ConnOptions{Sends: messages},
		accept:  fabric.ConnOptions{Receives: messages + 1},
		prepare: func(_, other *endpoint) { other.receives, other.repost, other.size = messages+1, false, 64 },
	})
	var ids []uint64
	p.dial.do(func() {
		for i := range messages {
			b := make([]byte, 8)
			binary.BigEndian.PutUint64(b, uint64(i))
			id, err := p.dial.postSend(fabric.Send{Parts: [][]byte{b[:4], b[4:]}})
			if err != nil {
				t.Errorf("PostSend %d: %v", i, err)
				return
			}
			ids = append(ids, id)
		}
	})
	for i, msg := range p.other.waitMessages(messages) {
		if got := binary.BigEndian.Uint64(msg); got != uint64(i) {
			t.Fatalf("message %d arrived as number %d", got, i)
		}
	}
	p.dial.waitDone(ids[messages-1])
	checkOrder(t, p.other, fabric.OpReceive)
	checkOrder(t, p.dial, fabric.OpSend)
}

// testReceiveInPlace: a ULP that lets the provider leave short messages where they came gets all octets of all
// messages, in their order, be it that it takes some before their Receives complete, and one that does not gets them in
// its buffers.
func testReceiveInPlace(t *testing.T, f *Fixture) {
	for _, inPlace := range []bool{true, false} {
		for _, takes := range []bool{true, false} {
			receiveInPlace(t, f, inPlace, takes)
		}
	}
}

// receiveInPlace does what testReceiveInPlace does, for a ULP that lets the provider leave messages in place, or not, and
// takes the first, the third and so on of those that it is offered, or none.
func receiveInPlace(t *testing.T, f *Fixture, inPlace, takes bool) {
	const messages = 60
	offered, taken := 0, 0
	var receiver *endpoint
	o := fabric.ConnOptions{Receives: messages + 1, InPlace: inPlace}
	if takes {
		o.Take = func(m []byte) bool {
			if offered++; offered%2 == 0 {
				return false
			}
			taken++
			receiver.took(m)
			clear(m)
			return true
		}
	}
	p := f.connect(t, pairOptions{
		dial:   fabric.ConnOptions{Sends: messages},
		accept: o,
		prepare: func(_, other *endpoint) {
			receiver = other
			other.receives, other.repost, other.size = messages+1, false, 64<<10
		},
	})
	var want [][]byte
	for i := range messages {
		want = append(want, testkit.Pattern(4*(1+i*i*i%12000), uint32(i)))
	}
	p.dial.do(func() {
		for i, m := range want {
			if _, err := p.dial.postSend(fabric.Send{Parts: [][]byte{m}}); err != nil {
				t.Errorf("PostSend %d: %v", i, err)
				return
			}
		}
	})
	for i, got := range p.other.waitMessages(messages) {
		if !bytes.Equal(got, want[i]) {
			t.Fatalf("message %d of %d octets differs; in place: %v", i, len(want[i]), inPlace)
		}
	}
	p.other.mu.Lock()
	received := 0
	for _, c := range p.other.completions {
		if c.Op == fabric.OpReceive && c.Err == nil {
			received++
		}
	}
	if received+taken != messages+1 || !inPlace && taken != 0 { // connect announces itself with one more
		t.Errorf("%d messages: %d Receives completed, and %d messages were taken without; in place: %v", messages+1, received, taken, inPlace)
	}
	if i := slices.IndexFunc(p.other.completions, func(c fabric.Completion) bool { return c.Data != nil }); i >= 0 && !inPlace {
		t.Errorf("completion %d is of a message in place", i)
	}
	p.other.mu.Unlock()
}

// testSendCopy: messages that were copied and others arrive in the order of posting, although the memory of those that
// were copied is used again at once, and the last of them before the connection ends.
func testSendCopy(t *testing.T, f *Fixture) {
	const messages = 300
	p := f.connect(t, pairOptions{
		dial:   fabric.ConnOptions{Sends: messages},
		accept: fabric.ConnOptions{Receives: messages + 2},
		prepare: func(_, other *endpoint) {
			other.receives, other.repost, other.size = messages+2, false, 64<<10
		},
	})
	c, ok := ability[fabric.CopySender](t, "CopySender", p.dial.conn)
	if !ok {
		return
	}
	var want [][]byte
	for i := range messages {
		want = append(want, testkit.Pattern(4*(1+i*i*i%(400*(1+i%3))), uint32(i)))
	}
	copied := 0
	p.dial.do(func() {
		for i, m := range want {
			b := bytes.Clone(m)
			parts := [][]byte{b[:4], nil, b[4:]}
			if i%5 != 4 && c.SendCopy(parts) {
				copied++
				clear(b)
				clear(parts)
				if !c.Unwritten() {
					t.Errorf("message %d is written before the end of the pass", i)
				}
			} else if _, err := p.dial.postSend(fabric.Send{Parts: parts}); err != nil {
				t.Errorf("PostSend %d: %v", i, err)
				return
			}
			if i%50 == 49 {
				p.dial.conn.Flush()
			}
		}
	})
	for i, got := range p.other.waitMessages(messages) {
		if !bytes.Equal(got, want[i]) {
			t.Fatalf("message %d differs: %d octets, want %d", i, len(got), len(want[i]))
		}
	}
	if copied == 0 {
		t.Error("no message was copied")
	}
	p.dial.do(func() {
		if c.Unwritten() {
			t.Error("a message that has arrived is not written")
		}
	})
	calls := 0
	p.dial.do(func() {
		p.dial.mu.Lock()
		calls = p.dial.calls
		p.dial.mu.Unlock()
		for try := 0; try < 2 && !c.SendCopy([][]byte{{1, 2, 3, 4}}); try++ {
			if try == 1 {
				t.Error("a message of 4 octets is not copied")
			}
		}
	})
	p.dial.wait("call of Completed", func() bool { return p.dial.calls > calls })
	p.dial.do(func() {
		p.dial.conn.Close(nil)
		if c.SendCopy([][]byte{{1}}) {
			t.Error("SendCopy after Close")
		}
	})
	// Completed complains about completions with ID 0.
}

// checkOrder checks that the completions of one kind of work came in the order of
// posting.
func checkOrder(t *testing.T, e *endpoint, op fabric.Op) {
	t.Helper()
	e.mu.Lock()
	defer e.mu.Unlock()
	var last uint64
	for _, c := range e.completions {
		if c.Op != op || c.ID == 0 {
			continue
		}
		if c.ID <= last {
			t.Errorf("%s: op %d: completion of %#x after %#x", e.name, op, c.ID, last)
			return
		}
		last = c.ID
	}
}

// testPingPong has one Receive on each side, reposted before the answer. A provider that
// completes a Receive late, or loses one, fails.
func testPingPong(t *testing.T, f *Fixture) {
	const rounds = 1000
	p := f.connect(t, pairOptions{prepare: func(dial, other *endpoint) {
		dial.receives, other.receives = 1, 1
		other.onReceive = func(e *endpoint, msg []byte) {
			if string(msg) == "first" {
				return
			}
			if _, err := e.postSend(fabric.Send{Parts: [][]byte{msg}}); err != nil {
				t.Errorf("answer: %v", err)
			}
		}
		dial.onReceive = func(e *endpoint, msg []byte) {
			n := binary.BigEndian.Uint32(msg)
			if n == rounds {
				return
			}
			b := make([]byte, 4)
			binary.BigEndian.PutUint32(b, n+1)
			if _, err := e.postSend(fabric.Send{Parts: [][]byte{b}}); err != nil {
				t.Errorf("ping %d: %v", n+1, err)
			}
			e.conn.Flush()
		}
	}})
	p.dial.send(make([]byte, 4))
	for i, msg := range p.dial.waitMessages(rounds + 1)[:rounds+1] {
		if got := binary.BigEndian.Uint32(msg); got != uint32(i) {
			t.Fatalf("answer %d carries %d", i, got)
		}
	}
}

func testSilent(t *testing.T, f *Fixture) {
	p := f.connect(t, pairOptions{})
	buf := make([]byte, 64)
	r := p.other.register(buf, fabric.RemoteRead|fabric.RemoteWrite)
	into := make([]byte, 16)
	p.dial.do(func() {
		c := p.dial.conn
		for _, err := range []error{
			c.PostSend(0, fabric.Send{Parts: [][]byte{bytes.Clone([]byte("silent"))}}),
			c.PostWrite(0, fabric.Write{Parts: [][]byte{bytes.Clone([]byte("silent"))}, To: r}),
			c.PostRead(0, fabric.Read{Into: into, From: fabric.Region{Handle: r.Handle, Offset: r.Offset, Length: 6}}),
		} {
			if err != nil {
				t.Errorf("post: %v", err)
			}
		}
	})
	p.other.waitMessages(1)
	// A Read behind it shows that the silent one is over.
	if c := p.dial.waitDone(p.dial.read(make([]byte, 1), fabric.Region{Handle: r.Handle, Offset: r.Offset, Length: 1})); c.Err != nil {
		t.Fatal(c.Err)
	}
	if string(into[:6]) != "silent" {
		t.Errorf("silent Read got %q", into[:6])
	}
	// Completed complains about completions with ID 0.
}

// testOneLoop has both ends on one loop.
func testOneLoop(t *testing.T, f *Fixture) {
	p := f.connect(t, pairOptions{acceptLoop: f.DialLoop})
	for i := range 50 {
		p.dial.send([]byte("ping"))
		p.other.waitMessages(i + 1)
		p.other.send([]byte("pong"))
		p.dial.waitMessages(i + 1)
	}
	p.dial.close(nil)
	if err := p.dial.waitClosed(); err != nil {
		t.Errorf("Closed(%v)", err)
	}
	if p.other.waitClosed() == nil {
		t.Error("the other side was told nil")
	}
}

func testTooLong(t *testing.T, f *Fixture) {
	for _, accepted := range []bool{false, true} {
		guarded := make([]byte, 128)
		p := f.connect(t, pairOptions{prepare: func(dial, other *endpoint) {
			_, to := (&pair{dial: dial, other: other}).sides(accepted)
			to.receives, to.repost = 0, false
			if !accepted {
				to.receives = 1 // for the first message
			}
		}})
		from, to := p.sides(accepted)
		testkit.FillPattern(guarded, 7)
		want := bytes.Clone(guarded)
		to.do(func() {
			id := to.begin(fabric.OpReceive)
			if _, err := to.posted(id, to.conn.PostReceive(id, guarded[:64:64])); err != nil {
				t.Errorf("PostReceive: %v", err)
			}
		})
		from.send(bytes.Clone(testkit.Pattern(65, 1)))
		if to.waitClosed() == nil {
			t.Errorf("%s: a message longer than its Receive: Closed(nil)", to.name)
		}
		if from.waitClosed() == nil {
			t.Errorf("%s: sent a message longer than the Receive: Closed(nil)", from.name)
		}
		if !bytes.Equal(guarded[64:], want[64:]) {
			t.Errorf("%s: octets behind the Receive changed", to.name)
		}
		if len(to.messages) != 0 {
			t.Errorf("%s: the message was delivered", to.name)
		}
	}
}

func testNoReceive(t *testing.T, f *Fixture) {
	for _, accepted := range []bool{false, true} {
		p := f.connect(t, pairOptions{prepare: func(dial, other *endpoint) {
			_, to := (&pair{dial: dial, other: other}).sides(accepted)
			to.repost, to.receives = false, 2
			if !accepted {
				to.receives = 3 // one for the first message
			}
		}})
		from, to := p.sides(accepted)
		from.do(func() {
			for range 3 {
				if _, err := from.postSend(fabric.Send{Parts: [][]byte{bytes.Clone([]byte("one too many"))}}); err != nil {
					t.Errorf("PostSend: %v", err)
				}
			}
		})
		if to.waitClosed() == nil || from.waitClosed() == nil {
			t.Error("a message without a Receive did not end the connection")
		}
		if n := len(to.messages); n != 2 {
			t.Errorf("%s: %d messages delivered, want 2", to.name, n)
		}
	}
}

func testQueueFull(t *testing.T, f *Fixture) {
	p := f.connect(t, pairOptions{
		dial:    fabric.ConnOptions{Receives: 8, Sends: 16, Handles: 4},
		accept:  fabric.ConnOptions{Receives: 64},
		prepare: func(dial, other *endpoint) { dial.receives, other.receives = 8, 64 },
	})
	e := p.dial
	e.do(func() {
		if err := e.postReceive(); !errors.Is(err, fabric.ErrQueueFull) {
			t.Errorf("Receive 9 of 8: %v", err)
		}
		msg := bytes.Clone([]byte("queued"))
		for i := range 17 {
			_, err := e.postSend(fabric.Send{Parts: [][]byte{msg}})
			if i < 16 && err != nil || i == 16 && !errors.Is(err, fabric.ErrQueueFull) {
				t.Errorf("Send %d of 16: %v", i+1, err)
			}
		}
		var handles []fabric.Handle
		for i := range 5 {
			r, err := e.conn.Register(make([]byte, 16), fabric.RemoteRead)
			if i < 4 && err != nil || i == 4 && !errors.Is(err, fabric.ErrLimit) {
				t.Errorf("handle %d of 4: %v", i+1, err)
			}
			handles = append(handles, r.Handle)
		}
		for _, h := range handles[:4] {
			if done, err := e.conn.Invalidate(e.begin(fabric.OpInvalidate), h); err != nil {
				t.Errorf("Invalidate: %v", err)
			} else if done {
				_, _ = e.posted(e.nextID, fabric.ErrClosed)
			}
		}
	})
	p.other.waitMessages(16)
	// The queue has room again.
	e.wait("completions", func() bool { return len(e.outstanding) == 8 })
	e.waitDone(e.send([]byte("again")))
	p.other.waitMessages(17)
	e.register(make([]byte, 16), fabric.RemoteRead)
}

func testLastActivity(t *testing.T, f *Fixture) {
	p := f.connect(t, pairOptions{})
	at := func() (when time.Time) {
		p.other.do(func() { when = p.other.conn.LastActivity() })
		return when
	}
	before := at()
	if since := time.Since(before); since < -time.Second || since > patience {
		t.Errorf("LastActivity was %v ago", since)
	}
	time.Sleep(20 * time.Millisecond)
	p.dial.send([]byte("news"))
	p.other.waitMessages(1)
	if after := at(); !after.After(before) {
		t.Errorf("LastActivity did not move: %v, then %v", before, after)
	}
}
