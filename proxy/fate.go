package proxy

import (
	"errors"
	"fmt"
	"time"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb/nfs"
	"github.com/rdmabridge/rdmabridge/pool"
	"github.com/rdmabridge/rdmabridge/pool/endpoints"
	"github.com/rdmabridge/rdmabridge/proxy/observe"
	"github.com/rdmabridge/rdmabridge/proxy/session"
	"github.com/rdmabridge/rdmabridge/proxy/upstream"
	"github.com/rdmabridge/rdmabridge/rdmaside"
)

// The fate of a Call
//
// This file decides what happens to a Call that a connection to the upstream has not
// answered:
//
//	dispatched, not sent       another connection, any number of times within the
//	                           time a Call may wait
//	connection lost before     another connection, at most maxReplays times, with the
//	all of it was sent         pauses of replays
//	on a lane that has ended   the client's connection closes: package session
//	sent, connection lost      replayed with the same XID, if replayable, at most
//	                           maxReplays times, after the first time with a pause that
//	                           doubles; otherwise the client's connection closes. A Call
//	                           that only reads, and whose Reply nothing bounds, is replayed
//	                           over RDMA with the largest Reply chunk, under a new XID
//	RDMA_ERROR                 a Call that only reads is sent once more, with the largest
//	                           Reply chunk; otherwise SYSTEM_ERR, or under RPCSEC_GSS,
//	                           where only the server can make a Reply, the client's
//	                           connection closes
//	Reply refused              SYSTEM_ERR, or under RPCSEC_GSS the client's connection closes;
//	                           no Call is sent again. A Call for whose Reply there was no
//	                           memory is in limbo, as if its connection were lost
//	waited too long            the client's connection closes
//	client gone                the Reply is dropped
//
// The functions run on the loop of the connection that had the Call. The parameter here is
// that loop's index, and pool.Elsewhere in a timer and in [unsentCalls.Expired], which run on
// no loop.

// maxReplays bounds how often one Call is sent again after a connection was lost.
const maxReplays = 5

var (
	errNotReplayable = errors.New("the upstream connection was lost and the call is not safe to repeat here")
	errReplays       = errors.New("the upstream connection was lost too many times")
)

// answered hands the upstream's Reply on, on the loop l of its connection. The credit has been returned.
func (c *call) answered(l *eventLoop) {
	here := l.index
	if a := &c.rdma.Analysis; (a.SessionOps != 0 || a.Lower&ulb.Results != 0 || c.stump != 0) && !c.restore(l) {
		return
	}
	if r := c.queue.lane; r != nil { // while c has its message
		r.Replied(&c.session, &c.h, c.rdma.Message, &c.rdma.Analysis, c.reply.parts, c.signed)
	}
	if c.flying {
		c.land(here) // before the message goes, with which Calls are compared that may repeat it
	}
	if !c.rdma.Reply.Beside() {
		c.releaseMessage(l)
	}
	c.finish(here)
}

// restore undoes in the Reply what was changed in the Call, and learns from it. It reports false if it has given c up.
func (c *call) restore(l *eventLoop) bool {
	a := &c.rdma.Analysis
	if a.SessionOps&ulb.ExchangeID != 0 && c.up.Settings().HidesLayouts() {
		nfs.HideLayouts(c.reply.parts, a)
	}
	if c.stump != 0 {
		if err := c.uncut(l); err != nil {
			c.reply.parts = nil
			c.giveUp(l.index, err)
			return false
		}
	}
	if a.Lower&ulb.Results != 0 {
		c.lowerResults()
	}
	if a.SessionOps&ulb.CreateSession != 0 {
		c.up.Lanes.Table.LearnBounds(c.reply.parts, a, c.client().addr())
	}
	return true
}

// failed decides about a Call that its connection did not bring to a Reply. The credit has been
// returned.
func (c *call) failed(l *eventLoop, err *rdmaside.CallError) {
	here := l.index
	l.account.failed(c, err.Fate)
	if c.client().Gone() {
		switch err.Fate {
		case rdmaside.InLimbo:
			c.cameTo(upstream.FailureLost)
		case rdmaside.Answered:
			c.cameTo(upstream.FailureError)
		}
		c.finish(here)
		return
	}
	switch {
	case err.Fate == rdmaside.Answered:
		c.rdmaError(here, err)
	case c.queue.lane != nil && c.queue.lane.Bound():
		if err.Fate == rdmaside.InLimbo {
			c.cameTo(upstream.FailureLost)
		}
		c.giveUp(here, fmt.Errorf("%w: %w", session.ErrEnded, err))
	case err.Fate == rdmaside.NotSent:
		c.retransmit(here, err)
	case err.Fate == rdmaside.InLimbo:
		c.replay(here, err)
	}
}

