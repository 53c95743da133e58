package keeper

import (
	"context"
	"time"

	"github.com/rdmabridge/rdmabridge/pool/endpoints"
)

// Prefers returns the index of the endpoint that the seat prefers. With Settings.Keep, the goroutine of Keep calls it.
func (k *Keeper) Prefers() int {
	o := k.seat.Settings()
	return k.prefers(&o)
}

// prefers does what Prefers does.
func (k *Keeper) prefers(o *Settings) int {
	if o.Keep && k.last != "" {
		return o.Health.Index(k.last)
	}
	return o.Prefer
}

// improveTimer returns a channel that fires when the seat should dial a better connection, or
// nil for never.
func (o *Settings) improveTimer() <-chan time.Time {
	if o.Improve == nil {
		return nil
	}
	if d := o.Improve(); d > 0 {
		return time.After(d)
	}
	return nil
}

// AloneTimes is how many times Settings.DialTimeout an attempt to connect may take while no other
// is under way, because the endpoint is down, and there is no other endpoint to dial. A server that is
// starting answers late, and giving an attempt up early may cost it more than the attempt.
const AloneTimes = 3

// begin returns the next attempt to connect, for which the caller calls dial. It reports false if another attempt, which
// it has waited for, came first, or ctx has ended. failed is the endpoint that the seat has just failed to connect to.
func (k *Keeper) begin(ctx context.Context, failed string) (endpoints.Attempt, bool) {
	o := k.seat.Settings()
	if o.Dials.Acquire(ctx) != nil {
		return endpoints.Attempt{}, false
	}
	a, busy := o.Health.Pick(k.prefers(&o), o.Keep, failed)
	if busy == nil {
		return a, true
	}
	o.Dials.Release() // so that waiting costs other upstreams nothing
	var late <-chan time.Time
	if o.Returns {
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
	Conn
	granted <-chan struct{} // closed when the server has granted a credit
	o       Settings        // that it was made with
	tried   time.Time       // when a Call could first try the endpoint: tryOut
}

// dial makes a connection for a. If that fails, it tells Health so. If not, the caller reports
// success or failure. dial returns the settings in any case. Settings.Dials has admitted the
// attempt, and dial ends it.
func (k *Keeper) dial(ctx context.Context, a endpoints.Attempt) (d dialled, err error) {
	d.o = k.seat.Settings()
	timeout := d.o.DialTimeout
	if a.Alone && !a.Other {
		timeout *= AloneTimes
	}
	dctx, cancel := context.WithTimeout(ctx, timeout)
	d.Conn, d.granted, err = k.seat.Dial(dctx, a.Addr, k.improving)
	cancel()
	d.o.Dials.Release()
	if err != nil {
		k.failed(ctx, a, &d.o, err)
	}
	return d, err
}

// failed tells Health that a has failed with err.
func (k *Keeper) failed(ctx context.Context, a endpoints.Attempt, o *Settings, err error) {
	if k.improving {
		o.Health.Abandoned(a)
		return
	}
	o.Errors.Inc()
	if ctx.Err() == nil && !o.isLocal(err) {
		o.Health.Failed(a, err)
	} else {
		o.Health.Abandoned(a)
	}
}

// answered waits until the server has granted a credit on the connection d of the seat, which gets no Calls
// yet. If it does not within Settings.DialTimeout, or the connection ends, answered closes the
// connection, waits for its end, and says why.
func (k *Keeper) answered(ctx context.Context, d *dialled) error {
	t := time.NewTimer(d.o.DialTimeout)
	defer t.Stop()
	var err error
	select {
	case <-d.granted:
		return nil
	case err = <-k.ended:
		return err
	case <-t.C:
		err = ErrMute
	case <-ctx.Done():
		err = ErrClosed
	}
	k.close(d, err)
	return err
}

// close closes the connection d of the seat and waits for its end.
func (k *Keeper) close(d *dialled, reason error) {
	d.Close(reason)
	<-k.ended //nolint:errcheck // it is reason
}
