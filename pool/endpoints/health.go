// Package endpoints knows which endpoints of an upstream can be connected to, and which of them a connection tries next.
// It knows no connections: pools tell it what becomes of theirs.
package endpoints

import (
	"cmp"
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
// again, and the first attempt that succeeds ends the ejection. null_only.go has the rules for endpoints that
// can be connected to and answer no Calls. While all endpoints are ejected,
// the pools dial the endpoint whose ejection ends first, so that they always have one to dial.
//
// While there is no connection to an endpoint, or it is ejected, one attempt at a time tries it,
// and the others wait for the outcome. A server that is just starting may lose more than an
// attempt when several give up early: Linux siw loses its listener. Seats that need not keep to
// their endpoint wait for Patience, and then use another endpoint if they can.
type Health struct {
	// Ejected is called when an endpoint that was in use is ejected, for wait at first, because
	// of err, unless it is the only one. It is not called when an attempt to return to the
	// endpoint fails. Returned is called when a connection to an ejected endpoint was made.
	// Both are called without a lock. They are set before the first use and may be nil.
	Ejected  func(endpoint string, wait time.Duration, err error)
	Returned func(endpoint string)

	mu       sync.Mutex // guards the rest; a leaf
	priority bool       // all seats prefer the first endpoint
	list     []*endpoint
}

// An endpoint is the state of one endpoint.
type endpoint struct {
	addr   string
	fails  int           // in a row
	ejects int           // in a row
	until  time.Time     // when it may be tried again; zero while it is not ejected
	told   bool          // Ejected was called, and Returned was not since
	up     int           // connections
	reason string        // of the ejection
	held   bool          // an operator has ejected it
	heldTo time.Time     // until then; zero until Return
	count  uint64        // ejections so far
	trial  chan struct{} // closed when the attempt that tries it alone has ended; nil for none
	began  time.Time     // when that attempt began

	nullOnly     bool      // ejected because it answers NULL Calls alone, and has answered no other since: null_only.go
	ejectedAt    time.Time // when it was last ejected
	fruitless    int       // connections in a row
	callAnswered time.Time // when it has answered a Call of a client, to answerLag
}

// An Attempt is one attempt to connect to an endpoint.
type Attempt struct {
	Addr  string
	Alone bool // the endpoint is down, and no other attempt is under way
	Other bool // another endpoint may be dialled instead

	NullOnly bool // a Call has to show whether the endpoint serves
}

// begin begins an attempt at e. If it has to wait for another one, begin returns a channel that
// is closed at the end of that one.
func (e *endpoint) begin() (Attempt, <-chan struct{}) {
	switch {
	case e.works():
		return Attempt{Addr: e.addr}, nil
	case e.busy():
		return Attempt{}, e.trial
	}
	e.trial, e.began = make(chan struct{}), time.Now()
	return Attempt{Addr: e.addr, Alone: true}, nil
}

// works reports whether there are connections to e, and it is not ejected: attempts need not wait for each other.
func (e *endpoint) works() bool { return e.up > 0 && e.until.IsZero() }

// busy reports whether an attempt at e has to wait for another one.
func (e *endpoint) busy() bool { return !e.works() && e.trial != nil }

// end ends a.
func (e *endpoint) end(a Attempt) {
	if a.Alone && e.trial != nil {
		close(e.trial)
		e.trial = nil
	}
}

// Patience is how long a seat that need not keep to its endpoint waits for another's attempt to connect
// there, if there is another endpoint to dial.
const Patience = time.Second

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
	for _, e := range old {
		if h.find(e.addr) == nil {
			e.end(Attempt{Addr: e.addr, Alone: true}) // nobody waits for an endpoint that is removed
		}
	}
}

// find returns the endpoint addr, or nil. h.mu is held.
func (h *Health) find(addr string) *endpoint {
	for _, e := range h.list {
		if e.addr == addr {
			return e
		}
	}
	return nil
}

// Counts returns how many endpoints are ejected, and how many there are.
func (h *Health) Counts() (ejected, all int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	for _, e := range h.list {
		if !e.until.IsZero() || e.isHeld(now) {
			ejected++
		}
	}
	return ejected, len(h.list)
}

// Stats describe an endpoint at one moment.
type Stats struct {
	Address     string
	IsEjected   bool
	Ejected     time.Time // until when it is ejected; zero if it is not, or until Return
	Standby     bool      // with priority: an endpoint before it is well
	Connections int
	Ejections   uint64 // so far
	Reason      string // of the ejection
}