// replay sends a Call again whose connection was lost after it was sent, if that does no
// harm.
func (c *call) replay(here int, err error) {
	switch {
	case !c.replayable():
		c.cameTo(upstream.FailureLost)
		c.giveUp(here, fmt.Errorf("%w: %w", errNotReplayable, err))
		return
	case c.progress.Replays >= maxReplays:
		c.cameTo(upstream.FailureLost)
		c.giveUp(here, fmt.Errorf("%w: %w", errReplays, err))
		return
	}
	c.progress.Replays++
	c.cameTo(upstream.FailureReplayed)
	if c.up.IsRDMA && c.rdma.Analysis.Guess && c.rdma.Analysis.Class == ulb.ReadOnly && !c.retry.bigReply {
		// Perhaps the Reply did not fit and the server ended the connection, as it would end
		// the next one.
		c.enlargeReply()
	}
	c.sendAgain(here, c.progress.Replays)
}

// retransmit sends a Call again whose connection was lost before all of it was sent, but not more often than replay
// does: the server may have ended the connection because the Call is too long for it.
func (c *call) retransmit(here int, err error) {
	if c.retry.cut >= maxReplays {
		c.giveUp(here, fmt.Errorf("%w: %w", errReplays, err))
		return
	}
	c.usesSeldom = true
	c.retry.cut++
	c.cameTo(upstream.FailureRetried)
	c.sendAgain(here, c.retry.cut)
}

// sendAgain queues a Call whose connection was lost for the nth time.
func (c *call) sendAgain(here int, n uint8) {
	if n == 1 {
		c.requeue(here)
		return
	}
	// This Call may be the one that ends connections, and other clients' Calls are on
	// the next one, too.
	c.requeueAfter(endpoints.Jitter(c.up.Settings().Backoff(n)))
}

// overdue closes the client of c, which is late and stays outstanding. It runs on the loop of c's
// connection, whose number is here.
func (c *call) overdue(here int) {
	if c.flying {
		c.land(here) // the client's next transmission does not wait for this one
	}
	if x := c.order(); x != nil {
		x.Leave(here)
	}
	c.progress.Result = observe.ResultAbandoned
	f, xid := c.client(), c.progress.ClientXID
	f.Post(loop.TaskFunc(func() { f.late(xid) }))
}

// rdmaError decides about a Call that was answered with an RDMA_ERROR, or with a Reply that
// breaks the rules.
func (c *call) rdmaError(here int, err *rdmaside.CallError) {
	c.cameTo(upstream.FailureError)
	switch {
	case c.signed:
		c.giveUp(here, err)
	case c.rdma.Analysis.Class == ulb.ReadOnly && !c.retry.bigReply && !err.Local:
		// An ERR_CHUNK can only ask for "a larger Reply chunk".
		c.enlargeReply()
		c.requeue(here)
	default:
		// A transport error does not say whether the server ran the Call: RFC 8267
		// Section 4. SYSTEM_ERR says no more than that.
		c.systemError()
		c.finish(here)
	}
}

// enlargeReply makes c, a Call that only reads, offer the largest Reply chunk, under a new XID:
// the "short Reply chunk retry" of RFC 8267 Sections 5.2 and 6.2.1.
func (c *call) enlargeReply() {
	c.usesSeldom = true
	c.retry.bigReply = true
	most := c.up.Registry.Limits().MaxReply
	a := &c.rdma.Analysis
	a.ResultMax, a.MaxReply, a.MaxReduced = 0, most, most
	c.changeXID()
}

// unsent takes back a Call that conn did not send and that still has its credit. resubmit
// decides about the Call in a task of its own: it gives the credit to the next Call, which conn
// may not send either, and so on through the queue, each deeper in the stack without the task.
func (c *call) unsent(conn upstreamConn, err error) {
	c.usesSeldom = true
	c.retry.unsent = err
	c.setState(callWaiting)
	c.client().loopAt(conn.Affinity()).Post(c)
}

