package names

import (
	"bufio"
	"encoding/binary"
	"io"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdmabridge/rdmabridge/internal/rpc/xdr"
)

// Handing over
//
// A process that takes over from another one gets what that has learned, and what that still learns while it drains. So
// clients that know a file go on with it, and its path is known here, too. It comes through a pipe, as facts: those that
// make the table of the other process first, then each that changes something in it. Counts are not handed over.
//
// For a while both processes have clients. Of what both say of a handle or a name, what was so later counts: facts have the
// time of their Replies. The old process does not hear of the new one.

const (
	tellEvery  = 10 * time.Millisecond // how often what was learned is written
	mostTold   = 1 << 20               // entries of the table
	tellMany   = 64 << 10              // octets of it that are written at a time
	mostUntold = 2 << 20               // octets of what was learned that wait, and that are being written
	mostRecord = 16 << 10              // octets
	lastWords  = 5 * time.Second       // how long Close waits for a reader
)

// A teller writes what a Watch knows and learns.
type teller struct {
	out  *os.File
	late func()        // called once if the reader is too slow: it does not get all
	end  chan struct{} // closed when nothing more is learned
	done chan struct{} // closed when the goroutine has ended

	// Watch.mu guards these.
	pending facts
	isLate  bool
}

// A known is an entry of a table as it was at a time. Its texts are the table's.
type known struct {
	key string
	place
	mounted, removed bool
	nameless         bool // no name leads to it
	at               int64
	fsids            [2]fsid
	client           netip.Addr
}

// facts are those of a hand-over, one behind the other as add writes them.
type facts []byte

// Tell has w write to out what it knows, of the entries of a large table those that were used last, and then what it learns, for
// the Hear of another process. It closes out when w is closed, or nobody reads any more. If the reader is too slow, it calls
// late, and closes out. Of two calls the last one counts.
func (w *Watch) Tell(out *os.File, late func()) {
	t := &teller{out: out, late: late, end: make(chan struct{}), done: make(chan struct{})}
	closed := true
	w.inside(func() {
		closed = false
		w.endTelling()
		w.teller = t
	})
	if closed {
		_ = out.Close()
		return
	}
	go t.run(w)
}

// known returns what w knows. What is learned from now on is to be told behind it.
func (t *teller) known(w *Watch) []known {
	w.mu.Lock()
	defer w.mu.Unlock()
	t.pending = t.pending[:0]
	return w.book.table.recent(mostTold)
}

// recent returns all entries, or if they are more than most, as many of each client at the most. Of each client, those that were
// used last are at the end.
func (t *table) recent(most int) []known {
	all := make([]known, 0, min(most, len(t.entries)))
	share := most
	if len(t.entries) > most {
		share = most / len(t.owners)
	}
	for _, o := range t.owners {
		from := len(all)
		for x := o.recent.Front(); x != nil && len(all) < from+share; x = x.Next() {
			e := x.Value.(*entry)
			all = append(all, known{e.key, e.place, e.mounted, e.removed, t.children[e.place] != e, e.at, e.fsids, o.client})
		}
		slices.Reverse(all[from:])
	}
	return all
}

// endTelling has the teller write what waits, and end. The caller holds w.mu.
func (w *Watch) endTelling() (done <-chan struct{}) {
	t := w.teller
	if t == nil {
		return nil
	}
	w.teller = nil
	_ = t.out.SetWriteDeadline(time.Now().Add(lastWords))
	close(t.end)
	return t.done
}