// Stats describes the endpoints, in their order.
func (h *Health) Stats() (all []Stats) {
	h.mu.Lock()
	defer h.mu.Unlock()
	well, now := false, time.Now()
	for _, e := range h.list {
		st := Stats{Address: e.addr, IsEjected: !e.until.IsZero(), Ejected: e.until, Standby: h.priority && well && e.up == 0, Connections: e.up, Ejections: e.count}
		if st.IsEjected {
			st.Reason = e.reason
		}
		if e.isHeld(now) {
			st.IsEjected, st.Ejected, st.Reason = true, e.heldTo, "by an operator"
		}
		all = append(all, st)
		well = well || !st.IsEjected
	}
	return all
}

// Pick returns the endpoint to dial for a seat that prefers endpoint n and has just
// failed to connect to the endpoint failed, which may be empty. keep is pool.Options.KeepEndpoint. The
// caller reports the outcome to Succeeded, Failed or Abandoned. If another attempt has to end first,
// Pick returns a channel that is closed then, and the caller calls Pick again, after Patience at the
// latest.
func (h *Health) Pick(n int, keep bool, failed string) (Attempt, <-chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	var again, first, late, nullOnly *endpoint
	all := h.allHeld(now)
	for i := range h.list {
		e := h.choice(n, i, keep)
		switch {
		case e.isHeld(now) && !all:
		case !e.tried(now):
			if first == nil || e.until.Before(first.until) {
				first = e
			}
		case e.addr == failed:
			again = e
		case !keep && e.isLate(now):
			if late == nil {
				late = e
			}
		case !keep && e.nullOnly: // its Calls can be answered elsewhere
			if nullOnly == nil {
				nullOnly = e
			}
		default:
			return h.begin(e, now, keep)
		}
	}
	return h.begin(cmp.Or(again, late, nullOnly, first), now, keep)
}

// begin begins an attempt at e, as endpoint.begin does. A seat with keep has no other endpoint before this one has failed.
func (h *Health) begin(e *endpoint, now time.Time, keep bool) (Attempt, <-chan struct{}) {
	a, busy := e.begin()
	if a.NullOnly = busy == nil && e.nullOnly; a.NullOnly {
		e.until = now.Add(e.wait()) // the next connection may try it then, whether or not a Call comes on this one
	}
	a.Other = !keep && slices.ContainsFunc(h.list, func(o *endpoint) bool { return o != e && o.usable(now) && !o.isLate(now) })
	return a, busy
}

// IsBetter reports whether there is a usable endpoint that a seat which prefers endpoint n prefers to the one it
// is connected to, and no other attempt has to end first.
func (h *Health) IsBetter(n int, connected string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	e := h.better(n, connected, time.Now())
	return e != nil && !e.busy()
}

// PickBetter does what Pick does, for a seat to which IsBetter applies. It reports false if it applies no more.
func (h *Health) PickBetter(n int, connected string) (a Attempt, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	e := h.better(n, connected, now)
	if e == nil {
		return Attempt{}, false
	}
	a, busy := h.begin(e, now, false)
	return a, busy == nil
}

// better returns the endpoint of IsBetter, or nil. h.mu is held.
func (h *Health) better(n int, connected string, now time.Time) *endpoint {
	for i := range h.list {
		e := h.choice(n, i, false)
		if e.addr == connected {
			break
		}
		if e.usable(now) {
			return e
		}
	}
	return nil
}

// Preferred returns the endpoint that a seat which prefers endpoint n dials while all are usable.
func (h *Health) Preferred(n int) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.choice(n, 0, false).addr
}

// Index returns the index of addr among the endpoints, or 0.
func (h *Health) Index(addr string) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return max(0, slices.IndexFunc(h.list, func(e *endpoint) bool { return e.addr == addr }))
}

// Succeeded notes that a has made a connection. The caller calls Ended at the connection's end, and
// Answered when the server has granted a credit: until then it may be one that accepts connections and
// serves none.
func (h *Health) Succeeded(a Attempt) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if e := h.find(a.Addr); e != nil {
		e.end(a)
		e.up++
	}
}

