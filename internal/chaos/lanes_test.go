package chaos

import (
	"sync"
	"time"

	"github.com/rdmabridge/rdmabridge/proxy/settings"
)

// Lanes
//
// The bridge has the COMPOUNDs of one client connection on one connection of a server, as long as the
// client connection lasts: on a lane, in the modes auto and sessions. (In mode pinned another connection
// follows one that has ended, on the same client connection.) A server sees the number
// of a Call and the book knows on which of its connections the client has sent it, unless it was sent
// twice. A way is what was seen of a client connection.
//
// The rules hold for client connections that are younger than the mode: a reload leaves Calls in the
// places where they wait.

// A way is where the COMPOUNDs of a client connection went.
type way struct {
	since time.Time // before the client connection was made
	conn  uint32    // of a server: the first
}

// kept says since when a server's upstream has been in one mode.
type kept struct {
	mu    sync.Mutex    // guards the rest; a leaf
	mode  settings.Mode // ModeAuto stands for ModeSessions, too
	since time.Time     // zero while it changes, and in mode shared
}

// set notes that mode is in force from now on.
func (k *kept) set(mode settings.Mode) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if mode == settings.ModeSessions {
		mode = settings.ModeAuto
	}
	switch {
	case mode == settings.ModeShared:
		k.since = time.Time{}
	case mode != k.mode || k.since.IsZero():
		k.since = time.Now()
	}
	k.mode = mode
}

// change notes that mode is going to be in force.
func (k *kept) change(mode settings.Mode) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if mode == settings.ModeSessions {
		mode = settings.ModeAuto
	}
	if mode != k.mode {
		k.since = time.Time{}
	}
}

// on reports the mode for a client connection that was made after since, and false if that has changed
// meanwhile or is shared.
func (k *kept) on(since time.Time) (mode settings.Mode, ok bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.mode, !k.since.IsZero() && since.After(k.since)
}

// dialled notes a client connection that was made after since, and returns its number.
func (b *book) dialled(since time.Time) (line uint32) {
	line = b.lines.Add(1)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ways[line] = &way{since: since}
	return line
}

// hungUp notes the end of a client connection.
func (b *book) hungUp(line uint32) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.ways, line)
}

// sentOn notes that the Call is about to be sent on a client connection.
func (b *book) sentOn(id, line uint32) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.calls[id].line = line
}

// carried notes that the COMPOUND j has come to s on its connection conn, and checks it. It reports
// whether the client connection is on a lane.
func (b *book) carried(s *server, conn uint32, j *job) (onLane bool) {
	b.mu.Lock()
	var w *way
	e := b.calls[j.id]
	if e != nil && e.sent == 1 {
		w = b.ways[e.line]
	}
	if w == nil {
		b.mu.Unlock()
		return false
	}
	mode, known := s.kept.on(w.since)
	before := w.conn
	if before == 0 {
		w.conn = conn
	}
	who, line := e.who, e.line
	b.mu.Unlock()
	onLane = known && mode == settings.ModeAuto
	switch {
	case !onLane:
	case before != 0 && before != conn:
		b.wrong("%s: call %#x (%v) of its connection %d came on connection %d of a server, an earlier one on connection %d", who, j.id, j.kind, line, conn, before)
	default:
		b.onLanes.Add(1)
	}
	return onLane
}
