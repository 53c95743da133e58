package names

import (
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/rpc/xdr"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
)

// pipe returns a pipe that ends with the test.
func pipe(t *testing.T) (r, w *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close(); w.Close() })
	return r, w
}

// another starts a Watch that may be closed before the test ends.
func another(t *testing.T) (w *Watch, closes func()) {
	w = Start(Options{Loops: 1, Memory: 1 << 21, Missed: func(uint64) {}})
	closes = sync.OnceFunc(w.Close)
	t.Cleanup(closes)
	return w, closes
}

// randomFact is what a client of a server with some thousand files may bring.
func randomFact(r *rand.Rand) fact {
	handle := func() string { return fmt.Sprint("h", r.IntN(3000)) }
	name := func() string { return fmt.Sprint("n", r.IntN(5)) }
	h := handle()
	switch n := r.IntN(20); {
	case n < 9:
		return child(h, handle(), name())
	case n < 12:
		return remove(handle(), name())
	case n < 14:
		return rename(handle(), name(), handle(), name())
	case n < 15:
		return root("h0", "/export")
	case n < 16:
		return root4("h1")
	case n < 18:
		return in4(h, 1)
	}
	return in(h, 2)
}

// TestTell: a Watch that hears another one knows what that knows in the end, although it learns meanwhile.
func TestTell(t *testing.T) {
	for seed := range uint64(5) {
		r := rand.New(rand.NewPCG(seed, 1))
		from, closes := another(t)
		to, _ := another(t)
		at := 0
		learns := func(n int) {
			for range n {
				at++
				from.mu.Lock()
				p := parsed{facts: []fact{randomFact(r)}}
				from.book.read(clientA, "nfs", &p, int64(at), from.teller)
				from.mu.Unlock()
			}
		}
		learns(10_000)
		in, out := pipe(t)
		ended := make(chan struct{})
		go func() {
			to.hear(in, func() {})
			close(ended)
		}()
		from.Tell(out, func() {})
		learns(10_000)
		testkit.Eventually(t, "nothing waits", func() bool {
			from.mu.Lock()
			defer from.mu.Unlock()
			return len(from.teller.pending) == 0
		})
		closes()
		<-ended

		a, b := from.book.table, to.book.table
		b.check(t)
		live := 0
		for key, e := range a.entries {
			x := b.entries[key]
			named := a.children[e.place] == e
			if named {
				live++
			}
			if x == nil || named != (b.children[x.place] == x) || x.removed != e.removed || x.place != e.place || x.mounted != e.mounted || x.fsids != e.fsids || x.owner.client != e.owner.client {
				t.Errorf("seed %d: %q is %+v, want %+v", seed, key, x, e)
			}
		}
		for key := range b.entries {
			if a.entries[key] == nil {
				t.Errorf("seed %d: %q is not known where it comes from", seed, key)
			}
		}
		if live < 1000 || len(a.children) != len(b.children) {
			t.Errorf("seed %d: %d files, %d names, and %d names were told", seed, live, len(a.children), len(b.children))
		}
	}
}

// TestTellExports: exports are known by what is told, those of NFSv4 that have no MOUNT among them, and what was used last is
// kept longest.
func TestTellExports(t *testing.T) {
	from, to := start(t, Options{Loops: 1}), start(t, Options{Loops: 1})
	for _, f := range []fact{
		root4("r"), in4("r", 1), child("home", "r", "home"), in4("home", 2), child("file", "home", "x"), in4("file", 2),
		root("v3", "/scratch"), in("v3", 7), child("y", "v3", "y"), in("y", 7),
	} {
		from.book.learn(clientA, "nfs", &f)
	}
	in, out := pipe(t)
	from.Tell(out, func() {})
	to.Hear(in, testkit.Patience)
	for handle, want := range map[string]string{"file": "/home/x in /home", "y": "/scratch/y in /scratch", "r": "/ in /"} {
		for _, w := range []*Watch{from, to} {
			w.mu.Lock()
			e := w.book.table.entries["nfs\x00"+handle]
			got := "nothing"
			if e != nil {
				got = w.book.table.path(e) + " in " + w.book.exportName(w.book.exportOf("nfs", []byte(handle), nil), func(s string) string { return s })
			}
			w.mu.Unlock()
			if got != want {
				t.Errorf("%s is %s, want %s", handle, got, want)
			}
		}
	}
	oldest := func(w *Watch) (keys []string) {
		for x := w.book.table.owners[clientA].recent.Back(); x != nil; x = x.Prev() {
			keys = append(keys, x.Value.(*entry).key)
		}
		return keys
	}
	if a, b := oldest(from), oldest(to); len(a) != 5 || !slices.Equal(a, b) {
		t.Errorf("used in the order %q, told %q", a, b)
	}
}