// Answered notes that the server at addr answers NULL Calls: if the endpoint is ejected, it is not any more, unless
// it was ejected because it answers no others.
func (h *Health) Answered(addr string) {
	h.mu.Lock()
	returned := false
	if e := h.find(addr); e != nil && !e.nullOnly {
		returned, e.told = e.told, false
		e.isWell()
	}
	h.mu.Unlock()
	if returned && h.Returned != nil {
		h.Returned(addr)
	}
}

// Ended notes that a connection to addr has ended.
func (h *Health) Ended(addr string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if e := h.find(addr); e != nil {
		e.up = max(0, e.up-1) // an endpoint may have been removed and added since
	}
}

// Abandoned notes that a was given up for a reason that says nothing about its endpoint.
func (h *Health) Abandoned(a Attempt) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if e := h.find(a.Addr); e != nil {
		e.end(a)
	}
}

// Failed notes that a has failed with err.
func (h *Health) Failed(a Attempt, err error) { h.lost(a, err, false) }

// Gone notes that the host of addr has vanished under a connection, which ended with err.
func (h *Health) Gone(addr string, err error) { h.lost(Attempt{Addr: addr}, err, true) }

// lost ejects the endpoint of a if it is gone or has failed too often.
func (h *Health) lost(a Attempt, err error, gone bool) {
	h.mu.Lock()
	wait, tell := time.Duration(0), false
	if e := h.find(a.Addr); e != nil {
		wait = e.fail(a, gone)
		if wait > 0 {
			e.reason = err.Error()
		}
		tell = wait > 0 && !e.told && len(h.list) > 1
		e.told = e.told || tell
	}
	h.mu.Unlock()
	if tell && h.Ejected != nil {
		h.Ejected(a.Addr, wait, err)
	}
}

// fail counts a failure of a, and returns for how long e is ejected because of it, or 0.
func (e *endpoint) fail(a Attempt, gone bool) (wait time.Duration) {
	e.fails++
	now := time.Now()
	ejected := !e.until.IsZero()
	if ejected && !a.Alone && now.Before(e.until) {
		return 0 // this attempt began before the endpoint was ejected
	}
	e.end(a)
	if !gone && !ejected && e.fails < ejectAfter {
		return 0
	}
	return e.eject(now)
}

// eject ejects e for a time, and returns for how long.
func (e *endpoint) eject(now time.Time) (wait time.Duration) {
	wait = e.wait()
	e.ejects++
	e.count++
	e.until, e.ejectedAt = now.Add(wait), now
	return wait
}

// wait is the time of the next ejection.
func (e *endpoint) wait() time.Duration { return Jitter(min(leastEject<<min(e.ejects, 10), mostEject)) }

// isWell ends an ejection after failures, and forgets them.
func (e *endpoint) isWell() {
	e.fails, e.ejects, e.until = 0, 0, time.Time{}
	e.nullOnly = false
}

// choice returns the i-th choice of a seat that prefers endpoint n. keep is
// pool.Options.KeepEndpoint, which overrules the priority. The caller holds h.mu.
func (h *Health) choice(n, i int, keep bool) *endpoint {
	if h.priority && !keep {
		n = 0
	}
	return h.list[(n+i)%len(h.list)]
}

// usable reports whether e may be dialled now.
func (e *endpoint) usable(now time.Time) bool { return !e.isHeld(now) && e.tried(now) }

// tried does what usable does, whatever operators have said.
func (e *endpoint) tried(now time.Time) bool {
	return e.until.IsZero() || e.trial == nil && !now.Before(e.until)
}

// isLate reports whether an attempt that tries e alone has taken longer than Patience.
func (e *endpoint) isLate(now time.Time) bool { return e.trial != nil && now.Sub(e.began) >= Patience }

// Jitter spreads d over [d/2, d].
func Jitter(d time.Duration) time.Duration {
	return d/2 + rand.N(d/2+1)
}

// isHeld reports whether an operator has ejected e. Health.mu is held.
func (e *endpoint) isHeld(now time.Time) bool {
	return e.held && (e.heldTo.IsZero() || now.Before(e.heldTo))
}

// allHeld reports whether operators have ejected every endpoint. h.mu is held.
func (h *Health) allHeld(now time.Time) bool {
	for _, e := range h.list {
		if !e.isHeld(now) {
			return false
		}
	}
	return true
}

// Leaves reports whether connections to addr are to be replaced, because an operator has ejected it.
func (h *Health) Leaves(addr string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	e, now := h.find(addr), time.Now()
	return e != nil && e.isHeld(now) && !h.allHeld(now)
}
