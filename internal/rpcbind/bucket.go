package rpcbind

import "time"

// A bucket is a token bucket: it holds up to burst tokens and gains rate tokens a second.
// It starts full. One goroutine owns it.
type bucket struct {
	rate, burst float64
	spent       float64   // tokens missing from burst
	at          time.Time // of the last take
}

// take takes n tokens, and reports whether there were as many.
func (b *bucket) take(n int, now time.Time) bool {
	b.spent = max(0, b.spent-b.rate*now.Sub(b.at).Seconds())
	b.at = now
	if b.spent+float64(n) > b.burst {
		return false
	}
	b.spent += float64(n)
	return true
}