// TestTellMounted: that what is known already is what clients mount is told, too.
func TestTellMounted(t *testing.T) {
	from, _ := another(t)
	to, _ := another(t)
	b := &from.book
	f := fact{kind: named, handle: []byte("r"), name: []byte("/export")}
	b.learn(clientA, "nfs", &f)
	in, out := pipe(t)
	from.Tell(out, func() {})
	to.Hear(in, testkit.Patience)
	from.mu.Lock()
	b.read(clientA, "nfs", &parsed{facts: []fact{root("r", "/export")}}, 1, from.teller)
	from.mu.Unlock()
	testkit.Eventually(t, "it is mounted", func() bool {
		to.mu.Lock()
		defer to.mu.Unlock()
		return to.book.table.entries["nfs\x00r"].mounted
	})
}

// TestRecent: of a table that is not too large all is told, whoever has brought it; of a larger one, each client's share.
func TestRecent(t *testing.T) {
	b := newBook(1 << 20)
	for i := range 10 {
		b.told(clientA, child(fmt.Sprint("a", i), "d", fmt.Sprint("a", i)))
	}
	b.told(clientB, child("b0", "d", "b0"), child("b1", "d", "b1"))
	for most, want := range map[int][]string{
		12: {"a0", "a1", "a2", "a3", "a4", "a5", "a6", "a7", "a8", "a9", "b0", "b1"},
		11: {"a5", "a6", "a7", "a8", "a9", "b0", "b1"},
		2:  {"a9", "b1"},
	} {
		var got []string
		for _, e := range b.table.recent(most) {
			got = append(got, e.name)
		}
		if slices.Sort(got); !slices.Equal(got, want) {
			t.Errorf("of %d: %q, want %q", most, got, want)
		}
	}
}

// TestTellCalls: what a client does while a Watch is told of is known as well, as soon as the other one has ended.
func TestTellCalls(t *testing.T) {
	from, closes := another(t)
	to, _ := another(t)
	f := newFeeder(from, 0, "192.0.2.1")
	f.lookup("ffff", "dddd", "before")
	in, out := pipe(t)
	from.Tell(out, func() {})
	to.Hear(in, testkit.Patience)
	f.lookup("gggg", "dddd", "after")
	f.call("RENAME", 14, items{"dddd", "before", "dddd", "renamed"}, items{0, 0, 0, 0, 0})
	closes()
	testkit.Eventually(t, "what was told last is known", func() bool {
		to.mu.Lock()
		defer to.mu.Unlock()
		e := to.book.table.entries["nfs\x00ffff"]
		return e != nil && e.name == "renamed" && to.book.table.entries["nfs\x00gggg"] != nil
	})
}

// TestTellLater: of what two processes say of a name or a handle, what was so later counts, whichever comes first.
func TestTellLater(t *testing.T) {
	at := func(at int64, f fact) fact { f.at = at; return f }
	for _, v := range []struct {
		own, told fact
		want      string
	}{
		{at(5, rename("d", "x", "d", "y")), at(4, child("f", "d", "x")), "/export/y"},
		{at(5, rename("d", "x", "d", "y")), at(6, child("f", "d", "z")), "/export/z"},
		{at(5, remove("d", "x")), at(4, rename("d", "x", "d", "y")), "/export/x removed"},
		{at(5, child("f", "d", "y")), at(4, rename("d", "y", "d", "z")), "/export/y"},
		{at(5, child("f", "d", "y")), at(4, remove("d", "y")), "/export/y"},
		{at(5, child("f", "d", "x")), at(4, remove("d", "x")), "/export/x"}, // seen again
		{at(4, child("f", "d", "x")), at(5, remove("d", "x")), "/export/x removed"},
		{at(5, child("g", "d", "y")), at(4, rename("d", "x", "d", "y")), "/export/y"},
	} {
		b := newBook(1 << 20)
		for _, f := range []fact{root("d", "/export"), at(1, child("f", "d", "x")), v.own, v.told} {
			b.learn(clientA, "nfs", &f)
		}
		b.table.check(t)
		if got := b.pathOf("f"); got != v.want {
			t.Errorf("%+v, and %+v is told: %s, want %s", v.own, v.told, got, v.want)
		}
	}
}

