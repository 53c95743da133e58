package names

import (
	"io"
	"net/netip"
	"sync"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
	"github.com/rdmabridge/rdmabridge/proxy/observe"
)

const (
	// tick is how long records wait where nobody asks and no queue is half full.
	tick = 200 * time.Millisecond
	// turn is how many records are read before others may ask.
	turn = 1 << 14
)

// Options say what to learn.
type Options struct {
	Loops  int
	Memory int     // octets for the names of handles
	Sample float64 // the part of the Calls that is looked at; 0: it follows the load
	Hash   bool    // show each name as a keyed hash
	Hide   Hidden
	Missed func(n uint64)
	Used   func(listener, export string, calls, read, written uint64) // for the exports of Count
}

// A Watch learns names and counts what is used. Its methods are safe for concurrent use.
type Watch struct {
	opts   Options
	queues []*queue      // by loop
	half   chan struct{} // one deep: a queue is half full
	stop   chan struct{} // closed by Close
	done   chan struct{} // closed when the goroutine has ended
	redact redactor

	mu     sync.Mutex // guards the fields below; held while records are read
	closed bool
	book   book
	hot    hot
	parsed parsed
	missed uint64 // that Missed was told of
	opaque uint64
	teller *teller   // nil for none
	hears  io.Closer // nil for none

	counted map[string]bool // the paths of Count
	uses    map[used]*tally // of these; what Used was not told of yet
}

// Start begins to learn. The caller makes the Watch a Tap.
func Start(o Options) *Watch {
	w := &Watch{
		opts: o, half: make(chan struct{}, 1), stop: make(chan struct{}), done: make(chan struct{}), redact: newRedactor(o.Hash, o.Hide),
		book: book{table: newTable(o.Memory), exports: newExports()}, uses: make(map[used]*tally),
	}
	for range o.Loops {
		w.queues = append(w.queues, newQueue(o.Sample, w.half))
	}
	go w.run()
	return w
}

// Close ends the goroutine, and calls all that have asked. The Watch is no Tap any more.
func (w *Watch) Close() {
	close(w.stop)
	<-w.done
	if told := w.end(); told != nil {
		<-told
	}
}

// end reads all queues for the last time, and ends hearing and telling. told is closed when all was written that is to be told,
// or after lastWords; it is nil if nobody is told.
func (w *Watch) end() (told <-chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	for _, q := range w.queues {
		q.close()
	}
	for range w.queues { // each is shorter than a turn
		w.drain()
	}
	if w.hears != nil {
		_ = w.hears.Close()
	}
	return w.endTelling()
}

// Looks is part of observe.Sampler.
func (w *Watch) Looks(loop int, now int64, o *ulb.Operation) uint32 {
	q := w.queues[loop]
	looks, told := q.sample.looks(now, o)
	switch {
	case looks:
		return 1
	case told:
		q.missed.Add(1)
	}
	return 0
}

// Wants is part of observe.Tap.
func (w *Watch) Wants(c *observe.TapCall) uint32 {
	if c.Reverse {
		return 0
	}
	return 1 | observe.TapClientsAlone
}

// Message is part of observe.Tap.
func (w *Watch) Message(m *observe.TapMessage) { w.queues[m.Loop].message(m) }

// Over is part of observe.Tap.
func (w *Watch) Over(o *observe.TapOver) { w.queues[o.Loop].over(o.Call) }

// Ended is part of observe.Tap.
func (w *Watch) Ended(*observe.TapConn, int, uint32, error) {}

// run reads what nobody has asked for.
func (w *Watch) run() {
	defer close(w.done)
	t := time.NewTicker(tick)
	defer t.Stop()
	for {
		select {
		case <-w.stop:
			return
		case <-w.half:
		case <-t.C:
		}
		w.Settle()
	}
}

// drain reads records, the oldest of all loops first. The caller holds w.mu.
func (w *Watch) drain() {
	for range turn {
		var from *queue
		var r *record
		for _, q := range w.queues {
			if v := q.peek(); v != nil && (r == nil || v.began.Add(v.took).Before(r.began.Add(r.took))) {
				from, r = q, v
			}
		}
		if r == nil {
			break
		}
		w.take(r)
		from.pop()
	}
	var missed uint64
	for _, q := range w.queues {
		missed += q.missed.Load()
	}
	if missed > w.missed {
		w.opts.Missed(missed - w.missed)
		w.missed = missed
	}
	w.tellUses()
}

// take learns from a record, and counts it.
func (w *Watch) take(r *record) {
	if r.asker != nil {
		r.asker.Learned(w.path)
		return
	}
	p := &w.parsed
	p.parse(r.call, r.reply)
	if p.opaque {
		w.opaque++
	}
	own := p.own()
	w.book.read(r.client, r.listener, p, monotonic(r.began.Add(r.took)), w.teller)
	if p.handle == nil || len(p.handle) > maxHandle {
		return
	}
	u := tally{
		count: r.weight, variance: r.weight * (r.weight - 1), seconds: r.weight * r.took.Seconds(),
		read: r.weight * float64(p.read), written: r.weight * float64(p.written),
	}
	now := w.hot.now(r.began.Add(r.took))
	now.looked, now.stand = now.looked+1, now.stand+r.weight
	x := w.book.exportOf(r.listener, p.handle, own)
	now.files.add(file{r.listener, string(p.handle)}, &u)
	now.exports.add(x, &u)
	w.use(x, &u)
	now.users.add(user{x, r.client}, &u)
}

// inside calls f when all records are read that are in the queues, unless w is closed.
func (w *Watch) inside(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.closed {
		w.drain()
		f()
	}
}

// clientOf is the text of a client's address.
func clientOf(a netip.Addr) string {
	if !a.IsValid() {
		return "unknown"
	}
	return a.String()
}
