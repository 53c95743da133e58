package names

import (
	"container/list"
	"net/netip"
	"strings"
)

const (
	// entryCost is about how much memory an entry takes beside its texts.
	entryCost = 350
	// mostSteps bounds the way from a handle to its root. Renames whose Replies came in another order can make a circle.
	mostSteps = 64
)

// A table has the names of handles. A handle belongs to the listener whose clients use it: two servers may have the same.
//
// Memory is shared out fairly: when it is used up, the client that has brought most gives up what was not used for
// longest. A client that looks at every file of a server pushes out only its own.
type table struct {
	room, used int               // octets
	entries    map[string]*entry // by key
	children   map[place]*entry  // by directory and name; not those that were removed
	owners     map[netip.Addr]*owner
	key        []byte // scratch
	changes    uint64 // of entries
}

// A place is a name in a directory.
type place struct{ dir, name string }

// An entry is a handle that is known.
type entry struct {
	key     string // see table.at
	place          // dir is a key, or "" where name is a whole path
	removed bool
	mounted bool    // it is the root of what clients mount
	at      int64   // when the Reply came that has told of the place, or of its end: monotonic
	fsids   [2]fsid // of NFSv3, of NFSv4
	owner   *owner
	used    *list.Element
}

// An owner is a client with the entries that it has brought, the last used first.
type owner struct {
	client netip.Addr
	octets int
	recent list.List // of *entry
}

func newTable(room int) *table {
	return &table{room: room, entries: make(map[string]*entry), children: make(map[place]*entry), owners: make(map[netip.Addr]*owner)}
}

// at is the key of a handle. It is valid until the next call.
func (t *table) at(listener string, handle []byte) []byte {
	t.key = append(append(append(t.key[:0], listener...), 0), handle...)
	return t.key
}

// find returns what is known of a handle; nil if nothing is.
func (t *table) find(listener string, handle []byte) *entry {
	e := t.entries[string(t.at(listener, handle))]
	if e != nil {
		e.owner.recent.MoveToFront(e.used)
	}
	return e
}

func (e *entry) cost() int { return entryCost + len(e.key) + len(e.dir) + len(e.name) }

// put gives a handle the place in, as client has seen it at a time. What is known of a later time stays.
func (t *table) put(client netip.Addr, listener string, handle []byte, in place, mounted bool, at int64) *entry {
	e := t.find(listener, handle)
	if e != nil && (e.at > at || !e.removed && (e.place == in || e.mounted && !mounted)) {
		if e.at <= at {
			if mounted && !e.mounted {
				t.changes++
			}
			e.mounted, e.at = e.mounted || mounted, at // what is mounted keeps its path
		}
		return e
	}
	if e == nil {
		o := t.owners[client]
		if o == nil {
			o = &owner{client: client}
			t.owners[client] = o
		}
		e = &entry{key: string(t.at(listener, handle)), owner: o}
		e.used = o.recent.PushFront(e)
		t.entries[e.key] = e
		t.count(e, e.cost())
	}
	t.move(e, in, at)
	e.mounted, e.removed = mounted, false
	t.shrink()
	return e
}

// count adds octets to what the table and e's owner use.
func (t *table) count(e *entry, octets int) {
	t.used += octets
	e.owner.octets += octets
}

// move changes the place of e.
func (t *table) move(e *entry, to place, at int64) {
	t.changes++
	t.unlink(e)
	t.count(e, len(to.dir)+len(to.name)-len(e.dir)-len(e.name))
	e.place, e.at = to, at
	t.children[to] = e
}

func (t *table) unlink(e *entry) {
	if t.children[e.place] == e {
		delete(t.children, e.place)
	}
}

// shrink makes room.
func (t *table) shrink() {
	if t.used <= t.room {
		return
	}
	var most *owner
	for _, o := range t.owners {
		if most == nil || o.octets > most.octets {
			most = o
		}
	}
	// More than is needed: to look for the owner takes time.
	for t.used > t.room-t.room/64 && most.recent.Len() > 0 {
		t.forget(most.recent.Back().Value.(*entry))
	}
	if most.recent.Len() == 0 {
		delete(t.owners, most.client)
	}
}

func (t *table) forget(e *entry) {
	t.unlink(e)
	delete(t.entries, e.key)
	e.owner.recent.Remove(e.used)
	t.count(e, -e.cost())
}

// remove notes that what was at a place is not there any more since a time.
func (t *table) remove(from place, at int64) {
	if e := t.children[from]; e != nil && e.at <= at {
		t.changes++
		delete(t.children, from)
		e.removed, e.at = true, at
	}
}

// rename notes that what was at a place is at another since a time, and what was there is not any more.
func (t *table) rename(from, to place, at int64) {
	if from == to {
		return
	}
	e := t.children[from]
	t.remove(to, at)
	if e != nil && e.at <= at {
		t.move(e, to, at)
		t.shrink()
	}
}

// path returns the path of e. It begins with "..." if the way up to a root is not known.
func (t *table) path(e *entry) string {
	var names []string
	for range mostSteps {
		if e.dir == "" {
			names = append(names, strings.TrimSuffix(e.name, "/"))
			break
		}
		names = append(names, e.name)
		up := t.entries[e.dir]
		if up == nil {
			break
		}
		e = up
	}
	if e.dir != "" {
		names = append(names, unknownAbove)
	}
	for i, j := 0, len(names)-1; i < j; i, j = i+1, j-1 {
		names[i], names[j] = names[j], names[i]
	}
	if p := strings.Join(names, "/"); p != "" {
		return p
	}
	return "/"
}

// mountOf returns the nearest directory above e, or e itself, that clients mount; nil if none is known.
func (t *table) mountOf(e *entry) *entry {
	for range mostSteps {
		if e == nil || e.mounted {
			return e
		}
		e = t.entries[e.dir]
	}
	return nil
}
