package pool

import (
	"time"

	"github.com/rdmabridge/rdmabridge/pool/keeper"
)

// A Seat is the place of one connection in a pool. It outlives the connection: when
// that has ended the seat dials the next one.
type Seat struct {
	// Data is for the Dialer to keep something from one connection to the next. It belongs
	// to the goroutine that calls Dial. A seat has one such goroutine at a time.
	Data any

	pool     *Pool      // constant
	index    int        // constant
	affinity int        // of its connections; constant
	ended    chan error // one deep; carries the end of the present connection

	answers chan struct{}  // one deep; has one when the connection has answered a Call of a client
	keeper  *keeper.Keeper // its goroutine is the seat's; constant

	// Guarded by pool.mu.
	member        Member // the connection while it accepts Calls, else nil
	open          Member // the connection from Dial until its end was seen, so that Close finds it
	grant         int    // most Calls outstanding on it
	inUse         int    // Calls outstanding on it
	large         int    // of inUse, large Calls
	endpoint      string
	since         time.Time // when the seat got its connection, or lost it
	lastErr       error
	retired       bool          // the seat is not in Pool.seats any more
	closeWhenIdle bool          // close the connection after its last Call
	slowStart     bool          // the slow start counts the connection
	generation    int           // Pool.generation when the connection was dialled
	asleep        bool          // the seat makes no connection until wake; counted in Pool.asleep
	running       bool          // the seat has a goroutine
	resting       bool          // the pool has closed the connection because no Call used it
	used          uint32        // Pool.age when a Call last needed the seat; 0 for never
	granted       chan struct{} // of dialled; nil when it is closed
	others        bool          // Others: the endpoint has other addresses
	dialled       time.Time     // when the attempt began that made the connection
	carried       bool          // the connection has carried Calls of clients
	lastAnswer    uint32        // Pool.age when it last answered one; 0 for never

	// Owned by the seat's goroutine.
	made      Member // the connection that was dialled last
	improving bool   // the seat dials a better connection than the current one
}

// newSeat returns a seat that is awake and has no goroutine. The caller holds p.mu.
func (p *Pool) newSeat(i int) *Seat {
	s := &Seat{pool: p, index: i, affinity: p.opts.First + i%p.opts.Loops, ended: make(chan error, 1), answers: make(chan struct{}, 1), since: time.Now()}
	s.keeper = keeper.New(kept{s}, s.ended, s.answers, p.wg.Go)
	return s
}

// Improving tells Dial that the seat has a connection already and needs only a better one: see
// Options.Improve. If Dial cannot make a better connection, it returns an error, which does not
// count as a failure of the endpoint.
func (s *Seat) Improving() bool { return s.improving }

// Others tells the pool that the endpoint which Dial connects to has other addresses, one of which the
// next Dial will try if the server does not answer at this one. The pool then leaves a connection on which
// the server does not answer, as it does if there are other endpoints. Dial calls it.
func (s *Seat) Others() {
	s.pool.mu.Lock()
	defer s.pool.mu.Unlock()
	s.others = true
}

// Index returns the number of the seat in its pool.
func (s *Seat) Index() int { return s.index }

// Pool returns the pool of the seat.
func (s *Seat) Pool() *Pool { return s.pool }

// free returns how many credits the seat has free. The caller holds pool.mu.
func (s *Seat) free() int {
	if s.member == nil {
		return 0
	}
	return s.grant - s.inUse
}

// takeCredits takes a credit for e, which the slow start counted in the age slowStart, if that is not 0, and for the
// first n Calls of the list that begins with behind, which are a run: Pool.run. It returns the connection to dispatch
// them to. pool.mu is held and free() > n.
func (s *Seat) takeCredits(e, behind *Entry, n int, slowStart uint32) Member {
	p := s.pool
	c := credit{seat: s, age: p.age, slowStart: slowStart, asLarge: e.large(), client: e.Flow != nil && !e.Aside}
	e.credit = c
	for range n {
		behind.credit = c
		behind = behind.next
	}
	n++
	s.inUse += n
	if s.member != nil { // or it is Pool.tryout
		p.inUse += n
		p.free -= n
	}
	p.outstanding += n
	p.ages.Add(p.age, n)
	if c.asLarge {
		s.large += n
	}
	if c.client {
		s.used, s.carried = p.age, true
	}
	if e.Flow != nil {
		p.hold(e.Flow.host(), n)
		if p.part != nil {
			p.part.Take()
		} else {
			p.witness.Witnessed()
		}
	}
	return s.open
}

