package tcpframe

import (
	"bytes"
	"io"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdmabridge/rdmabridge/internal/testkit"
)

// A copier is a recorder that counts what Copied tells.
type copier struct {
	*recorder
	written, dropped atomic.Int64
}

func (r *copier) Copied(records int, written bool) {
	if written {
		r.written.Add(int64(records))
	} else {
		r.dropped.Add(int64(records))
	}
}

// listenCopier listens with one copier, which calls record on its loop for each record.
func listenCopier(t *testing.T, record func(*Conn)) (*copier, *Listener) {
	t.Helper()
	e := startEngine(t, EngineOptions{Loops: 1})
	r := &copier{recorder: newRecorder()}
	r.record = func(c *Conn, b Buffer) {
		b.Release()
		record(c)
	}
	return r, listen(t, e, ListenOptions{}, func(*Conn) RecordHandler { return r })
}

// TestSendCopy: copied records arrive in order with those that are lent, whatever becomes of the octets
// they were copied from, and Copied counts them.
func TestSendCopy(t *testing.T) {
	const copies, every = 200, 7
	var longest bool
	r, l := listenCopier(t, func(c *Conn) {
		b := make([]byte, copyUpTo+1)
		for i := range copies {
			n := copy(b, pattern(4*i%copyUpTo, byte(i)))
			for !c.SendCopy(b[:n]) {
				c.write() // more than may wait
			}
			if i%every == 0 {
				c.Send([][]byte{pattern(5000, byte(i))}, nil)
			}
		}
		longest = c.SendCopy(b)
	})
	p := dialPeer(t, l)
	p.send(fragment(true, pattern(100, 0)))
	for i := range copies {
		if got := p.readRecord(); !bytes.Equal(got, pattern(4*i%copyUpTo, byte(i))) {
			t.Fatalf("record %d of %d octets differs", i, len(got))
		}
		if i%every == 0 && !bytes.Equal(p.readRecord(), pattern(5000, byte(i))) {
			t.Fatalf("the record behind number %d differs", i)
		}
	}
	p.Close()
	r.wait(t, "the peer closes")
	if longest {
		t.Error("SendCopy has copied a long record")
	}
	if n, lost := r.written.Load(), r.dropped.Load(); n != copies || lost != 0 {
		t.Errorf("%d records were written and %d not, want %d and 0", n, lost, copies)
	}
}

// TestSendCopyUnread: when a peer does not read, SendCopy soon refuses, and Copied tells exactly how many of the
// records that it took the kernel has.
func TestSendCopyUnread(t *testing.T) {
	t.Parallel()
	var taken, refused atomic.Int64
	var conn *Conn
	r, l := listenCopier(t, func(c *Conn) {
		conn = c
		if err := unix.SetsockoptInt(c.sock.Descriptor(), unix.SOL_SOCKET, unix.SO_SNDBUF, 4096); err != nil {
			t.Error(err)
		}
		for i := 0; refused.Load() == 0; i++ {
			if c.SendCopy(pattern(400, byte(i))) {
				taken.Add(1)
				continue
			}
			if c.write(); c.blocked {
				refused.Add(1)
			}
		}
		if c.SendCopy(pattern(4, 0)) {
			t.Error("SendCopy copies for a peer that does not read")
		}
	})
	p := dialPeer(t, l)
	if err := p.SetReadBuffer(4096); err != nil {
		t.Fatal(err)
	}
	p.send(fragment(true, pattern(100, 0)))
	testkit.Eventually(t, "SendCopy refuses", func() bool { return refused.Load() > 0 })
	p.SetLinger(0)
	p.Close()
	r.wait(t, "the peer aborts")
	whole := conn.tx / (400 + markLen)
	if n, lost := r.written.Load(), r.dropped.Load(); n != whole || n+lost != taken.Load() || lost == 0 {
		t.Errorf("%d records were written and %d not; the kernel has %d octets, which are %d of %d records", n, lost, conn.tx, whole, taken.Load())
	}
	if left := taken.Load() - whole; left*(400+markLen) > mostBlocked+copyBlock {
		t.Errorf("%d records were copied and not written, more than %d octets", left, mostBlocked)
	}
}

// TestSendCopyBlocks: connections of one loop that do not read hold no more than a MiB of blocks, and none when they
// have ended.
func TestSendCopyBlocks(t *testing.T) {
	l := &Loop{}
	var all []*outRecord
	for (&Conn{loop: l, state: open}).copies(1) {
		all = append(all, l.takeBlock())
	}
	if len(all) != mostBlocks {
		t.Errorf("%d blocks in use, want %d", len(all), mostBlocks)
	}
	for _, r := range all {
		r.block.n, r.block.records = 100, 1
		l.putBlock(r)
		l.putNode(r)
	}
	if l.blocksOut != 0 || len(l.blocks) != keepBlocks {
		t.Errorf("%d blocks in use and %d kept, want 0 and %d", l.blocksOut, len(l.blocks), keepBlocks)
	}
	if i := slices.IndexFunc(l.blocks, func(b *sendBlock) bool { return b.n != 0 || b.records != 0 }); i >= 0 {
		t.Errorf("spare block %d is not empty", i)
	}
}

