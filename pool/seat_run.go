package pool

import (
	"context"
	"errors"
	"time"

	"github.com/rdmabridge/rdmabridge/pool/endpoints"
)

// The goroutine of a seat
//
// run chooses an endpoint, dials it, waits until the connection has ended, and begins again
// after a pause. While it waits, it tries from time to time to dial a better connection. If it
// can, a new seat with that connection replaces this seat. This seat's connection is closed
// after its last Call, and then run returns. It also returns when the seat sleeps. Pool.wake starts
// it again.

// run keeps a connection on the seat until ctx ends, another seat replaces it, or it sleeps.
func (s *Seat) run(ctx context.Context) {
	p := s.pool
	backoff, failed := time.Duration(0), ""
	for ctx.Err() == nil && !s.discarded() && !s.lieDown() {
		o := p.options()
		backoff = min(max(backoff, o.BackoffMin), o.BackoffMax)
		a, ok := s.begin(ctx, failed)
		if !ok {
			continue
		}
		endpoint := a.Addr
		began := time.Now()
		served, err := s.connect(ctx, a)
		if s.discarded() || ctx.Err() != nil {
			return
		}
		failed = ""
		if s.rested() {
			backoff = 0
			continue
		}
		if !served && !o.isLocal(err) {
			failed = endpoint
		}
		// A connection that has lasted resets the back-off.
		if time.Since(began) > 2*o.BackoffMax {
			backoff = o.BackoffMin
		}
		pause := endpoints.Jitter(backoff)
		backoff = min(2*backoff, o.BackoffMax)
		p.mu.Lock()
		s.lastErr = err
		s.endpoint = endpoint
		p.mu.Unlock()
		if f := o.Failed; f != nil {
			f(endpoint, err, pause)
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

// connect makes attempt a and waits until the connection has ended. served reports whether the server has
// granted a credit. err says why the connection ended or why the dial failed. begin has returned a.
func (s *Seat) connect(ctx context.Context, a endpoints.Attempt) (served bool, err error) {
	p, endpoint := s.pool, a.Addr
	d, err := s.dial(ctx, a)
	if err != nil {
		return false, err
	}
	d.o.Health.Succeeded(a)
	p.mu.Lock()
	unwanted := p.closed || s.retired // Close or Update came first
	if s.asleep {
		p.wake(s) // it fell asleep during the attempt; rest closes the connection
	}
	s.setMember(d.m, endpoint, d.generation, unwanted)
	p.renewNext()
	p.mu.Unlock()
	if unwanted {
		d.m.Close(ErrClosed)
	} else if f := d.o.Connected; f != nil {
		f(endpoint)
	}
	p.leaveNullOnly() // the endpoint may have been ejected meanwhile
	p.kick(Elsewhere)
	return s.waitEnd(ctx, endpoint, d.granted)
}

// runConnected does what run does, for a seat that already has a connection to endpoint.
func (s *Seat) runConnected(ctx context.Context, endpoint string) {
	s.pool.kick(Elsewhere)
	_, err := s.waitEnd(ctx, endpoint, nil)
	if s.discarded() || ctx.Err() != nil {
		return
	}
	if f := s.pool.options().Failed; f != nil && !s.rested() {
		f(endpoint, err, 0)
	}
	s.run(ctx)
}

// preferEvery is how often a seat checks whether it can return to the endpoint that it prefers.
const preferEvery = time.Second

// waitEnd waits until the seat's connection to endpoint has ended, and returns why. granted is closed
// when the server has granted a credit, and nil if it has; served reports whether it has.
// While it waits it tries for a better connection. If there are other endpoints, or other addresses of
// this one, it leaves one whose server has not answered for as long as an attempt to connect may take.
func (s *Seat) waitEnd(ctx context.Context, endpoint string, granted <-chan struct{}) (served bool, err error) {
	p := s.pool
	o := p.options()
	t := time.NewTicker(preferEvery)
	defer t.Stop()
	prefer, improve := t.C, s.improveTimer(&o)
	served = granted == nil
	if served {
		s.last = endpoint
	}
	var mute <-chan time.Time
	if !served {
		mute = time.After(o.DialTimeout)
	}
	var trying replacing
	began := time.Now()
	for waiting := true; waiting; {
		select {
		case err = <-s.ended:
			waiting = false
		case <-prefer:
			p.leaveNullOnly()
			if trying.done == nil && s.isBetter(endpoint) {
				trying = s.startReplace(ctx, endpoint, false)
			}
		case <-improve:
			if trying.done != nil {
				improve = time.After(preferEvery) // after the other attempt
				break
			}
			trying = s.startReplace(ctx, endpoint, true)
		case <-granted:
			served, granted, mute = true, nil, nil
			s.heard(&o, endpoint)
		case <-s.answers:
			o.Health.AnswersCalls(endpoint)
		case <-mute:
			s.leaveMute()
			mute = time.After(o.DialTimeout) // a reload may bring another endpoint
		case replaced := <-trying.done:
			if replaced {
				prefer, improve = nil, nil // from now on wait only for s.ended
			} else if trying.better {
				improve = s.improveTimer(&o)
			}
			trying = replacing{}
		}
	}
	if !served {
		select {
		case <-granted:
			served = true
			s.heard(&o, endpoint)
		default:
		}
	}
	select {
	case <-s.answers:
		o.Health.AnswersCalls(endpoint)
	default:
	}
	p.mu.Lock()
	// The pool wanted the connection, and has another endpoint to try.
	missed := len(p.opts.Endpoints) > 1 && !s.retired && !s.asleep && !s.resting && !o.isLocal(err)
	fruitless := s.carried && s.lastAnswer == 0
	s.open = nil
	s.lost() // Closing and Ended had no effect if they ran before setMember
	p.mu.Unlock()
	o.Health.Ended(endpoint)
	switch {
	case ctx.Err() != nil:
	case missed && !served, o.HostGone != nil && o.HostGone(err):
		o.Health.Gone(endpoint, err)
	case missed && fruitless && !errors.Is(err, ErrClosed):
		o.Health.Fruitless(endpoint, began, err)
	}
	return served, err
}

// heard notes that the server at endpoint has granted a credit.
func (s *Seat) heard(o *Options, endpoint string) {
	s.last = endpoint
	o.Health.Answered(endpoint)
}

// leaveMute closes the seat's connection if its server has not granted a credit and there is another
// endpoint or address. A credit that comes now has no effect.
func (s *Seat) leaveMute() {
	p := s.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	if s.granted != nil && !s.retired && (len(p.opts.Endpoints) > 1 || s.others) && s.open != nil {
		p.closeSoon(s.open, errMute)
		s.clearMember()
	}
}

// Closing stops dispatching to connection m. The connection calls it as soon as it knows that
// it will end, and before it gives its Calls back, so that the pool dispatches them elsewhere.
// If the seat has another connection already, because m gave back a Call late, Closing does
// nothing.
func (s *Seat) Closing(m Member) {
	p := s.pool
	p.mu.Lock()
	if s.member == m {
		s.lost()
	}
	p.mu.Unlock()
}

// Ended reports that the seat's connection has ended and has given every Call back by
// Done. It is called once for each successful Dial, on any goroutine.
func (s *Seat) Ended(err error) {
	p := s.pool
	p.mu.Lock()
	s.lost()
	p.mu.Unlock()
	s.ended <- err
}
