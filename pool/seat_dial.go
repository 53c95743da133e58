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

// dial makes a connection to endpoint, and tells Health how that went. It returns the
// settings that the connection was made with, and their generation. Options.Dials has
// admitted the attempt, and dial ends it.
func (s *Seat) dial(ctx context.Context, endpoint string) (m Member, o Options, generation int, err error) {
	p := s.pool
	p.mu.Lock()
	o, generation = p.opts, p.generation
	p.mu.Unlock()
	dctx, cancel := context.WithTimeout(ctx, o.DialTimeout)
	m, err = p.dialer.Dial(dctx, endpoint, s.affinity, s)
	cancel()
	o.Dials.Release()
	if err != nil {
		if s.improving {
			return nil, o, generation, err
		}
		p.metrics.dialErrors.Inc()
		if ctx.Err() == nil {
			o.Health.failed(endpoint, false)
		} else {
			o.Health.abandoned(endpoint)
		}
		return nil, o, generation, err
	}
	p.metrics.reconnects.Inc()
	o.Health.succeeded(endpoint)
	s.last = endpoint
	return m, o, generation, nil
}
