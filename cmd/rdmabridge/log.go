package main

import (
	"io"
	"os"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/configs"
)

// A logSink is where all log lines of a process go, and which of them. Both can
// change while loggers that were derived from its first one are in use.
type logSink struct {
	to       io.Writer
	terminal bool

	level atomic.Int32              // zerolog.Level
	w     atomic.Pointer[io.Writer] // to, as the format has it
}

// newLog makes the process's logger. The level was checked with the file.
func newLog(w io.Writer, c configs.Log) zerolog.Logger { return newLogSink(w, c).logger() }

func newLogSink(w io.Writer, c configs.Log) *logSink {
	zerolog.TimeFieldFormat = "2006-01-02T15:04:05.000Z07:00"
	s := &logSink{to: zerolog.SyncWriter(w), terminal: isTerminal(w)}
	s.set(c)
	return s
}

// set makes c what holds. Any goroutine.
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

// logger returns a logger of the sink. Its own level lets everything through: what
// the sink does not want costs no more than asking it.
func (s *logSink) logger() zerolog.Logger {
	return zerolog.New(s).Level(zerolog.DebugLevel).Sample(s).With().Timestamp().Logger()
}

// Sample reports whether a line of the level is wanted. zerolog.Sampler.
func (s *logSink) Sample(l zerolog.Level) bool {
	return l == zerolog.NoLevel || int32(l) >= s.level.Load()
}

// Write is part of io.Writer.
func (s *logSink) Write(p []byte) (int, error) { return (*s.w.Load()).Write(p) }

// isTerminal reports whether a person reads w as it is written.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok || os.Getenv("NO_COLOR") != "" {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
