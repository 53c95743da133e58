// Package keeper keeps a connection on a seat: it chooses an endpoint, dials it, waits until the connection has ended,
// and begins again after a pause. While it waits, it tries from time to time to dial a better connection. If it can,
// another seat with that connection takes the place of this one, whose connection is closed after its last Call.
//
// It knows neither the pool of the seat nor Calls, and holds no lock: what happens under that of the pool is behind
// [Seat] and [Candidate].
package keeper

import (
	"context"
	"errors"
	"time"

	"github.com/rdmabridge/rdmabridge/pool/endpoints"
)

// A Keeper keeps a connection on a seat.
type Keeper struct {
	seat    Seat
	ended   <-chan error
	answers <-chan struct{}
	spawn   func(func())

	// Owned by the goroutine of Keep, Resume or, before these, tryReplace of the seat that this one is to replace.
	last      string // endpoint of the last connection on which the server granted a credit
	improving bool   // the seat dials a better connection than that of the seat whose place it is to take
}

// New returns a Keeper of s. ended carries the end of each connection that Dial has made, and answers has something when
// the connection has answered a Call of a client. spawn starts goroutines.
func New(s Seat, ended <-chan error, answers <-chan struct{}, spawn func(func())) *Keeper {
	return &Keeper{seat: s, ended: ended, answers: answers, spawn: spawn}
}

// Keep keeps a connection on the seat until ctx ends, another seat replaces it, or it needs none. A seat has one
// goroutine at a time that calls Keep or Resume.
func (k *Keeper) Keep(ctx context.Context) {
	backoff, failed := time.Duration(0), ""
	for ctx.Err() == nil && k.seat.Goes() {
		o := k.seat.Settings()
		backoff = min(max(backoff, o.BackoffMin), o.BackoffMax)
		a, ok := k.begin(ctx, failed)
		if !ok {
			continue
		}
		endpoint := a.Addr
		began := time.Now()
		served, out, err := k.connect(ctx, a)
		if out.Over || ctx.Err() != nil {
			return
		}
		failed = ""
		if out.Rested {
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
		k.seat.Failed(endpoint, err)
		if f := o.Failed; f != nil {
			f(endpoint, err, pause)
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

// Resume does what Keep does, for a seat that already has a connection to endpoint.
func (k *Keeper) Resume(ctx context.Context, endpoint string) {
	_, out, err := k.waitEnd(ctx, endpoint, nil)
	if out.Over || ctx.Err() != nil {
		return
	}
	if f := k.seat.Settings().Failed; f != nil && !out.Rested {
		f(endpoint, err, 0)
	}
	k.Keep(ctx)
}

// connect makes attempt a and waits until the connection has ended. served reports whether the server has
// granted a credit. err says why the connection ended or why the dial failed. begin has returned a.
func (k *Keeper) connect(ctx context.Context, a endpoints.Attempt) (served bool, out Outcome, err error) {
	d, err := k.dial(ctx, a)
	if err != nil {
		return false, k.seat.Ended(), err
	}
	d.o.Health.Succeeded(a)
	k.seat.Connected(a.Addr)
	return k.waitEnd(ctx, a.Addr, d.granted)
}

// preferEvery is how often a seat checks whether it can return to the endpoint that it prefers.
const preferEvery = time.Second

// waitEnd waits until the seat's connection to endpoint has ended, and returns why. granted is closed
// when the server has granted a credit, and nil if it has; served reports whether it has.
// While it waits it tries for a better connection. If there are other endpoints, or other addresses of
// this one, it leaves one whose server has not answered for as long as an attempt to connect may take.
func (k *Keeper) waitEnd(ctx context.Context, endpoint string, granted <-chan struct{}) (served bool, out Outcome, err error) {
	o := k.seat.Settings()
	t := time.NewTicker(preferEvery)
	defer t.Stop()
	prefer, improve := t.C, o.improveTimer()
	served = granted == nil
	if served {
		k.last = endpoint
	}
	var mute <-chan time.Time
	if !served {
		mute = time.After(o.DialTimeout)
	}
	var trying replacing
	began := time.Now()
	for waiting := true; waiting; {
		select {
		case err = <-k.ended:
			waiting = false
		case <-prefer:
			k.seat.LeaveNullOnly()
			if trying.done == nil && k.isBetter(endpoint) {
				trying = k.startReplace(ctx, endpoint, false)
			}
		case <-improve:
			if trying.done != nil {
				improve = time.After(preferEvery) // after the other attempt
				break
			}
			trying = k.startReplace(ctx, endpoint, true)
		case <-granted:
			served, granted, mute = true, nil, nil
			k.heard(&o, endpoint)
		case <-k.answers:
			o.Health.AnswersCalls(endpoint)
		case <-mute:
			k.seat.LeaveMute()
			mute = time.After(o.DialTimeout) // a reload may bring another endpoint
		case replaced := <-trying.done:
			if replaced {
				prefer, improve = nil, nil // from now on wait only for the end
			} else if trying.better {
				improve = o.improveTimer()
			}
			trying = replacing{}
		}
	}
	if !served {
		select {
		case <-granted:
			served = true
			k.heard(&o, endpoint)
		default:
		}
	}
	select {
	case <-k.answers:
		o.Health.AnswersCalls(endpoint)
	default:
	}
	out = k.seat.Ended()
	o.Health.Ended(endpoint)
	missed := out.Missed && !o.isLocal(err)
	switch {
	case ctx.Err() != nil:
	case missed && !served, o.HostGone != nil && o.HostGone(err):
		o.Health.Gone(endpoint, err)
	case missed && out.Fruitless && !errors.Is(err, ErrClosed):
		o.Health.Fruitless(endpoint, began, err)
	}
	return served, out, err
}

// heard notes that the server at endpoint has granted a credit.
func (k *Keeper) heard(o *Settings, endpoint string) {
	k.last = endpoint
	o.Health.Answered(endpoint)
}
