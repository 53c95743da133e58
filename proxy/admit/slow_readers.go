package admit

import (
	"cmp"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/internal/regmem"
	"github.com/rdmabridge/rdmabridge/metrics"
)

// slowReadersEvery is the time between two looks at the clients while memory is short.
const slowReadersEvery = time.Second

// slowReadersShare is the part of the memory for Replies that slow clients may hold together
// while memory is short: a quarter.
const slowReadersShare = 4

// ErrUnread closes a client that does not read its Replies.
var ErrUnread = errors.New("proxy: the client does not read its Replies")

// A SlowReaders keeps clients that do not read their Replies from stopping the others. A Reply waits for its client in
// the memory it was received into. One client cannot hold all of that memory, but several can, and when none is left,
// the bridge sends nothing to the upstream and reads nothing from it. Then SlowReaders looks at every client once a
// second, on the client's loop. A client is slow if it has received less since the last look than waited for it then.
// While slow clients hold a quarter of the memory together, SlowReaders closes the one that holds the most. The memory
// that Calls at the upstream hold is no client's fault, and comes back with their Replies or deadlines.
//
// It is safe for concurrent use.
type SlowReaders struct {
	shedder
	memory *regmem.Account // for Replies; constant

	mu       sync.Mutex // guards the rest; a leaf
	waiting  int        // connections that wait for memory now
	begun    bool       // a connection began to wait since the last look
	watching bool
	round    uint32
}

// NewSlowReaders returns what closes slow readers while the memory for Replies is short, and logs that to log.
func NewSlowReaders(memory *regmem.Account, m *metrics.Registry, clients Population, log *zerolog.Logger) *SlowReaders {
	return &SlowReaders{memory: memory, shedder: shedder{
		clients: clients, log: log, closed: m.Counter(metrics.ClosedClients, "slow_reader"), reason: "slow_reader", err: ErrUnread,
		text: "no memory is left for Replies and the client does not read its own; connection closed",
	}}
}

// Waits notes that a connection waits for memory. The wait ends with a call of the function
// that waits returns, which calls f.
func (s *SlowReaders) Waits(f func()) func() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting++
	s.begun = true
	if !s.watching {
		s.watching = true
		s.round += 2 // the snapshots of the last look are too old to compare with
		time.AfterFunc(slowReadersEvery/2, s.watch)
	}
	return func() {
		s.mu.Lock()
		s.waiting--
		s.mu.Unlock()
		f()
	}
}

// watch looks at the clients, and again after slowReadersEvery as long as memory is short.
func (s *SlowReaders) watch() {
	s.mu.Lock()
	s.watching = s.waiting > 0 || s.begun
	s.begun = false
	s.round++
	short, round := s.watching, s.round
	s.mu.Unlock()
	if short {
		s.clients(func(g *Client, _ func() Sending) int64 { return g.slow(round) }, s.unburden)
		time.AfterFunc(slowReadersEvery, s.watch)
	}
}

// unburden closes slow clients, the one that holds the most first, until the others hold less
// than their part together.
func (s *SlowReaders) unburden(slow []Burden) {
	slices.SortFunc(slow, func(a, b Burden) int { return cmp.Compare(b.Held, a.Held) })
	total := int64(0)
	for _, b := range slow {
		total += b.Held
	}
	s.shed(slow, total-s.memory.Limit()/slowReadersShare+1)
}
