package proxy

import (
	"time"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/internal/loglimit"
)

// A lineLimit bounds the log lines of one kind that peers can cause: package loglimit.
type lineLimit struct{ loglimit.Limit }

// event begins a line, which says how many like it were suppressed before. It returns nil, which
// logs nothing, when the limit does not allow a line now.
func (l *lineLimit) event(log *zerolog.Logger, level zerolog.Level) *zerolog.Event {
	ok, suppressed := l.Allow(time.Now())
	if !ok {
		return nil
	}
	e := log.WithLevel(level)
	if suppressed > 0 {
		e = e.Uint64("suppressed", suppressed)
	}
	return e
}

// warn begins a warning as event does.
func (l *lineLimit) warn(log *zerolog.Logger) *zerolog.Event { return l.event(log, zerolog.WarnLevel) }

// clientLines are the lines that the clients of one listener can cause.
type clientLines struct {
	unanswered lineLimit // a Call cannot be answered
	malformed  lineLimit // a message is no Call
	strays     lineLimit // too many Replies answer no reverse Call
}

// upstreamLines are the lines that the servers of one upstream can cause.
type upstreamLines struct {
	connected lineLimit
	idle      lineLimit // the server closes idle connections
	refused   lineLimit // a Call cannot be carried
	ejected   lineLimit
	returned  lineLimit
}
