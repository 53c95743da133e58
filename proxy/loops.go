package proxy

import (
	"net"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/internal/regmem"
	"github.com/rdmabridge/rdmabridge/metrics"
	"github.com/rdmabridge/rdmabridge/pool"
	"github.com/rdmabridge/rdmabridge/proxy/admit"
	"github.com/rdmabridge/rdmabridge/proxy/identity"
	"github.com/rdmabridge/rdmabridge/rdmaside"
	"github.com/rdmabridge/rdmabridge/tcpframe"
)

// An eventLoop is one of tcpframe's loops with what the proxy keeps for each loop. It is a
// [loop.SocketLoop], so that RDMA connections live on it, too.
type eventLoop struct {
	index     int
	peers     eventLoops // all loops, this one included; constant
	tcp       *tcpframe.Loop
	free      []*call // calls to use again; the loop's
	all       []*call // all calls of the loop's clients, also those in free; the loop's
	batch     *pool.Batch
	run       run
	submitted *call // the Call that was added to batch last, for run.begin, which asks before batch is flushed
	due       bool  // endTask is to run at the end of the pass

	users   *identity.Users
	account account
	replied replyRun

	calls, replies *regmem.Account   // the Proxy's accounts, with a stock for this loop
	ample          bool              // most of calls was free at the end of the last pass
	memory         *admit.Memory     // divides calls among hosts
	metrics        *metrics.Registry // the Proxy's, with parts of its counters for this loop
}

// newLoop makes the loop that has this number. calls, replies and m are the Proxy's.
func newLoop(
	index int, l *tcpframe.Loop, memory *admit.Memory, calls, replies *regmem.Account, m *metrics.Registry,
) *eventLoop {
	n := &eventLoop{index: index, tcp: l, memory: memory, users: identity.NewUsers()}
	n.account.loop, n.account.tcp, n.account.here, n.account.tally.Arrange = n, l, index, n.arrange
	n.replied.loop = n
	run := func(f func()) { l.Post(loop.TaskFunc(f)) }
	n.calls, n.replies = calls.Local(n.arrange, run), replies.Local(n.arrange, run)
	n.metrics, n.batch = m.Local(n.arrange), pool.NewBatch(index, n.arrange, warm)
	return n
}

// arrange has endTask run at the end of the pass.
func (l *eventLoop) arrange() {
	if !l.due {
		l.due = true
		l.tcp.Finish((*endTask)(l))
	}
}

// An endTask is an eventLoop as the Task that hands over what a pass has collected.
type endTask eventLoop

func (t *endTask) Run() {
	t.batch.Flush((*eventLoop)(t).cold())
	t.account.tally.Count()
	t.metrics.Publish() // with what Flush has counted
	t.due = false       // what Publish changes needs another task
	t.calls.Publish()
	t.replies.Publish()
	t.ample = ample(t.calls)
}

// cold reports whether so many Calls are under way that the memory of one has left the caches before it is needed
// again.
func (l *eventLoop) cold() bool { return len(l.all)-len(l.free) > warmCalls }

// eventLoops are all loops, by their index.
type eventLoops []*eventLoop

// all returns the loops as those who only post to them see them.
func (ls eventLoops) all() []loop.Loop {
	all := make([]loop.Loop, len(ls))
	for i, l := range ls {
		all[i] = l
	}
	return all
}

// at returns the loop with the number here, or nil for pool.Elsewhere.
func (ls eventLoops) at(here int) *eventLoop {
	if here == pool.Elsewhere {
		return nil
	}
	return ls[here]
}

// releaseMessage releases b, which holds the message of a call. It is called on l, or on no loop if l is nil.
func (l *eventLoop) releaseMessage(b *regmem.Lease) {
	if l != nil {
		l.calls.Release(b)
		return
	}
	b.Release()
}

// releaseReply does what releaseMessage does, for what holds a Reply.
func (l *eventLoop) releaseReply(r releaser) {
	if l == nil {
		r.Release()
		return
	}
	switch r := r.(type) {
	case *rdmaside.Reply:
		r.ReleaseOn(l.replies)
	case *regmem.Lease:
		l.replies.Release(r)
	default:
		r.Release()
	}
}

// number is that of the loop among all.
func (l *eventLoop) number() int { return l.index }

// Post queues t on the loop. loop.Loop.
func (l *eventLoop) Post(t loop.Task) { l.tcp.Post(t) }

// Now is the time of this pass in nanoseconds. All loops share the clock, which wall clock
// changes do not move. For the loop only.
func (l *eventLoop) Now() int64 { return l.tcp.Now() }

// Attach drives c on the loop. loop.SocketLoop.
func (l *eventLoop) Attach(c net.Conn, s loop.Stream) error { return l.tcp.Attach(c, s) }

// newCall is a call from the free list, or a new one.
func (l *eventLoop) newCall() *call {
	if n := len(l.free); n > 0 {
		c := l.free[n-1]
		l.free = l.free[:n-1]
		return c
	}
	c := new(call)
	c.slot = int32(len(l.all))
	l.all = append(l.all, c)
	c.reset()
	return c
}

// recycle puts c, whose memory has been released, on the free list.
func (l *eventLoop) recycle(c *call) {
	if c.exchange() != nil {
		panic("BUG: proxy: an exchange is forgotten")
	}
	c.reset()
	if len(l.free) < 1024 {
		l.free = append(l.free, c)
		return
	}
	last := len(l.all) - 1
	l.all[c.slot] = l.all[last]
	l.all[c.slot].slot = c.slot
	l.all[last] = nil
	l.all = l.all[:last]
}