func (t *teller) run(w *Watch) {
	defer close(t.done)
	defer t.out.Close()
	err := t.tellKnown(t.known(w))
	tick := time.NewTicker(tellEvery)
	defer tick.Stop()
	var learned facts
	for late, ended := false, false; err == nil && !late && !ended; {
		select {
		case <-t.end:
			ended = true
		case <-tick.C:
		}
		if learned, late = t.collect(w, learned); len(learned) > 0 {
			_, err = t.out.Write(learned)
		} else if unread(t.out) {
			break
		}
		if late {
			t.late()
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.teller == t {
		w.teller = nil
	}
}

// unread reports whether nobody has the other end of a pipe.
func unread(out *os.File) (broken bool) {
	c, err := out.SyscallConn()
	if err != nil {
		return true
	}
	err = c.Control(func(fd uintptr) {
		p := []unix.PollFd{{Fd: int32(fd)}}
		_, _ = unix.Poll(p, 0)
		broken = p[0].Revents&unix.POLLERR != 0
	})
	return broken || err != nil
}

// collect returns what w has learned. The memory of spare is for what comes then.
func (t *teller) collect(w *Watch, spare facts) (learned facts, late bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.closed {
		w.drain()
	}
	learned, t.pending = t.pending, spare[:0]
	return learned, t.isLate
}

// tellKnown writes the facts that make all. Entries that have lost their names come first, since others may have
// those now, and file systems last, since the paths of their roots are asked for when they come.
func (t *teller) tellKnown(all []known) error {
	var b facts
	for _, tell := range []func(*facts, *known){tellNameless, tellNamed, tellWithin} {
		for i := range all {
			if tell(&b, &all[i]); len(b) < tellMany {
				continue
			}
			if _, err := t.out.Write(b); err != nil {
				return err
			}
			b = b[:0]
		}
	}
	b.add(netip.Addr{}, "", &fact{kind: told})
	_, err := t.out.Write(b)
	return err
}

// fact returns the listener of e, and the fact that e makes.
func (e *known) fact() (listener string, f fact) {
	listener, handle, _ := strings.Cut(e.key, "\x00")
	f = fact{kind: entered, handle: []byte(handle), name: []byte(e.name), at: e.at, mounted: e.mounted, removed: e.removed, nameless: e.nameless}
	if e.dir != "" {
		_, dir, _ := strings.Cut(e.dir, "\x00")
		f.dir = []byte(dir)
	}
	return listener, f
}

func tellNameless(b *facts, e *known) {
	if e.nameless {
		listener, f := e.fact()
		b.add(e.client, listener, &f)
	}
}

func tellNamed(b *facts, e *known) {
	if !e.nameless {
		listener, f := e.fact()
		b.add(e.client, listener, &f)
	}
}

func tellWithin(b *facts, e *known) {
	listener, f := e.fact()
	for _, id := range e.fsids {
		if id.version != 0 {
			b.add(e.client, listener, &fact{kind: within, handle: f.handle, fsid: id})
		}
	}
}

// learned notes a fact that is to be told. The caller holds Watch.mu.
func (t *teller) learned(client netip.Addr, listener string, f *fact) {
	if t.isLate = t.isLate || len(t.pending) > mostUntold; !t.isLate {
		t.pending.add(client, listener, f)
	}
}

// add appends a fact: its length, and what Hear reads.
func (b *facts) add(client netip.Addr, listener string, f *fact) {
	begin := len(*b)
	bits := uint32(0)
	for i, set := range []bool{f.mounted, f.removed, f.nameless} {
		if set {
			bits |= 1 << i
		}
	}
	x := xdr.AppendWords(*b, 0, uint32(f.kind), bits, uint32(f.fsid.version))
	for _, n := range []uint64{f.fsid.major, f.fsid.minor, uint64(f.at)} {
		x = xdr.AppendUint64(x, n)
	}
	for _, text := range [][]byte{[]byte(listener), client.AsSlice(), f.handle, f.dir, f.name, f.toDir, f.toName} {
		x = xdr.AppendOpaque(x, text)
	}
	binary.BigEndian.PutUint32(x[begin:], uint32(len(x)-begin-4))
	*b = x
}

// readTold reads what add has written behind the length. The texts of f are parts of record.
func readTold(record []byte) (client netip.Addr, listener string, f fact, ok bool) {
	x := xdr.NewCursor(record, 0)
	f.kind = kind(x.Uint32())
	bits := x.Uint32()
	f.mounted, f.removed, f.nameless = bits&1 != 0, bits&2 != 0, bits&4 != 0
	f.fsid = fsid{version: uint8(x.Uint32()), major: x.Uint64(), minor: x.Uint64()}
	f.at = int64(x.Uint64())
	var from, address []byte
	for _, text := range []*[]byte{&from, &address, &f.handle, &f.dir, &f.name, &f.toDir, &f.toName} {
		if *text = x.Octets(); len(*text) == 0 {
			*text = nil // a fact has none
		}
	}
	client, _ = netip.AddrFromSlice(address)
	ok = x.OK() && f.kind <= told && (f.kind != within || f.fsid.version == 3 || f.fsid.version == 4)
	return client, string(from), f, ok
}

// Hear learns what another process tells through in, which it closes when that ends, or w is closed. It returns when w has
// learned what the other knew when it began, and after the time most at the latest.
func (w *Watch) Hear(in io.ReadCloser, most time.Duration) {
	w.mu.Lock()
	closed := w.closed
	w.hears = in
	w.mu.Unlock()
	if closed {
		_ = in.Close()
		return
	}
	known := make(chan struct{})
	go w.hear(in, sync.OnceFunc(func() { close(known) }))
	select {
	case <-known:
	case <-time.After(most):
	}
}

func (w *Watch) hear(in io.ReadCloser, known func()) {
	defer known()
	defer in.Close()
	r := bufio.NewReaderSize(in, 64<<10)
	var record []byte
	for {
		var length [4]byte
		if _, err := io.ReadFull(r, length[:]); err != nil {
			return
		}
		n := int(binary.BigEndian.Uint32(length[:]))
		if n > mostRecord {
			return
		}
		record = slices.Grow(record[:0], n)[:n]
		if _, err := io.ReadFull(r, record); err != nil {
			return
		}
		client, listener, f, ok := readTold(record)
		switch {
		case !ok:
			return
		case f.kind == told:
			known()
			continue
		}
		w.mu.Lock()
		if !w.closed {
			w.book.learn(client, listener, &f)
		}
		w.mu.Unlock()
	}
}