// TestSendCopyAllocs: a record and its copied echo do not allocate.
func TestSendCopyAllocs(t *testing.T) {
	e := startEngine(t, EngineOptions{tick: time.Hour})
	l := listen(t, e, ListenOptions{Conn: ConnOptions{Memory: lend(&testMemory{})}}, func(*Conn) RecordHandler { return copySender{} })
	p := dialPeer(t, l)
	rec := fragment(true, pattern(100, 0))
	buf := make([]byte, len(rec))
	if a := testing.AllocsPerRun(200, func() {
		p.send(rec)
		io.ReadFull(p, buf)
	}); a >= 1 {
		t.Errorf("%v allocs per round trip, want 0", a)
	}
}

// A copySender echoes as sender does, with SendCopy.
type copySender struct{ sender }

func (copySender) Copied(int, bool) {}
func (copySender) Record(c *Conn, b Buffer) {
	c.SendCopy(b.Bytes())
	b.Release()
}

// A relayer has two other connections of its loop copy what it can of its runs.
type relayer struct {
	took [][]byte // records that Run has taken itself
	*recorder
	to     [2]*Conn
	after  func() // follows each record that was relayed
	relays [2]int
}

func (r *relayer) Run(c *Conn) {
	for m := c.Next(); m != nil; m = c.Next() {
		if m[4]%7 == 6 {
			r.took = append(r.took, bytes.Clone(m))
			c.Took(m, 0)
			continue
		}
		to := int(m[5])
		if m[4]%7 == 0 || !c.Relay(r.to[to], m) {
			return
		}
		m[6] = 0xff // the connection copies it later
		r.relays[to]++
		r.after()
	}
}

// relays sends n records in one piece to a relayer on the loop of two copiers, and returns what it left to Record. Each
// record has its number, that of the copier, and whether it was relayed, in three octets.
func relays(t *testing.T, n, size int, after func(*relayer)) (r *relayer, copiers [2]*copier, peers [2]*peer, left [][]byte) {
	e := startEngine(t, EngineOptions{Loops: 1})
	all := make(chan RecordHandler, 3)
	l := listen(t, e, ListenOptions{}, func(*Conn) RecordHandler { return <-all })
	r = &relayer{recorder: newRecorder()}
	r.after = func() { after(r) }
	r.record = func(c *Conn, b Buffer) {
		left = append(left, bytes.Clone(b.Bytes()))
		b.Release()
	}
	for i := range copiers {
		copiers[i] = &copier{recorder: newRecorder()}
		opened := make(chan *Conn, 1)
		copiers[i].opened = func(c *Conn) { opened <- c }
		all <- copiers[i]
		peers[i] = dialPeer(t, l)
		r.to[i] = <-opened
	}
	all <- r
	p := dialPeer(t, l)
	var out []byte
	for i := range n {
		m := make([]byte, 8+4*(i*size%(copyUpTo/4)))
		m[4], m[5] = byte(i), byte(i/5%2)
		out = append(out, fragment(true, m)...)
	}
	p.send(out)
	p.Close()
	r.wait(t, "its peer closes")
	return r, copiers, peers, left
}

// TestRelay: the records of a run arrive where they are relayed to, with what was written to them, in order, and each
// once. Between them are some that the handler takes itself. Those that are left, or too long to be copied, come to Record.
func TestRelay(t *testing.T) {
	const records = 100 // SendCopy takes no more octets for each of the two
	r, copiers, peers, left := relays(t, records, 13, func(*relayer) {})
	next, took := 0, 0
	for i := range records {
		n := 8 + 4*(i*13%(copyUpTo/4))
		var m []byte
		relayed := false
		switch {
		case i%7 == 6:
			m = r.took[took]
			took++
		case i%7 != 0 && n <= copyUpTo:
			relayed = true
			m = peers[i/5%2].readRecord()
		default:
			m = left[next]
			next++
		}
		if len(m) != n || int(m[4]) != i || (m[6] == 0xff) != relayed {
			t.Fatalf("record %d of %d octets came as %d octets, % x", i, n, len(m), m[:8])
		}
	}
	for i, c := range copiers {
		peers[i].Close()
		c.wait(t, "the peer closes")
		if n := int(c.written.Load()); n != r.relays[i] || c.dropped.Load() != 0 {
			t.Errorf("copied %d records, and dropped %d, want %d and 0", n, c.dropped.Load(), r.relays[i])
		}
	}
	if len(left) < records/7 || r.relays[0] < 25 || r.relays[1] < 25 {
		t.Errorf("%d were left, and %v relayed", len(left), r.relays)
	}
}

// TestRelayToEnded: records that were relayed to a connection which ends before they are copied count as not written.
func TestRelayToEnded(t *testing.T) {
	r, copiers, _, _ := relays(t, 5, 1, func(r *relayer) {
		if r.relays[0] == 3 {
			r.to[0].Abort(io.ErrClosedPipe)
		}
	})
	copiers[0].wait(t, "it was aborted")
	if n := copiers[0].dropped.Load(); n != 4 || r.relays[0] != 4 || copiers[0].written.Load() != 0 {
		t.Errorf("%d of %d records were dropped, and %d written", n, r.relays[0], copiers[0].written.Load())
	}
}
