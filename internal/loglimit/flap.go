package loglimit

import (
	"sync"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/ratelimit"
)

// FlapBurst is how many changes of a Flap are logged at once.
const FlapBurst = 3

// flapSaved is how long silence is saved up for.
const flapSaved = int64(FlapBurst * Again)

// A Flap bounds the lines about a thing that changes its state again and again. It logs the first
// FlapBurst changes at once and then one in each Again. A change that had to wait is logged at the end
// of that time, unless another came meanwhile: so the last line always says the state that the thing
// is in. Its zero value is ready to use. It is safe for concurrent use.
type Flap struct {
	mu         sync.Mutex // guards the fields below
	meter      ratelimit.Meter
	say        func(suppressed uint64) // the change that waits; nil for none
	suppressed uint64                  // changes that were left out
	timer      *time.Timer             // logs say
	stopped    bool
}

// Change logs a change with say, now or later. say is told how many changes were left out before.
// It must not call f.
func (f *Flap) Change(say func(suppressed uint64)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.say != nil { // the timer is set
		f.suppressed++
		f.say = say
		return
	}
	now := ratelimit.At(time.Now())
	switch wait := f.meter.Wait(now, int64(Again), flapSaved); {
	case wait <= 0:
		f.meter.Charge(now, int64(Again), flapSaved)
		say(0)
	case !f.stopped:
		f.say = say
		f.timer = time.AfterFunc(time.Duration(wait), f.late)
	}
}

// late logs the change that waits.
func (f *Flap) late() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.say == nil {
		return
	}
	say, n := f.say, f.suppressed
	f.say, f.suppressed = nil, 0
	f.meter.Charge(ratelimit.At(time.Now()), int64(Again), flapSaved)
	say(n)
}

// Stop forgets a change that waits, and lets none wait any more.
func (f *Flap) Stop() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.say, f.stopped = nil, true
	if f.timer != nil {
		f.timer.Stop()
	}
}
