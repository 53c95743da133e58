// Package logsink is where the log of a process goes. It formats lines for people, programs and journald, and writes
// them without making the event loops wait. The level and the format can change, and the level also for a while. The
// last lines are kept, as package journal describes.
package logsink

import (
	"bytes"
	"errors"
	"io"
	"os"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/internal/cli"
	"github.com/rdmabridge/rdmabridge/internal/journal"
	"github.com/rdmabridge/rdmabridge/internal/loglimit"
	"github.com/rdmabridge/rdmabridge/internal/status"
)

// zerolog has one form of errors for all loggers of a process.
func init() {
	zerolog.ErrorMarshalFunc = func(err error) any {
		if v := reflect.ValueOf(err); !v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil() {
			return nil // the line has no error
		}
		return status.Plain(err.Error())
	}
}

// A Sink is the destination of all loggers of a process. Its level and format can
// change while loggers use it. Its journal has the last lines of level info and above,
// whatever the level is.
type Sink struct {
	terminal bool // whether to is a terminal
	colours  bool // whether it is to show colours
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
	restore    *time.Timer // ends a level that Override has set; nil for none
	until      time.Time   // when restore does that
}

// A Format says what lines look like.
type Format uint8

// The formats.
const (
	JSON    Format = iota // each line is a JSON object
	Console               // lines for people
	Auto                  // Console on a terminal, and JSON elsewhere
)

// Settings are what can change.
type Settings struct {
	Level  string // debug, info, warn or error
	Format Format
}

// New returns a sink for a process that may wait for w.
func New(w io.Writer, c Settings) *Sink {
	s := &Sink{to: w, terminal: cli.IsTerminal(w), colours: cli.ShowsColours(w), journald: isJournald(w), journal: journal.New()}
	s.Set(c)
	return s
}

// NewQueued returns a sink for a process with event loops, which never wait for w. The caller closes
// it at the end.
func NewQueued(w io.Writer, c Settings) *Sink {
	s := New(w, c)
	if mayBlock(w) {
		log := s.Logger()
		s.queue = newLineQueue(w, func(lost uint64) {
			loglimit.Line(&log, zerolog.WarnLevel, "log_lines_lost", lost).Msg("standard error does not take the log as fast as it comes; lines are lost")
		})
		s.to = s.queue
	}
	return s
}

// Close writes the lines that wait.
func (s *Sink) Close() {
	if s.queue != nil {
		s.queue.close()
	}
}

// Set applies c. Any goroutine may call it. A level that Override has set stays until its time is over.
func (s *Sink) Set(c Settings) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.console = nil
	if c.Format == Console || c.Format == Auto && s.terminal {
		s.console = cli.Console(&s.line, s.colours)
	}
	s.configured = ParseLevel(c.Level)
	if s.restore == nil {
		s.level.Store(int32(s.configured))
	}
}

// ForPeople reports whether lines are for people.
func (s *Sink) ForPeople() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.console != nil
}

// ParseLevel returns the level of a name, which is info for other names.
func ParseLevel(name string) zerolog.Level {
	level, err := zerolog.ParseLevel(name)
	if err != nil {
		return zerolog.InfoLevel
	}
	return level
}

// Override sets the level for a while, after which the configured one applies again. A
// time of 0 or less ends that at once.
func (s *Sink) Override(level zerolog.Level, wait time.Duration) {
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

// Levels returns the level in force and the configured one, and until when the first
// one is in force, which is zero if no override is.
func (s *Sink) Levels() (now, configured zerolog.Level, until time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.restore != nil {
		until = s.until
	}
	return zerolog.Level(s.level.Load()), s.configured, until
}

// Events returns the last lines, the newest first. A nil Sink has none.
func (s *Sink) Events() []status.Event {
	if s == nil {
		return []status.Event{}
	}
	return s.journal.Events()
}

// Logger returns a logger that writes to s. The logger's own level admits every
// line, and Sample drops those that nobody wants before they are formatted.
func (s *Sink) Logger() zerolog.Logger {
	return zerolog.New(s).Level(zerolog.DebugLevel).Sample(s).Hook(s).With().Timestamp().Logger()
}

// Sample implements zerolog.Sampler. It reports whether to format a line of level l.
func (s *Sink) Sample(l zerolog.Level) bool {
	return l >= zerolog.InfoLevel || int32(l) >= s.level.Load()
}

// Run implements zerolog.Hook. It makes lines say which process wrote them when there
// may be two.
func (s *Sink) Run(e *zerolog.Event, _ zerolog.Level, _ string) {
	if s.pid.Load() {
		e.Int("pid", os.Getpid())
	}
	if role := s.owner.Load(); role != nil {
		e.Str("role", *role)
	}
}

// SayProcess makes every line say the process ID.
func (s *Sink) SayProcess() { s.pid.Store(true) }

// The roles of a process in a hand-over.
const (
	RoleOld = "old" // it has sent its sockets
	RoleNew = "new" // it has not taken over yet
)

// SetRole makes every line say the role of this process in a hand-over, "" for none. A nil sink does
// nothing.
func (s *Sink) SetRole(role string) {
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
func (s *Sink) Write(p []byte) (int, error) { return s.WriteLevel(zerolog.NoLevel, p) }

// WriteLevel implements zerolog.LevelWriter. p is a line of level l as JSON.
func (s *Sink) WriteLevel(l zerolog.Level, p []byte) (int, error) {
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

// Calls returns a writer for lines about Calls. The journal does not have them, and the level does not
// matter. An error says that a line was lost.
func (s *Sink) Calls() io.Writer { return (*callLines)(s) }

type callLines Sink

func (s *callLines) Write(p []byte) (int, error) { return (*Sink)(s).write(zerolog.InfoLevel, p) }

func (s *Sink) write(l zerolog.Level, p []byte) (int, error) {
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
