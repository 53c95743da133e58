package proxy

import (
	"errors"
	"io"
	"net/netip"
	"time"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/internal/crowd"
	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/tlsconf"
	"github.com/rdmabridge/rdmabridge/tcpframe"
)

// A front is the bridge's side of one client connection, as far as TCP and RDMA clients are alike.
// [tcpClient] and [rdmaClient] embed it. The front uses them through the interface [client].
//
// A front belongs to its loop. Methods for any goroutine say so.
type front struct {
	client   client // the tcpClient or rdmaClient that embeds the front; constant, as the next four
	listener *listener
	counts   *listenerCounts // the listener's, for the loop
	loop     *eventLoop
	peer     netip.AddrPort

	ledger   ledger
	waits    waits
	totals   clientTotals
	seen     inFlight
	sends    senderRef
	latest   *latestCalls // nil before its first Call
	draining bool         // the connection closes as soon as no Call is under way
	failed   bool         // the connection was closed because of a Call, and the log says why
	evicted  bool         // an eviction closes the connection; guarded by listener.mu, as is place
	began    bool         // a Call has come; for RDMA clients only
	ended    flag         // the connection has ended, or ends in this pass; set on the loop, read anywhere

	secured    bool              // the connection has TLS
	plain      bool              // a Call other than NULL went to an upstream without TLS
	tenantOpen bool              // the client has no tenant yet, because its certificate may decide: tenant.go
	startTLS   *tcpframe.TLS     // what the probe that the loop is just answering starts; nil for none
	identity   *tlsconf.Identity // who the client's certificate says it is; nil without TLS or a certificate

	place crowd.Member[*front] // in listener.clients
}

// A client is what TCP and RDMA clients do differently. Its methods run on the client's
// loop.
type client interface {
	// admit begins Calls, or stops, as the ledger allows and draining demands.
	admit()
	// transmit sends c's Reply, after front.lend. c.Release is called when the client has
	// the Reply, or never will have it.
	transmit(c *call)
	// settled is called before front.settle counts the result of c, which it may change.
	settled(c *call)
	// fail ends the connection because of a Call that gets no Reply. front.settle follows,
	// which aborts the Call's Exchange. That ends the connection of an RDMA client, so its
	// fail does nothing.
	fail(reason error)
	// sending says what the client sends now.
	sending() sending
	// idle reports whether no Call of the client is under way, and it has its Replies.
	idle() bool
	// has reports whether the client has the Replies of all Calls that are settled: a copy may still wait.
	has() bool
	// hangUp ends the connection: in order when reason is errDraining, else at once.
	hangUp(reason error)
	// callBack sends the client the reverse Call m, a plain RPC Call that came on the
	// connection from. It takes m until it calls done.Release. If it reports false, m remains
	// the caller's.
	callBack(m []byte, done releaser, from reverser) bool
	// credits are how many credits an RDMA client has been granted, and how many it uses.
	credits() (granted, used int)
	// network is what the kernel knows of the client's connection.
	network() (loop.TCP, bool)
	// deaf reports whether the bridge does not read the client's Replies to reverse Calls at present.
	deaf() bool
	// local is the address of this side of the connection.
	local() netip.AddrPort
	// proxy is the address of the proxy that has made the connection for the client; the zero AddrPort if
	// the client has made it itself.
	proxy() netip.AddrPort
	// longestCallBack is the length of the longest reverse Call that can be sent to the client.
	longestCallBack() int
}

var (
	errClientGone = errors.New("proxy: client gone")
	errUnread     = errors.New("proxy: the client does not read its Replies")
	errDraining   = errors.New("proxy: draining")
	errClosing    = errors.New("proxy: closing")
)

// open prepares the front of s, a connection to l from peer that belongs to the loop on.
func (f *front) open(s client, l *listener, on *eventLoop, peer netip.AddrPort) {
	f.client, f.listener, f.counts, f.loop, f.peer = s, l, &l.counts[on.index], on, peer
	f.totals = clientTotals{since: time.Now(), active: on.Now()}
	f.ledger.open(f)
	f.enroll()
}

