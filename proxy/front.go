package proxy

import (
	"errors"
	"io"
	"net/netip"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/tlsconf"
	"github.com/rdmabridge/rdmabridge/proxy/admit"
	"github.com/rdmabridge/rdmabridge/proxy/admit/gates"
	"github.com/rdmabridge/rdmabridge/proxy/authorise"
	"github.com/rdmabridge/rdmabridge/proxy/identity"
	"github.com/rdmabridge/rdmabridge/proxy/listener"
	"github.com/rdmabridge/rdmabridge/proxy/observe"
	"github.com/rdmabridge/rdmabridge/proxy/session"
	"github.com/rdmabridge/rdmabridge/proxy/upstream"
	"github.com/rdmabridge/rdmabridge/tcpframe"
)

// A clientCache is what a connection remembers of its latest Calls, to know as much about the next one at less cost.
type clientCache struct {
	user      identity.LatestUser
	decisions authorise.Cache
}

// A front is the bridge's side of one client connection, as far as TCP and RDMA clients are alike.
// [tcpClient] and [rdmaClient] embed it. The front uses them through the interface [client].
//
// A front belongs to its loop. Methods for any goroutine say so.
type front struct {
	client   client // the tcpClient or rdmaClient that embeds the front; constant, as the next four
	listener *listener.Listener
	counts   *listener.Counts // the listener's, for the loop
	loop     *eventLoop
	peer     netip.AddrPort

	ledger   admit.Client
	seen     observe.Client
	cache    *clientCache // nil before its first Call
	queues   []*clientQueue
	held     *call // the first of the Calls that are held, linked by next and prev: identify.go
	ordered  int32 // Calls under RPCSEC_GSS that keep their order: gss_order.go
	draining bool  // the connection closes as soon as no Call is under way
	failed   bool  // the connection was closed because of a Call, and the log says why
	evicted  bool  // an eviction closes the connection; guarded by the listener, as is place
	began    bool  // a Call has come; for RDMA clients only
	ended    flag  // the connection has ended, or ends in this pass; set on the loop, read anywhere

	secured    bool              // the connection has TLS
	plain      bool              // a Call other than NULL went to an upstream without TLS
	tenantOpen bool              // the client has no tenant yet, because its certificate may decide: enroll.go
	startTLS   *tcpframe.TLS     // what the probe that the loop is just answering starts; nil for none
	identity   *tlsconf.Identity // who the client's certificate says it is; nil without TLS or a certificate

	place listener.Place
}

// A client is what TCP and RDMA clients do differently. Its methods run on the client's
// loop.
type client interface {
	// admit begins Calls, or stops, as the ledger allows and draining demands.
	admit()
	// transmit sends c's Reply, after front.lend. c.Release is called when the client has
	// the Reply, or never will have it.
	transmit(c *call)
	// settled is called before front.settle counts the result of c, which it may change. It is not when the connection
	// copies the Reply.
	settled(c *call)
	// passed is called when n Calls are over whose Replies replyRun.copy or relay has had the connection copy.
	passed(n int)
	// fail ends the connection because of a Call that gets no Reply. front.settle follows,
	// which aborts the Call's Exchange. That ends the connection of an RDMA client, so its
	// fail does nothing.
	fail(reason error)
	// Sending says what the client sends now.
	Sending() admit.Sending
	// idle reports whether no Call of the client is under way, and it has its Replies.
	idle() bool
	// has reports whether the client has the Replies of all Calls that are settled: a copy may still wait.
	has() bool
	// hangUp ends the connection: in order when reason is errDraining, else at once.
	hangUp(reason error)
	// callBack sends the client the reverse Call m, a plain RPC Call that came on the
	// connection from. It takes m until it calls done.Release. If it reports false, m remains
	// the caller's.
	callBack(m []byte, done session.Releaser, from session.Reverser) bool
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
	// longestReverse is the length of the longest reverse Call that can be sent to the client.
	longestReverse() int
}

var (
	errClientGone = errors.New("proxy: client gone")
	errDraining   = errors.New("proxy: draining")
	errLate       = errors.New("proxy: the server has answered later calls and not this one")
)

// open prepares the front of s, a connection to l from peer that belongs to the loop on.
func (f *front) open(s client, l *listener.Listener, on *eventLoop, peer netip.AddrPort) {
	f.client, f.listener, f.counts, f.loop, f.peer = s, l, l.CountsOf(on.index), on, peer
	f.seen = observe.NewClient(on.Now())
	f.openLedger()
	f.enroll()
}

