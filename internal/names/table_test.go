package names

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
)

var (
	clientA = netip.MustParseAddr("192.0.2.1")
	clientB = netip.MustParseAddr("192.0.2.2")
)

// check fails t unless the table agrees with itself.
func (t *table) check(tb testing.TB) {
	tb.Helper()
	used, n := 0, 0
	for client, o := range t.owners {
		octets := 0
		for el := o.recent.Front(); el != nil; el = el.Next() {
			e := el.Value.(*entry)
			octets, n = octets+e.cost(), n+1
			if t.entries[e.key] != e || e.owner != o || e.used != el {
				tb.Fatalf("entry %q of %s is not as it should be", e.key, client)
			}
		}
		if octets != o.octets {
			tb.Fatalf("%s has %d octets and says %d", client, octets, o.octets)
		}
		used += octets
	}
	if used != t.used || n != len(t.entries) || t.used > t.room {
		tb.Fatalf("%d entries of %d, %d octets, counted as %d, room for %d", n, len(t.entries), used, t.used, t.room)
	}
	for at, e := range t.children {
		if t.entries[e.key] != e || e.place != at || e.removed {
			tb.Fatalf("%v leads to %q, which is at %v", at, e.key, e.place)
		}
	}
}

func (b *book) told(client netip.Addr, facts ...fact) {
	for i := range facts {
		b.learn(client, "nfs", &facts[i])
	}
}

// pathOf is what is known of a handle.
func (b *book) pathOf(handle string) string {
	e := b.table.find("nfs", []byte(handle))
	if e == nil {
		return "?"
	}
	if e.removed {
		return b.table.path(e) + " removed"
	}
	return b.table.path(e)
}

func child(handle, dir, name string) fact {
	return fact{kind: named, handle: []byte(handle), dir: []byte(dir), name: []byte(name)}
}

func root(handle, path string) fact {
	return fact{kind: mount, handle: []byte(handle), name: []byte(path)}
}

func remove(dir, name string) fact { return fact{kind: gone, dir: []byte(dir), name: []byte(name)} }

func rename(dir, name, toDir, toName string) fact {
	return fact{kind: moved, dir: []byte(dir), name: []byte(name), toDir: []byte(toDir), toName: []byte(toName)}
}

func in(handle string, major uint64) fact {
	return fact{kind: within, handle: []byte(handle), fsid: fsid{version: 3, major: major}}
}

func in4(handle string, major uint64) fact {
	return fact{kind: within, handle: []byte(handle), fsid: fsid{version: 4, major: major}}
}

// root4 is the root of NFSv4.
func root4(handle string) fact {
	return fact{kind: mount4, handle: []byte(handle), name: []byte("/")}
}

func newBook(room int) *book { return &book{newTable(room), newExports()} }

// TestPaths: what paths are, step by step.
func TestPaths(t *testing.T) {
	b := newBook(1 << 20)
	for _, v := range []struct {
		f      fact
		handle string
		want   string
	}{
		{child("f", "d", "x.o"), "f", ".../x.o"},
		{child("d", "r", "obj"), "f", ".../obj/x.o"},
		{root("r", "/export/"), "f", "/export/obj/x.o"},
		{rename("d", "x.o", "r", "y"), "f", "/export/y"},
		{child("f", "d", "link"), "f", "/export/obj/link"}, // the name that came last
		{remove("r", "y"), "f", "/export/obj/link"},        // that is another name
		{remove("d", "link"), "f", "/export/obj/link removed"},
		{child("g", "d", "link"), "f", "/export/obj/link removed"},
		{rename("d", "link", "d", "z"), "g", "/export/obj/z"},
		{child("f", "d", "again"), "f", "/export/obj/again"}, // the handle is used again
		{child("h", "d", "target"), "h", "/export/obj/target"},
		{rename("d", "again", "d", "target"), "h", "/export/obj/target removed"},
		{child("d", "f", "circle"), "d", ""},
		{root4("s"), "s", "/"},
		{child("t", "s", "etc"), "t", "/etc"},
		{child("s", "x", "no"), "t", "/etc"}, // what is mounted keeps its path
		{root("s", "/srv"), "t", "/srv/etc"}, // that of NFSv3, if it has two
		{root4("s"), "t", "/srv/etc"},
	} {
		b.told(clientA, v.f)
		if got := b.pathOf(v.handle); v.want != "" && got != v.want {
			t.Errorf("after %v: %s, want %s", &v.f, got, v.want)
		}
		b.table.check(t)
	}
}

