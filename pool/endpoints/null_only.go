package endpoints

import (
	"errors"
	"fmt"
	"time"

	"github.com/rdmabridge/rdmabridge/pool/ages"
)

// Endpoints that answer NULL Calls alone
//
// The bridge primes and probes connections with NULL Calls, and a server may answer these and no Call of a
// client: it ends the connection, or it is silent. So Calls of clients decide whether an endpoint serves:
//
//   - A connection that has carried such Calls and ends without an answer to any is fruitless. It counts like a
//     failed attempt to connect: as many in a row as ejectAfter eject the endpoint.
//   - A Call without an answer at its deadline ejects the endpoint at once.
//
// Neither counts if the endpoint has answered a Call of any client meanwhile, on any connection: since the fruitless
// one was made, or in the latter half of the time that the Call had. Then the fault lies in the Call, or in a
// part of the server. And neither ejects the last endpoint that is well. If all
// endpoints do the same to a Call, the Call is to blame.
//
// The pools send no more Calls on the connections that the endpoint had when it was ejected. After the
// ejection's time the endpoint is tried with a Call. A seat that has a connection elsewhere keeps it for all other
// Calls meanwhile (pool/keeper). The first answer ends the ejection, and a Call without one begins a longer one. A
// NULL Call says nothing then.

// answerLag is how much later an endpoint may have answered a Call than endpoint.callAnswered says: two ages, because
// a seat reports the first answer of each age, and an age may last a little longer than ages.Ageing.
const answerLag = 2 * ages.Ageing

var (
	// ErrFruitless ejects an endpoint after fruitless connections, and ErrNoAnswer after an overdue Call.
	ErrFruitless = errors.New("the server answers NULL Calls and ends connections without an answer to any other Call")
	ErrNoAnswer  = errors.New("the server has answered no Call of a client")
)

// AnswersCalls notes that the server at addr has answered a Call of a client.
func (h *Health) AnswersCalls(addr string) {
	h.mu.Lock()
	returned := false
	if e := h.find(addr); e != nil {
		e.callAnswered, e.fruitless = time.Now(), 0
		if e.nullOnly {
			returned, e.told = e.told, false
			e.isWell()
		}
	}
	h.mu.Unlock()
	if returned && h.Returned != nil {
		h.Returned(addr)
	}
}

// Fruitless notes that a fruitless connection to addr, which was made at the time since, has ended with err.
func (h *Health) Fruitless(addr string, since time.Time, err error) {
	if err != nil {
		err = fmt.Errorf("%w: %w", ErrFruitless, err)
	} else {
		err = ErrFruitless
	}
	h.judge(addr, since, since, err, false)
}

// Overdue notes that a Call to addr has had no answer for so long. It reports whether its connection is to be
// given up, because the endpoint is ejected for that.
func (h *Health) Overdue(addr string, wait time.Duration) bool {
	now := time.Now()
	err := fmt.Errorf("%w for %v", ErrNoAnswer, wait.Round(time.Millisecond))
	return h.judge(addr, now.Add(-wait), now.Add(-wait/2), err, true)
}

// judge ejects the endpoint addr because of err, a fault of a connection or a Call that began at the time began,
// unless the endpoint has answered a Call since the time since, or there is no other to use. If not atOnce, one
// fault is not enough. judge reports whether the endpoint is ejected for such a fault.
func (h *Health) judge(addr string, began, since time.Time, err error, atOnce bool) (ejected bool) {
	h.mu.Lock()
	now, wait, tell := time.Now(), time.Duration(0), false
	switch e := h.find(addr); {
	case e == nil || e.callAnswered.Add(answerLag).After(since):
	case e.nullOnly && began.Before(e.ejectedAt):
		ejected = h.otherWell(e, now)
	default:
		if !atOnce {
			e.fruitless++
		}
		if ejected = (atOnce || e.nullOnly || e.fruitless >= ejectAfter) && h.otherWell(e, now); ejected {
			e.nullOnly, e.reason, wait = true, err.Error(), e.eject(now)
			tell, e.told = !e.told, true
		}
	}
	h.mu.Unlock()
	if tell && h.Ejected != nil {
		h.Ejected(addr, wait, err)
	}
	return ejected
}

// otherWell reports whether an endpoint other than e is not ejected. h.mu is held.
func (h *Health) otherWell(e *endpoint, now time.Time) bool {
	for _, o := range h.list {
		if o != e && o.until.IsZero() && !o.isHeld(now) {
			return true
		}
	}
	return false
}

// IsNullOnly reports whether connections to addr that the pools began to make at the time since get no more Calls: the
// endpoint was ejected later because it answers NULL Calls alone, and there is another to use.
func (h *Health) IsNullOnly(addr string, since time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	e := h.find(addr)
	return e != nil && e.nullOnly && since.Before(e.ejectedAt) && h.otherWell(e, time.Now())
}
