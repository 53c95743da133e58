package tcpframe

import (
	"bytes"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/metrics"
	"github.com/rdmabridge/rdmabridge/tcpframe/eventloop"
)

// offlineConn returns a Conn without a socket. The test calls received itself.
func offlineConn(o ConnOptions, h RecordHandler) *Conn {
	set := &counterSet{all: make(map[countersKey]*counters)}
	l := newLoop(eventloop.NewOffline())
	o = bounds(o)
	if o.Memory == nil {
		o.Memory = lend(heap{})
	}
	c := &Conn{
		opts: &o, memory: o.Memory(0), counters: set.of(ofListener, "test"), handler: h, state: open,
		split: splitter{maxRecord: o.MaxRecord},
	}
	c.loop, c.sock = l, eventloop.NewOfflineSocket(l.Loop, (*connStream)(c))
	return c
}

// pass does what the loop does around Received.
func (c *Conn) pass(b []byte) {
	if len(b) > 0 {
		c.received(b)
	}
	c.endPass()
}

// endPass does what the loop does at the end of a pass.
func (c *Conn) endPass() {
	c.Loop().RunPass()
}

// FuzzConn checks that the same records arrive whatever the pieces of the stream, the pauses
// and the failed leases, and that nothing is left on loan.
func FuzzConn(f *testing.F) {
	f.Add(uint64(1), uint16(100), uint8(4), false)
	f.Add(uint64(2), uint16(3), uint8(40), true)
	f.Add(uint64(3), uint16(65535), uint8(9), true)
	f.Fuzz(func(t *testing.T, seed uint64, maxPiece uint16, n uint8, starve bool) {
		x := &connFuzz{t: t, rng: rand.New(rand.NewPCG(seed, 1)), mem: &testMemory{}}
		if starve {
			x.mem.limit = 2 << 20
		}
		for i := range int(n) % 40 {
			x.addRecord(byte(i))
		}
		h := newRecorder()
		h.record = x.record
		c := offlineConn(ConnOptions{Memory: lend(x.mem)}, h)
		for len(x.stream) > 0 || c.paused() || len(c.held) > 0 {
			x.receive(c, int(maxPiece))
			x.relieve(c)
			c.endPass()
		}
		x.release()
		if x.got != len(x.want) || c.split.begun() {
			t.Fatalf("%d records, want %d; begun %v", x.got, len(x.want), c.split.begun())
		}
		if x.mem.Used() != 0 || c.record != nil || c.held != nil {
			t.Fatalf("%d octets on loan at the end", x.mem.Used())
		}
	})
}

// A connFuzz is one run of FuzzConn.
type connFuzz struct {
	t      *testing.T
	rng    *rand.Rand
	mem    *testMemory
	stream []byte   // octets that were not received
	want   [][]byte // records of the whole stream
	got    int      // records that were delivered
	kept   []Buffer // buffers that the handler has not released
}

// addRecord appends a record, in one or more fragments, to the stream.
func (x *connFuzz) addRecord(seed byte) {
	size := minRecord + x.rng.IntN(200)
	switch x.rng.IntN(8) {
	case 0:
		size = minRecord + x.rng.IntN(200_000)
	case 1:
		size = firstLease + x.rng.IntN(9) - 4
	case 2:
		size = growAt + x.rng.IntN(9) - 4
	}
	rec := pattern(size, seed)
	x.want = append(x.want, rec)
	for len(rec) > 0 {
		k := len(rec)
		if x.rng.IntN(3) == 0 {
			k = x.rng.IntN(len(rec) + 1)
		}
		last := k == len(rec) && x.rng.IntN(4) > 0
		x.stream = append(x.stream, fragment(last, rec[:k])...)
		if rec = rec[k:]; len(rec) == 0 && !last {
			x.stream = append(x.stream, fragment(true, nil)...)
		}
	}
}

