package pool

import (
	"context"
	"fmt"
	"time"

	"github.com/rdmabridge/rdmabridge/pool/endpoints"
)

// Endpoints that a Call has to try
//
// An endpoint that was ejected because it answers NULL Calls alone (pool/endpoints) is tried with a Call. A seat that
// has a connection elsewhere keeps it for all other Calls meanwhile.

// tryOutWait is how long a connection waits for the Call that tries its endpoint.
const tryOutWait = time.Minute

var errNoCall = fmt.Errorf("%w: no Call has come that could try the endpoint", ErrClosed)

// leaveNullOnly replaces the connections of endpoints.Health.IsNullOnly. Each ends after its last Call.
func (p *Pool) leaveNullOnly() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.seats {
		if !p.closed && s.member != nil && p.opts.Health.IsNullOnly(s.endpoint, s.dialled) {
			s.supersede()
			s.endWhenIdle()
		}
	}
}

// Overdue reports that a Call of a client on the seat's connection has had no answer for so long, which is as long as
// it may take. It reports whether the connection is to be closed at once, because another endpoint, or another
// address of this one, may answer: this one has answered no other Call meanwhile. It is safe for concurrent use.
func (s *Seat) Overdue(wait time.Duration) bool {
	p := s.pool
	p.mu.Lock()
	h, endpoint, other := p.opts.Health, s.endpoint, s.others && s.lastAnswer == 0
	p.mu.Unlock()
	if h.Overdue(endpoint, wait) {
		p.leaveNullOnly()
		return true
	}
	return other
}

// noteAnswer notes that a Call of a client was answered in the present age. The caller holds pool.mu.
func (s *Seat) noteAnswer() {
	s.lastAnswer = s.pool.age
	select {
	case s.answers <- struct{}{}:
	default:
	}
}

// isFruitless reports whether the seat's connection, which has ended, was fruitless.
func (s *Seat) isFruitless() bool {
	s.pool.mu.Lock()
	defer s.pool.mu.Unlock()
	return s.carried && s.lastAnswer == 0
}

// tryOut has one Call try the endpoint of a on d, the connection of s, which gets no others. It returns nil when
// that is answered. If it is not, or no Call comes within tryOutWait, the connection has ended when tryOut returns.
func (s *Seat) tryOut(ctx context.Context, a endpoints.Attempt, d *dialled) error {
	p, h, began := s.pool, d.o.Health, time.Now()
	p.mu.Lock()
	s.open, s.endpoint = d.m, a.Addr
	if p.tryout == nil {
		p.tryout = s
	}
	p.mu.Unlock()
	defer s.endTryOut()
	t := time.NewTimer(tryOutWait)
	defer t.Stop()
	over := t.C
	for {
		select {
		case <-s.answers:
			h.AnswersCalls(a.Addr)
			return nil
		case err := <-s.ended:
			if s.isFruitless() {
				h.Fruitless(a.Addr, began, err)
			}
			return err
		case <-over:
		case <-ctx.Done():
		}
		if s.withdraw() || ctx.Err() != nil {
			d.m.Close(errNoCall)
			<-s.ended //nolint:errcheck // the reason is errNoCall
			return errNoCall
		}
		over = nil
	}
}

// withdraw ends the wait of s for a Call that tries its endpoint, unless one has come.
func (s *Seat) withdraw() bool {
	p := s.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	if !s.carried && p.tryout == s {
		p.tryout = nil
	}
	return !s.carried
}

// endTryOut ends tryOut.
func (s *Seat) endTryOut() {
	p := s.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.tryout == s {
		p.tryout = nil
	}
}

// triesOut reports whether a connection of the pool waits for a Call that tries its endpoint, or for its answer.
func (p *Pool) triesOut() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.tryout != nil
}

// divert returns the seat that e, which may go to s, goes to: a connection that waits for a Call to try its endpoint,
// if there is one and e may take any connection and be sent again, otherwise s. The caller holds p.mu.
func (p *Pool) divert(s *Seat, e *Entry) *Seat {
	t := p.tryout
	if t == nil || t.carried || e.Aside || !e.Repeatable || e.large() || e.Flow.Sticky || e.Flow.seatQueue > 0 || e.Flow.Ordered {
		return s
	}
	return t
}
