package proxy

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/loop"
)

// reliefEvery is how often relief looks at the clients while memory is short.
const reliefEvery = time.Second

// reliefShare is the part of the memory for Replies that slow clients may hold
// together while somebody waits for it.
const reliefShare = 4

// A slowClients sees to it that clients that do not take their Replies do not stop
// the others. A Reply that is here waits for its client in the memory it came in.
// No client can have all of that memory, but several can, and when it is spent
// nothing is sent to the upstream and nothing read from it. Then the clients are
// looked at every second, each on its loop: one that has taken less since the last
// look than lay there for it is slow. While slow clients hold a quarter of the
// memory, the one that holds the most is closed. What Calls at the upstream hold
// is no client's fault, and comes back with their Replies or deadlines.
//
// It is safe for concurrent use.
type slowClients struct {
	p *Proxy

	mu       sync.Mutex // guards the rest; a leaf
	waiting  int        // for memory, now
	begun    uint64     // times somebody began to wait
	seen     uint64     // begun at the last look
	watching bool
	round    uint32
}

// waits says that somebody waits for memory, until the function it returns was
// called, which is f and a little more.
func (r *slowClients) waits(f func()) func() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.waiting++
	r.begun++
	if !r.watching {
		r.watching = true
		r.round += 2 // what was seen the last time is history
		time.AfterFunc(reliefEvery/2, r.watch)
	}
	return func() {
		r.mu.Lock()
		r.waiting--
		r.mu.Unlock()
		f()
	}
}

// watch looks at the clients as long as memory is short.
func (r *slowClients) watch() {
	r.mu.Lock()
	short := r.waiting > 0 || r.begun != r.seen
	r.seen = r.begun
	r.watching = short
	r.round++
	round := r.round
	r.mu.Unlock()
	if !short {
		return
	}
	r.weigh(round)
	time.AfterFunc(reliefEvery, r.watch)
}

// A burden is a client and how much memory it holds.
type burden struct {
	f    *front
	held int64
}

// weigh finds the slow clients, each on its loop.
func (r *slowClients) weigh(round uint32) {
	loops := r.p.loops
	var clients []*front
	for _, l := range r.p.allListeners() {
		clients = append(clients, l.snapshot(false)...)
	}
	all := r.p.byLoop(clients)
	slow := make([][]burden, len(loops))
	var left atomic.Int32
	left.Store(int32(len(loops)))
	for i, l := range loops {
		l.Post(loop.TaskFunc(func() {
			for _, f := range all[i] {
				if held := f.ledger.slow(round); held > 0 {
					slow[i] = append(slow[i], burden{f, held})
				}
			}
			if left.Add(-1) == 0 {
				r.unburden(slices.Concat(slow...))
			}
		}))
	}
}

// unburden closes clients, the one that holds the most first, until the rest hold
// little.
func (r *slowClients) unburden(slow []burden) {
	slices.SortFunc(slow, func(a, b burden) int { return cmp.Compare(b.held, a.held) })
	total := int64(0)
	for _, b := range slow {
		total += b.held
	}
	for _, b := range slow {
		if total < r.p.replies.Limit()/reliefShare {
			return
		}
		total -= b.held
		r.p.relieved.Inc()
		r.p.log.Warn().Stringer("peer", b.f.peer).Int64("octets", b.held).
			Msg("memory for replies is spent and the client does not take its own; connection closed")
		b.f.close(errUnread)
	}
}
