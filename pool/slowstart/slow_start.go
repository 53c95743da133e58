// Package slowstart has the window of a whole upstream, which grows until the upstream has answered a thousand Calls.
package slowstart

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/rdmabridge/rdmabridge/pool/ages"
)

// end is the limit at which a slow start is over. From then on only credits
// limit the Calls to the upstream.
const end = 1 << 10

// A Window limits the Calls of one upstream until the upstream has answered about
// a thousand of them. All pools of the upstream share it.
//
// When the bridge starts, and when the upstream comes back, every client has as many
// Calls ready as it has slots, and sends all of them at once: more than the memory for
// Calls holds, for a server that may not be able to answer one. So at first the bridge
// reads only a few Calls and sends only a few. Each Reply raises the limit by one,
// which doubles the number of Calls with every round trip. At a limit of 1024 the slow
// start is over, and asking it costs one atomic load.
//
// A Window counts two things against the same limit. Calls that clients have sent
// are counted from Received to Answered or Dropped; the caller makes clients wait
// while Room is 0. Calls that pools have dispatched are counted from dispatch to
// pool.Seat.Done; a pool queues the others. Neither is counted for longer than two ages, because
// Calls to a file system that hangs must not keep those to others out. Pools report their
// connections: when the last one is lost the slow start begins again.
//
// Its methods are safe for concurrent use. A nil *Window limits nothing.
type Window struct {
	over   atomic.Bool // there is no limit
	first  int         // limit at the start; constant
	octets int64       // limitOctets at the start; constant

	mu             sync.Mutex      // guards the rest; a leaf, locked while Pool.mu is held
	limit          int             // most Calls of clients, and most Calls dispatched
	limitOctets    int64           // most octets of the Calls of clients and of their Replies
	age            uint32          // the present age; never 0
	began          time.Time       // when it began
	received       ages.Count[int] // Calls of clients that wait for their Replies
	receivedOctets ages.Count[int] // octets of these Calls, with their Replies
	all            int             // these Calls, with those that are older
	allOctets      int64           // the octets of all
	dispatched     ages.Count[int] // Calls outstanding on connections
	connections    int             // connections of all pools
	blocked        []*Waiter       // pools that the slow start kept from dispatching a Call; each is listed once
}

// A Waiter is a pool as the Window sees it.
type Waiter struct {
	Kick    func(here int) // dispatches queued Calls; constant
	blocked bool           // listed in Window.blocked; guarded by Window.mu
}

const (
	// Age is how long an age of a slow start lasts: a Call is counted for a tenth to a fifth of a second. After
	// a start, a hundred hosts whose first Calls hang must not keep the next one out for seconds.
	Age = 100 * time.Millisecond
	// oldTimes is how many times the limit of octets all Calls of clients may have, those
	// that are not counted any more included.
	oldTimes = 4
)

// New returns a Window that begins with calls Calls of octets octets
// together. If calls is 1024 or more, it never limits anything.
func New(calls int, octets int64) *Window {
	s := &Window{first: calls, octets: octets, age: 1, began: time.Now()}
	s.restart()
	return s
}

// restart begins the slow start again. s.mu is held, or s is new.
func (s *Window) restart() {
	s.limit, s.limitOctets = s.first, s.octets
	s.over.Store(s.limit >= end)
}

// Over reports whether the slow start is over.
func (s *Window) Over() bool { return s == nil || s.over.Load() }

// Limit returns how many Calls of clients may wait for Replies, or 0 if the slow start
// is over.
func (s *Window) Limit() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over.Load() {
		return 0
	}
	return s.limit
}

// Room returns how many more Calls may be read from clients: no more than a quarter of the limit when
// three quarters of the octets are used. It is meaningless once the slow start is over.
func (s *Window) Room() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.room()
}