// record is the handler's: it checks b, keeps it, and pauses now and then.
func (x *connFuzz) record(c *Conn, b Buffer) {
	if x.got >= len(x.want) || !bytes.Equal(b.Bytes(), x.want[x.got]) {
		x.t.Fatalf("record %d of %d differs", x.got, len(x.want))
	}
	x.got++
	x.kept = append(x.kept, b)
	if x.rng.IntN(5) == 0 {
		c.Pause()
	}
}

// receive gives c a piece of the stream. A paused Conn gets none, except for one read that
// was on its way.
func (x *connFuzz) receive(c *Conn, maxPiece int) {
	if len(x.stream) == 0 || c.paused() && (x.rng.IntN(10) > 0 || len(c.held) > eventloop.ReadBuffer) {
		return
	}
	k := min(1+x.rng.IntN(maxPiece+1), len(x.stream), eventloop.ReadBuffer)
	piece := bytes.Clone(x.stream[:k])
	c.pass(piece)
	clear(piece) // it was lent until Received returned
	x.stream = x.stream[k:]
}

// relieve resumes reading and releases buffers, now and then, and when c needs them.
func (x *connFuzz) relieve(c *Conn) {
	if x.rng.IntN(3) == 0 {
		for c.pauses > 0 {
			c.Resume()
		}
	}
	if c.why != 0 && len(x.kept) == 0 {
		x.t.Fatal("waits for memory although none is leased")
	}
	if c.why != 0 || x.rng.IntN(4) == 0 {
		x.release()
	}
}

func (x *connFuzz) release() {
	for _, b := range x.kept {
		b.Release()
	}
	x.kept = x.kept[:0]
}

// Receiving a record does not allocate.
func TestRecordAllocs(t *testing.T) {
	for _, tt := range []struct {
		name string
		in   []byte
	}{
		{"small", fragment(true, pattern(100, 0))},
		{"16 small", bytes.Repeat(fragment(true, pattern(100, 0)), 16)},
		{"60 KiB", fragment(true, pattern(60<<10, 0))},
	} {
		c := offlineConn(ConnOptions{Memory: lend(&testMemory{})}, newRecorder())
		if n := testing.AllocsPerRun(200, func() { c.received(tt.in) }); n != 0 {
			t.Errorf("%s: %v allocs, want 0", tt.name, n)
		}
	}
	c := offlineConn(ConnOptions{Memory: lend(&testMemory{})}, newRecorder())
	long := fragment(true, pattern(1<<20, 0))
	if n := testing.AllocsPerRun(20, func() {
		for p := long; len(p) > 0; {
			k := min(len(p), eventloop.ReadBuffer)
			c.received(p[:k])
			p = p[k:]
		}
	}); n != 0 {
		t.Errorf("1 MiB: %v allocs, want 0", n)
	}
}

// Until growAt octets of a record have arrived, it takes no more memory than they do, plus a
// constant.
func TestLeaseGrows(t *testing.T) {
	mem := &testMemory{}
	c := offlineConn(ConnOptions{Memory: lend(mem)}, newRecorder())
	in := fragment(true, pattern(4<<20, 0))
	c.pass(in[:5])
	if used := mem.Used(); used > 4*firstLease {
		t.Errorf("one octet of 4 MiB took %d octets", used)
	}
	c.pass(in[5 : growAt-100])
	if used := mem.Used(); used > 4*firstLease {
		t.Errorf("not quite %d octets of 4 MiB took %d octets", growAt, used)
	}
	c.pass(in[growAt-100 : growAt+100])
	if used := mem.Used(); used < 4<<20 {
		t.Errorf("%d octets of 4 MiB got %d octets, want all", growAt+100, used)
	}
	c.pass(in[growAt+100:])
	if mem.Used() != 0 {
		t.Errorf("%d octets on loan after the record", mem.Used())
	}

	// With many small fragments the buffer is at most twice as long as the octets that have
	// arrived, but for the block sizes of testMemory.
	c = offlineConn(ConnOptions{Memory: lend(mem)}, newRecorder())
	sent := 0
	for range 1000 {
		c.pass(fragment(false, pattern(1000, 0)))
		sent += 1000
		if used := mem.Used(); used > int64(8*sent+512) { // sizes step by 4
			t.Fatalf("%d octets took %d", sent, used)
		}
	}
	c.pass(fragment(true, nil))
}

