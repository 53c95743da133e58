package rpcbind

import "time"

// A bucket lets through what fills it: rate a second, and burst at once. It starts
// full. It is owned by one goroutine.
type bucket struct {
	rate, burst float64
	spent       float64 // of burst
	at          time.Time
}

// take reports whether n may pass now, and notes that it does.
func (b *bucket) take(n int, now time.Time) bool {
	b.spent = max(0, b.spent-b.rate*now.Sub(b.at).Seconds())
	b.at = now
	if b.spent+float64(n) > b.burst {
		return false
	}
	b.spent += float64(n)
	return true
}
