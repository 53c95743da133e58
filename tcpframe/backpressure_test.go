package tcpframe

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"hash"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/tcpframe/eventloop"
)

// A pausing handler pauses its Conn at the first record and hashes all of them.
type pausing struct {
	recorder
	total  int // records to expect
	got    int
	hash   hash.Hash
	paused chan *Conn  // receives the Conn once it is paused
	sum    chan []byte // receives the hash of all records
}

func (h *pausing) Record(c *Conn, b Buffer) {
	h.hash.Write(b.Bytes())
	b.Release()
	switch h.got++; h.got {
	case 1:
		c.Pause()
		h.paused <- c
	case h.total:
		h.sum <- h.hash.Sum(nil)
	}
}

// While a Conn is paused, its peer's octets fill the buffers of the kernel and not those of
// the Conn, and a neighbour on the same loop is served.
func TestPauseIsBackpressure(t *testing.T) {
	t.Parallel()
	e := startEngine(t, EngineOptions{Loops: 1})
	mem := &testMemory{}
	const total = 200
	h := &pausing{recorder: *newRecorder(), total: total, hash: sha256.New(), paused: make(chan *Conn, 1), sum: make(chan []byte, 1)}
	first := true
	l := listen(t, e, ListenOptions{Conn: ConnOptions{Memory: lend(mem)}}, func(*Conn) RecordHandler {
		if first {
			first = false
			return h
		}
		return echo()
	})
	flood := dialPeer(t, l)
	flood.SetWriteBuffer(64 << 10)
	msg := pattern(1<<20, 7)
	go func() {
		rec := fragment(true, msg)
		for range total {
			if _, err := flood.Write(rec); err != nil {
				return
			}
		}
	}()
	c := <-h.paused
	testkit.Eventually(t, "octets pile up in the kernel", func() bool {
		n, err := unix.IoctlGetInt(onLoop(c, func() int { return c.sock.Descriptor() }), unix.TIOCINQ)
		return err == nil && n >= eventloop.ReadBuffer/2
	})
	pingNeighbour(t, l)
	s := onLoop(c, func() [4]int64 { return [4]int64{int64(h.got), c.rx, int64(len(c.held)), int64(cap(c.held))} })
	if s[0] != 1 || s[1] > 1<<20+256<<10+2*eventloop.ReadBuffer+4 || s[2] > 2*eventloop.ReadBuffer || s[3] > 3*eventloop.ReadBuffer { // append makes room for a quarter more
		t.Errorf("paused: %d records, %d octets read, %d held in %d", s[0], s[1], s[2], s[3])
	}
	if p := mem.Peak(); p > 16<<20 {
		t.Errorf("%d octets on loan at most", p)
	}
	c.Loop().Post(loop.TaskFunc(c.Resume))
	want := sha256.New()
	for range total {
		want.Write(msg)
	}
	if !bytes.Equal(<-h.sum, want.Sum(nil)) {
		t.Error("stream changed")
	}
}

// pingNeighbour exchanges 200 records with another connection of l.
func pingNeighbour(t *testing.T, l *Listener) {
	near := dialPeer(t, l)
	var worst time.Duration
	for range 200 {
		start := time.Now()
		near.send(fragment(true, pattern(100, 1)))
		near.readRecord()
		worst = max(worst, time.Since(start))
	}
	t.Logf("neighbour, worst of 200: %v", worst)
}

// A client that does not read its replies costs MaxOutbound and the replies to the Calls of
// one read. The Conn does not read from it meanwhile, and it gets every reply.
func TestSlowReader(t *testing.T) {
	t.Parallel()
	e := startEngine(t, EngineOptions{Loops: 1})
	const high = 1 << 20
	reply := pattern(64<<10, 3)
	rec := newRecorder()
	conn := make(chan *Conn, 1)
	var calls int
	var worst int64
	rec.opened = func(c *Conn) { conn <- c }
	rec.record = func(c *Conn, b Buffer) {
		b.Release()
		calls++
		c.Send([][]byte{reply[:8], reply[8:1000], reply[1000:]}, nil)
		worst = max(worst, c.outbound)
		if calls%16 == 0 { // the owner bounds the Calls outstanding
			c.Pause()
			c.Loop().Post(loop.TaskFunc(func() {
				if c.state == open {
					c.Resume()
				}
			}))
		}
	}
	l := listen(t, e, ListenOptions{Conn: ConnOptions{Memory: lend(&testMemory{}), MaxOutbound: high}}, func(*Conn) RecordHandler { return rec })
	p := dialPeer(t, l)
	const total = 2000
	go p.Write(bytes.Repeat(fragment(true, pattern(100, 1)), total))
	c := <-conn
	var last int
	testkit.Eventually(t, "reading pauses", func() bool {
		return onLoop(c, func() bool {
			last = calls
			return c.why&whyOutbound != 0
		})
	})
	if last == total {
		t.Fatal("every Call was read though the client read no reply")
	}
	var buf []byte
	for i := range total {
		var err error
		if buf, err = readRecord(p, buf); err != nil || !bytes.Equal(buf, reply) {
			t.Fatalf("reply %d: %v", i, err)
		}
	}
	p.Close()
	rec.wait(t, "the peer closed")
	if worst > high+17*int64(len(reply)+4) {
		t.Errorf("%d octets queued at most, want about %d", worst, high)
	}
	t.Logf("%d calls before the pause, %d octets queued at most", last, worst)
}

