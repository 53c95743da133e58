package rdmaside

import (
	"errors"
	"fmt"
	"time"

	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
)

// Close closes the connection. Every outstanding Call fails with the fate
// InLimbo, then Watcher.Ended is called with err. All of this happens after Close
// has returned.
func (r *Requester) Close(err error) {
	if r.state == up {
		r.asked, r.reason = true, err
		r.fade()
		r.conn.Close(err)
	}
}

// end closes the connection for a reason found here. fabric.ErrClosed is not such
// a reason: the provider is about to call Closed with a better one.
func (r *Requester) end(err error) {
	if r.state != up {
		return
	}
	if errors.Is(err, fabric.ErrClosed) {
		r.fade()
	} else {
		r.Close(err)
	}
	r.watcher.Granted(r, 0)
}

// fade marks the connection as closing.
func (r *Requester) fade() {
	r.state = ending
	r.publish()
}

// refuse closes the connection because of a message that the peer sent. pc is the
// Call that the message was about, or nil. That Call fails in limbo with all
// others.
func (r *Requester) refuse(pc *pendingCall, err error) {
	if r.state != up {
		return
	}
	e := r.opts.Log.Warn().Stringer("peer", r.info.Peer).Err(err)
	if pc != nil {
		e = e.Uint32("xid", pc.call.XID).Str("procedure", pc.call.Analysis.Procedure)
	}
	e.Msg("invalid message from the responder; connection closed")
	r.metrics.refused(err)
	r.end(fmt.Errorf("%w: %w", errInvalidReply, err))
}

// closed is the last call of the provider. Every Work Request has completed.
func (r *Requester) closed(err error) {
	if r.state == ended {
		return
	}
	if r.state == up {
		r.fade()
		r.watcher.Granted(r, 0)
	}
	if !r.asked {
		r.reason = err
	}
	r.state = ended // the peer cannot reach memory by any handle now
	if r.timer != nil {
		r.timer.Stop()
	}
	if r.recvs.posted != 0 {
		panic(fmt.Sprintf("BUG: fabric: %s closed with %d Receives posted", r.info.Provider, r.recvs.posted))
	}
	cause := r.reason
	if cause == nil {
		cause = ErrClosed
	}
	for r.oldest >= 0 {
		pc := &r.slots[r.oldest]
		if pc.sending {
			panic(fmt.Sprintf("BUG: fabric: %s closed with a Send posted", r.info.Provider))
		}
		r.xids.remove(pc.call.XID)
		pc.handles = [callHandles]fabric.Handle{}
		// A Reply that only waited for its handles to be invalidated is
		// delivered.
		if pc.err == nil && (!pc.replied || r.rebuild(pc) != nil) {
			pc.err = cause
		}
		r.finish(pc)
	}
	r.metrics.reverseLost.Add(uint64(len(r.reverse.calls)))
	r.reverse.calls = r.reverse.calls[:0]
	r.headers.Release()
	r.headers = nil
	r.watcher.Ended(r, r.reason)
}

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
	if !r.armed && r.opts.Deadline > 0 {
		r.arm(r.opts.Deadline)
	}
}

func (r *Requester) dequeue(pc *pendingCall) {
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

// Run checks the oldest Call against the deadline.
func (t *deadlineTask) Run() {
	r := (*Requester)(t)
	r.armed = false
	if r.state != up || r.oldest < 0 {
		return
	}
	pc := &r.slots[r.oldest]
	left := pc.sent + r.opts.Deadline - r.since()
	if left > 0 {
		r.arm(left)
		return
	}
	if r.dropped(pc) {
		r.leave()
		return
	}
	r.metrics.deadlines.Inc()
	r.opts.Log.Warn().Stringer("peer", r.info.Peer).Uint32("xid", pc.call.XID).
		Str("procedure", pc.call.Analysis.Procedure).Dur("deadline", r.opts.Deadline).
		Msg("call not answered in time; connection closed")
	r.end(fmt.Errorf("%w: %s, xid %#08x", ErrDeadline, r.opts.Deadline, pc.call.XID))
}
