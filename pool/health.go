package pool

import (
	"slices"
	"sync"
	"time"
)

// A Health is what is known of the addresses of one upstream, whose pools share it.
//
// An address that fails twice in a row, or whose host is gone, is ejected: others are
// dialled instead, for a time that doubles with every failure. After that one attempt
// at a time tries it, and the first that succeeds makes it as good as the others. When
// all are ejected, the one that has been longest is tried: there is always one.
type Health struct {
	// Ejected and Returned are told of an address's leaving and coming back, with no
	// lock held. They are set before use; nil ignores.
	Ejected  func(endpoint string, wait time.Duration)
	Returned func(endpoint string)

	mu       sync.Mutex // guards the rest; a leaf
	priority bool
	list     []*endpoint
}

type endpoint struct {
	addr    string
	fails   int       // in a row
	ejects  int       // in a row
	until   time.Time // when it may be tried again; zero while it is not ejected
	dialing bool      // somebody does
}

const (
	ejectAfter = 2
	leastEject = time.Second
	mostEject  = time.Minute
)

// Set replaces the addresses; those that stay keep what is known of them. With
// priority each is for when those before it fail, otherwise all are alike.
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

// Counts is how many addresses are ejected, of how many.
func (h *Health) Counts() (out, all int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, e := range h.list {
		if !e.until.IsZero() {
			out++
		}
	}
	return out, len(h.list)
}

// order is the i-th choice of one whose first is n; h.mu is held.
func (h *Health) order(n, i int, sticky bool) *endpoint {
	if h.priority && !sticky {
		n = 0
	}
	return h.list[(n+i)%len(h.list)]
}

// usable reports whether e may be dialled at now.
func (e *endpoint) usable(now time.Time) bool {
	return e.until.IsZero() || !e.dialing && !now.Before(e.until)
}

// pick is the address to dial for one whose first choice is number n, and which failed
// at the address failed just now. well, failed or untried follows.
func (h *Health) pick(n int, sticky bool, failed string) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	var again, first *endpoint
	for i := range h.list {
		e := h.order(n, i, sticky)
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

// better is an address that one whose first choice is number n would rather have than
// the one it has, if there is any. well, failed or untried follows.
func (h *Health) better(n int, has string) (string, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	for i := range h.list {
		e := h.order(n, i, false)
		if e.addr == has {
			break
		}
		if e.usable(now) {
			e.dialing = !e.until.IsZero()
			return e.addr, true
		}
	}
	return "", false
}

// index is where addr is in the list.
func (h *Health) index(addr string) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return max(0, slices.IndexFunc(h.list, func(e *endpoint) bool { return e.addr == addr }))
}

// succeeded notes that a connection to addr was made.
func (h *Health) succeeded(addr string) {
	h.mu.Lock()
	back := false
	for _, e := range h.list {
		if e.addr == addr {
			back = !e.until.IsZero()
			*e = endpoint{addr: addr}
		}
	}
	h.mu.Unlock()
	if back && h.Returned != nil {
		h.Returned(addr)
	}
}

// abandoned notes that an attempt at addr was given up, for a reason that says nothing of it.
func (h *Health) abandoned(addr string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, e := range h.list {
		if e.addr == addr {
			e.dialing = false
		}
	}
}

// failed notes that an attempt at addr has failed, or, if gone, that its host has
// vanished under a connection.
func (h *Health) failed(addr string, gone bool) {
	h.mu.Lock()
	wait := time.Duration(0)
	for _, e := range h.list {
		if e.addr != addr {
			continue
		}
		e.fails++
		now := time.Now()
		// What comes while it is out already is of attempts that began before.
		out := !e.until.IsZero()
		if out && !e.dialing && now.Before(e.until) {
			break
		}
		if e.dialing = false; gone || out || e.fails >= ejectAfter {
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
