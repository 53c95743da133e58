package names

import "context"

// A Handle is a file handle, as the clients of a listener know it.
type Handle struct{ Listener, Handle string }

// Paths returns the path of each handle, "" where none is known. It has learned of all Calls that ended before. A path
// begins with "..." if the directories above are not known. Paths returns nil if ctx is done or w is closed.
func (w *Watch) Paths(ctx context.Context, handles []Handle) (paths []string) {
	w.inside(ctx, func() {
		paths = make([]string, len(handles))
		for i, h := range handles {
			if e := w.book.table.find(h.Listener, []byte(h.Handle)); e != nil {
				paths[i] = w.book.table.path(e)
			}
		}
	})
	return paths
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

// Where returns the places that Calls are about. It has learned of all Calls that ended before. It returns nil if ctx is
// done or w is closed.
func (w *Watch) Where(ctx context.Context, calls []Exchange) (places []Place) {
	uses := make([]parsed, len(calls))
	for i, c := range calls {
		uses[i].parse(c.Call, c.Reply)
	}
	w.inside(ctx, func() {
		places = make([]Place, len(calls))
		for i := range uses {
			places[i] = w.book.use(calls[i].Listener, &uses[i], w.redact.path)
		}
	})
	return places
}

// use returns where the file is that p is about.
func (b *book) use(listener string, p *parsed, show func(string) string) Place {
	if p.handle == nil || len(p.handle) > maxHandle {
		return Place{opaque: p.opaque}
	}
	return b.where(listener, p.handle, p.own(), show)
}
