package admin

import (
	"time"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/internal/loglimit"
	"github.com/rdmabridge/rdmabridge/internal/status"
)

const (
	judgeEvery  = 5 * time.Second
	problemHold = 10 * time.Second // that a problem must last, or be away, to be a line
)

// A problemLog logs when the problems that the status page shows begin and end. One goroutine uses it.
type problemLog struct {
	log   *zerolog.Logger
	lines loglimit.Limit
	known map[problemKey]*knownProblem
}

type problemKey struct{ code, subject string }

type knownProblem struct {
	since, seen time.Time
	logged      bool
}

// LogProblems logs which problems begin and end until stop is closed.
func (h *Handler) LogProblems(log *zerolog.Logger, stop <-chan struct{}) {
	p := problemLog{log: log, known: make(map[problemKey]*knownProblem)}
	t := time.NewTicker(judgeEvery)
	defer t.Stop()
	for {
		select {
		case <-stop:
			return
		case now := <-t.C:
			p.update(now, h.Problems())
		}
	}
}

// update takes the problems of now. Those that are no more than notices have no lines: the operator has
// caused them.
func (p *problemLog) update(now time.Time, problems []status.Problem) {
	for i := range problems {
		x := &problems[i]
		if x.Severity == status.Notice {
			continue
		}
		key := problemKey{x.Code, x.Subject}
		k := p.known[key]
		if k == nil {
			k = &knownProblem{since: now}
			p.known[key] = k
		}
		k.seen = now
		if !k.logged && now.Sub(k.since) >= problemHold {
			k.logged = true
			p.lines.Line(p.log, zerolog.InfoLevel, "problem_began").Str("problem", x.Code).Str("severity", string(x.Severity)).
				Str("subject", x.Subject).Str("advice", x.Advice).Msg(x.Text)
		}
	}
	for key, k := range p.known {
		switch away := now.Sub(k.seen); {
		case away > 0 && !k.logged:
			delete(p.known, key)
		case away >= problemHold:
			delete(p.known, key)
			p.lines.Line(p.log, zerolog.InfoLevel, "problem_ended").Str("problem", key.code).Str("subject", key.subject).
				Float64("lasted_seconds", k.seen.Sub(k.since).Round(time.Second).Seconds()).Msg("a problem is over")
		}
	}
}
