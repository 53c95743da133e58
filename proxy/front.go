package proxy

import (
	"errors"
	"io"
	"net/netip"

	"github.com/rdmabridge/rdmabridge/internal/loop"
)

// A front is the bridge's side of one client connection, as far as TCP and RDMA clients are alike.
// [tcpClient] and [rdmaClient] embed it, and do the rest behind the interface
// [client].
//
// A front belongs to its loop. Methods for any goroutine say so.
type front struct {
	client   client // the tcpClient or rdmaClient that embeds the front; constant, as the next three
	listener *listener
	loop     *eventLoop
	peer     netip.AddrPort

	ledger   ledger
	draining bool // the connection closes as soon as no Call is under way
	failed   bool // the connection was closed because of a Call, and the log says so
	ended    flag // the connection has ended; set on the loop, read anywhere
}

// A client is what TCP and RDMA clients do differently. Its methods run on the client's
// loop.
type client interface {
	// admit reads Calls, or stops reading them, as the ledger and the drain have it.
	admit()
	// transmit sends c's Reply, after front.lend. c.Release is called when the client has
	// the Reply, or never will have it.
	transmit(c *call)
	// settled looks at c once more before front.settle counts it.
	settled(c *call)
	// fail ends the connection because of a Call that gets no Reply. It may leave that to
	// the end of the Call's Exchange, which follows.
	fail(reason error)
	// hangUp ends the connection: in order when reason is errDraining, else at once.
	hangUp(reason error)
	// callBack sends the client the reverse Call m, a plain RPC Call that came on the
	// connection from. m is taken until done.Release is called, unless callBack reports
	// false.
	callBack(m []byte, done releaser, from reverser) bool
}

var (
	errClientGone = errors.New("proxy: client gone")
	errUnread     = errors.New("proxy: the client does not take its replies")
	errSuperseded = errors.New("proxy: the client sent a call again on another connection")
	errUnanswered = errors.New("proxy: call without an answer")
	errDraining   = errors.New("proxy: draining")
	errClosing    = errors.New("proxy: closing")
)

// open begins the life of a connection whose client is at peer.
func (f *front) open(s client, l *listener, on *eventLoop, peer netip.AddrPort) {
	f.client, f.listener, f.loop, f.peer = s, l, on, peer
	f.ledger.open(f)
}

// join makes the connection one of the listener's. A listener that is draining has it closed
// once it is idle.
func (f *front) join() {
	if !f.listener.join(f) {
		f.draining = true
		f.closeIfIdle()
	}
	f.ledger.follow() // the settings may have changed before it joined
}

// end is the end of the connection. err is nil or io.EOF for one that ended in order.
func (f *front) end(err error) {
	f.ended.set()
	f.listener.leave(f)
	f.ledger.close()
	if err != nil && !errors.Is(err, io.EOF) {
		f.listener.log.Debug().Stringer("peer", f.peer).Err(err).Msg("client connection ended")
	}
}

// newCall is a call of this client, which has just sent its message.
func (f *front) newCall() *call {
	c := f.loop.newCall()
	c.owner.front = f
	f.listener.calls.Inc()
	return c
}

// deliver ends a call that comes home: the client gets the Reply, or its connection is
// closed, or it has gone already.
func (f *front) deliver(c *call) {
	switch {
	case f.ended.get():
		f.settle(c)
	case c.reply.err != nil:
		f.abandon(c, c.reply.err)
	case c.reply.parts == nil:
		f.abandon(c, errUnanswered) // adopted by this client after it had been dropped
	default:
		c.restoreXID()
		f.client.transmit(c)
	}
}

// lend counts c's Reply as the client's until the client has it. When too many octets of
// Replies lie there for the client already, lend closes the connection and reports false.
func (f *front) lend(c *call) bool {
	f.ledger.lend(c)
	if f.ledger.held > f.listener.maxHeld {
		f.abandon(c, errUnread)
		return false
	}
	if c.reply.result == resultGone {
		c.reply.result = resultReplied
	}
	return true
}

// abandon closes the connection, because c cannot be answered, and settles c. This is the
// only way RPC has to tell a client that no Reply will come on this connection.
func (f *front) abandon(c *call, reason error) {
	if !f.ended.get() {
		c.reply.result = resultAbandoned
		if !f.failed {
			f.listener.log.Warn().Stringer("peer", f.peer).Uint32("xid", c.clientXID).Err(reason).
				Msg("call cannot be answered; client connection closed")
			f.fail(reason)
		}
	}
	f.settle(c)
}

// refuse closes the connection, because it cannot have the pinned connection to u that c
// needs, and settles c.
func (f *front) refuse(c *call, u *upstream, reason error) {
	u.unpinnable(f.peer, reason)
	c.reply.result = resultAbandoned
	f.fail(reason)
	f.settle(c)
}

// malformed closes the connection, because c's message is no RPC Call, and settles c.
func (f *front) malformed(c *call, err error) {
	f.listener.log.Warn().Stringer("peer", f.peer).Err(err).Msg("not an RPC Call; connection closed")
	c.reply.result = resultMalformed
	f.client.fail(err)
	f.settle(c)
}

// fail ends the connection because of a Call, which the log says.
func (f *front) fail(reason error) {
	f.failed = true
	f.client.fail(reason)
}

// settle ends c: it is counted, and its memory given back.
func (f *front) settle(c *call) {
	f.client.settled(c)
	f.listener.results[c.reply.result].Inc()
	f.ledger.settle(c)
	x := c.takeExchange()
	c.releaseMemory()
	c.setState(callSettled)
	f.loop.recycle(c)
	if x != nil {
		x.Abort() // it was not answered
	}
	if f.ended.get() {
		return
	}
	f.client.admit()
	f.closeIfIdle()
}

func (f *front) closeIfIdle() {
	if f.draining && f.ledger.calls == 0 {
		f.client.hangUp(errDraining)
	}
}

// gone reports that the connection has ended. Any goroutine.
func (f *front) gone() bool { return f.ended.get() }

// listens reports that the client can be called: it is neither gone nor going.
func (f *front) listens() bool { return !f.ended.get() && !f.draining }

// runOnLoop runs t, the client's ticket, on the client's loop. Any goroutine.
func (f *front) runOnLoop(t *ticket) { f.loop.Post(t) }

// readOn reads from the client again after gate k has admitted it, unless something else
// prevents that.
func (f *front) readOn(k gateKind) {
	f.ledger.shut &^= 1 << k
	f.client.admit()
}

// drain closes the connection once it is idle. The client sends again on its next connection
// what was not read on this one. Any goroutine.
func (f *front) drain() {
	f.loop.Post(loop.TaskFunc(func() {
		if f.draining || f.ended.get() {
			return
		}
		f.draining = true
		f.client.admit()
		f.closeIfIdle()
	}))
}

// close ends the connection now. Any goroutine.
func (f *front) close(reason error) {
	f.loop.Post(loop.TaskFunc(func() {
		if !f.ended.get() {
			f.client.hangUp(reason)
		}
	}))
}
