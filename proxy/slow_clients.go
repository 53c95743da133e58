package proxy

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/internal/loglimit"
	"github.com/rdmabridge/rdmabridge/internal/loop"
)

// slowClientsEvery is the time between two looks at the clients while memory is short.
const slowClientsEvery = time.Second

// slowClientsShare is the part of the memory for Replies that slow clients may hold together
// while memory is short: a quarter.
const slowClientsShare = 4

// A slowClients keeps clients that do not read their Replies from stopping the others. A Reply
// waits for its client in the memory it was received into. One client cannot hold all of that
// memory, but several can, and when none is left, the bridge sends nothing to the upstream and
// reads nothing from it. Then slowClients looks at every client once a second, on the client's
// loop. A client is slow if it has received less since the last look than waited for it
// then. While slow clients hold a quarter of the memory together, slowClients closes the one
// that holds the most. The memory that Calls at the upstream hold is no client's fault, and
// comes back with their Replies or deadlines.
//
// It is safe for concurrent use.
type slowClients struct {
	p     *Proxy
	lines loglimit.Limit

	mu       sync.Mutex // guards the rest; a leaf
	waiting  int        // connections that wait for memory now
	begun    uint64     // times that a connection began to wait
	seen     uint64     // value of begun at the last look
	watching bool
	round    uint32
}

// waits notes that a connection waits for memory. The wait ends with a call of the function
// that waits returns, which calls f.
func (s *slowClients) waits(f func()) func() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting++
	s.begun++
	if !s.watching {
		s.watching = true
		s.round += 2 // the snapshots of the last look are too old to compare with
		time.AfterFunc(slowClientsEvery/2, s.watch)
	}
	return func() {
		s.mu.Lock()
		s.waiting--
		s.mu.Unlock()
		f()
	}
}

// watch looks at the clients, and again after slowClientsEvery as long as memory is short.
func (s *slowClients) watch() {
	s.mu.Lock()
	short := s.waiting > 0 || s.begun != s.seen
	s.seen = s.begun
	s.watching = short
	s.round++
	round := s.round
	s.mu.Unlock()
	if !short {
		return
	}
	s.weigh(round)
	time.AfterFunc(slowClientsEvery, s.watch)
}

// A burden is a slow client and how many octets of memory it holds.
type burden struct {
	f    *front
	held int64
}

// weigh finds the slow clients, each on its loop, and hands them to unburden.
func (s *slowClients) weigh(round uint32) {
	loops := s.p.loops
	var clients []*front
	for _, l := range s.p.allListeners() {
		clients = append(clients, l.snapshot(false)...)
	}
	all := s.p.byLoop(clients)
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
				s.unburden(slices.Concat(slow...))
			}
		}))
	}
}

// unburden closes slow clients, the one that holds the most first, until the others hold less
// than their part together.
func (s *slowClients) unburden(slow []burden) {
	slices.SortFunc(slow, func(a, b burden) int { return cmp.Compare(b.held, a.held) })
	total := int64(0)
	for _, b := range slow {
		total += b.held
	}
	for _, b := range slow {
		if total < s.p.replies.Limit()/slowClientsShare {
			return
		}
		total -= b.held
		s.p.slowClosed.Inc()
		s.lines.Line(&s.p.log, zerolog.WarnLevel, "client_closed").Str("reason", "slow_reader").Str("listener", b.f.listener.name).Stringer("peer", b.f.peer).Int64("octets", b.held).
			Msg("no memory is left for Replies and the client does not read its own; connection closed")
		b.f.close(errUnread)
	}
}
