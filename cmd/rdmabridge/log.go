package main

import (
	"bytes"
	"errors"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/configs"
	"github.com/rdmabridge/rdmabridge/internal/cli"
	"github.com/rdmabridge/rdmabridge/internal/journal"
	"github.com/rdmabridge/rdmabridge/internal/loglimit"
)

// A logSink is the destination of all loggers of a process. Its level and format can
// change while loggers use it. Its journal has the last lines of level info and above,
// whatever the level is.
type logSink struct {
	terminal bool // whether to is a terminal, which shows colours
	journald bool // whether to is connected to journald, which reads priorities
	journal  *journal.Journal
	queue    *lineQueue // in front of the writer; nil for none

	level atomic.Int32           // a zerolog.Level
	owner atomic.Pointer[string] // the role of this process in a hand-over; nil for none
	pid   atomic.Bool            // whether lines say the process

	mu         sync.Mutex // guards to and the fields below; a leaf
	to         io.Writer
	line       bytes.Buffer
	console    *zerolog.ConsoleWriter // nil for JSON; writes to line
	configured zerolog.Level
	restore    *time.Timer // ends a level that override has set; nil for none
	until      time.Time   // when restore does that
}

// newLog makes a logger for a process that never changes level or format.
func newLog(w io.Writer, c configs.Log) zerolog.Logger { return newLogSink(w, c).logger() }

func newLogSink(w io.Writer, c configs.Log) *logSink {
	s := &logSink{to: w, terminal: cli.ShowsColours(w), journald: isJournald(w), journal: journal.New()}
	s.set(c)
	return s
}

// newServiceLog returns a sink for a process with event loops, which never wait for w. The caller closes
// it at the end.
func newServiceLog(w io.Writer, c configs.Log) *logSink {
	s := newLogSink(w, c)
	if mayBlock(w) {
		log := s.logger()
		s.queue = newLineQueue(w, func(lost uint64) {
			loglimit.Line(&log, zerolog.WarnLevel, "log_lines_lost", lost).Msg("standard error does not take the log as fast as it comes; lines are lost")
		})
		s.to = s.queue
	}
	return s
}

// close writes the lines that wait.
func (s *logSink) close() {
	if s.queue != nil {
		s.queue.close()
	}
}

// set applies the level and format of c. Any goroutine may call it. Loading the
// configuration has validated the level. A level that override has set stays until its
// time is over.
func (s *logSink) set(c configs.Log) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.console = nil
	if c.Format == configs.FormatConsole {
		s.console = cli.Console(&s.line, s.terminal)
	}
	s.configured = parseLevel(c.Level)
	if s.restore == nil {
		s.level.Store(int32(s.configured))
	}
}

func parseLevel(name string) zerolog.Level {
	level, err := zerolog.ParseLevel(name)
	if err != nil {
		return zerolog.InfoLevel
	}
	return level
}

// override sets the level for a while, after which the configured one applies again. A
// time of 0 or less ends that at once.
func (s *logSink) override(level zerolog.Level, wait time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.restore != nil {
		s.restore.Stop()
		s.restore = nil
	}
	if wait <= 0 {
		s.level.Store(int32(s.configured))
		return
	}
	s.level.Store(int32(level))
	s.until = time.Now().Add(wait)
	var t *time.Timer
	t = time.AfterFunc(wait, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.restore == t { // else another override has replaced this one
			s.restore = nil
			s.level.Store(int32(s.configured))
		}
	})
	s.restore = t
}

// levels returns the level in force and the configured one, and until when the first
// one is in force, which is zero if no override is.
func (s *logSink) levels() (now, configured zerolog.Level, until time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.restore != nil {
		until = s.until
	}
	return zerolog.Level(s.level.Load()), s.configured, until
}

// logger returns a logger that writes to s. The logger's own level admits every
// line, and Sample drops those that nobody wants before they are formatted.
func (s *logSink) logger() zerolog.Logger {
	return zerolog.New(s).Level(zerolog.DebugLevel).Sample(s).Hook(s).With().Timestamp().Logger()
}

// Sample implements zerolog.Sampler. It reports whether to format a line of level l.
func (s *logSink) Sample(l zerolog.Level) bool {
	return l >= zerolog.InfoLevel || int32(l) >= s.level.Load()
}

// Run implements zerolog.Hook. It makes lines say which process wrote them when there
// may be two.
func (s *logSink) Run(e *zerolog.Event, _ zerolog.Level, _ string) {
	if s.pid.Load() {
		e.Int("pid", os.Getpid())
	}
	if role := s.owner.Load(); role != nil {
		e.Str("role", *role)
	}
}

// sayProcess makes every line say the process ID.
func (s *logSink) sayProcess() { s.pid.Store(true) }

// The roles of a process in a hand-over.
const (
	roleOld = "old" // it has sent its sockets
	roleNew = "new" // it has not taken over yet
)

// setRole makes every line say the role of this process in a hand-over, "" for none. A nil sink does
// nothing.
func (s *logSink) setRole(role string) {
	if s == nil {
		return
	}
	if role == "" {
		s.owner.Store(nil)
		return
	}
	s.owner.Store(&role)
}

// Write implements io.Writer. zerolog calls WriteLevel instead.
func (s *logSink) Write(p []byte) (int, error) { return s.WriteLevel(zerolog.NoLevel, p) }

// WriteLevel implements zerolog.LevelWriter. p is a line of level l as JSON.
func (s *logSink) WriteLevel(l zerolog.Level, p []byte) (int, error) {
	if l >= zerolog.InfoLevel {
		s.journal.Add(p)
	}
	if int32(l) < s.level.Load() {
		return len(p), nil
	}
	n, err := s.write(l, p)
	if errors.Is(err, errLineLost) {
		return len(p), nil // the queue counts it, and zerolog would write to standard error
	}
	return n, err
}

// calls returns a writer for lines about Calls. The journal does not have them, and the level does not
// matter. An error says that a line was lost.
func (s *logSink) calls() io.Writer { return (*callLines)(s) }

type callLines logSink

func (s *callLines) Write(p []byte) (int, error) { return (*logSink)(s).write(zerolog.InfoLevel, p) }

func (s *logSink) write(l zerolog.Level, p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.line.Reset()
	if s.journald {
		s.line.WriteString(priority(l))
	}
	if s.console == nil {
		s.line.Write(p)
	} else if _, err := s.console.Write(p); err != nil {
		return 0, err
	}
	if _, err := s.to.Write(s.line.Bytes()); err != nil {
		return 0, err
	}
	return len(p), nil
}
