package chaos

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb/nfs"
	"github.com/rdmabridge/rdmabridge/proxy/settings"
)

// A client is a good client, over TCP or RDMA: it has a few Calls outstanding, sends them
// again with the same XIDs when it has to connect again, as NFS clients do, and
// compares every Reply.
type client struct {
	name string
	book *book
	dial func(context.Context) (line, error)
	dice *rand.Rand
	deep int
	gss  bool
	v4   bool // speaks NFSv4.1 and 4.2 as well
	far  bool // its connection may be slow, or not there: it does not measure
	// roams: each connection comes from another port. A server without a bridge would not know what it sends again.
	roams bool
	// mortal: after some seconds another process takes its place, whose XIDs begin at 0.
	mortal bool

	server  *server       // that answers its Calls, unless it is far
	removes bool          // most of its Calls are REMOVEs
	pause   time.Duration // before a new Call, at most
	health  *health       // is told of answers, unless nil

	xid         uint32
	session     nfs.SessionID
	sequences   map[uint32]bool // numbers of the SEQUENCEs sent
	outstanding map[uint32]*outstanding
	connects    int
	line        uint32    // number of the present connection
	since       time.Time // before it was made
	dies        time.Time // of a mortal client
}

// An outstanding is a Call that was not answered yet.
type outstanding struct {
	kind kind
	id   uint32
	m    []byte
	sent time.Time // on the present connection
	line uint32    // the latest connection on which it was sent; 0 for none
}

// run makes Calls until ctx ends, then waits for those outstanding until end does.
func (c *client) run(ctx, end context.Context) {
	c.outstanding = make(map[uint32]*outstanding)
	c.sequences = make(map[uint32]bool)
	c.session = newSession(c.book.sessions.Add(1))
	for end.Err() == nil && !c.book.broken.Load() && (ctx.Err() == nil || len(c.outstanding) > 0) {
		since := time.Now()
		conn, err := c.dial(end)
		if err != nil {
			time.Sleep(between(c.dice, time.Millisecond, 50*time.Millisecond))
			continue
		}
		c.connects++
		c.since, c.line = since, c.book.dialled(since)
		if c.mortal && time.Now().After(c.dies) {
			c.startAnew()
		}
		c.live(ctx, end, conn)
		c.book.hungUp(c.line)
	}
	if n := len(c.outstanding); n > 0 && !c.book.broken.Load() {
		c.book.wrong("%s: %d Calls were never answered", c.name, n)
	}
}

// startAnew makes c another process, which knows nothing of the one before.
func (c *client) startAnew() {
	c.book.abandon(slices.Collect(maps.Values(c.outstanding)))
	clear(c.outstanding)
	c.xid = 0
	c.dies = time.Now().Add(between(c.dice, time.Second, 4*time.Second))
}

// live is the life of one connection.
func (c *client) live(ctx, end context.Context, l line) {
	defer l.close()
	if !c.retransmit(l) || c.v4 && ctx.Err() == nil && c.dice.IntN(2) == 0 && !c.bind(l) {
		return
	}
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		if !c.fill(ctx, l) || ctx.Err() != nil && len(c.outstanding) == 0 {
			return
		}
		select {
		case m := <-l.replies():
			c.answered(m)
		case m := <-l.calls():
			if m != nil {
				c.called(l, m)
			}
		case <-l.ended():
			c.drain(l)
			return
		case <-tick.C:
			if c.book.broken.Load() || c.overdue() || c.mortal && time.Now().After(c.dies) {
				return
			}
		case <-end.Done():
			return
		}
	}
}

// retransmit sends the Calls that are outstanding on l, in the order of their XIDs.
func (c *client) retransmit(l line) bool {
	for _, xid := range slices.Sorted(maps.Keys(c.outstanding)) {
		if !c.send(l, c.outstanding[xid]) {
			return false
		}
	}
	return true
}

// fill sends new Calls until as many are outstanding as the client may have.
func (c *client) fill(ctx context.Context, l line) bool {
	for ctx.Err() == nil && len(c.outstanding) < c.deep && !c.book.broken.Load() {
		if !c.fresh(l) {
			return false
		}
	}
	return true
}

// drain checks the Replies that came before the end of l: they count.
func (c *client) drain(l line) {
	for {
		select {
		case m := <-l.replies():
			c.answered(m)
		default:
			return
		}
	}
}

// overdue reports, to the book as well, a Call that has waited for longer than its bound.
func (c *client) overdue() bool {
	for _, o := range c.outstanding {
		if w := time.Since(o.sent); w > c.bound(o.kind) {
			c.book.wrong("%s: call %#x (%v) has waited %v on a live connection", c.name, o.id, o.kind, w)
			return true
		}
	}
	return false
}

// fresh sends a new Call.
func (c *client) fresh(l line) bool {
	if c.pause > 0 {
		time.Sleep(between(c.dice, 0, c.pause))
	}
	c.xid++
	id := c.book.next.Add(1)
	k, m := randomCall(c.dice, c.xid, id, c.gss, c.v4)
	if k == sequence {
		m = newCompound(k, c.session, c.xid, id)
	}
	if c.removes && c.dice.IntN(4) > 0 {
		k, m = remove, newRemove(c.xid, id)
	}
	return c.begin(l, k, id, m)
}

// bind asks the server to call the client on l.
func (c *client) bind(l line) bool {
	c.xid++
	id := c.book.next.Add(1)
	return c.begin(l, bind, id, newCompound(bind, c.session, c.xid, id))
}

// begin sends the new Call m.
func (c *client) begin(l line, k kind, id uint32, m []byte) bool {
	c.book.begin(c.name, k, id, m)
	o := &outstanding{kind: k, id: id, m: m}
	c.outstanding[c.xid] = o
	if k == sequence || k == bind {
		c.sequences[id] = true
	}
	return c.send(l, o)
}

// bound is the longest that a Call may wait on a live connection: docs/faults.md.
func (c *client) bound(k kind) time.Duration {
	if c.far {
		return bound
	}
	// A Call on a lane is not sent again when the lane has ended: the bridge closes its client.
	mode, kept := c.server.kept.on(c.since)
	if k.harmful() || k.compound() && kept && mode == settings.ModeAuto {
		return callTimeout + unavailable + patience
	}
	return bound
}

func (c *client) send(l line, o *outstanding) bool {
	c.book.sentOn(o.id, c.line)
	if c.roams && o.line != 0 && o.line != c.line {
		c.book.moved(o.id)
	}
	o.line = c.line
	c.book.transmit(o.id)
	o.sent = time.Now()
	err := l.send(o.m, c.bound(o.kind))
	if errors.Is(err, errStuck) {
		c.book.wrong("%s: call %#x (%v) could not be written for %v", c.name, o.id, o.kind, c.bound(o.kind))
	}
	return err == nil
}

// answered checks the Reply m.
func (c *client) answered(m []byte) {
	xid, o := c.book.match(c.name, c.outstanding, m)
	if o == nil {
		return
	}
	waited := time.Since(o.sent)
	if c.book.judge(c.name, o, m) {
		c.book.failed.Add(1)
	}
	if c.health != nil {
		c.health.answered()
	}
	delete(c.outstanding, xid)
	c.book.end(o.id, waited)
}