// resubmit queues a Call again that its connection did not send, for the reason in
// c.retry.unsent.
func (c *call) resubmit() {
	conn, err := c.conn, c.retry.unsent
	c.retry.unsent = nil
	c.cameTo(upstream.FailureRetried)
	seat, here := c.entry.Seat(), conn.Affinity()
	switch {
	case errors.Is(err, rdmaside.ErrClosed):
		seat.Closing(conn)
		seat.Done(&c.entry, here)
		c.requeue(here)
	case errors.Is(err, session.ErrMoved):
		seat.Done(&c.entry, here)
		c.giveUp(here, err)
	case errors.Is(err, rdmaside.ErrBusyXID):
		c.collided(seat, here)
	case errors.Is(err, rdmaside.ErrProviderBusy):
		seat.Done(&c.entry, here)
		c.pause()
	case errors.Is(err, rdmaside.ErrNoMemory):
		seat.Done(&c.entry, here)
		c.requeue(here)
	case errors.Is(err, rdmaside.ErrNoCredit):
		seat.Granted(conn.Credits(), here)
		seat.Done(&c.entry, here)
		c.requeue(here)
	default:
		seat.Done(&c.entry, here)
		c.cameTo(upstream.FailureError)
		if c.signed {
			c.giveUp(here, err)
			return
		}
		c.up.RefusedCallLines.Line(&c.up.Log, zerolog.WarnLevel, "call_refused").Err(err).
			Uint32("xid", c.progress.ClientXID).Msg("call cannot be carried")
		c.systemError()
		c.finish(here)
	}
}

// collided decides about a Call whose XID another Call has on the same connection. That is a
// chance of one in 2^32 for each Call outstanding, unless the XID is signed, or the client has
// sent a Call that only reads twice.
//
// A Call that only reads gets another XID at once: no server remembers it by its XID. Any other
// Call keeps its XID, because a retransmission will have that one again. It goes to another
// connection, or waits for the other Call to be answered. When it has waited for a while, it gets
// another XID, too, unless that is signed: the server may hang on the other Call, and the
// client must not.
func (c *call) collided(seat *pool.Seat, here int) {
	c.cameTo(upstream.FailureCollided)
	if !c.signed && (c.rdma.Analysis.Class == ulb.ReadOnly || time.Duration(c.retry.pause) >= mostPause) {
		seat.Done(&c.entry, here)
		c.changeXID()
		c.requeue(here)
		return
	}
	if !seat.Steer(&c.entry, here) {
		seat.Done(&c.entry, here)
		c.pause()
	}
}

const (
	leastPause = 5 * time.Millisecond
	mostPause  = 200 * time.Millisecond
)

// pause queues c again after a wait that doubles each time.
func (c *call) pause() {
	c.usesSeldom = true
	wait := min(max(2*time.Duration(c.retry.pause), leastPause), mostPause)
	c.retry.pause = uint32(wait)
	c.requeueAfter(wait)
}

// requeueAfter queues c again after a wait.
func (c *call) requeueAfter(wait time.Duration) {
	c.setState(callWaiting)
	time.AfterFunc(wait, func() {
		if c.client().Gone() {
			c.finish(pool.Elsewhere)
			return
		}
		c.requeue(pool.Elsewhere)
	})
}

// requeue gives c back to the pool, to be dispatched again.
func (c *call) requeue(here int) {
	if x := c.order(); x != nil && x.Again(here) {
		return
	}
	c.setState(callQueued)
	if err := c.queue.pool.Requeue(&c.entry, here); err != nil {
		c.giveUp(here, err)
	}
}

// unsentCalls are the Calls that no connection has carried.
type unsentCalls struct{}

// Expired ends the wait of a Call that the pool has not dispatched: the wait was too long,
// or the client or the pool has ended. pool.Owner.
func (unsentCalls) Expired(e *pool.Entry, err error) {
	c := e.Owner.(*call)
	if c.client().Gone() {
		c.finish(pool.Elsewhere)
		return
	}
	if errors.Is(err, errClientGone) {
		c.requeue(pool.Elsewhere) // of the same GSS context, and of another connection
		return
	}
	c.giveUp(pool.Elsewhere, err)
}

// giveUp has the client's connection closed because of err: c will not be answered.
func (c *call) giveUp(here int, err error) {
	c.reply.err = err
	c.finish(here)
}

// finish brings c to its client's loop, with the Reply, or without one if the client has
// gone or is to be closed.
func (c *call) finish(here int) {
	if c.flying {
		c.land(here)
	}
	if x := c.order(); x != nil {
		x.Leave(here)
	}
	c.setState(callReplying)
	f := c.client()
	// A task of its own closes the client, because that ends other Calls as well.
	if f.isOn(here) && c.reply.err == nil {
		f.deliver(c)
		return
	}
	f.Post(c)
}