func TestOutboundLimit(t *testing.T) {
	e := startEngine(t, EngineOptions{})
	rec := newRecorder()
	released := 0
	rec.record = func(c *Conn, b Buffer) {
		b.Release()
		for range 64 {
			c.Send([][]byte{make([]byte, 1<<20)}, releaseFunc(func() { released++ }))
		}
	}
	rec.closed = func(c *Conn, err error) {
		if released != 64 || c.outbound != 0 {
			t.Errorf("%d of 64 released, %d octets queued at Closed", released, c.outbound)
		}
	}
	l := listen(t, e, ListenOptions{Conn: ConnOptions{OutboundLimit: 16 << 20}}, func(*Conn) RecordHandler { return rec })
	p := dialPeer(t, l)
	p.send(fragment(true, pattern(8, 0)))
	wantReason(t, rec.wait(t, "64 MiB queued for a peer that does not read"), reasonOutbound)
}

type releaseFunc func()

func (f releaseFunc) Release() { f() }

func wantReason(t testing.TB, err error, want reason) {
	t.Helper()
	var re *recordError
	if !errors.As(err, &re) || re.reason != want {
		t.Errorf("closed with %v, want reason %q", err, want)
	}
}

func TestTimeouts(t *testing.T) {
	t.Parallel()
	e := startEngine(t, EngineOptions{})
	const short = 60 * time.Millisecond
	flood := func(c *Conn, b Buffer) {
		b.Release()
		for range 16 {
			c.Send([][]byte{make([]byte, 1<<20)}, nil)
		}
	}
	call := fragment(true, pattern(8, 0))
	for _, tt := range []struct {
		name   string
		o      ConnOptions
		record func(*Conn, Buffer)
		in     []byte
		want   reason
	}{
		{"stop in a record", ConnOptions{StallTimeout: short}, nil, call[:7], reasonStalled},
		{"stop in a mark", ConnOptions{StallTimeout: short}, nil, call[:1], reasonStalled},
		{"stop between fragments", ConnOptions{StallTimeout: short}, nil, fragment(false, call), reasonStalled},
		{"silence", ConnOptions{IdleTimeout: short}, nil, nil, reasonIdle},
		{"no reading", ConnOptions{SendTimeout: short}, flood, call, reasonUnread},
		{"reading a little now and then", ConnOptions{SendTimeout: short}, flood, call, reasonUnread},
	} {
		t.Run(tt.name, func(t *testing.T) {
			rec := newRecorder()
			rec.record = tt.record
			tt.o.Memory = lend(&testMemory{})
			l := listen(t, e, ListenOptions{Conn: tt.o}, func(*Conn) RecordHandler { return rec })
			start := time.Now()
			p := dialPeer(t, l)
			if tt.in != nil {
				p.send(tt.in)
			}
			if strings.HasPrefix(tt.name, "reading") {
				stop := make(chan struct{})
				defer close(stop)
				go func() {
					for b := make([]byte, 512); ; time.Sleep(short / 12) {
						select {
						case <-stop:
							return
						default:
							_, _ = p.Read(b) // until the connection is reset
						}
					}
				}()
			}
			wantReason(t, rec.wait(t, tt.name), tt.want)
			if d := time.Since(start); d < short {
				t.Errorf("closed after %v, before the timeout", d)
			}
			p.wantEnd(tt.name)
		})
	}
}

// A Conn stops reading when the memory budget is spent, and goes on when memory is released.
func TestMemoryBudget(t *testing.T) {
	t.Parallel()
	e := startEngine(t, EngineOptions{})
	mem := &testMemory{limit: 256 << 10} // two of the records
	held := make(chan Buffer, 64)
	rec := func(*Conn) RecordHandler {
		r := newRecorder()
		r.record = func(_ *Conn, b Buffer) { held <- b }
		return r
	}
	l := listen(t, e, ListenOptions{Conn: ConnOptions{Memory: lend(mem)}}, rec)
	const clients, each = 6, 5
	var want [clients][]byte
	for i := range clients {
		want[i] = pattern(100_000, byte(i))
		p := dialPeer(t, l)
		go func() {
			for range each {
				p.Write(fragment(true, want[i]))
			}
		}()
	}
	testkit.Eventually(t, "a connection waits for memory", func() bool { return mem.Waits() > 0 })
	for i := range clients * each {
		select {
		case b := <-held:
			if !slices.ContainsFunc(want[:], func(w []byte) bool { return bytes.Equal(b.Bytes(), w) }) {
				t.Error("record changed")
			}
			b.Release()
		case <-time.After(testkit.Patience):
			t.Fatalf("stuck after %d records, %d octets on loan", i, mem.Used())
		}
	}
	if mem.Peak() > mem.limit {
		t.Errorf("peak %d over the budget", mem.Peak())
	}
}

