package session

import (
	"errors"
	"slices"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb/nfs"
)

// Callbacks on lanes
//
// A reverse Call on a lane is for the client of the session in its CB_SEQUENCE. The lane's connection
// and the client's may live on different loops. So a reverseCall goes from one to the other and back: it
// begins on the loop of the server's connection, which reads the session and finds the client; the
// client's loop sends the Call; and its Reply returns the same way. XIDs stay as they are. Two
// connections of the server may call one client, if it has come back on another lane: a Call whose
// XID the client has not answered yet is sent again later.
//
// The server may have few reverse credits for all clients of the connection; Linux has two. So no
// client keeps one for longer than callbackPatience, and less if others were silent lately: then the bridge answers
// SYSTEM_ERR, before the server gives up by itself.
//
//	client there           it gets the Call
//	client away, or paused NFS4ERR_DELAY in CB_SEQUENCE: the server sends the Call again after a while
//	session unknown, or client away for longer, or silent
//	                       SYSTEM_ERR: the server tells the client in the next SEQUENCE that the back
//	                       channel has failed, and the client makes another
//	no session in the Call CB_NULL goes to the client that was bound last and has this callback
//	                       program; everything else is refused

const (
	// callbackPatience is how long a client may take to answer a reverse Call. Linux answers at once,
	// and waits a tenth of the lease time for an answer: 9 s.
	callbackPatience = 5 * time.Second
	// Each Call that is not answered halves the time for the next ones on the connection, down to
	// leastPatience, for patienceHeals: when many clients are silent, because their network is gone,
	// they would keep the reverse credits from the others for long.
	leastPatience = 500 * time.Millisecond
	patienceHeals = 30 * time.Second
	// maxClientCalls bounds the reverse Calls that are outstanding of one client.
	maxClientCalls = 64
)

// CallBack brings a client the plain RPC Call m, which came on the connection from. It keeps m
// until it calls done.Release. If it reports false, m remains the caller's, and the caller
// refuses the Call.
func (c *Conn) CallBack(from Reverser, m []byte, done Releaser) bool {
	if r := c.lane.opts.only; r != nil {
		return r.reverse.pass(r, from, m, done)
	}
	k, ls := &c.calls, c.lane.lanes
	if k.over || oncrpc.ParseCall(m, &k.call) != nil {
		return false
	}
	h := &k.call
	defer func() { h.Message = nil }()
	id, named := nfs.CallbackSession(h)
	var to *Client
	place := sessionUnknown
	switch {
	case named:
		to, place = ls.Table.locate(id)
	case h.Procedure == 0:
		if to = ls.Table.newestOf(h.Program, c); to != nil {
			place = sessionHere
		}
	}
	if place == sessionUnknown || len(k.out) >= c.lane.opts.calls {
		ls.callbacks.unknown.Inc()
		return false
	}
	l := &reverseCall{conn: c, from: from, to: to, xid: h.XID, id: id, came: time.Now(), m: m, done: done}
	if named && h.Flavor != oncrpc.FlavorGSS {
		l.later = nfs.AppendCallbackStatus(nil, h, nfs.StatusDelay)
	}
	c.add(l)
	if place == sessionAbsent {
		// The connection does not know the Call yet as one that it may answer.
		l.m, l.done = nil, nil
		done.Release()
		l.back(reverseAway)
		return true
	}
	to.loop.Post(l)
	return true
}

// Run does what the state says. loop.Task.
func (l *reverseCall) Run() {
	if l.state == reverseGoes {
		l.to.reverse.send(l)
		return
	}
	l.conn.finish(l)
}

// back brings l, whose client has dealt with it, back to the server's loop.
func (l *reverseCall) back(s reverseState) {
	l.state = s
	l.conn.loop.Post(l)
}

// finish ends l on the server's loop.
func (c *Conn) finish(l *reverseCall) {
	k, ls := &c.calls, c.lane.lanes
	i := slices.Index(k.out, l)
	if i < 0 { // it has expired, or the connection has ended
		if l.m != nil {
			l.done.Release()
		}
		return
	}
	k.out = slices.Delete(k.out, i, i+1)
	switch {
	case l.state == reverseReplied:
		ls.callbacks.answered.Inc()
		ls.Table.answered(l.id, l.to)
		c.reply(l, l.m, l.done)
	case l.state == reverseAway && l.later != nil:
		ls.callbacks.delayed.Inc()
		b, err := ls.o.Lease(c.affinity, len(l.later)) // a provider sends only from an arena
		if err != nil {
			l.from.ReverseRefuse(l.xid)
			return
		}
		copy(b.Bytes(), l.later)
		c.reply(l, b.Bytes(), b)
	default:
		ls.callbacks.refused.Inc()
		l.from.ReverseRefuse(l.xid)
	}
}

