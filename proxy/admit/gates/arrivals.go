package gates

import (
	"sync"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/crowd"
	"github.com/rdmabridge/rdmabridge/internal/ratelimit"
)

// arrivalBurst is how long connections that do not come are saved up: after that as many may come at once as
// might have come in arrivalBurst, for instance when a host mounts with nconnect.
const arrivalBurst = int64(time.Second)

// Arrivals know when connections came, all of them and those of each host, for limits of new connections per
// second. A connection beyond a limit is refused as soon as it is accepted: to keep it waiting would hold a
// descriptor, and the bridge's turn to accept others. The zero arrivals knows of none. It is safe for
// concurrent use.
type Arrivals struct {
	mu    sync.Mutex // guards the rest; a leaf
	all   ratelimit.Meter
	of    map[crowd.Host]ratelimit.Meter // at most as many as come in a second, or twice that
	swept int                            // entries after the last sweep
}

// An arrival says whether a connection is let in.
type arrival uint8

const (
	arrivalOK    arrival = iota
	OverRate             // too many come from all hosts
	OverHostRate         // too many come from this host
)

// Enter lets a connection of h in at now, if that exceeds neither all nor each connections a second. 0 is no limit.
func (a *Arrivals) Enter(h crowd.Host, all, each int, now int64) arrival {
	if all == 0 && each == 0 {
		return arrivalOK
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	host := a.of[h]
	switch {
	case each > 0 && host.Wait(now, ratelimit.Per(each), arrivalBurst) > 0:
		return OverHostRate
	case all > 0 && a.all.Wait(now, ratelimit.Per(all), arrivalBurst) > 0:
		return OverRate
	}
	if all > 0 {
		a.all.Charge(now, ratelimit.Per(all), arrivalBurst)
	}
	if each > 0 {
		if a.of == nil {
			a.of = make(map[crowd.Host]ratelimit.Meter)
		}
		host.Charge(now, ratelimit.Per(each), arrivalBurst)
		a.of[h] = host
		a.sweep(now)
	}
	return arrivalOK
}

// sweepArrivals is the number of hosts from which on arrivals forgets those that owe nothing.
const sweepArrivals = 64

// sweep forgets the hosts that may send as many connections at once as if none had come. a.mu is held.
func (a *Arrivals) sweep(now int64) {
	if n := len(a.of); n < sweepArrivals || n < 2*a.swept {
		return
	}
	for h, m := range a.of {
		if m.Rested(now, arrivalBurst) {
			delete(a.of, h)
		}
	}
	a.swept = len(a.of)
}
