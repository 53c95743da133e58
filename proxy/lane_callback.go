package proxy

import (
	"slices"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/internal/regmem"
	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb/nfs"
	"github.com/rdmabridge/rdmabridge/metrics"
	"github.com/rdmabridge/rdmabridge/rdmaside"
)

// Callbacks on lanes
//
// A reverse Call on a lane is for the client of the session in its CB_SEQUENCE. The lane's connection
// and the client's may live on different loops. So a laneCall goes from one to the other and back: it
// begins on the loop of the server's connection, which reads the session and finds the client; the
// client's loop sends the Call; and its Reply returns the same way. XIDs stay as they are. Two
// connections of the server may call one client, if it has come back on another lane: a Call whose
// XID the client has not answered yet is sent again later.
//
// The server may have few reverse credits for all clients of the connection; Linux has two. So no
// client keeps one for longer than callbackPatience, and less if others were silent lately: then the bridge answers SYSTEM_ERR, before the
// server gives up by itself.
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
	// maxLaneCalls bounds the reverse Calls that are outstanding on one connection of a server, and
	// maxClientCalls those of one client.
	maxLaneCalls   = 1024
	maxClientCalls = 64
)

// laneCalls are the reverse Calls that are outstanding on a laneConn, in the order they came.
type laneCalls struct {
	out      []*laneCall   // at most maxLaneCalls
	call     oncrpc.Call   // scratch
	timer    *time.Timer   // calls expire
	patience time.Duration // callbackPatience, or less until patienceHeals after silentAt
	silentAt time.Time     // when a Call last was not answered
	over     bool          // the connection has ended
}

// A laneCall is a reverse Call on its way to the client, and its Reply on the way back. It belongs to
// the loop that it was posted to last.
type laneCall struct {
	conn  *laneConn // constant, as the next six
	from  reverser
	to    *laneClient // nil if the client is away
	xid   uint32
	id    nfs.SessionID // zero for a CB_NULL
	later []byte        // a Reply that asks the server to try later, or nil
	came  time.Time

	state laneCallState
	m     []byte   // the Call, or the Reply; nil if there is none
	done  releaser // of m
}

// A laneCallState says what is done with a laneCall next.
type laneCallState uint8

const (
	laneCallGoes    laneCallState = iota // the client's loop sends it
	laneCallReplied                      // the server's loop sends the Reply
	laneCallRefused                      // the server's loop refuses it: the client cannot take it
	laneCallAway                         // the server's loop asks the server to try later: the client's connection has ended
)

// callBackRDMA is part of connOwner.
func (c *laneConn) callBackRDMA(from reverser, m *regmem.Lease) bool {
	return c.callBack(from, m.Bytes(), m)
}

// callBack is part of connOwner. It runs on the connection's loop.
func (c *laneConn) callBack(from reverser, m []byte, done releaser) bool {
	k, u := &c.calls, c.lane.u
	if k.over || oncrpc.ParseCall(m, &k.call) != nil {
		return false
	}
	h := &k.call
	defer func() { h.Message = nil }()
	id, named := nfs.CallbackSession(h)
	var to *laneClient
	place := sessionUnknown
	switch {
	case named:
		to, place = u.table.locate(id)
	case h.Procedure == 0:
		if to = u.table.newestOf(h.Program, c); to != nil {
			place = sessionHere
		}
	}
	if place == sessionUnknown || len(k.out) >= maxLaneCalls {
		u.laneCalls.unknown.Inc()
		return false
	}
	l := &laneCall{conn: c, from: from, to: to, xid: h.XID, id: id, came: time.Now(), m: m, done: done}
	if named && h.Flavor != oncrpc.FlavorGSS {
		l.later = nfs.AppendCallbackStatus(nil, h, nfs.StatusDelay)
	}
	c.add(l)
	if place == sessionAbsent {
		// The connection does not know the Call yet as one that it may answer.
		l.m, l.done = nil, nil
		done.Release()
		l.back(laneCallAway)
		return true
	}
	to.front.loop.Post(l)
	return true
}

// Run does what the state says. loop.Task.
func (l *laneCall) Run() {
	if l.state == laneCallGoes {
		l.to.reverse.send(l)
		return
	}
	l.conn.finish(l)
}

// back brings l, whose client has dealt with it, back to the server's loop.
func (l *laneCall) back(s laneCallState) {
	l.state = s
	l.conn.loop.Post(l)
}

// finish ends l on the server's loop.
func (c *laneConn) finish(l *laneCall) {
	k, u := &c.calls, c.lane.u
	i := slices.Index(k.out, l)
	if i < 0 { // it has expired, or the connection has ended
		if l.m != nil {
			l.done.Release()
		}
		return
	}
	k.out = slices.Delete(k.out, i, i+1)
	switch {
	case l.state == laneCallReplied:
		u.laneCalls.answered.Inc()
		u.table.answered(l.id, l.to)
		c.reply(l, l.m, l.done)
	case l.state == laneCallAway && l.later != nil:
		u.laneCalls.delayed.Inc()
		b, err := c.loop.replies.Lease(len(l.later)) // a provider sends only from an arena
		if err != nil {
			l.from.ReverseRefuse(l.xid)
			return
		}
		copy(b.Bytes(), l.later)
		c.reply(l, b.Bytes(), b)
	default:
		u.laneCalls.refused.Inc()
		l.from.ReverseRefuse(l.xid)
	}
}

