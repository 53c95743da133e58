package proxy

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
	"github.com/rdmabridge/rdmabridge/pool"
	"github.com/rdmabridge/rdmabridge/rdmaside"
)

// The fate of a call, DESIGN in one place. All of it runs on the member's loop,
// but for expired and what is posted to the client's.
//
//	dispatched, not sent       another connection, any number of times within the
//	                           time a Call may wait
//	sent, connection lost      replayed with the same XID, if replayable, at most
//	                           maxTries times, after the first time with a pause that
//	                           doubles; else the client's connection closes
//	RDMA_ERROR                 a ReadOnly Call once more, with the largest Reply
//	                           chunk; else SYSTEM_ERR, or under GSS, where no Reply
//	                           can be made up, the client's connection closes
//	waited too long            the client's connection closes
//	client gone                the Reply is dropped
const maxTries = 5

var (
	errNotReplayable = errors.New("the upstream connection was lost and the call is not safe to repeat here")
	errTries         = errors.New("the upstream connection was lost too many times")
)

// failed decides about a call that its member could not complete. The credit
// has been returned.
func (c *call) failed(err *rdmaside.CallError) {
	here := c.m.Affinity()
	if err.Fate != rdmaside.NotSent {
		c.up.sent.Inc()
	}
	if c.clientGone() {
		switch err.Fate {
		case rdmaside.InLimbo:
			c.up.lost.Inc()
		case rdmaside.Answered:
			c.up.errored.Inc()
		}
		c.finish()
		return
	}
	switch err.Fate {
	case rdmaside.NotSent:
		c.requeue(here)
	case rdmaside.InLimbo:
		switch {
		case !c.replayable():
			c.up.lost.Inc()
			c.giveUp(fmt.Errorf("%w: %w", errNotReplayable, err))
		case c.tries >= maxTries:
			c.up.lost.Inc()
			c.giveUp(fmt.Errorf("%w: %w", errTries, err))
		default:
			c.tries++
			c.up.replayed.Inc()
			if c.tries == 1 {
				c.requeue(here)
				return
			}
			// It may be this Call that ends connections: others' Calls are on the next one.
			o := c.up.settings()
			c.later(jittered(min(o.BackoffMin<<(c.tries-2), o.BackoffMax)))
		}
	case rdmaside.Answered:
		c.up.errored.Inc()
		switch {
		case c.gss:
			c.giveUp(err)
		case c.rdma.Analysis.Class == ulb.ReadOnly && !c.bigReply:
			// "a larger Reply chunk" is all that an ERR_CHUNK can ask of us. A Call
			// that only reads may be tried once more, under a new XID: RFC 8267
			// Section 5.2 and 6.2.
			c.bigReply = true
			a := &c.rdma.Analysis
			a.ResultMax = 0
			a.MaxReply, a.MaxReduced = c.up.p.registry.Limits().MaxReply, c.up.p.registry.Limits().MaxReply
			c.setXID(c.up.p.xids.fresh())
			c.requeue(here)
		default:
			// A transport error does not say whether the server ran the Call: RFC
			// 8267 Section 4. SYSTEM_ERR says no more than that.
			c.answer(oncrpc.AppendAccepted(c.local[:0], c.clientXID, oncrpc.SystemError))
			c.rdma.XID = c.clientXID
			c.finish()
		}
	}
}

// requeue lets the pool dispatch c again.
func (c *call) requeue(here int) {
	if here == pool.Elsewhere {
		c.m = nil // what happens now happens on no loop
	}
	for {
		c.follow()
		err := c.queue.pool.Requeue(&c.entry, here)
		if err == nil {
			return
		}
		if !errors.Is(err, pool.ErrClosed) || !c.moved() {
			c.giveUp(err)
			return
		}
	}
}

// follow puts a call that another connection has adopted on that one's lane: its
// first client's own connection to the upstream ends with that client.
func (c *call) follow() {
	if c.remembered {
		_, c.queue = c.up.p.xids.ownerOf(c)
		c.entry.Flow = c.queue.flowOf(c)
	}
}

// moved reports whether another connection has adopted c since follow.
func (c *call) moved() bool {
	if !c.remembered {
		return false
	}
	_, ln := c.up.p.xids.ownerOf(c)
	return ln != c.queue
}

// unsent takes a call back that member m could not take; its credit is still
// held. What becomes of it is decided in a task of its own: the credit goes to the
// next Call, which may end here as well, and so on through the queue.
func (c *call) unsent(m upstreamConn, err error) {
	c.err, c.stage = err, stageUnsent
	c.up.p.loops[m.Affinity()].Post(c)
}

const (
	retryLeast = 5 * time.Millisecond
	retryMost  = 200 * time.Millisecond
)

