package proxy

import (
	"cmp"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/internal/loglimit"
	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/metrics"
)

const (
	// slowPace is how many octets a second a client has to send of its incomplete Calls while
	// other clients wait for memory.
	slowPace = 128 << 10
	// slowLooks is how many looks in a row, half a second apart, must find a client slow.
	slowLooks = 2
)

var errSlowSender = errors.New("proxy: the client sends a Call too slowly while memory for Calls is short")

// A slowSenders keeps clients that begin Calls and do not finish them from stopping the others.
// While clients wait for memory that others hold, callMemory has it look at every client twice a
// second, on the client's loop. A client is slow if it has held memory for an incomplete Call
// throughout a second, has sent less than slowPace in it, and the bridge was willing to read.
// slowSenders closes slow clients until they have freed what the others wait for: those of the
// host whose slow clients hold the most first, and of these the one that holds the most first.
type slowSenders struct {
	p      *Proxy
	closed *metrics.Counter
	lines  loglimit.Limit
}

// A sending is what a client sends now, as slowSenders sees it.
type sending struct {
	held   int64  // octets of memory that incomplete Calls hold
	octets int64  // octets of Calls received so far, on the whole connection
	calls  uint64 // Calls received so far, if a client that sends Calls one after the other is not slow
	ready  bool   // the bridge waits for octets of the client
}

// A sendingLook is what slowSenders saw of a client when it looked last.
type sendingLook struct {
	sending
	round int
	slow  int // looks in a row that found the client slow
}

// see reports how many octets of memory the client holds, if it is slow, and otherwise 0.
func (l *sendingLook) see(round int, now sending) int64 {
	was := *l
	l.sending, l.round, l.slow = now, round, 0
	if was.round != round-1 || now.held == 0 || was.held == 0 || !now.ready || !was.ready ||
		now.calls != was.calls || now.octets-was.octets >= int64(slowPace*slowTicks*memoryTick/time.Second) {
		return 0
	}
	if l.slow = was.slow + 1; l.slow < slowLooks {
		return 0
	}
	return now.held
}

// weigh finds the slow clients, each on its loop, and closes some: others wait for short octets.
func (s *slowSenders) weigh(round int, short int64) {
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
				if f.ended.get() {
					continue
				}
				now := f.client.sending()
				if f.sends.p == nil && now.held == 0 {
					continue
				}
				if held := f.sends.get().look.see(round, now); held > 0 {
					slow[i] = append(slow[i], burden{f, held})
				}
			}
			if left.Add(-1) == 0 {
				s.close(slices.Concat(slow...), short)
			}
		}))
	}
}

// close closes slow clients until they have freed the octets that others wait for.
func (s *slowSenders) close(slow []burden, short int64) {
	byHost := make(map[*host]int64)
	for _, b := range slow {
		byHost[b.f.ledger.host] += b.held
	}
	slices.SortFunc(slow, func(a, b burden) int {
		return cmp.Or(
			cmp.Compare(byHost[b.f.ledger.host], byHost[a.f.ledger.host]),
			cmp.Compare(b.held, a.held),
		)
	})
	for _, b := range slow {
		if short <= 0 {
			return
		}
		short -= b.held
		s.closed.Inc()
		b.f.ledger.host.memory.sent.Store(0)
		s.lines.Line(&s.p.log, zerolog.WarnLevel, "client_closed").Str("reason", "slow_sender").Str("listener", b.f.listener.name).Stringer("peer", b.f.peer).Int64("octets", b.held).
			Msg("no memory is left for Calls and the client sends its own too slowly; connection closed")
		b.f.close(errSlowSender)
	}
}
