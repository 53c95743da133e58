package pool

import (
	"context"
	"time"
)

// prefers returns the index of the endpoint that the seat prefers.
func (s *Seat) prefers(o *Options) int {
	if s.last != "" && o.KeepEndpoint {
		return o.Health.index(s.last)
	}
	return o.Prefer + s.index
}

// improveTimer returns a channel that fires when the seat should dial a better connection, or
// nil for never.
func (s *Seat) improveTimer(o *Options) <-chan time.Time {
	if o.Improve == nil {
		return nil
	}
	if d := o.Improve(s); d > 0 {
		return time.After(d)
	}
	return nil
}

// AloneTimes is how many times Options.DialTimeout an attempt to connect may take while no other
// is under way, because the endpoint is down. A server that is starting answers late, and giving
// an attempt up early may cost it more than the attempt.
const AloneTimes = 3

// begin waits until the seat may try to connect, and returns the attempt. It reports false if the
// seat is not wanted any more. failed is the endpoint that the seat has just failed to connect
// to. The caller calls dial.
func (s *Seat) begin(ctx context.Context, failed string) (attempt, bool) {
	for {
		o := s.pool.options()
		if o.Dials.Acquire(ctx) != nil {
			return attempt{}, false
		}
		a, busy := o.Health.pick(s.prefers(&o), o.KeepEndpoint, failed)
		if busy == nil {
			return a, true
		}
		o.Dials.Release() // so that waiting costs other upstreams nothing
		select {
		case <-busy:
		case <-ctx.Done():
			return attempt{}, false
		}
		if !s.wanted() {
			return attempt{}, false
		}
	}
}

// dial makes a connection for a, and tells Health how that went. It returns the
// settings that the connection was made with, and their generation. Options.Dials has
// admitted the attempt, and dial ends it.
func (s *Seat) dial(ctx context.Context, a attempt) (m Member, o Options, generation int, err error) {
	p := s.pool
	p.mu.Lock()
	o, generation = p.opts, p.generation
	p.mu.Unlock()
	timeout := o.DialTimeout
	if a.alone {
		timeout *= AloneTimes
	}
	dctx, cancel := context.WithTimeout(ctx, timeout)
	m, err = p.dialer.Dial(dctx, a.addr, s.affinity, s)
	cancel()
	o.Dials.Release()
	if err != nil {
		if s.improving {
			o.Health.abandoned(a)
			return nil, o, generation, err
		}
		p.metrics.dialErrors.Inc()
		if ctx.Err() == nil && !o.isLocal(err) {
			o.Health.failed(a, err)
		} else {
			o.Health.abandoned(a)
		}
		return nil, o, generation, err
	}
	p.metrics.reconnects.Inc()
	o.Health.succeeded(a)
	s.last = a.addr
	return m, o, generation, nil
}
