package pool

import (
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

// A Health knows which endpoints of one upstream can be connected to. The pools of the
// upstream share it.
//
// An endpoint that fails twice in a row, or whose host is gone, is ejected: the pools dial
// others instead, for a time that doubles with every failure. After that time the pools dial it
// with one attempt at a time, and the first attempt that succeeds ends the ejection. While all
// endpoints are ejected, the pools dial the endpoint whose ejection ends first, so that they
// always have one to dial.
type Health struct {
	// Ejected is called when an endpoint is ejected for wait, unless it is the only one.
	// Returned is called when a connection to an ejected endpoint was made. Both are
	// called without a lock. They are set before the first use and may be nil.
	Ejected  func(endpoint string, wait time.Duration)
	Returned func(endpoint string)

	mu       sync.Mutex // guards the rest; a leaf
	priority bool       // all seats prefer the first endpoint
	list     []*endpoint
}

// An endpoint is the state of one endpoint.
type endpoint struct {
	addr    string
	fails   int       // in a row
	ejects  int       // in a row
	until   time.Time // when it may be tried again; zero while it is not ejected
	dialing bool      // it is ejected, and an attempt is trying it
}

const (
	ejectAfter = 2           // failures in a row that eject an endpoint
	leastEject = time.Second // time of the first ejection
	mostEject  = time.Minute // time of the longest ejection
)

// Set replaces the endpoints. Those that stay keep their state. With
// priority an endpoint is only used while those before it cannot be; without it all are
// equal.
func (h *Health) Set(addrs []string, priority bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.priority = priority
	old := h.list
	h.list = nil
	for _, a := range addrs {
		if i := slices.IndexFunc(old, func(e *endpoint) bool { return e.addr == a }); i >= 0 {
			h.list = append(h.list, old[i])
		} else {
			h.list = append(h.list, &endpoint{addr: a})
		}
	}
}

// Counts returns how many endpoints are ejected, and how many there are.
func (h *Health) Counts() (ejected, all int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, e := range h.list {
		if !e.until.IsZero() {
			ejected++
		}
	}
	return ejected, len(h.list)
}

// pick returns the endpoint to dial for a seat that prefers endpoint n and has just
// failed to connect to the endpoint failed, which may be empty. The caller reports the
// outcome to succeeded, failed or abandoned.
func (h *Health) pick(n int, keep bool, failed string) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	var again, first *endpoint
	for i := range h.list {
		e := h.choice(n, i, keep)
		switch {
		case !e.usable(now):
			if first == nil || e.until.Before(first.until) {
				first = e
			}
		case e.addr == failed:
			again = e
		default:
			e.dialing = !e.until.IsZero()
			return e.addr
		}
	}
	if again == nil {
		again = first
	}
	again.dialing = !again.until.IsZero()
	return again.addr
}

// better returns a usable endpoint that a seat which prefers endpoint n prefers to the
// one it is connected to. If there is one, the caller reports the outcome to succeeded,
// failed or abandoned.
func (h *Health) better(n int, connected string) (string, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	for i := range h.list {
		e := h.choice(n, i, false)
		if e.addr == connected {
			break
		}
		if e.usable(now) {
			e.dialing = !e.until.IsZero()
			return e.addr, true
		}
	}
	return "", false
}

// index returns the index of addr among the endpoints, or 0.
func (h *Health) index(addr string) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return max(0, slices.IndexFunc(h.list, func(e *endpoint) bool { return e.addr == addr }))
}

// succeeded notes that a connection to addr was made.
func (h *Health) succeeded(addr string) {
	h.mu.Lock()
	returned := false
	for _, e := range h.list {
		if e.addr == addr {
			returned = !e.until.IsZero()
			*e = endpoint{addr: addr}
		}
	}
	h.mu.Unlock()
	if returned && h.Returned != nil {
		h.Returned(addr)
	}
}

// abandoned notes that an attempt to connect to addr was given up for a reason that says
// nothing about addr.
func (h *Health) abandoned(addr string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, e := range h.list {
		if e.addr == addr {
			e.dialing = false
		}
	}
}

// failed notes that an attempt to connect to addr has failed, or, if gone is set, that
// its host has vanished under a connection.
func (h *Health) failed(addr string, gone bool) {
	h.mu.Lock()
	wait := time.Duration(0)
	for _, e := range h.list {
		if e.addr != addr {
			continue
		}
		e.fails++
		now := time.Now()
		ejected := !e.until.IsZero()
		if ejected && !e.dialing && now.Before(e.until) {
			break // this attempt began before the endpoint was ejected
		}
		if e.dialing = false; gone || ejected || e.fails >= ejectAfter {
			wait = jitter(min(leastEject<<min(e.ejects, 10), mostEject))
			e.ejects++
			e.until = now.Add(wait)
		}
	}
	alone := len(h.list) < 2
	h.mu.Unlock()
	if wait > 0 && !alone && h.Ejected != nil {
		h.Ejected(addr, wait)
	}
}

// choice returns the i-th choice of a seat that prefers endpoint n. keep is
// Options.KeepEndpoint, which overrules the priority. The caller holds h.mu.
func (h *Health) choice(n, i int, keep bool) *endpoint {
	if h.priority && !keep {
		n = 0
	}
	return h.list[(n+i)%len(h.list)]
}

// usable reports whether e may be dialled now.
func (e *endpoint) usable(now time.Time) bool {
	return e.until.IsZero() || !e.dialing && !now.Before(e.until)
}

// jitter spreads d over [d/2, d].
func jitter(d time.Duration) time.Duration {
	return d/2 + rand.N(d/2+1)
}
