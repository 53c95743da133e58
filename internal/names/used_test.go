package names

import (
	"fmt"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/status"
)

// TestUsed: the uses of chosen exports are told by their own paths, also with names hidden and hashed, scaled by the
// sample without loss of fractions, and end when an export is left out.
func TestUsed(t *testing.T) {
	told := make(map[string][3]uint64) // owned by the goroutine of w
	w := start(t, Options{Loops: 1, Sample: 0.4, Hash: true, Hide: Hidden{"home"}, Used: func(listener, export string, calls, read, written uint64) {
		k := listener + " " + export
		v := told[k]
		told[k] = [3]uint64{v[0] + calls, v[1] + read, v[2] + written}
	}})
	f := newFeeder(w, 0, "192.0.2.1")
	w.inside(func() {
		for handle, path := range map[string]string{"home-1-r": "/home", "scra-2-r": "/scratch"} {
			r := root(handle, path)
			w.book.learn(f.conn.Peer.Addr(), "nfs", &r)
		}
	})
	both := func() (n *status.Names, copied string) {
		t.Helper()
		n = w.Names(Query{Minutes: 1, Rows: 9})
		w.inside(func() { copied = fmt.Sprint(told) })
		return n, copied
	}
	f.read("home-1-r", 1000)
	if _, s := both(); s != "map[]" {
		t.Errorf("none is chosen, and told is %s", s)
	}
	w.Count([]string{"/home"})
	before, _ := both()
	var had float64
	for _, h := range before.Exports {
		had += h.Calls
	}
	for range 1001 {
		f.read("home-1-r", 1000)
		w.inside(func() {}) // tells each Call for itself
	}
	n, _ := both()
	calls := n.Exports[0].Calls - had
	want := fmt.Sprint(map[string][3]uint64{"nfs /home": {uint64(calls), uint64(calls * 1000), 0}})
	if _, s := both(); s != want || calls < 600 {
		t.Errorf("told %s, want %s", s, want)
	}
	for range 100 {
		f.read("scra-2-r", 10)
	}
	w.Count([]string{"/scratch"})
	for range 100 {
		f.read("home-1-r", 1000)
	}
	if _, s := both(); s != want {
		t.Errorf("told %s of exports that were not chosen, want %s", s, want)
	}
}
