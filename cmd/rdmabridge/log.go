package main

import (
	"io"
	"os"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/configs"
)

// zerolog has one time format for all loggers of a process.
func init() { zerolog.TimeFieldFormat = "2006-01-02T15:04:05.000Z07:00" }

// A logSink is the destination of all loggers of a process. Its level and format can
// change while loggers use it.
type logSink struct {
	to       io.Writer
	terminal bool // whether to is a terminal, which shows colours

	level atomic.Int32              // a zerolog.Level
	w     atomic.Pointer[io.Writer] // to, or a writer that formats for to
}

// newLog makes a logger for a process that never changes level or format.
func newLog(w io.Writer, c configs.Log) zerolog.Logger { return newLogSink(w, c).logger() }

func newLogSink(w io.Writer, c configs.Log) *logSink {
	s := &logSink{to: zerolog.SyncWriter(w), terminal: isTerminal(w)}
	s.set(c)
	return s
}

// set applies the level and format of c. Any goroutine may call it. Loading the
// configuration has validated the level.
func (s *logSink) set(c configs.Log) {
	w := s.to
	if c.Format == configs.FormatConsole {
		w = zerolog.ConsoleWriter{Out: w, TimeFormat: time.TimeOnly, NoColor: !s.terminal}
	}
	s.w.Store(&w)
	level, err := zerolog.ParseLevel(c.Level)
	if err != nil {
		level = zerolog.InfoLevel
	}
	s.level.Store(int32(level))
}

// logger returns a logger that writes to s. The logger's own level admits every
// line, and Sample drops those below the level of s before they are formatted.
func (s *logSink) logger() zerolog.Logger {
	return zerolog.New(s).Level(zerolog.DebugLevel).Sample(s).With().Timestamp().Logger()
}

// Sample implements zerolog.Sampler. It reports whether to write a line of level l.
func (s *logSink) Sample(l zerolog.Level) bool {
	return l == zerolog.NoLevel || int32(l) >= s.level.Load()
}

// Write implements io.Writer.
func (s *logSink) Write(p []byte) (int, error) { return (*s.w.Load()).Write(p) }

// isTerminal reports whether w is a terminal. It returns false if NO_COLOR is set.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok || os.Getenv("NO_COLOR") != "" {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
