package arrival

import (
	"time"

	"github.com/rdmabridge/rdmabridge/internal/ratelimit"
)

// Bounds of Answers.
const (
	AnswerRate  = 2000 // answers a second
	AnswerBurst = 4000
	Slack       = 32       // octets: GETADDR's IPv6 address against no netid at all
	ExcessRate  = 16 << 10 // octets a second
	ExcessBurst = 32 << 10
)

// Answers bounds the answers of a service over UDP, because source addresses may be forged. Every answer counts against
// AnswerRate. One that is more than Slack octets longer than its question also counts against ExcessRate. All clients
// share both bounds, so forged questions gain at most ExcessRate octets a second. It is not safe for concurrent use.
type Answers struct{ all, excess ratelimit.Meter }

// May reports whether a question may be answered by so many octets more than it has.
func (a *Answers) May(longer int, now time.Time) bool {
	at := ratelimit.At(now)
	if longer > Slack && !a.excess.Take(at, int64(longer-Slack)*ratelimit.Per(ExcessRate), ExcessBurst*ratelimit.Per(ExcessRate)) {
		return false
	}
	return a.all.Take(at, ratelimit.Per(AnswerRate), AnswerBurst*ratelimit.Per(AnswerRate))
}