// enroll makes the client a member of its tenant, unless that is open. A connection that the tenant may not have is
// closed, and no Call of it begins.
func (f *front) enroll() {
	g, l := &f.ledger, f.listener
	f.tenantOpen = l.tenantOpen(g.addr())
	t := l.p.tenantOf(g.addr(), nil)
	if t == nil || f.tenantOpen {
		return
	}
	a, why, err := t.join(g.addr(), false)
	if err != nil {
		l.refusedByTenant(f.peer, t, why, err)
		f.draining = true
		f.close(err)
		return
	}
	g.member = newMembership(f, t, a)
	g.weight = g.weigh(l.settings())
}

// join adds the connection to the listener's. If the listener is draining, the connection
// closes as soon as it is idle.
func (f *front) join() {
	if !f.listener.join(f) {
		f.draining = true
		f.closeIfIdle()
	}
	f.ledger.follow() // the settings may have changed before it joined
}

// end removes the connection, which has ended with err, from the listener, and closes its
// ledger. After an orderly end err is nil or io.EOF.
func (f *front) end(err error) {
	f.ended.set()
	f.listener.leave(f)
	f.loop.memory.left(f)
	f.ledger.close()
	f.wait(0, 1<<waitReasons-1)
	f.loop.tapEnded(f, err)
	if err != nil && !errors.Is(err, io.EOF) {
		f.listener.log.Debug().Str("event", "client_gone").Stringer("peer", f.peer).Err(err).Msg("client connection ended")
	}
}

// enrollLate makes a client whose tenant was open, or that has started TLS, a member of the tenant that it belongs to. It
// reports false if this tenant may not have the connection, which is closed then.
func (f *front) enrollLate() bool {
	g, l := &f.ledger, f.listener
	f.tenantOpen = false
	t := l.p.tenantOf(g.addr(), f.identity)
	if t == nil || f.draining || g.member != nil && g.member.tenant == t {
		return true
	}
	why, err := t.admission(g.addr(), f.loop.Now())
	var a *tenantAddress
	if err == nil {
		a, why, err = t.join(g.addr(), false)
	}
	if err != nil {
		l.refusedByTenant(f.peer, t, why, err)
		f.draining = true
		f.client.admit()
		f.close(err)
		return false
	}
	g.move(t, a)
	g.follow()
	return true
}

// newCall returns a call for a message that the client has just sent.
func (f *front) newCall() *call {
	c := f.loop.newCall()
	c.h = oncrpc.Call{} // of the Call before: this one may end before it is parsed
	c.owner.front = f
	now := f.loop.Now()
	c.times.began = f.readable(now)
	f.totals.active = now
	f.counts.calls.Inc()
	return c
}

// deliver gives the client the Reply of c, or closes its connection if there is none. When the
// connection has ended already, deliver only settles c.
func (f *front) deliver(c *call) {
	switch {
	case f.ended.get():
		f.settle(c)
	case c.reply.err != nil:
		f.abandon(c, c.reply.err)
	case c.reply.parts == nil:
		panic("BUG: proxy: a call without a Reply is delivered")
	default:
		c.restoreXID()
		c.classify(f.loop)
		f.tapDelivered(c)
		f.client.transmit(c)
	}
}

// lend charges the client with the memory of c's Reply until the client has the Reply. When the
// client's Replies take more than listener.maxHeld, lend closes the connection, settles c and
// reports false.
func (f *front) lend(c *call) bool {
	f.ledger.lend(c)
	if f.ledger.held > f.listener.maxHeld {
		f.abandon(c, errUnread)
		return false
	}
	if c.result == resultGone {
		c.result = resultReplied
	}
	return true
}

// hands reports whether c may be settled when its Reply has been copied, before it is written: nobody is told when it
// was.
func (f *front) hands(c *call) bool {
	return c.result == resultReplied && !c.absorbed && f.listener.p.observer.Load() == nil && !f.loop.tapping()
}