// While a Conn is paused it holds input and does not parse it. Records then follow in order.
func TestPauseInsideRead(t *testing.T) {
	h := newRecorder()
	var seen int
	h.record = func(c *Conn, b Buffer) {
		b.Release()
		seen++
		c.Pause()
	}
	c := offlineConn(ConnOptions{}, h)
	c.pass(bytes.Repeat(fragment(true, pattern(100, 0)), 600))
	for want := 1; want <= 600; want++ {
		if seen != want {
			t.Fatalf("%d records after %d resumes", seen, want-1)
		}
		c.Resume()
		c.endPass()
	}
	if c.held != nil {
		t.Error("input still held")
	}
}

func TestPauseNests(t *testing.T) {
	h := newRecorder()
	var seen int
	h.record = func(_ *Conn, b Buffer) { b.Release(); seen++ }
	c := offlineConn(ConnOptions{}, h)
	c.Pause()
	c.Pause()
	c.pass(fragment(true, pattern(8, 0)))
	c.Resume()
	c.endPass()
	if seen != 0 {
		t.Fatal("a record while one Pause is left")
	}
	c.Resume()
	if seen != 0 {
		t.Fatal("a record inside Resume")
	}
	c.endPass()
	if seen != 1 {
		t.Fatal("no record after the last Resume")
	}
}

func TestStallCheck(t *testing.T) {
	var now int64 = 1e18
	newC := func() (*Conn, func(time.Duration) connState) {
		c := offlineConn(ConnOptions{StallTimeout: time.Second, Memory: lend(&testMemory{})}, newRecorder())
		return c, func(d time.Duration) connState {
			now += int64(d)
			c.Loop().SetClock(now)
			c.checkTimeouts(now)
			return c.state
		}
	}
	long := fragment(true, pattern(100_000, 0))

	c, sweep := newC()
	c.pass(long[:2])
	sweep(0)
	if sweep(900*time.Millisecond) != open {
		t.Error("half a mark: closed before StallTimeout")
	}
	if sweep(200*time.Millisecond) != ending {
		t.Error("half a mark: open after StallTimeout")
	}

	c, sweep = newC()
	sweep(0)
	for i := 0; i < 20*stallOctets; i += stallOctets {
		c.pass(long[i : i+stallOctets])
		if sweep(900*time.Millisecond) != open {
			t.Fatal("closed though 4 KiB arrived in time")
		}
	}
	c.dropInput()

	c, sweep = newC()
	for i := 0; i < 8; i++ { // 10 octets at a time
		c.pass(long[i*10 : i*10+10])
		sweep(300 * time.Millisecond)
	}
	if c.state != ending {
		t.Error("open though only 10 octets arrive at a time")
	}
	c.dropInput()

	c, sweep = newC()
	c.pass(long[:100])
	c.Pause()
	if sweep(0); sweep(time.Hour) != open {
		t.Error("closed because this side has paused")
	}
	c.Resume()
	sweep(0)
	if sweep(900*time.Millisecond) != open {
		t.Error("a pause counts as a stall")
	}
	c.dropInput()
}

