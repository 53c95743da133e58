// Package ratelimit has the arithmetic of rate limits, which all limits of the bridge share.
//
// A limit is a [Meter]. It keeps one time: when all that has come would have ended if it had come at the rate. So a Meter
// needs no timer and nothing that refills it. The caller says what costs how long: at 100 a second one costs 10 ms. It also
// says how long silence is saved up. After that, as much may come at once as lasts so long.
package ratelimit

import "time"

// A Meter is one rate limit. Nothing has come to the zero Meter. Times are nanoseconds on a clock of the caller, always the
// same one. A Meter is not safe for concurrent use.
type Meter struct {
	until int64 // when what has come would have ended
	began bool  // until is set
}

// start is a point in time, for At.
var start = time.Now()

// At is t on a clock for Meters, which does not jump when t has a monotonic reading.
func At(t time.Time) int64 { return int64(t.Sub(start)) }

// Per is how long one costs at so many a second.
func Per(second int) int64 { return int64(time.Second) / int64(second) }

// from is when the next would begin: not before what was saved up.
func (m *Meter) from(now, saved int64) int64 {
	if least := now - saved; !m.began || m.until < least {
		return least
	}
	return m.until
}

// Wait returns how long it takes until something that costs so much may come. It is not above 0 if it may come now.
func (m *Meter) Wait(now, cost, saved int64) int64 { return m.from(now, saved) + cost - now }

// Charge counts what has come, even if it has come too early.
func (m *Meter) Charge(now, cost, saved int64) { m.until, m.began = m.from(now, saved)+cost, true }

// Take counts something that costs so much if it may come now, and reports whether it may.
func (m *Meter) Take(now, cost, saved int64) bool {
	if m.Wait(now, cost, saved) > 0 {
		return false
	}
	m.Charge(now, cost, saved)
	return true
}

// Rested reports whether as much may come at once as if nothing had come so far.
func (m *Meter) Rested(now, saved int64) bool { return !m.began || m.until <= now-saved }
