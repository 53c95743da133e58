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