// giveBack returns n credits like c, which Calls of h have yielded; h is nil for Calls without a Flow. The slow
// start still counts the Calls. The caller holds p.mu.
func (p *Pool) giveBack(c *credit, h *Host, n int) {
	s := c.seat
	s.uncount()
	s.inUse -= n
	s.count()
	s.endIfIdle()
	p.outstanding -= n
	p.ages.Drop(p.age, c.age, n)
	if c.asLarge {
		s.large -= n
	}
	if c.client && c.answered && s.lastAnswer != p.age {
		s.noteAnswer()
	}
	if h != nil {
		p.unhold(h, c, int32(n))
		if p.part != nil {
			p.part.Give(n)
		}
	}
}

// uncount and count keep Pool.credits, Pool.inUse and Pool.free right while the connection of s, its
// grant or its Calls change between the two. The caller holds pool.mu.
func (s *Seat) uncount() {
	if s.member != nil {
		s.pool.credits -= s.grant
		s.pool.inUse -= s.inUse
		s.pool.free -= max(s.free(), 0)
	}
}

// count does the other half of what uncount begins.
func (s *Seat) count() {
	if s.member != nil {
		s.pool.credits += s.grant
		s.pool.inUse += s.inUse
		s.pool.free += max(s.free(), 0)
	}
}

// setMember makes m the seat's connection. If unwanted is set, or if m has ended already, it
// gets no Calls. The caller holds p.mu.
func (s *Seat) setMember(m Member, endpoint string, unwanted bool) {
	p := s.pool
	s.open = m
	if len(s.ended) > 0 || unwanted {
		return
	}
	s.uncount()
	s.member = m
	s.count()
	s.endpoint = endpoint
	s.since = time.Now()
	p.metrics.connections.Add(1)
	s.slowStart = true
	p.slowStart.Connected()
	if s.grant > 0 {
		s.arrived()
	}
	p.rebindAll()
}

// briefly is how long the only connection of a pool lasts at most, without an answer to a Call of a client, that does
// not end the time for which the pool was down before: the server, or something before it, accepts connections, answers
// a NULL Call and ends them, again and again.
const briefly = 3 * time.Second

// isUp reports whether the seat has a connection on which the server has answered. Before that nobody knows whether
// it is a server at all. The caller holds pool.mu.
func (s *Seat) isUp() bool { return s.member != nil && s.granted == nil }

// clearMember stops dispatching to the seat's connection, which goes on or ends. The caller
// holds p.mu.
func (s *Seat) clearMember() {
	if s.member == nil {
		return
	}
	s.uncount()
	s.member = nil
	s.grant = 0
	s.since = time.Now()
	p := s.pool
	p.metrics.connections.Add(-1)
	if !p.since.IsZero() || p.connected() {
		return
	}
	if p.since = s.since; s.lastAnswer == 0 && s.since.Sub(p.firstUp) < briefly && !p.wasDown.IsZero() {
		p.since = p.wasDown
	}
}

// lost does what clearMember does, for a connection that ends. The caller holds p.mu.
func (s *Seat) lost() {
	s.clearMember()
	if s.slowStart {
		s.slowStart = false
		s.pool.slowStart.Disconnected()
	}
}

// Closing stops dispatching to connection m. The connection calls it as soon as it knows that
// it will end, and before it gives its Calls back, so that the pool dispatches them elsewhere.
// If the seat has another connection already, because m gave back a Call late, Closing does
// nothing.
func (s *Seat) Closing(m Member) {
	s.pool.mu.Lock()
	defer s.pool.mu.Unlock()
	if s.member == m {
		s.lost()
	}
}

// Ended reports that the seat's connection has ended and has given every Call back by
// Done. It is called once for each successful Dial, on any goroutine.
func (s *Seat) Ended(err error) {
	s.pool.mu.Lock()
	s.lost()
	s.pool.mu.Unlock()
	s.ended <- err
}