// reply answers l with m.
func (c *laneConn) reply(l *laneCall, m []byte, done releaser) {
	if l.from.ReverseReply(l.xid, m, done) != nil {
		done.Release()
	}
}

// add adds l to the Calls that are outstanding.
func (c *laneConn) add(l *laneCall) {
	k := &c.calls
	k.out = append(k.out, l)
	if k.timer == nil {
		c.expireAfter(k.wait(time.Now()))
	}
}

// wait is how long a client may take to answer, at the time now.
func (k *laneCalls) wait(now time.Time) time.Duration {
	if now.Sub(k.silentAt) >= patienceHeals {
		k.patience = callbackPatience
	}
	return k.patience
}

// unanswered notes that a Call has not been answered in time.
func (k *laneCalls) unanswered(now time.Time) {
	k.patience, k.silentAt = max(k.wait(now)/2, leastPatience), now
}

// expireAfter has expire called after d.
func (c *laneConn) expireAfter(d time.Duration) {
	c.calls.timer = time.AfterFunc(d, func() { c.loop.Post(loop.TaskFunc(c.expire)) })
}

// expire refuses the Calls that their clients have not answered in time.
func (c *laneConn) expire() {
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
		u := c.lane.u
		u.laneCalls.unanswered.Inc()
		u.table.silent(l.id, l.to)
		l.from.ReverseRefuse(l.xid)
		// l may be on its way to the client's loop, or to this one.
		if to := l.to; to != nil {
			to.front.loop.Post(loop.TaskFunc(func() { to.reverse.forget(l) }))
		}
	}
}

// end forgets all Calls, because the connection has ended.
func (k *laneCalls) end() {
	k.over, k.out = true, nil
	if k.timer != nil {
		k.timer.Stop()
	}
}

// A reverseQueue is the reverse Calls of one client connection on a lane. It belongs to the client's
// loop.
type reverseQueue struct {
	calls []*laneCall // that the client has not answered, at most maxClientCalls
	owed  owed
}

// send sends the client l.
func (r *reverseQueue) send(l *laneCall) {
	f := l.to.front
	m, done := l.m, l.done
	l.m, l.done = nil, nil
	switch {
	case !f.listens() || f.client.deaf() || slices.ContainsFunc(r.calls, func(o *laneCall) bool { return o.xid == l.xid }):
		done.Release()
		l.back(laneCallAway)
		return
	case len(r.calls) >= maxClientCalls:
		done.Release()
		l.back(laneCallRefused)
		return
	}
	r.calls = append(r.calls, l)
	if !r.owed.send(f.client, m, done, r, maxClientCalls) {
		done.Release()
		r.forget(l)
		l.back(laneCallRefused)
	}
}

// ReverseReply is part of reverser: the client has answered.
func (r *reverseQueue) ReverseReply(xid uint32, m []byte, done rdmaside.Releaser) error {
	l := r.take(xid)
	if l == nil {
		return rdmaside.ErrNoReverseCall
	}
	l.m, l.done = m, done
	l.back(laneCallReplied)
	return nil
}

// ReverseRefuse is part of reverser: the client cannot take the Call.
func (r *reverseQueue) ReverseRefuse(xid uint32) {
	if l := r.take(xid); l != nil {
		l.back(laneCallRefused)
	}
}

// take removes the Call xid and returns it, or nil.
func (r *reverseQueue) take(xid uint32) *laneCall {
	for _, l := range r.calls {
		if l.xid == xid {
			r.forget(l)
			return l
		}
	}
	return nil
}

// forget removes l, if it is there.
func (r *reverseQueue) forget(l *laneCall) {
	if i := slices.Index(r.calls, l); i >= 0 {
		r.calls = slices.Delete(r.calls, i, i+1)
	}
}

// end gives all Calls back, because the client's connection has ended.
func (r *reverseQueue) end() {
	for i, l := range r.calls {
		if !slices.ContainsFunc(r.calls[:i], func(o *laneCall) bool { return o.id == l.id }) {
			l.conn.lane.u.table.broken(l.id, l.to)
		}
		l.back(laneCallAway)
	}
	r.calls = nil
}

// laneMetrics count the reverse Calls on the lanes of one upstream, by what became of them.
type laneMetrics struct{ answered, delayed, unknown, refused, unanswered *metrics.Counter }

func newLaneMetrics(m *metrics.Registry, upstream string) laneMetrics {
	by := func(outcome string) *metrics.Counter {
		return m.Counter(metrics.UpstreamSessionCallbacks, upstream, outcome)
	}
	return laneMetrics{by("answered"), by("delayed"), by("unknown"), by("refused"), by("unanswered")}
}
