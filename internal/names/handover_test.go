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
		learns := func(n int) {
			for range n {
				from.mu.Lock()
				p := parsed{facts: []fact{randomFact(r)}}
				from.book.read(clientA, "nfs", &p, from.teller)
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
		from.Tell(out)
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
	from.Tell(out)
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

// TestTellCalls: what a client does while a Watch is told of is known as well, as soon as the other one has ended.
func TestTellCalls(t *testing.T) {
	from, closes := another(t)
	to, _ := another(t)
	f := newFeeder(from, 0, "192.0.2.1")
	f.lookup("ffff", "dddd", "before")
	in, out := pipe(t)
	from.Tell(out)
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

// TestTellNobody: a Watch that nobody hears goes on, and ends. The last of two who ask is told.
func TestTellNobody(t *testing.T) {
	from, closes := another(t)
	for i := range 10_000 { // more than there is room for in a pipe
		f := child(fmt.Sprint("h", i), "d", fmt.Sprint(i))
		from.book.learn(clientA, "nfs", &f)
	}
	_, stuck := pipe(t)
	from.Tell(stuck)
	gone, broken := pipe(t)
	gone.Close()
	from.Tell(broken)
	in, out := pipe(t)
	from.Tell(out)
	to, toCloses := another(t)
	to.Hear(in, testkit.Patience)
	to.mu.Lock()
	if n := len(to.book.table.entries); n < 1000 {
		t.Errorf("%d entries were told", n)
	}
	to.mu.Unlock()
	toCloses()
	from.mu.Lock()
	for i := range 50_000 { // the other has ended, and nobody reads
		p := parsed{facts: []fact{child(fmt.Sprint("i", i), "d", strings.Repeat("x", 200))}}
		from.book.read(clientA, "nfs", &p, from.teller)
	}
	if from.teller != nil && len(from.teller.pending) > mostUntold+mostRecord {
		t.Errorf("%d octets wait", len(from.teller.pending))
	}
	from.mu.Unlock()
	closes()
	from.Tell(out)
	to.Hear(in, 0)
	if _, err := out.Write([]byte{0}); err == nil {
		t.Error("a Watch that is closed keeps its pipe open")
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