// abandon closes the connection, because c cannot be answered, and settles c. This is the
// only way RPC has to tell a client that no Reply will come on this connection.
func (f *front) abandon(c *call, reason error) {
	if !f.ended.get() {
		c.result = resultAbandoned
		if !f.failed {
			f.cannotAnswer(c.clientXID, reason)
			f.fail(reason)
		}
	}
	f.settle(c)
}

// late closes the connection, because the server has not answered the Call with this XID in time. The
// Call stays outstanding.
func (f *front) late(xid uint32) {
	if f.ended.get() {
		return
	}
	if !f.failed {
		f.cannotAnswer(xid, errLate)
		f.failed = true
	}
	f.client.hangUp(errLate)
	f.ended.set()
}

// cannotAnswer logs why the connection is closed.
func (f *front) cannotAnswer(xid uint32, reason error) {
	f.listener.lines.unanswered.Line(&f.listener.log, zerolog.WarnLevel, "client_closed").Str("reason", "unanswered").Stringer("peer", f.peer).Uint32("xid", xid).Err(reason).
		Msg("call cannot be answered; client connection closed")
}

// closeUnpinned closes the connection, because it cannot have the pinned connection to u, or the lane,
// that c needs, and settles c.
func (f *front) closeUnpinned(c *call, u *upstream, reason error) {
	if !errors.Is(reason, errMoved) {
		u.unpinnable(f.peer, reason)
	}
	c.result = resultAbandoned
	f.fail(reason)
	f.settle(c)
}

// malformed closes the connection, because c's message is no RPC Call, and settles c.
func (f *front) malformed(c *call, err error) {
	f.listener.lines.malformed.Line(&f.listener.log, zerolog.WarnLevel, "client_closed").Str("reason", "malformed").Stringer("peer", f.peer).Err(err).
		Msg("not an RPC Call; connection closed")
	c.result = resultMalformed
	f.client.fail(err)
	f.settle(c)
}

// refuseHeader answers c, whose header cannot be walked because of err, with the Reply b.
func (f *front) refuseHeader(c *call, b []byte, why oncrpc.Refusal, err error) {
	l := f.listener
	l.refusedCalls[why].Inc()
	l.lines.refused.Line(&l.log, zerolog.WarnLevel, "call_header_refused").Str("reason", oncrpc.RefusalNames[why]).Stringer("peer", f.peer).Uint32("xid", c.clientXID).
		Err(err).Msg("the header of a Call is not valid; call refused")
	f.answer(c, b)
}

// fail ends the connection because of a Call. The caller has logged why.
func (f *front) fail(reason error) {
	f.failed = true
	f.client.fail(reason)
}

// settle counts the result of c, gives back all that c holds, and recycles c. If c's Exchange
// was not answered, the connection of the RDMA client ends.
func (f *front) settle(c *call) {
	f.client.settled(c)
	f.count(c)
	switch {
	case c.absorbed:
		f.ledger.unhold(c)
	case !c.copied:
		f.counts.results[c.result].Inc()
	}
	f.tapOver(c)
	if c.signed && c.gss.counted {
		f.ledger.ordered--
	}
	f.ledger.settle(c)
	x := c.takeExchange()
	c.releaseMemory(f.loop)
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
	if f.draining && f.ledger.calls == 0 && f.client.has() {
		f.client.hangUp(errDraining)
	}
}

// gone reports whether the connection has ended. Any goroutine.
func (f *front) gone() bool { return f.ended.get() }

// listens reports whether reverse Calls may go to the client: its connection has not ended and
// is not draining.
func (f *front) listens() bool { return !f.ended.get() && !f.draining }

// runOnLoop runs t, the client's ticket, on the client's loop. Any goroutine.
func (f *front) runOnLoop(t *ticket) { f.loop.Post(t) }

// readOn reads from the client again after gate k has admitted it, unless something else
// prevents that.
func (f *front) readOn(k gateKind) {
	if f.gone() {
		return
	}
	f.ledger.shut &^= 1 << k
	f.client.admit()
}

// drain closes the connection as soon as it is idle. No Call is read from it any more: the
// client sends its other Calls on its next connection. Any goroutine.
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
			f.ended.set() // Calls that the same pass brings home find no client
		}
	}))
}
