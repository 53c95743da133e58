package pool

import (
	"context"
	"errors"
	"time"

	"github.com/rdmabridge/rdmabridge/pool/endpoints"
)

// prefers returns the index of the endpoint that the seat prefers. With KeepEndpoint, the seat's goroutine calls it.
func (s *Seat) prefers(o *Options) int {
	if o.KeepEndpoint && s.last != "" {
		return o.Health.Index(s.last)
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
// is under way, because the endpoint is down, and there is no other endpoint to dial. A server that is
// starting answers late, and giving an attempt up early may cost it more than the attempt.
const AloneTimes = 3

// begin returns the next attempt to connect, for which the caller calls dial. It reports false if another attempt, which
// it has waited for, came first, or ctx has ended. failed is the endpoint that the seat has just failed to connect to.
func (s *Seat) begin(ctx context.Context, failed string) (endpoints.Attempt, bool) {
	o := s.pool.options()
	if o.Dials.Acquire(ctx) != nil {
		return endpoints.Attempt{}, false
	}
	a, busy := o.Health.Pick(s.prefers(&o), o.KeepEndpoint, failed)
	if busy == nil {
		return a, true
	}
	o.Dials.Release() // so that waiting costs other upstreams nothing
	var late <-chan time.Time
	if !o.KeepEndpoint && len(o.Endpoints) > 1 {
		late = time.After(endpoints.Patience)
	}
	select {
	case <-busy:
	case <-late:
	case <-ctx.Done():
	}
	return endpoints.Attempt{}, false
}

// A dialled is a connection that dial has made.
type dialled struct {
	m          Member
	granted    <-chan struct{} // closed when the server has granted a credit
	o          Options         // that it was made with
	generation int             // of o
}

// dial makes a connection for a. If that fails, it tells Health so. If not, the caller reports
// success or failure. dial returns the settings in any case. Options.Dials has admitted the
// attempt, and dial ends it.
func (s *Seat) dial(ctx context.Context, a endpoints.Attempt) (d dialled, err error) {
	p := s.pool
	granted := make(chan struct{})
	p.mu.Lock()
	o := p.opts
	d.o, d.generation, d.granted = o, p.generation, granted
	s.granted = granted
	s.dialled, s.others, s.carried, s.lastAnswer = time.Now(), false, false, 0
	p.mu.Unlock()
	timeout := o.DialTimeout
	if a.Alone && !a.Other {
		timeout *= AloneTimes
	}
	dctx, cancel := context.WithTimeout(ctx, timeout)
	d.m, err = p.dialer.Dial(dctx, a.Addr, s.affinity, s)
	cancel()
	o.Dials.Release()
	if err != nil {
		s.failed(ctx, a, &o, err)
		return d, err
	}
	p.metrics.reconnects.Inc()
	return d, nil
}

// failed tells Health that a has failed with err.
func (s *Seat) failed(ctx context.Context, a endpoints.Attempt, o *Options, err error) {
	if s.improving {
		o.Health.Abandoned(a)
		return
	}
	s.pool.metrics.dialErrors.Inc()
	if ctx.Err() == nil && !o.isLocal(err) {
		o.Health.Failed(a, err)
	} else {
		o.Health.Abandoned(a)
	}
}

// errMute ends a connection whose server has not answered since it was made.
var errMute = errors.New("pool: the server accepts connections and answers nothing")

// answered waits until the server has granted a credit on the connection d of s, which gets no Calls
// yet. If it does not within Options.DialTimeout, or the connection ends, answered closes the
// connection, waits for its end, and says why.
func (s *Seat) answered(ctx context.Context, d *dialled) error {
	t := time.NewTimer(d.o.DialTimeout)
	defer t.Stop()
	var err error
	select {
	case <-d.granted:
		return nil
	case err = <-s.ended:
		return err
	case <-t.C:
		err = errMute
	case <-ctx.Done():
		err = ErrClosed
	}
	d.m.Close(err)
	<-s.ended //nolint:errcheck // the reason is err
	return err
}
