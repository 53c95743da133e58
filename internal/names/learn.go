package names

import (
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

// A book is all that is learned of handles.
type book struct {
	table   *table
	exports *exports
}

// began is a time, and what it is on the clock that all processes of a host share, and nobody sets.
var began, beganMonotonic = func() (time.Time, int64) {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &t) // it exists
	return time.Now(), t.Nano()
}()

// monotonic returns t, of time.Now, on that clock.
func monotonic(t time.Time) int64 { return beganMonotonic + int64(t.Sub(began)) }

// read learns what p says, which a client of a listener has brought at a time. If t is not nil, it is told what is new.
func (b *book) read(client netip.Addr, listener string, p *parsed, at int64, t *teller) {
	for i := range p.facts {
		f := &p.facts[i]
		f.at = at
		before := b.changes()
		b.learn(client, listener, f)
		if t != nil && b.changes() != before {
			t.learned(client, listener, f)
		}
	}
}

// changes counts what learn has changed.
func (b *book) changes() uint64 { return b.table.changes + b.exports.changes }

// learn takes a fact that a client of a listener has brought.
func (b *book) learn(client netip.Addr, listener string, f *fact) {
	t := b.table
	at := func(dir, name []byte) place { return place{string(t.at(listener, dir)), string(name)} }
	switch f.kind {
	case named, entered:
		in := place{name: string(f.name)}
		if f.dir != nil {
			in = at(f.dir, f.name)
		}
		if e := t.put(client, listener, f.handle, in, f.mounted, f.at); f.nameless && e.at == f.at {
			t.unlink(e)
			e.removed = f.removed
		}
	case gone:
		t.remove(at(f.dir, f.name), f.at)
	case moved:
		t.rename(at(f.dir, f.name), at(f.toDir, f.toName), f.at)
	case mount, mount4:
		if e := t.find(listener, f.handle); f.kind == mount4 && e != nil && e.mounted {
			break // the path that MOUNT has told says more
		}
		e := t.put(client, listener, f.handle, place{name: string(f.name)}, true, f.at)
		for _, id := range e.fsids {
			if id.version != 0 {
				b.exports.add(system{listener: listener, fsid: id}, e.key, e.name)
			}
		}
	case within:
		b.within(listener, f)
	case told: // nothing is learned
	}
}

// within learns the file system of a handle.
func (b *book) within(listener string, f *fact) {
	s := system{listener: listener, fsid: f.fsid}
	b.exports.begins(b.table.at(listener, f.handle), s)
	e := b.table.find(listener, f.handle)
	i := f.fsid.version - 3
	if e == nil || e.fsids[i] == f.fsid {
		return
	}
	e.fsids[i] = f.fsid
	b.table.changes++
	if up := b.table.entries[e.dir]; up != nil && up.fsids[i].version != 0 && up.fsids[i] != f.fsid {
		e.mounted = true // a file system begins here, and NFSv4 has no MOUNT
	}
	if e.mounted {
		b.exports.add(s, e.key, b.table.path(e))
	}
}

// exportOf returns what tells the export of a handle from others: that of f, if own is set, which its Reply has said.
// It is what [book.exportName] takes.
func (b *book) exportOf(listener string, handle []byte, own *fsid) export {
	e := b.table.find(listener, handle)
	var s system
	switch {
	case own != nil:
		s = system{listener: listener, fsid: *own}
	case e != nil && e.fsids != [2]fsid{}:
		s = b.exports.better(system{listener: listener, fsid: e.fsids[0]}, system{listener: listener, fsid: e.fsids[1]})
	default:
		s = b.exports.guess(listener, b.table.at(listener, handle))
	}
	known := s.fsid.version != 0
	if !known || len(b.exports.systems[s]) > 1 {
		if m := b.table.mountOf(e); m != nil {
			return export{listener: listener, path: b.table.path(m)}
		}
	}
	if !known {
		return export{listener: listener}
	}
	return export{listener: listener, system: s, known: true}
}

// An export is an export as counters know it: by its path, or by its file system.
type export struct {
	listener string
	path     string
	system   system
	known    bool // system is
}

// exportName returns the name that people know an export by.
func (b *book) exportName(x export, show func(string) string) string {
	switch {
	case x.path != "":
		return show(x.path)
	case x.known:
		return b.exports.name(x.system, show)
	}
	return unknownExport
}