// join adds the connection to the listener's. If the listener is draining, the connection
// closes as soon as it is idle.
func (f *front) join() {
	if !f.listener.Join(&f.place, &f.ledger, f.addr()) {
		f.draining = true
		f.closeIfIdle()
	}
	f.Follow() // the settings may have changed before it joined
}

// end removes the connection, which has ended with err, from the listener, and closes its
// ledger. After an orderly end err is nil or io.EOF.
func (f *front) end(err error) {
	f.ended.set()
	f.listener.Leave(&f.place)
	f.loop.memory.Left(&f.ledger)
	f.closeLedger()
	f.wait(0, 1<<gates.Reasons-1)
	f.account().connEnded(f, err)
	if err != nil && !errors.Is(err, io.EOF) {
		f.listener.Log.Debug().Str("event", "client_gone").Stringer("peer", f.peer).Err(err).Msg("client connection ended")
	}
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
		f.account().delivered(c)
		f.client.transmit(c)
	}
}

// lend charges the client with the memory of c's Reply until the client has the Reply. When the
// client's Replies take more than listener.maxHeld, lend closes the connection, settles c and
// reports false.
func (f *front) lend(c *call) bool {
	f.account().lent(c)
	if f.ledger.Unread() > f.listener.MaxHeld {
		f.abandon(c, admit.ErrUnread)
		return false
	}
	if c.progress.Result == observe.ResultGone {
		c.progress.Result = observe.ResultReplied
	}
	return true
}

// hands reports whether c may be settled when its Reply has been copied, before it is written: nobody is told when it
// was.
func (f *front) hands(c *call) bool {
	return c.progress.Result == observe.ResultReplied && !c.progress.Absorbed && !c.tapped() && !f.account().observed()
}

