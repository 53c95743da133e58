package pool

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Endpoints that answer NULL Calls alone
//
// The bridge primes and probes connections with NULL Calls, and a server may answer these and no Call of a
// client: it ends the connection, or it is silent. So Calls of clients decide whether an endpoint serves:
//
//   - A connection that has carried such Calls and ends without an answer to any is fruitless. It counts like a
//     failed attempt to connect: as many in a row as ejectAfter eject the endpoint.
//   - A Call without an answer at its deadline ejects the endpoint at once.
//
// Neither counts if the endpoint has answered a Call of any client meanwhile, on any connection: since the fruitless
// one was made, or in the latter half of the time that the Call had. Then the fault lies in the Call, or in a
// part of the server. And neither ejects the last endpoint that is well. If all
// endpoints do the same to a Call, the Call is to blame.
//
// The pools send no more Calls on the connections that the endpoint had when it was ejected. After the
// ejection's time the endpoint is tried with a Call. A seat that has a connection elsewhere keeps it for all other
// Calls meanwhile (tryOut). The first answer ends the ejection, and a Call without one begins a longer one. A
// NULL Call says nothing then.

// answerLag is how much later an endpoint may have answered a Call than endpoint.callAnswered says: two ages, because
// a seat reports the first answer of each age, and an age may last a little longer than ageing.
const answerLag = 2 * ageing

// tryOutWait is how long a connection waits for the Call that tries its endpoint.
const tryOutWait = time.Minute

var (
	errFruitless = errors.New("the server answers NULL Calls and ends connections without an answer to any other Call")
	errNoAnswer  = errors.New("the server has answered no Call of a client")
	errNoCall    = fmt.Errorf("%w: no Call has come that could try the endpoint", ErrClosed)
)

// answersCalls notes that the server at addr has answered a Call of a client.
func (h *Health) answersCalls(addr string) {
	h.mu.Lock()
	returned := false
	if e := h.find(addr); e != nil {
		e.callAnswered, e.fruitless = time.Now(), 0
		if e.nullOnly {
			returned, e.told = e.told, false
			e.isWell()
		}
	}
	h.mu.Unlock()
	if returned && h.Returned != nil {
		h.Returned(addr)
	}
}

// fruitless notes that a fruitless connection to addr, which was made at the time since, has ended with err.
func (h *Health) fruitless(addr string, since time.Time, err error) {
	if err != nil {
		err = fmt.Errorf("%w: %w", errFruitless, err)
	} else {
		err = errFruitless
	}
	h.judge(addr, since, since, err, false)
}

// overdue notes that a Call to addr has had no answer for so long. It reports whether its connection is to be
// given up, because the endpoint is ejected for that.
func (h *Health) overdue(addr string, wait time.Duration) bool {
	now := time.Now()
	err := fmt.Errorf("%w for %v", errNoAnswer, wait.Round(time.Millisecond))
	return h.judge(addr, now.Add(-wait), now.Add(-wait/2), err, true)
}

// judge ejects the endpoint addr because of err, a fault of a connection or a Call that began at the time began,
// unless the endpoint has answered a Call since the time since, or there is no other to use. If not atOnce, one
// fault is not enough. judge reports whether the endpoint is ejected for such a fault.
func (h *Health) judge(addr string, began, since time.Time, err error, atOnce bool) (ejected bool) {
	h.mu.Lock()
	now, wait, tell := time.Now(), time.Duration(0), false
	switch e := h.find(addr); {
	case e == nil || e.callAnswered.Add(answerLag).After(since):
	case e.nullOnly && began.Before(e.ejectedAt):
		ejected = h.otherWell(e, now)
	default:
		if !atOnce {
			e.fruitless++
		}
		if ejected = (atOnce || e.nullOnly || e.fruitless >= ejectAfter) && h.otherWell(e, now); ejected {
			e.nullOnly, e.reason, wait = true, err.Error(), e.eject(now)
			tell, e.told = !e.told, true
		}
	}
	h.mu.Unlock()
	if tell && h.Ejected != nil {
		h.Ejected(addr, wait, err)
	}
	return ejected
}

// otherWell reports whether an endpoint other than e is not ejected. h.mu is held.
func (h *Health) otherWell(e *endpoint, now time.Time) bool {
	for _, o := range h.list {
		if o != e && o.until.IsZero() && !o.isHeld(now) {
			return true
		}
	}
	return false
}

// isNullOnly reports whether connections to addr that the pools began to make at the time since get no more Calls: the
// endpoint was ejected later because it answers NULL Calls alone, and there is another to use.
func (h *Health) isNullOnly(addr string, since time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	e := h.find(addr)
	return e != nil && e.nullOnly && since.Before(e.ejectedAt) && h.otherWell(e, time.Now())
}

// leaveNullOnly replaces the connections of isNullOnly. Each ends after its last Call.
func (p *Pool) leaveNullOnly() {
	p.mu.Lock()
	var idle []idleConn
	for _, s := range p.seats {
		if !p.closed && s.member != nil && p.opts.Health.isNullOnly(s.endpoint, s.dialled) {
			s.closeWhenIdle = true
			s.supersede()
			idle = append(idle, s.takeIdle())
		}
	}
	p.mu.Unlock()
	if len(idle) > 0 {
		closeAll(idle)
		p.slowStart.wake(Elsewhere)
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
	if h.overdue(endpoint, wait) {
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
func (s *Seat) tryOut(ctx context.Context, a attempt, d *dialled) error {
	p, h, began := s.pool, d.o.Health, time.Now()
	p.mu.Lock()
	s.open, s.endpoint = d.m, a.addr
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
			h.answersCalls(a.addr)
			return nil
		case err := <-s.ended:
			if s.isFruitless() {
				h.fruitless(a.addr, began, err)
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
	if t == nil || t.carried || e.Aside || !e.Repeatable || e.large() || e.Flow.chooses() || e.Flow.Ordered {
		return s
	}
	return t
}
