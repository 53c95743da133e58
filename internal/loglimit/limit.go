// Package loglimit bounds the log lines that peers can cause. The metrics count every event; the
// log shows the first of many, and on the next line how many it has left out.
//
// A Limit is for lines about peers, of which there may be many. A Seldom is for lines that say that
// something still is as it was. A Flap is for a thing that goes up and down.
package loglimit

import (
	"sync"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/ratelimit"
	"github.com/rs/zerolog"
)

const (
	// Burst is how many lines a Limit permits at once.
	Burst = 10
	// Every is the time after which it permits one more.
	Every = time.Second
)

// A Limit permits Burst lines at once, and one more after each Every. Its zero value is ready to
// use. It is safe for concurrent use. Each kind of line has a Limit of its own: a peer that causes
// many lines of one kind must not suppress those of another.
type Limit struct {
	mu         sync.Mutex // guards the fields below; a leaf: call nothing while holding it
	meter      ratelimit.Meter
	suppressed uint64
}

// Allow reports whether a line may be written now, and how many lines were suppressed since the
// last line that was written.
func (l *Limit) Allow(now time.Time) (ok bool, suppressed uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.meter.Take(ratelimit.At(now), int64(Every), int64(Burst*Every)) {
		l.suppressed++
		return false, 0
	}
	suppressed, l.suppressed = l.suppressed, 0
	return true, suppressed
}

// Line begins a line about event, which says how many like it were suppressed. It returns nil, which
// logs nothing, if the limit does not allow a line now.
func (l *Limit) Line(log *zerolog.Logger, level zerolog.Level, event string) *zerolog.Event {
	ok, suppressed := l.Allow(time.Now())
	if !ok {
		return nil
	}
	return Line(log, level, event, suppressed)
}

// Line begins a line about event that stands for suppressed others.
func Line(log *zerolog.Logger, level zerolog.Level, event string, suppressed uint64) *zerolog.Event {
	e := log.WithLevel(level).Str("event", event)
	if suppressed > 0 {
		e = e.Uint64("suppressed", suppressed)
	}
	return e
}