// reply answers l with m.
func (c *Conn) reply(l *reverseCall, m []byte, done Releaser) {
	if l.from.ReverseReply(l.xid, m, done) != nil {
		done.Release()
	}
}

// add adds l to the Calls that are outstanding.
func (c *Conn) add(l *reverseCall) {
	k := &c.calls
	k.out = append(k.out, l)
	if k.timer == nil {
		c.expireAfter(k.wait(time.Now()))
	}
}

// wait is how long a client may take to answer, at the time now.
func (k *reverseCalls) wait(now time.Time) time.Duration {
	if now.Sub(k.silentAt) >= patienceHeals {
		k.patience = callbackPatience
	}
	return k.patience
}

// unanswered notes that a Call has not been answered in time.
func (k *reverseCalls) unanswered(now time.Time) {
	k.patience, k.silentAt = max(k.wait(now)/2, leastPatience), now
}

// expireAfter has expire called after d.
func (c *Conn) expireAfter(d time.Duration) {
	c.calls.timer = time.AfterFunc(d, func() { c.loop.Post(loop.TaskFunc(c.expire)) })
}

// expire refuses the Calls that their clients have not answered in time.
func (c *Conn) expire() {
	k := &c.calls
	k.timer = nil
	if k.over {
		return
	}
	for len(k.out) > 0 {
		l, now := k.out[0], time.Now()
		if left := k.wait(now) - now.Sub(l.came); left > 0 {
			c.expireAfter(left)
			return
		}
		k.out = slices.Delete(k.out, 0, 1)
		k.unanswered(now)
		ls := c.lane.lanes
		ls.callbacks.unanswered.Inc()
		ls.Table.silent(l.id, l.to)
		l.from.ReverseRefuse(l.xid)
		// l may be on its way to the client's loop, or to this one.
		if to := l.to; to != nil {
			to.loop.Post(loop.TaskFunc(func() { to.reverse.forget(l) }))
		}
	}
}

// end forgets all Calls, because the connection has ended.
func (k *reverseCalls) end() {
	k.over, k.out = true, nil
	if k.timer != nil {
		k.timer.Stop()
	}
}

// pass sends r, to which a pinned lane belongs, the Call m, which came on from. It does what Conn.CallBack does.
func (q *reverseQueue) pass(r *Client, from Reverser, m []byte, done Releaser) bool {
	if !r.o.Peer.Listens() {
		done.Release()
		return true
	}
	q.from = from
	return q.owed.send(r.o.Peer, m, done, from, r.lane.opts.calls)
}

// send sends the client l.
func (r *reverseQueue) send(l *reverseCall) {
	p := l.to.o.Peer
	m, done := l.m, l.done
	l.m, l.done = nil, nil
	switch {
	case !p.Listens() || p.Deaf() || slices.ContainsFunc(r.calls, func(o *reverseCall) bool { return o.xid == l.xid }):
		done.Release()
		l.back(reverseAway)
		return
	case len(r.calls) >= maxClientCalls:
		done.Release()
		l.back(reverseRefused)
		return
	}
	r.calls = append(r.calls, l)
	if !r.owed.send(p, m, done, r, maxClientCalls) {
		done.Release()
		r.forget(l)
		l.back(reverseRefused)
	}
}

// ReverseReply is part of Reverser: the client has answered.
func (r *reverseQueue) ReverseReply(xid uint32, m []byte, done Releaser) error {
	if r.from != nil {
		return r.from.ReverseReply(xid, m, done)
	}
	l := r.take(xid)
	if l == nil {
		return errNoCall
	}
	l.m, l.done = m, done
	l.back(reverseReplied)
	return nil
}

// ReverseRefuse is part of Reverser: the client cannot take the Call.
func (r *reverseQueue) ReverseRefuse(xid uint32) {
	if l := r.take(xid); l != nil {
		l.back(reverseRefused)
	}
}

// take removes the Call xid and returns it, or nil.
func (r *reverseQueue) take(xid uint32) *reverseCall {
	for _, l := range r.calls {
		if l.xid == xid {
			r.forget(l)
			return l
		}
	}
	return nil
}

// forget removes l, if it is there.
func (r *reverseQueue) forget(l *reverseCall) {
	if i := slices.Index(r.calls, l); i >= 0 {
		r.calls = slices.Delete(r.calls, i, i+1)
	}
}

// end gives all Calls back, because the client's connection has ended.
func (r *reverseQueue) end() {
	for i, l := range r.calls {
		if !slices.ContainsFunc(r.calls[:i], func(o *reverseCall) bool { return o.id == l.id }) {
			l.conn.lane.lanes.Table.broken(l.id, l.to)
		}
		l.back(reverseAway)
	}
	r.calls = nil
}

// errNoCall reports an answer of a client to no reverse Call that it has.
var errNoCall = errors.New("proxy: no such reverse call")
