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

	"github.com/rdmabridge/rdmabridge/internal/rpc/xdr"
)

// Handing over
//
// A process that takes over from another one gets what that has learned, and what that still learns while it drains. So
// clients that know a file go on with it, and its path is known here, too. It comes through a pipe, as facts: those that
// make the table of the other process first, then each that it learns. Counts are not handed over.

const (
	tellEvery  = 10 * time.Millisecond // how often what was learned is written
	mostUntold = 4 << 20               // octets of it that wait to be written
	tellMany   = 64 << 10              // octets of the table that are written at a time
	mostRecord = 16 << 10              // octets
	lastWords  = time.Second           // how long Close waits for a reader
)

// A teller writes what a Watch knows and learns.
type teller struct {
	out  *os.File
	end  chan struct{} // closed when nothing more is learned
	done chan struct{} // closed when the goroutine has ended

	known []known // the goroutine's

	// Watch.mu guards these.
	pending facts
	late    bool // too much waited: what is told is not all
}

// A known is an entry of a table as it was at a time. Its texts are the table's, so that it takes less than half as much
// memory as the entry.
type known struct {
	entry    // its owner and its element of a list are not used
	client   netip.Addr
	nameless bool // no name leads to it
}

// facts are those of a hand-over, one behind the other as add writes them.
type facts []byte

// Tell has w write to out what it knows, and then what it learns, for the Hear of another process. It closes out when w is
// closed, or nobody reads any more. Of two calls the last one counts.
func (w *Watch) Tell(out *os.File) {
	t := &teller{out: out, end: make(chan struct{}), done: make(chan struct{})}
	closed := true
	w.inside(func() {
		closed = false
		t.known = w.book.table.all()
		w.endTelling()
		w.teller = t
	})
	if closed {
		_ = out.Close()
		return
	}
	go t.run(w)
}

// all returns all entries, those that were used last at the end.
func (t *table) all() []known {
	all := make([]known, 0, len(t.entries))
	for _, o := range t.owners {
		for x := o.recent.Back(); x != nil; x = x.Prev() {
			e := x.Value.(*entry)
			all = append(all, known{entry: *e, client: o.client, nameless: t.children[e.place] != e})
		}
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
	err := t.tellKnown()
	tick := time.NewTicker(tellEvery)
	defer tick.Stop()
	var learned facts
	for late, ended := false, false; err == nil && !late && !ended; {
		select {
		case <-t.end:
			ended = true
		case <-tick.C:
		}
		learned, late = t.collect(w, learned)
		_, err = t.out.Write(learned)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.teller == t {
		w.teller = nil
	}
}

// collect returns what w has learned. The memory of spare is for what comes then.
func (t *teller) collect(w *Watch, spare facts) (learned facts, late bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.closed {
		w.drain()
	}
	learned, t.pending = t.pending, spare[:0]
	return learned, t.late
}

// tellKnown writes the facts that make the table of w. Entries that have lost their names come first, since others may have
// those now, and file systems last, since the paths of their roots are asked for when they come.
func (t *teller) tellKnown() error {
	var b facts
	for _, tell := range []func(*facts, *known){tellNameless, tellNamed, tellWithin} {
		for i := range t.known {
			if tell(&b, &t.known[i]); len(b) < tellMany {
				continue
			}
			if _, err := t.out.Write(b); err != nil {
				return err
			}
			b = b[:0]
		}
	}
	t.known = nil
	b.add(netip.Addr{}, "", &fact{kind: all})
	_, err := t.out.Write(b)
	return err
}

// fact returns the listener of e, and the fact that e makes.
func (e *known) fact() (listener string, f fact) {
	listener, handle, _ := strings.Cut(e.key, "\x00")
	f = fact{kind: entered, handle: []byte(handle), name: []byte(e.name), mounted: e.mounted, removed: e.removed, nameless: e.nameless}
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
	if t.late = t.late || len(t.pending) > mostUntold; !t.late {
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
	x = xdr.AppendUint64(xdr.AppendUint64(x, f.fsid.major), f.fsid.minor)
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
	var from, address []byte
	for _, text := range []*[]byte{&from, &address, &f.handle, &f.dir, &f.name, &f.toDir, &f.toName} {
		if *text = opaque(record, &x); len(*text) == 0 {
			*text = nil // a fact has none
		}
	}
	client, _ = netip.AddrFromSlice(address)
	ok = x.OK() && f.kind <= all && (f.kind != within || f.fsid.version == 3 || f.fsid.version == 4)
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
		case f.kind == all:
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