// abandon closes the connection, because c cannot be answered, and settles c. This is the
// only way RPC has to tell a client that no Reply will come on this connection.
func (f *front) abandon(c *call, reason error) {
	if !f.ended.get() {
		c.progress.Result = observe.ResultAbandoned
		if !f.failed {
			f.listener.Unanswered(f.peer, c.progress.ClientXID, reason)
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
		f.listener.Unanswered(f.peer, xid, errLate)
		f.failed = true
	}
	f.client.hangUp(errLate)
	f.ended.set()
}

// closeUnpinned closes the connection, because it cannot have the pinned connection to u, or the lane,
// that c needs, and settles c.
func (f *front) closeUnpinned(c *call, u *upstream.Upstream, reason error) {
	if !errors.Is(reason, session.ErrMoved) {
		u.Lanes.Refuse(f.peer, reason)
	}
	c.progress.Result = observe.ResultAbandoned
	f.fail(reason)
	f.settle(c)
}

// malformed closes the connection, because c's message is no RPC Call, and settles c.
func (f *front) malformed(c *call, err error) {
	f.listener.Malformed(f.peer, err)
	c.progress.Result = observe.ResultMalformed
	f.client.fail(err)
	f.settle(c)
}

// refuseHeader answers c, whose header cannot be walked because of err, with the Reply b.
func (f *front) refuseHeader(c *call, b []byte, why oncrpc.Refusal, err error) {
	f.listener.RefusedHeader(f.peer, c.progress.ClientXID, why, err)
	f.answer(c, b)
}

// fail ends the connection because of a Call. The caller has logged why.
func (f *front) fail(reason error) {
	f.failed = true
	f.client.fail(reason)
}

// settle ends the account of c, gives back all that c holds, and recycles c. If c's Exchange
// was not answered, the connection of the RDMA client ends.
func (f *front) settle(c *call) {
	if !c.progress.Copied {
		f.client.settled(c)
	}
	f.account().settled(c)
	if c.progress.Absorbed {
		f.unhold(c)
	}
	if c.charge.Ordered {
		f.ordered--
	}
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
	if f.draining {
		f.closeIfIdle()
	}
}

// closeIfIdle closes a client that is draining and has its Replies.
func (f *front) closeIfIdle() {
	if f.draining && f.ledger.Idle() && f.client.has() {
		f.client.hangUp(errDraining)
	}
}

// Gone reports whether the connection has ended. Any goroutine.
func (f *front) Gone() bool { return f.ended.get() }

// listens reports whether reverse Calls may go to the client: its connection has not ended and
// is not draining.
func (f *front) listens() bool { return !f.ended.get() && !f.draining }

// Post runs t on the client's loop. Any goroutine.
func (f *front) Post(t loop.Task) { f.loop.Post(t) }

// Resume is part of gates.Conn.
func (f *front) Resume() { f.client.admit() }

// account is that of the client's loop.
func (f *front) account() *account { return &f.loop.account }

// isOn reports whether the loop with the number here is the client's.
func (f *front) isOn(here int) bool { return f.loop.index == here }

// tableOf returns what counts the Calls of the clients on this loop to u.
func (f *front) tableOf(u *upstream.Upstream) *observe.Table {
	return f.listener.Table(f.loop.index, u)
}

// loopAt is the loop with the number here, or nil for pool.Elsewhere.
func (f *front) loopAt(here int) *eventLoop { return f.loop.peers.at(here) }

// settings are those of the client's listener that are in force.
func (f *front) settings() *listener.Settings { return f.listener.Settings() }

// host and weight say which share the client has of what is scarce.
func (f *front) host() *admit.Host { return f.ledger.Host() }
func (f *front) weight() int       { return f.ledger.Weight }

// largeReply is about the most octets of memory that a Reply without a bound took lately.
func (f *front) largeReply() int { return f.ledger.LargeReply() }

// longestCallBack is the length of the longest reverse Call that can be sent to the client.
func (f *front) longestCallBack() int { return f.client.longestReverse() }

// givesBack gives back the memory for a Call that g counts.
func (f *front) givesBack(g *admit.Charge) { f.loop.memory.Release(g) }

// addr is the client's address.
func (f *front) addr() netip.Addr { return f.peer.Addr().Unmap() }

// origin is what a server would know the client by.
func (f *front) origin() identity.Origin { return identity.OriginOf(f.peer, f.listener.IsRDMA) }

// burden says for how much memory see finds that the client holds it too long, if that is more than 0.
func (f *front) burden(see func(g *admit.Client, sends func() admit.Sending) int64) (b admit.Burden, ok bool) {
	held := see(&f.ledger, f.client.Sending)
	return admit.Burden{Client: &f.ledger, Held: held, Listener: f.listener.Name, Peer: f.peer}, held > 0
}

// Drain closes the connection as soon as it is idle. No Call is read from it any more: the
// client sends its other Calls on its next connection. Any goroutine.
func (f *front) Drain() {
	f.Post(loop.TaskFunc(func() {
		if f.draining || f.ended.get() {
			return
		}
		f.draining = true
		f.client.admit()
		f.closeIfIdle()
	}))
}

// Close ends the connection now. Any goroutine.
func (f *front) Close(reason error) {
	f.Post(loop.TaskFunc(func() {
		if !f.ended.get() {
			f.client.hangUp(reason)
			f.ended.set() // Calls that the same pass brings home find no client
		}
	}))
}

// byLoop divides clients among the loops that own them, by the loops' index.
func byLoop(ls eventLoops, clients []*front) [][]*front {
	all := make([][]*front, len(ls))
	for _, f := range clients {
		all[f.loop.index] = append(all[f.loop.index], f)
	}
	return all
}

// allFronts lists the clients of all listeners.
func (v *inventory) allFronts() (all []*front) {
	for _, l := range v.AllListeners() {
		for _, c := range l.AllClients() {
			all = append(all, c.(*front))
		}
	}
	return all
}

// TapKey is part of observe.Tapped.
func (f *front) TapKey() any { return f }

// DescribeTap is part of observe.Tapped.
func (f *front) DescribeTap(c *observe.TapConn) {
	l := f.listener
	c.Leg, c.RDMA, c.Name, c.Peer = observe.TapClients, l.IsRDMA, l.Name, f.peer
	c.Local = f.client.local()
}

// answer gives the client the Reply b, which the bridge has made in c.local.
func (f *front) answer(c *call, b []byte) {
	f.account().answered(c)
	c.answer(b)
	c.setState(callReplying)
	f.deliver(c)
}

// hold counts c as absorbed. c is held, because it repeats a Call.
func (f *front) hold(c *call) {
	f.account().held(c)
	c.usesSeldom = true
	if c.next = f.held; c.next != nil {
		c.next.prev = c
	}
	f.held = c
}

// unhold takes c out of the Calls that are held, if it is among them.
func (f *front) unhold(c *call) {
	switch {
	case c.prev != nil:
		c.prev.next = c.next
	case f.held == c:
		f.held = c.next
	default:
		return
	}
	if c.next != nil {
		c.next.prev = c.prev
	}
	c.prev, c.next = nil, nil
}
