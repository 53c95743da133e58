package rdmaside

import (
	"fmt"
	"time"

	"github.com/rs/zerolog"
)

// A DropWatcher is a Watcher that can replace a connection whose Responder drops
// Calls.
type DropWatcher interface {
	Watcher
	// Dropped is called when a Call passes its deadline although the Responder
	// has answered a Call that was sent later. That Responder works, but has
	// dropped c silently or takes long for it. The Call's credit is in use until
	// it is answered or the connection ends. late is how many such Calls the
	// connection has, c included.
	Dropped(r *Requester, c *Call, late int) Drop
}

// A Drop says what becomes of a connection whose Responder has dropped a Call.
type Drop uint8

const (
	// DropClose closes the connection now.
	DropClose Drop = iota
	// DropRetire sends nothing more on the connection. It is closed with
	// ErrDropped as soon as every other Call is answered or past its deadline;
	// the Calls past it then fail in limbo.
	DropRetire
	// DropKeep lets the connection go on. The Call has no deadline any more. It
	// completes when it is answered or when the connection ends.
	DropKeep
)

// since returns the time on the Requester's clock.
func (r *Requester) since() time.Duration {
	if r.clock != nil {
		return time.Duration(r.clock.Now())
	}
	return time.Since(r.base)
}

// enqueue makes pc the newest pending Call. All Calls have the same deadline, so
// the oldest is always the first to pass it.
func (r *Requester) enqueue(pc *pendingCall) {
	pc.sent = r.since()
	pc.prev, pc.next = r.newest, -1
	if r.newest >= 0 {
		r.slots[r.newest].next = pc.index
	} else {
		r.oldest = pc.index
	}
	r.newest = pc.index
	if r.due < 0 {
		r.due = pc.index
	}
	if !r.armed && r.opts.Deadline > 0 {
		r.arm(r.opts.Deadline)
	}
}

func (r *Requester) dequeue(pc *pendingCall) {
	if r.due == pc.index {
		r.due = pc.next
	}
	if pc.late {
		r.late--
	}
	if pc.prev >= 0 {
		r.slots[pc.prev].next = pc.next
	} else {
		r.oldest = pc.next
	}
	if pc.next >= 0 {
		r.slots[pc.next].prev = pc.prev
	} else {
		r.newest = pc.prev
	}
}

// arm starts the timer for the deadlines, to fire after d. One timer serves all
// Calls: when it fires, the oldest Call has passed its deadline or is far younger
// than the Call that the timer was set for, so it fires about once per deadline
// at most.
func (r *Requester) arm(d time.Duration) {
	r.armed = true
	if r.timer == nil {
		r.timer = time.AfterFunc(d, func() { r.loop.Post((*deadlineTask)(r)) })
		return
	}
	r.timer.Reset(d)
}

type deadlineTask Requester

// Run checks the oldest Calls against the deadline.
func (t *deadlineTask) Run() {
	r := (*Requester)(t)
	r.armed = false
	for r.state == up && r.due >= 0 {
		pc := &r.slots[r.due]
		if left := pc.sent + r.opts.Deadline - r.since(); left > 0 {
			r.arm(left)
			return
		}
		switch r.dropped(pc) {
		case DropKeep:
			r.due = pc.next
		case DropRetire:
			r.retire()
			return
		default:
			r.overdue(pc)
			return
		}
	}
}

// overdue closes the connection because pc has passed its deadline.
func (r *Requester) overdue(pc *pendingCall) {
	r.reportOverdue(pc, "call not answered in time; connection closed")
	r.end(fmt.Errorf("%w: %s, xid %#08x", ErrDeadline, r.opts.Deadline, pc.call.XID))
}

// reportOverdue logs that pc has passed its deadline, as often as the limit allows.
func (r *Requester) reportOverdue(pc *pendingCall, what string) {
	r.opts.Lines.overdue.Line(&r.opts.Log, zerolog.WarnLevel, "call_overdue").Stringer("peer", r.info.Peer).Uint32("xid", pc.call.XID).
		Str("operation", pc.call.Analysis.Procedure).Dur("deadline_ms", r.opts.Deadline).Msg(what)
}

// answered records that the Responder has answered pc. Responders answer in any
// order. But a Call that passes its deadline, while Calls sent after it are
// answered within theirs, was dropped.
func (r *Requester) answered(pc *pendingCall) { r.lastAnswered = max(r.lastAnswered, pc.sent) }

// dropped returns what becomes of the connection, on which pc has passed its
// deadline.
func (r *Requester) dropped(pc *pendingCall) Drop {
	if r.retiring {
		return DropRetire
	}
	if r.lastAnswered <= pc.sent {
		return DropClose // no later Call is answered either: the Responder may be stalled
	}
	d := DropClose
	if w, ok := r.watcher.(DropWatcher); ok {
		d = w.Dropped(r, pc.call, r.late+1)
	}
	if d == DropKeep {
		pc.late = true
		r.late++
		r.reportOverdue(pc, "call not answered in time although later ones were")
		return d
	}
	r.reportOverdue(pc, "call not answered in time although later ones were; connection is being replaced")
	r.retiring = d == DropRetire
	return d
}

// retire closes a retiring connection once all its outstanding Calls are past
// their deadlines.
func (r *Requester) retire() {
	if r.state != up {
		return
	}
	if r.newest >= 0 {
		// The other Calls have their deadlines too. The newest one's is the last.
		if left := r.slots[r.newest].sent + r.opts.Deadline - r.since(); left > 0 {
			if !r.armed {
				r.arm(left)
			}
			return
		}
	}
	r.end(fmt.Errorf("%w within %s", ErrDropped, r.opts.Deadline))
}
