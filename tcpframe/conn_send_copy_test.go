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