// room does what Room does. The caller holds s.mu.
func (s *Window) room() int {
	s.turn()
	if int64(s.receivedOctets.Young(s.age)) >= s.limitOctets || s.allOctets >= oldTimes*s.limitOctets {
		return 0
	}
	room := max(0, min(s.limit-s.received.Young(s.age), end-s.all))
	if int64(s.receivedOctets.Young(s.age)) >= s.limitOctets/4*3 || s.allOctets >= oldTimes*s.limitOctets/4*3 {
		return min(room, s.limit/4)
	}
	return room
}

// turn begins another age when it is time. The caller holds s.mu.
func (s *Window) turn() {
	now := time.Now()
	if n := now.Sub(s.began) / Age; n > 0 {
		s.age += uint32(min(n, 2))
		s.began = now
		if s.age < 2 {
			s.age = 2 // it has overflown
		}
	}
}

// Received counts a Call that a client has sent. cost is the octets of the Call and of its
// Reply. Received returns how many more Calls the bridge may read, and the age for Dropped or
// Answered. It does not count the Call if the slow start is over, and returns 0 for the age.
func (s *Window) Received(cost int) (room int, age uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over.Load() {
		return 0, 0
	}
	s.turn()
	s.received.Add(s.age, 1)
	s.receivedOctets.Add(s.age, cost)
	s.all++
	s.allOctets += int64(cost)
	return s.room(), s.age
}

// Dropped ends the count of a Call that Received counted in age and the upstream has not
// answered.
func (s *Window) Dropped(cost int, age uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drop(cost, age)
}

// drop ends the count of a Call that Received counted in age. The caller holds s.mu.
func (s *Window) drop(cost int, age uint32) {
	s.turn()
	s.received.Drop(s.age, age, 1)
	s.receivedOctets.Drop(s.age, age, cost)
	s.all--
	s.allOctets -= int64(cost)
}

// Answered raises the limits, because the upstream has answered a Call, ends the count of
// the Call if Received counted it in age, which is not 0 then, and dispatches queued Calls that
// may go now. here is the affinity of the calling loop.
func (s *Window) Answered(cost int, age uint32, here int) {
	s.mu.Lock()
	if age != 0 {
		s.drop(cost, age)
	}
	s.limit++
	s.limitOctets += int64(cost)
	if s.limit >= end {
		s.over.Store(true)
	}
	s.mu.Unlock()
	s.Wake(here)
}

// Bound returns what the slow start leaves of so many credits, of which free are free.
func (s *Window) Bound(credits, free int) (int, int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.turn()
	return min(credits, s.limit), min(free, s.limit-s.dispatched.Young(s.age))
}

// Dispatch counts a Call that a pool dispatches. It returns the age for undispatch, or 0 if the
// slow start is over. The caller holds the Pool.mu.
func (s *Window) Dispatch() (age uint32) {
	if s.Over() {
		return 0
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over.Load() {
		return 0
	}
	s.turn()
	s.dispatched.Add(s.age, 1)
	return s.age
}

// Block has wake try p again, which has Calls that wait. The caller holds the pool's lock.
func (s *Window) Block(p *Waiter) {
	if s.Over() {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !p.blocked {
		p.blocked = true
		s.blocked = append(s.blocked, p)
	}
}

// Undispatch ends the count of n Calls that dispatch counted in age, if that is not 0. The caller
// must call Wake after it, without holding a Pool.mu.
func (s *Window) Undispatch(age uint32, n int) {
	if age == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.turn()
	s.dispatched.Drop(s.age, age, n)
}

// Wake dispatches queued Calls of the pools in blocked. The caller holds no Pool.mu.
func (s *Window) Wake(here int) {
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
		p.Kick(here)
	}
}

// Connected counts a connection to the upstream.
func (s *Window) Connected() {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.connections++
}

// Disconnected ends the count of a connection. When it was the last one the slow start
// begins again.
func (s *Window) Disconnected() {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.connections--; s.connections == 0 {
		s.restart()
	}
}