// When incomplete records hold all memory and all wait for more, one of them is given up.
func TestMemoryDeadlock(t *testing.T) {
	t.Parallel()
	e := startEngine(t, EngineOptions{Loops: 1, MemoryTimeout: 100 * time.Millisecond})
	mem := &testMemory{limit: 512 << 10} // four first leases of 128 KiB
	var recs []*recorder
	l := listen(t, e, ListenOptions{Conn: ConnOptions{Memory: lend(mem)}}, func(*Conn) RecordHandler {
		r := newRecorder()
		recs = append(recs, r)
		return r
	})
	var peers []*peer
	for range 4 {
		p := dialPeer(t, l)
		p.send(fragment(true, pattern(300_000, 0))[:1000])
		peers = append(peers, p)
	}
	testkit.Eventually(t, "all memory is leased", func() bool { return mem.Used() == mem.limit })
	for _, p := range peers {
		p.send(make([]byte, 100_000))
	}
	wantReason(t, recs[0].wait(t, "a deadlock over memory"), reasonMemory)
}

// A connection that gets no memory for the first octets of a record is given up, although it
// holds none. It would stay for ever otherwise: it does not read its peer's FIN.
func TestMemoryRefusedFromTheStart(t *testing.T) {
	t.Parallel()
	e := startEngine(t, EngineOptions{Loops: 1, MemoryTimeout: 100 * time.Millisecond})
	mem := &testMemory{limit: 512}
	all, err := mem.Lease(512)
	if err != nil {
		t.Fatal(err)
	}
	rec := newRecorder()
	l := listen(t, e, ListenOptions{Conn: ConnOptions{Memory: lend(mem)}}, func(*Conn) RecordHandler { return rec })
	p := dialPeer(t, l)
	p.send(fragment(true, pattern(100, 0)))
	p.CloseWrite()
	wantReason(t, rec.wait(t, "no memory for the first octet"), reasonMemory)
	all.Release()
}

// While memory is short, a Conn gets as much memory as has arrived of a record, and delivers it.
func TestMemoryShort(t *testing.T) {
	mem := &testMemory{limit: 8 << 10} // a lease of 64 KiB never succeeds
	h := newRecorder()
	var got []byte
	h.record = func(_ *Conn, b Buffer) { got = bytes.Clone(b.Bytes()); b.Release() }
	c := offlineConn(ConnOptions{Memory: lend(mem)}, h)
	want := pattern(2000, 4)
	in := fragment(true, want)
	for _, n := range []int{5, 300, 1000} {
		c.pass(in[:n])
		in = in[n:]
	}
	c.pass(in)
	if !bytes.Equal(got, want) {
		t.Errorf("record of %d octets", len(got))
	}
}

// A paused Conn notices RST at once, and FIN when reading is resumed.
func TestEndWhilePaused(t *testing.T) {
	e := startEngine(t, EngineOptions{})
	rec := newRecorder()
	conn := make(chan *Conn, 1)
	rec.record = func(c *Conn, b Buffer) { b.Release(); c.Pause(); conn <- c }
	l := listen(t, e, ListenOptions{}, func(*Conn) RecordHandler { return rec })

	p := dialPeer(t, l)
	p.send(fragment(true, pattern(8, 0)))
	<-conn
	p.SetLinger(0)
	p.Close()
	if err := rec.wait(t, "RST while paused"); !isReset(err) {
		t.Errorf("closed with %v, want a reset", err)
	}

	p = dialPeer(t, l)
	p.send(fragment(true, pattern(8, 0)))
	c := <-conn
	p.Close()
	testkit.Eventually(t, "the kernel has the FIN", func() bool {
		ti, err := unix.GetsockoptTCPInfo(onLoop(c, func() int { return c.sock.Descriptor() }), unix.IPPROTO_TCP, unix.TCP_INFO)
		return err == nil && ti.State == unix.BPF_TCP_CLOSE_WAIT
	})
	onLoop(c, func() int { return 0 }) // one more pass
	select {
	case err := <-rec.done:
		t.Errorf("closed with %v while paused", err)
	default:
	}
	c.Loop().Post(loop.TaskFunc(c.Resume))
	if err := rec.wait(t, "FIN after resuming"); err != io.EOF {
		t.Errorf("closed with %v, want EOF", err)
	}
}