// TestFair: a client that looks at everything pushes out only what it has brought, the oldest first.
func TestFair(t *testing.T) {
	b := newBook(100 * (entryCost + 20))
	b.told(clientA, root("r", "/export"))
	for i := range 20 {
		b.told(clientA, child(fmt.Sprint("a", i), "r", fmt.Sprint(i)))
	}
	for i := range 10_000 {
		b.told(clientB, child(fmt.Sprint("b", i), "r", fmt.Sprint("b", i)))
		b.pathOf("b0") // in use
	}
	b.table.check(t)
	for i := range 20 {
		if got, want := b.pathOf(fmt.Sprint("a", i)), fmt.Sprint("/export/", i); got != want {
			t.Errorf("a%d is %s, want %s", i, got, want)
		}
	}
	if got := b.pathOf("b9999"); got != "/export/b9999" {
		t.Errorf("the newest is %s", got)
	}
	if got := b.pathOf("b5000"); got != "?" {
		t.Errorf("an old one is %s", got)
	}
	if got := b.pathOf("b0"); got != "/export/b0" {
		t.Errorf("one that is in use is %s", got)
	}
}

// A tree is a model of a file system: the table must have the same paths.
type tree struct {
	up   map[string]place // of each handle that is there
	down map[place]string
	dirs []string
	next int
	free []string // handles to be used again
}

func (m *tree) path(h string) string {
	if h == "root" {
		return "/export"
	}
	return m.path(m.up[h].dir) + "/" + m.up[h].name
}

// below reports whether h is dir or below it.
func (m *tree) below(h, dir string) bool {
	for h != dir && h != "root" {
		h = m.up[h].dir
	}
	return h == dir
}

// TestModel: creates, renames and removes, with handles that are used again, against a model.
func TestModel(t *testing.T) {
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 1))
		b := newBook(1 << 24)
		b.told(clientA, root("root", "/export"))
		m := &tree{up: make(map[string]place), down: make(map[place]string), dirs: []string{"root"}}
		at := func() place { return place{m.dirs[r.IntN(len(m.dirs))], fmt.Sprint("n", r.IntN(12))} }
		removeIt := func(p place) {
			h := m.down[p]
			delete(m.down, p)
			delete(m.up, h)
			m.free = append(m.free, h)
		}
		for range 2000 {
			p := at()
			h, there := m.down[p]
			isDir := slices.Contains(m.dirs, h)
			switch n := r.IntN(10); {
			case n < 4 && !there:
				if h = fmt.Sprint("h", m.next); len(m.free) > 0 && r.IntN(2) == 0 {
					h, m.free = m.free[0], m.free[1:]
				} else {
					m.next++
				}
				m.up[h], m.down[p] = p, h
				if r.IntN(4) == 0 {
					m.dirs = append(m.dirs, h)
				}
				b.told(clientA, child(h, p.dir, p.name))
			case n < 6 && there && !isDir:
				removeIt(p)
				b.told(clientA, remove(p.dir, p.name))
			case n >= 6 && there:
				to := at()
				if old := m.down[to]; to == p || slices.Contains(m.dirs, old) || isDir && m.below(to.dir, h) {
					continue
				} else if old != "" {
					removeIt(to)
				}
				delete(m.down, p)
				m.up[h], m.down[to] = to, h
				b.told(clientA, rename(p.dir, p.name, to.dir, to.name))
			}
		}
		b.table.check(t)
		for h := range m.up {
			if got, want := b.pathOf(h), m.path(h); got != want {
				t.Fatalf("seed %d: %s is %s, want %s", seed, h, got, want)
			}
		}
		for _, h := range m.free {
			if e := b.table.find("nfs", []byte(h)); e == nil || !e.removed {
				t.Fatalf("seed %d: %s is not removed", seed, h)
			}
		}
	}
}

func (b *book) exportNamed(handle string) string {
	return b.exportName(b.exportOf("nfs", []byte(handle), nil), redactor{}.path)
}

