package proxy

import (
	"net"
	"sync/atomic"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/internal/regmem"
	"github.com/rdmabridge/rdmabridge/metrics"
	"github.com/rdmabridge/rdmabridge/pool"
	"github.com/rdmabridge/rdmabridge/rdmaside"
	"github.com/rdmabridge/rdmabridge/tcpframe"
)

// An eventLoop is one of tcpframe's loops with what the proxy keeps for each loop. It is a
// [loop.SocketLoop], so that RDMA connections live on it, too.
type eventLoop struct {
	index int
	tcp   *tcpframe.Loop
	free  []*call // calls to use again; the loop's
	all   []*call // all calls of the loop's clients, also those in free; the loop's
	batch *pool.Batch
	due   bool // endTask is to run at the end of the pass

	credentials credentialKeys
	tally       tally
	record      CallRecord // that front.observe lends

	calls, replies *regmem.Account   // the Proxy's accounts, with a stock for this loop
	ample          bool              // most of calls was free at the end of the last pass
	memory         *callMemory       // divides calls among hosts
	metrics        *metrics.Registry // the Proxy's, with parts of its counters for this loop

	rdmaClients atomic.Int32 // connections of RDMA clients, with those that are being set up

	tap    atomic.Pointer[loopTap] // nil for none; stored by any goroutine
	tapped uint64                  // Calls that a Tap wanted so far
}

func (p *Proxy) newLoop(index int, l *tcpframe.Loop) *eventLoop {
	n := &eventLoop{
		index: index, tcp: l, memory: p.hosts.calls,
	}
	n.tally.loop = n
	run := func(f func()) { l.Post(loop.TaskFunc(f)) }
	n.calls, n.replies = p.calls.Local(n.arrange, run), p.replies.Local(n.arrange, run)
	n.metrics, n.batch = p.metrics.Local(n.arrange), pool.NewBatch(index, n.arrange, warm)
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
	t.batch.Flush()
	t.tally.count()
	t.metrics.Publish() // with what Flush has counted
	t.due = false       // what Publish changes needs another task
	t.calls.Publish()
	t.replies.Publish()
	t.ample = ample(t.calls)
}

// loop returns the loop with the number here, or nil for pool.Elsewhere.
func (p *Proxy) loop(here int) *eventLoop {
	if here == pool.Elsewhere {
		return nil
	}
	return p.loops[here]
}

// releaseMessage releases r, which holds the message of a call. It is called on l, or on no loop if l is nil.
func (l *eventLoop) releaseMessage(r releaser) {
	if b, ok := r.(*regmem.Lease); ok && l != nil {
		l.calls.Release(b)
		return
	}
	r.Release()
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

// Post queues t on the loop. loop.Loop.
func (l *eventLoop) Post(t loop.Task) { l.tcp.Post(t) }

// Now is the time of this pass in nanoseconds. All loops share the clock, which wall clock
// changes do not move. For the loop only.
func (l *eventLoop) Now() int64 { return l.tcp.Now() }

// tapping reports whether a Tap may want to see messages. While none does, a Call costs this look at each place.
func (l *eventLoop) tapping() bool { return l.tap.Load() != nil }

// Attach drives c on the loop. loop.SocketLoop.
func (l *eventLoop) Attach(c net.Conn, s loop.Stream) error { return l.tcp.Attach(c, s) }

// byLoop divides clients among the loops that own them, by the loops' index.
func (p *Proxy) byLoop(clients []*front) [][]*front {
	all := make([][]*front, len(p.loops))
	for _, f := range clients {
		all[f.loop.index] = append(all[f.loop.index], f)
	}
	return all
}

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
	if c.owner.exchange != nil {
		panic("BUG: proxy: an exchange is forgotten")
	}
	if c.up != nil {
		c.up.under[l.index].n--
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