// fill has w know n files, and tells who hears it of each.
func fill(w *Watch, n int, name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range n {
		p := parsed{facts: []fact{child(fmt.Sprint("h", name, i), "d", strings.Repeat(name, 200)+fmt.Sprint(i))}}
		w.book.read(clientA, "nfs", &p, 0, w.teller)
	}
}

// TestTellNobody: of two who ask, the last one is told. A Watch notices that nobody reads, also while it learns nothing, and tells
// whoever is too slow no more.
func TestTellNobody(t *testing.T) {
	from, closes := another(t)
	fill(from, 1000, "x") // more than there is room for in a pipe
	late := make(chan struct{})
	never := func() { t.Error("nobody is slow") }
	telling := func() bool {
		from.mu.Lock()
		defer from.mu.Unlock()
		return from.teller != nil
	}
	_, stuck := pipe(t)
	from.Tell(stuck, never)
	in, out := pipe(t)
	from.Tell(out, never)
	to, _ := another(t)
	to.Hear(in, testkit.Patience)
	to.mu.Lock()
	if n := len(to.book.table.entries); n != 1000 {
		t.Errorf("%d entries were told", n)
	}
	to.mu.Unlock()
	if !telling() {
		t.Error("nobody is told any more")
	}
	in.Close()
	testkit.Eventually(t, "the reader is missed", func() bool { return !telling() })

	slow, out := pipe(t)
	from.Tell(out, func() { close(late) })
	go to.hear(slow, func() {
		// It has read what was known, and stops until too much waits.
		fill(from, 20_000, "y")
	})
	<-late
	testkit.Eventually(t, "the slow one is given up", func() bool { return !telling() })
	closes()
	_, out = pipe(t)
	from.Tell(out, never)
	if _, err := out.Write([]byte{0}); err == nil {
		t.Error("a Watch that is closed keeps a pipe open")
	}
}

// TestHearNonsense: what is no telling ends the hearing and is not learned, and what is cut off has learned what came before.
func TestHearNonsense(t *testing.T) {
	var good, bad facts
	f := child("ffff", "dddd", "name")
	good.add(clientA, "nfs", &f)
	bad.add(clientA, "nfs", &fact{kind: within, handle: []byte("ffff"), fsid: fsid{version: 5}})
	for name, v := range map[string]struct {
		told []byte
		know int
	}{
		"all":            {slices.Concat(good, xdr.AppendWords(nil, 0)), 1},
		"cut off":        {append(slices.Clone(good), good[:len(good)-1]...), 1},
		"too long":       {xdr.AppendWords(nil, mostRecord+1), 0},
		"no kind":        {xdr.AppendWords(nil, 4, 99), 0},
		"no file system": {bad, 0},
		"nothing":        {nil, 0},
	} {
		w := start(t, Options{Loops: 1})
		known := 0
		w.hear(io.NopCloser(strings.NewReader(string(v.told))), func() { known++ })
		if n := len(w.book.table.entries); n != v.know || known == 0 {
			t.Errorf("%s: %d entries, want %d", name, n, v.know)
		}
	}
}

// TestHearWaits: it does not wait for ever for a process that does not tell.
func TestHearWaits(t *testing.T) {
	in, _ := pipe(t)
	w, closes := another(t)
	w.Hear(in, time.Millisecond)
	closes()
	testkit.Eventually(t, "the pipe is closed", func() bool { return in.SetReadDeadline(time.Now()) != nil })
}