// retry puts c back after a pause, which is longer each time.
func (c *call) retry() {
	c.pause = min(max(2*c.pause, retryLeast), retryMost)
	c.later(c.pause)
}

// jittered spreads d over [d/2, d].
func jittered(d time.Duration) time.Duration { return d/2 + rand.N(d/2+1) }

// later puts c back after a pause.
func (c *call) later(pause time.Duration) {
	time.AfterFunc(pause, func() {
		if c.clientGone() {
			c.m = nil
			c.finish()
			return
		}
		c.requeue(pool.Elsewhere)
	})
}

// resubmit puts a call back that member m did not send, and waits for what was in
// the way.
func (c *call) resubmit(m upstreamConn, err error) {
	c.err = nil
	c.up.retried.Inc()
	seat, here := c.entry.Seat(), m.Affinity()
	u := c.up
	switch {
	case errors.Is(err, rdmaside.ErrClosed):
		seat.Closing(m)
		seat.Done(&c.entry, here)
		c.requeue(here)
	case errors.Is(err, rdmaside.ErrBusyXID):
		u.collided.Inc()
		if !c.gss && !c.remembered {
			seat.Done(&c.entry, here)
			c.setXID(u.p.xids.fresh())
			c.requeue(here)
			return
		}
		// The XID is taken on this connection by another client's Call, and is signed,
		// or the server knows the Call by it. Another connection may be free of it; if
		// none is, the Call that has it will be answered soon.
		if !seat.Steer(&c.entry, here) {
			seat.Done(&c.entry, here)
			c.retry()
		}
	case errors.Is(err, rdmaside.ErrProviderBusy):
		seat.Done(&c.entry, here)
		c.retry()
	case errors.Is(err, rdmaside.ErrNoMemory):
		seat.Done(&c.entry, here)
		c.requeue(here)
	case errors.Is(err, rdmaside.ErrNoCredit):
		seat.Granted(m.credits(), here)
		seat.Done(&c.entry, here)
		c.requeue(here)
	default:
		seat.Done(&c.entry, here)
		u.errored.Inc()
		if c.gss {
			c.giveUp(err)
			return
		}
		u.log.Warn().Err(err).Uint32("xid", c.clientXID).Msg("call cannot be carried")
		c.answer(oncrpc.AppendAccepted(c.local[:0], c.clientXID, oncrpc.SystemError))
		c.rdma.XID = c.clientXID
		c.finish()
	}
}

// answered hands the Reply on. The credit has been returned.
func (c *call) answered() {
	c.up.observe(c)
	if c.slowStart {
		c.up.admission.answered(c, c.m.Affinity())
	}
	if c.rdma.Analysis.CreatesSession {
		reply := c.out[0]
		if len(c.out) > 1 {
			reply = bytes.Join(c.out, nil)
		}
		c.up.sessions.Learn(reply)
	}
	c.releaseMessage()
	c.finish()
}

// finish brings a call whose Reply is in c.out, or that needs none because its
// client has gone, home.
func (c *call) finish() { c.post(stageDeliver) }

// giveUp brings home a call that will not be answered.
func (c *call) giveUp(err error) {
	c.err = err
	c.post(stageAbandon)
}

// post brings c to its client's loop. Whoever is not on the loop of c.m has set
// c.m to nil: then nothing is delivered from here.
func (c *call) post(st stage) {
	if c.remembered {
		c.up.p.xids.settle(c, c.now())
	}
	c.stage = st
	home := c.client.home()
	if c.m != nil && c.m.Affinity() == home.index && st == stageDeliver {
		c.client.deliver(c)
		return
	}
	home.Post(c)
}

// now is the time on the clock of the loops, wherever c is: see post.
func (c *call) now() int64 {
	if c.m == nil {
		return c.up.p.engine.Now()
	}
	return c.up.p.loops[c.m.Affinity()].Now()
}

// clientGone asks whether nobody waits for c. A remembered call may still be
// adopted by the client's next connection, until it is settled.
func (c *call) clientGone() bool {
	if c.remembered {
		cl, _ := c.up.p.xids.ownerOf(c)
		return cl.gone()
	}
	return c.client.gone()
}

// Expired ends a call that waited in the queue in vain. pool.Owner.
func (u *upstream) Expired(e *pool.Entry, err error) {
	c := e.Owner.(*call)
	c.m = nil
	if c.clientGone() {
		c.finish()
		return
	}
	if errors.Is(err, errClientGone) || errors.Is(err, pool.ErrClosed) && c.moved() {
		// Another connection adopted the call: it waits there now.
		c.requeue(pool.Elsewhere)
		return
	}
	c.giveUp(err)
}