// A record that holds much memory has to arrive at Pace.
func TestPace(t *testing.T) {
	var now int64 = 1e18
	const pace = 64 << 10
	c := offlineConn(ConnOptions{StallTimeout: 10 * time.Second, Pace: pace, Memory: lend(&testMemory{})}, newRecorder())
	in := fragment(true, pattern(4<<20, 0))
	send := func(n int) {
		c.pass(in[:n])
		in = in[n:]
	}
	sweep := func(d time.Duration) connState {
		for range d / time.Second {
			now += int64(time.Second)
			c.Loop().SetClock(now)
			c.checkTimeouts(now)
		}
		return c.state
	}
	send(growAt + 1<<10)
	sweep(time.Second)
	for i := range 30 { // three times StallTimeout
		send(pace + pace/8)
		if sweep(time.Second) != open {
			t.Fatalf("closed after %d s though the record arrives at its pace", i)
		}
	}
	c.Pause()
	if sweep(time.Hour) != open {
		t.Fatal("closed because this side has paused")
	}
	c.Resume()
	if sweep(5*time.Second) != open {
		t.Error("a pause counts")
	}
	for range 30 { // an attacker that makes this side pause gains no time
		c.Pause()
		sweep(time.Second)
		c.Resume()
		send(stallOctets)
		sweep(time.Second)
	}
	if c.state != ending {
		t.Errorf("open though %d octets of 4 MiB arrive each second", stallOctets)
	}
	c.dropInput()
}

// A connection that ends while it waits for memory passes its turn on to the next.
func TestMemoryTurnPassedOn(t *testing.T) {
	mem := &testMemory{limit: 512}
	hold, err := mem.Lease(512)
	if err != nil {
		t.Fatal(err)
	}
	gone := offlineConn(ConnOptions{Memory: lend(mem)}, newRecorder())
	got := 0
	h := newRecorder()
	h.record = func(_ *Conn, b Buffer) { b.Release(); got++ }
	next := offlineConn(ConnOptions{Memory: lend(mem)}, h)
	gone.pass(fragment(true, pattern(100, 0)))
	next.pass(fragment(true, pattern(100, 0)))
	gone.state = ending
	hold.Release() // it is gone's turn
	gone.endPass()
	next.endPass()
	if got != 1 {
		t.Error("the next connection that waits was not called")
	}
}

// A picker is a recorder that takes every other record whole.
type picker struct {
	*recorder
	n     int
	taken [][]byte
}

func (p *picker) Run(c *Conn) {
	for m := c.Next(); m != nil; m = c.Next() {
		if p.n++; p.n%2 == 0 {
			return
		}
		p.taken = append(p.taken, bytes.Clone(m))
		clear(m)
		c.Took(m, 3)
	}
}

// TestRun: a RunHandler is offered each record that a read has brought whole, in their order with the others, and
// what it copies is counted.
func TestRun(t *testing.T) {
	e := startEngine(t, EngineOptions{Loops: 1, Metrics: metrics.New()})
	const records = 50
	p := &picker{recorder: newRecorder()}
	var all [][]byte
	p.record = func(c *Conn, b Buffer) {
		all = append(append(all, p.taken...), bytes.Clone(b.Bytes()))
		p.taken = nil
		b.Release()
	}
	var conn *Conn
	p.opened = func(c *Conn) { conn = c }
	l := listen(t, e, ListenOptions{}, func(*Conn) RecordHandler { return p })
	peer := dialPeer(t, l)
	var out []byte
	want := 0
	for i := range records {
		out = append(out, fragment(true, pattern(8+4*i, byte(i)))...)
		if i%2 == 0 {
			want += 3
		} else {
			want += 8 + 4*i
		}
	}
	peer.send(out)
	peer.send(append(fragment(false, pattern(8, 1)), fragment(true, pattern(8, 2))...)) // in pieces: for Record alone
	peer.Close()
	p.wait(t, "the peer closes")
	if len(all) != records+1 {
		t.Fatalf("%d records came, want %d", len(all), records+1)
	}
	for i := range records {
		if !bytes.Equal(all[i], pattern(8+4*i, byte(i))) {
			t.Fatalf("record %d of %d octets differs", i, len(all[i]))
		}
	}
	if conn.records != records+1 {
		t.Errorf("counted %d records, want %d", conn.records, records+1)
	}
	if got := int(conn.counters.copied.Value()); got < want {
		t.Errorf("counted %d copied octets, want at least %d", got, want)
	}
}
