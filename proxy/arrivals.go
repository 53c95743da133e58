package proxy

import (
	"sync"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/crowd"
)

// arrivalBurst is how long connections that do not come are saved up: after that as many may come at once as
// might have come in arrivalBurst, for instance when a host mounts with nconnect.
const arrivalBurst = int64(time.Second)

// arrivals know when connections came, all of them and those of each host, for limits of new connections per
// second. A connection beyond a limit is refused as soon as it is accepted: to keep it waiting would hold a
// descriptor, and the bridge's turn to accept others. The zero arrivals knows of none. It is safe for
// concurrent use.
type arrivals struct {
	mu     sync.Mutex           // guards the rest; a leaf
	until  int64                // when the connections would have come that were let in, if they had come at the rate
	counts bool                 // until is set
	of     map[crowd.Host]int64 // the same for each host; at most as many as come in a second, or twice that
	swept  int                  // entries after the last sweep
}

// An arrival says whether a connection is let in.
type arrival uint8

const (
	arrivalOK         arrival = iota
	arrivalOverRate           // too many come from all hosts
	arrivalOverOfHost         // too many come from this host
)

// enter lets a connection of h in at now, if that exceeds neither all nor each connections a second. 0 is no limit.
func (a *arrivals) enter(h crowd.Host, all, each int, now int64) arrival {
	if all == 0 && each == 0 {
		return arrivalOK
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	least := now - arrivalBurst
	host, until := least, least
	if u, ok := a.of[h]; ok {
		host = max(host, u)
	}
	if a.counts {
		until = max(until, a.until)
	}
	switch {
	case each > 0 && over(host, each, now):
		return arrivalOverOfHost
	case all > 0 && over(until, all, now):
		return arrivalOverRate
	}
	if all > 0 {
		a.until, a.counts = until+int64(time.Second)/int64(all), true
	}
	if each > 0 {
		if a.of == nil {
			a.of = make(map[crowd.Host]int64)
		}
		a.of[h] = host + int64(time.Second)/int64(each)
		a.sweep(least)
	}
	return arrivalOK
}

// over reports whether another connection has to wait, if those before it end at until at a rate.
func over(until int64, rate int, now int64) bool {
	return until+int64(time.Second)/int64(rate) > now
}

// sweepArrivals is the number of hosts from which on arrivals forgets those that owe nothing.
const sweepArrivals = 64

// sweep forgets the hosts that may send as many connections at once as if none had come. a.mu is held.
func (a *arrivals) sweep(least int64) {
	if n := len(a.of); n < sweepArrivals || n < 2*a.swept {
		return
	}
	for h, until := range a.of {
		if until <= least {
			delete(a.of, h)
		}
	}
	a.swept = len(a.of)
}
