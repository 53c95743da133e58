package names

import (
	"net/netip"
	"time"
)

// An Asker wants to know the paths of handles as they were at a time.
type Asker interface {
	// Learned is called once, on any goroutine that uses the Watch, which it must not hold up. path returns the path of a
	// handle of a listener, or "" where none is known. A path begins with "..." if the directories above are not known.
	// path may not be called later.
	Learned(path func(listener, handle string) string)
}

// Ask has a called when w has learned of all Calls that ended on this loop, and of those that ended on others before the
// time at, which is now. It reports false if that cannot be, because too much waits or w is closed. It runs on the loop.
func (w *Watch) Ask(loop int, at time.Time, a Asker) bool { return w.queues[loop].askFrom(a, at) }

// Settle returns when all that have asked were called.
func (w *Watch) Settle() { w.inside(func() {}) }

// path is what an Asker gets. The caller holds w.mu.
func (w *Watch) path(listener, handle string) string {
	e := w.book.table.find(listener, []byte(handle))
	if e == nil {
		return ""
	}
	return w.book.table.path(e)
}

// How what is not known is shown.
const (
	unknownAbove  = "..."     // the directories above
	unknownExport = "unknown" // an export of which nothing is known
	fsidExport    = "fsid "   // begins an export of which only the file system is known
)

// A Place is where the file is that a Call uses, as it is shown.
type Place struct {
	Handle  []byte // nil if the Call is about no file
	Path    string // "" if not known; begins with "..." if the directories above are not
	Export  string
	opaque  bool // the Call is encrypted
	removed bool
}

// where returns what is known of a handle. own is as for exportOf, and show says how names are shown.
func (b *book) where(listener string, handle []byte, own *fsid, show func(string) string) Place {
	p := Place{Handle: handle, Export: b.exportName(b.exportOf(listener, handle, own), show)}
	if e := b.table.find(listener, handle); e != nil {
		p.Path, p.removed = show(b.table.path(e)), e.removed
	}
	return p
}

// An Exchange is a Call with its Reply, either of which may be cut off.
type Exchange struct {
	Listener    string
	Call, Reply []byte
}

// Where returns the places that Calls are about. It has learned of all Calls that ended before. It returns nil if w
// is closed.
func (w *Watch) Where(calls []Exchange) (places []Place) {
	uses := make([]parsed, len(calls))
	for i, c := range calls {
		uses[i].parse(c.Call, c.Reply)
	}
	w.inside(func() {
		places = make([]Place, len(calls))
		for i := range uses {
			places[i] = w.book.use(calls[i].Listener, &uses[i], w.redact.path)
		}
	})
	return places
}

// A Reader learns from Calls and Replies that are there already, one after the other. Nothing is left out.
type Reader struct {
	book   book
	parsed parsed
}

// NewReader returns a Reader that keeps names in so many octets of memory.
func NewReader(memory int) *Reader {
	return &Reader{book: book{table: newTable(memory), exports: newExports()}}
}

// Read learns from an exchange of a client, and returns where the file is that it is about.
func (r *Reader) Read(client netip.Addr, x Exchange) Place {
	r.parsed.parse(x.Call, x.Reply)
	r.book.read(client, x.Listener, &r.parsed, 0, nil)
	return r.book.use(x.Listener, &r.parsed, func(path string) string { return path })
}

// use returns where the file is that p is about.
func (b *book) use(listener string, p *parsed, show func(string) string) Place {
	if p.handle == nil || len(p.handle) > maxHandle {
		return Place{opaque: p.opaque}
	}
	return b.where(listener, p.handle, p.own(), show)
}
