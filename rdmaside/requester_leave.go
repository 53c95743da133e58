package rdmaside

import "fmt"

// A DropWatcher is a Watcher that can do without a connection whose Responder drops
// Calls.
type DropWatcher interface {
	Watcher
	// Dropped is called when a Call is past its deadline though the Responder has
	// answered one that was sent after it: it works, has dropped that Call without a
	// word, and its credit is lost for as long as the connection lives. To report true
	// is to leave the connection: nothing more is sent on it, and it ends, with
	// ErrDropped, as soon as every other Call is answered or past its deadline. Then
	// those past it end in limbo. To report false is to end it now.
	Dropped(r *Requester) bool
}

// answered takes note that the Responder has dealt with pc. Calls are answered in
// any order, but one that is not within its deadline, while those after it are, was
// dropped.
func (r *Requester) answered(pc *pendingCall) { r.heard = max(r.heard, pc.sent) }

// dropped reports whether the connection, on which pc is past its deadline, is left
// rather than ended.
func (r *Requester) dropped(pc *pendingCall) bool {
	if r.leaving {
		return true
	}
	if r.heard <= pc.sent {
		return false // nothing is answered: who knows what is the matter
	}
	r.metrics.dropped.Inc()
	r.opts.Log.Warn().Stringer("peer", r.info.Peer).Uint32("xid", pc.call.XID).
		Str("procedure", pc.call.Analysis.Procedure).Dur("deadline", r.opts.Deadline).
		Msg("call not answered in time, though later ones were: its connection is replaced")
	w, ok := r.watcher.(DropWatcher)
	r.leaving = ok && w.Dropped(r)
	return r.leaving
}

// leave ends a connection that is being left once all Calls on it are past their
// deadline.
func (r *Requester) leave() {
	if r.state != up {
		return
	}
	if r.newest >= 0 {
		// A Call that is not dropped has its deadline too, and the newest one's is last.
		if left := r.slots[r.newest].sent + r.opts.Deadline - r.since(); left > 0 {
			if !r.armed {
				r.arm(left)
			}
			return
		}
	}
	r.end(fmt.Errorf("%w within %s", ErrDropped, r.opts.Deadline))
}
