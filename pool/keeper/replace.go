package keeper

import (
	"context"
	"errors"

	"github.com/rdmabridge/rdmabridge/pool/endpoints"
)

// A replacing is an attempt to put another seat, with a better connection, in the place of one. It runs
// beside the seat's goroutine, which learns at once when the present connection ends.
type replacing struct {
	done   chan bool // what tryReplace reports; nil for none
	better bool      // improving
}

// isBetter reports whether there is an endpoint that the seat prefers to the one it is connected to, and can try to
// return to.
func (k *Keeper) isBetter(connected string) bool {
	o := k.seat.Settings()
	return o.Returns && o.Health.IsBetter(k.prefers(&o), connected)
}

// startReplace calls tryReplace on a goroutine of its own.
func (k *Keeper) startReplace(ctx context.Context, connected string, improving bool) replacing {
	r := replacing{make(chan bool, 1), improving}
	k.spawn(func() { r.done <- k.tryReplace(ctx, connected, improving) })
	return r
}

// tryReplace tries to connect to the endpoint of isBetter, or, with improving, to the endpoint connected, that of the
// present connection, once more. If the server of the new connection answers, another seat
// with that connection takes the place of this one, whose own connection ends after its last Call. It does not
// if this seat's connection has ended meanwhile. tryReplace reports whether this seat has been
// replaced, or is not wanted any more.
func (k *Keeper) tryReplace(ctx context.Context, connected string, improving bool) bool {
	o := k.seat.Settings()
	n, c, done := k.seat.Beside()
	if n == nil || o.Dials.Acquire(ctx) != nil {
		return done
	}
	a, ok := endpoints.Attempt{Addr: connected}, true
	if !improving {
		// Not before Dials admits the attempt: those that have to wait for it would wait for that, too.
		if ok = o.Returns; ok {
			a, ok = o.Health.PickBetter(k.prefers(&o), connected)
		}
		if ok && a.NullOnly && c.TriesOut() {
			o.Health.Abandoned(a)
			ok = false
		}
	}
	if !ok {
		o.Dials.Release()
		return false
	}
	n.improving = improving
	d, err := n.dialAnswered(ctx, a, c)
	n.improving = false
	if err != nil {
		if n.seat.Ended().Fruitless && !errors.Is(err, errNoCall) {
			d.o.Health.Fruitless(a.Addr, d.tried, err)
		}
		return false
	}
	a.Alone = a.Alone && !a.NullOnly // dialAnswered has ended the attempt
	d.o.Health.Succeeded(a)
	d.o.Health.Answered(a.Addr)
	replaced, done := c.Replace(a.Addr)
	if replaced {
		return true
	}
	n.close(&d, ErrClosed)
	d.o.Health.Ended(a.Addr)
	n.seat.Ended()
	return done
}

// dialAnswered makes a connection for a, on which the server answers, for the seat of k, which is c. The endpoint is
// tried out if a says so.
func (k *Keeper) dialAnswered(ctx context.Context, a endpoints.Attempt, c Candidate) (dialled, error) {
	d, err := k.dial(ctx, a)
	if err != nil {
		return d, err
	}
	if err = k.answered(ctx, &d); err != nil {
		k.failed(ctx, a, &d.o, err)
		return d, err
	}
	if a.NullOnly {
		d.o.Health.Abandoned(a) // it may be long before a Call comes, and others need not wait
		err = k.tryOut(ctx, a, &d, c)
	}
	return d, err
}