// TestExports: the export of a handle, from what clients mount, from its file system, and from how it begins.
func TestExports(t *testing.T) {
	b := newBook(1 << 20)
	want := func(handle, want string) {
		t.Helper()
		if got := b.exportNamed(handle); got != want {
			t.Errorf("%s is in %s, want %s", handle, got, want)
		}
	}
	want("linux1-1-f", "unknown")
	b.told(clientA, in("linux1-1-f", 0x11))
	want("linux1-1-f", "fsid 0x11")
	want("linux1-1-other", "fsid 0x11") // begins like it
	b.told(clientA, root("linux1-1-r", "/one"), in("linux1-1-r", 0x11))
	want("linux1-1-f", "/one")
	// Another export of the same file system: only the way up tells.
	b.told(clientA, root("linux1-1-s", "/two"), in("linux1-1-s", 0x11), child("linux1-1-g", "linux1-1-s", "g"))
	want("linux1-1-g", "/two")
	want("linux1-1-f", "fsid 0x11 (/one, /two)")
	// A handle that begins like those, and is elsewhere: how handles begin says nothing any more.
	b.told(clientA, in("linux1-1-z", 0x22))
	want("linux1-1-other", "unknown")
	// NFSv4: a file system begins where the fsid changes.
	b.told(clientA, root4("v4root"), in4("v4root", 1), child("v4srv", "v4root", "srv"), in4("v4srv", 2), child("v4f", "v4srv", "f"), in4("v4f", 2))
	want("v4f", "/srv")
	want("v4root", "/")
}

// TestExportsOfBothVersions: NFSv3 and NFSv4 name the same file system by other fsids, and the same export by other paths. It is one
// export, whose path is that of NFSv3, also for what was counted before.
func TestExportsOfBothVersions(t *testing.T) {
	v3 := []fact{
		root("uuid---1root", "/export"), in("uuid---1root", 0), root("uuid---2top", "/export/a"), in("uuid---2top", 3),
		child("uuid---2dir", "uuid---2top", "dir"), in("uuid---2dir", 3), child("uuid---2f", "uuid---2dir", "f"), in("uuid---2f", 3),
	}
	v4 := []fact{
		root4("uuid---1root"), in4("uuid---1root", 0), child("uuid---2top", "uuid---1root", "a"), in4("uuid---2top", 4),
		child("uuid---2dir", "uuid---2top", "dir"), in4("uuid---2dir", 4), child("uuid---2f", "uuid---2dir", "f"), in4("uuid---2f", 4),
	}
	turns := []fact{in4("uuid---2dir", 4), in("uuid---2f", 3), in4("uuid---2f", 4), in("uuid---2dir", 3)} // no file system begins there
	for _, order := range [][][]fact{{v3, v4, turns}, {v4, v3, turns}, {v3, v4, v3}, {v4, v3, v4}} {
		b := newBook(1 << 20)
		var counted []export
		count := func(handles ...string) {
			for _, h := range handles {
				counted = append(counted, b.exportOf("nfs", []byte(h), nil))
			}
		}
		for _, facts := range order {
			b.told(clientA, facts...)
			count("uuid---2top", "uuid---2f", "uuid---2new")
		}
		for _, x := range counted {
			if got := b.exportName(x, redactor{}.path); got != "/export/a" {
				t.Errorf("counted for %s, want /export/a", got)
			}
		}
		if got := b.exportNamed("uuid---1root"); got != "/export" {
			t.Errorf("the root is in %s", got)
		}
		if got := b.pathOf("uuid---2f"); got != "/export/a/dir/f" {
			t.Errorf("the path is %s", got)
		}
	}
}

// TestManySystems: more file systems than are told apart take no memory, and are shown by their fsid.
func TestManySystems(t *testing.T) {
	b := newBook(1 << 24)
	for i := range mostSystems + 100 {
		h := fmt.Sprintf("%08d", i)
		b.told(clientA, root(h, "/"+h), in(h, uint64(i)))
	}
	if len(b.exports.systems) != mostSystems || len(b.exports.prefixes[0]) != mostSystems {
		t.Errorf("%d file systems, %d beginnings", len(b.exports.systems), len(b.exports.prefixes[0]))
	}
	if got, want := b.exportNamed(fmt.Sprintf("%08d", mostSystems+1)), fmt.Sprintf("fsid %#x", mostSystems+1); got != want {
		t.Errorf("shown as %s, want %s", got, want)
	}
}
