package endpoints

import (
	"errors"
	"time"
)

// Endpoints that an operator ejects
//
// An operator may eject an endpoint for maintenance. Then no seat dials it, and its connections are replaced
// one after the other, each when its Calls are answered, as those of an endpoint that a reload has removed.
// The last endpoint cannot be ejected, or Calls would have nowhere to go, and neither can the last one that does
// not fail. If a reload leaves none but those,
// they are used again.

var (
	// ErrNoEndpoint reports an endpoint that is not among those of the upstream.
	ErrNoEndpoint = errors.New("the upstream has no such endpoint")
	// ErrLastEndpoint reports that there would be no endpoint left.
	ErrLastEndpoint = errors.New("the upstream has no other endpoint that its clients could use")
)

// Eject ejects the endpoint addr until the time until, or until Return if that is zero. The caller calls
// Pool.Renew for all pools of the upstream.
func (h *Health) Eject(addr string, until time.Time) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	e := h.find(addr)
	if e == nil {
		return ErrNoEndpoint
	}
	now, left, well := time.Now(), 0, 0 // of the others
	for _, o := range h.list {
		if o == e || o.isHeld(now) {
			continue
		}
		left++
		if o.until.IsZero() {
			well++
		}
	}
	// An endpoint that fails can go while another one is left, though all fail: nothing that works goes with it.
	if left == 0 || well == 0 && e.until.IsZero() {
		return ErrLastEndpoint
	}
	if !e.isHeld(now) {
		e.count++
	}
	e.held, e.heldTo = true, until
	return nil
}

// Return ends the ejection of the endpoint addr, by an operator or after failures. It reports whether there
// was one.
func (h *Health) Return(addr string) (was bool, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	e := h.find(addr)
	if e == nil {
		return false, ErrNoEndpoint
	}
	was = e.isHeld(time.Now()) || !e.until.IsZero()
	e.held, e.heldTo = false, time.Time{}
	e.told = false
	e.isWell()
	return was, nil
}
