package pool

import (
	"sync"
	"sync/atomic"
)

// slowStartEnd is the limit at which a slow start is over. From then on only credits
// limit the Calls to the upstream.
const slowStartEnd = 1 << 10

// A SlowStart limits the Calls of one upstream until the upstream has answered about
// a thousand of them. All pools of the upstream share it.
//
// When the bridge starts, and when the upstream comes back, every client has as many
// Calls ready as it has slots, and sends all of them at once: more than the memory for
// Calls holds, for a server that may not be able to answer one. So at first the bridge
// reads only a few Calls and sends only a few. Each Reply raises the limit by one,
// which doubles the number of Calls with every round trip. At a limit of 1024 the slow
// start is over, and asking it costs one atomic load.
//
// A SlowStart counts two things against the same limit. Calls that clients have sent
// are counted from Received to Answered or Dropped; the caller makes clients wait
// while Room is 0. Calls that pools have dispatched are counted from dispatch to
// [Seat.Done]; a pool queues the others. Pools report their connections: when the last
// one is lost the slow start begins again.
//
// Its methods are safe for concurrent use. A nil *SlowStart limits nothing.
type SlowStart struct {
	over   atomic.Bool // there is no limit
	first  int         // limit at the start; constant
	octets int64       // limitOctets at the start; constant

	mu             sync.Mutex // guards the rest; a leaf, locked while Pool.mu is held
	limit          int        // most Calls of clients, and most Calls dispatched
	limitOctets    int64      // most octets of the Calls of clients and of their Replies
	received       int        // Calls of clients that wait for their Replies
	receivedOctets int64      // octets of these Calls, with their Replies
	dispatched     int        // Calls outstanding on connections
	connections    int        // connections of all pools
	blocked        []*Pool    // pools that the slow start kept from dispatching a Call; each is listed once
}

// NewSlowStart returns a SlowStart that begins with calls Calls of octets octets
// together. If calls is 1024 or more, it never limits anything.
func NewSlowStart(calls int, octets int64) *SlowStart {
	s := &SlowStart{first: calls, octets: octets}
	s.restart()
	return s
}

// restart begins the slow start again. s.mu is held, or s is new.
func (s *SlowStart) restart() {
	s.limit, s.limitOctets = s.first, s.octets
	s.over.Store(s.limit >= slowStartEnd)
}

// Over reports whether the slow start is over.
func (s *SlowStart) Over() bool { return s == nil || s.over.Load() }

// Limit returns how many Calls of clients may wait for Replies, or 0 if the slow start
// is over.
func (s *SlowStart) Limit() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over.Load() {
		return 0
	}
	return s.limit
}

// Room returns how many more Calls may be read from clients. It is meaningless once the
// slow start is over.
func (s *SlowStart) Room() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.room()
}

// room does what Room does. The caller holds s.mu.
func (s *SlowStart) room() int {
	if s.receivedOctets >= s.limitOctets {
		return 0
	}
	return max(0, s.limit-s.received)
}

// Received counts a Call that a client has sent. cost is the octets of the Call and of its
// Reply. Received returns how many more Calls the bridge may read. It does not count the Call
// if the slow start is over.
func (s *SlowStart) Received(cost int) (room int, counted bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over.Load() {
		return 0, false
	}
	s.received++
	s.receivedOctets += int64(cost)
	return s.room(), true
}

// Dropped ends the count of a Call that Received counted and the upstream has not
// answered.
func (s *SlowStart) Dropped(cost int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drop(cost)
}

// drop ends the count of a Call that Received counted. The caller holds s.mu.
func (s *SlowStart) drop(cost int) {
	s.received--
	s.receivedOctets -= int64(cost)
}

// Answered raises the limits, because the upstream has answered a Call, ends the count of
// the Call if Received counted it, and dispatches queued Calls that may go now. here is
// the affinity of the calling loop.
func (s *SlowStart) Answered(cost int, counted bool, here int) {
	s.mu.Lock()
	if counted {
		s.drop(cost)
	}
	s.limit++
	s.limitOctets += int64(cost)
	if s.limit >= slowStartEnd {
		s.over.Store(true)
	}
	s.mu.Unlock()
	s.wake(here)
}

// dispatch reports whether p may dispatch a Call now, and whether that Call has been counted,
// so that undispatch must follow. The caller holds p.mu.
func (s *SlowStart) dispatch(p *Pool) (ok, counted bool) {
	if s.Over() {
		return true, false
	}
	return s.dispatchSlow(p)
}

// dispatchSlow is dispatch while the slow start is not over. If it reports false, wake
// will try p again.
func (s *SlowStart) dispatchSlow(p *Pool) (ok, counted bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.over.Load():
		return true, false
	case s.dispatched < s.limit:
		s.dispatched++
		return true, true
	case !p.blocked:
		p.blocked = true
		s.blocked = append(s.blocked, p)
	}
	return false, false
}

// undispatch ends the count of n Calls that dispatch counted. The caller must call wake after
// it, without holding a Pool.mu.
func (s *SlowStart) undispatch(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dispatched -= n
}

// wake dispatches queued Calls of the pools in blocked. The caller holds no Pool.mu.
func (s *SlowStart) wake(here int) {
	if s == nil {
		return
	}
	s.mu.Lock()
	pools := s.blocked
	s.blocked = nil
	for _, p := range pools {
		p.blocked = false
	}
	s.mu.Unlock()
	for _, p := range pools {
		p.kick(here)
	}
}

// connected counts a connection to the upstream.
func (s *SlowStart) connected() {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.connections++
}

// disconnected ends the count of a connection. When it was the last one the slow start
// begins again.
func (s *SlowStart) disconnected() {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.connections--; s.connections == 0 {
		s.restart()
	}
}
