package cli

import (
	"io"
	"os"
	"time"

	"github.com/mattn/go-isatty"
	"github.com/rs/zerolog"
)

// zerolog has one time format for all loggers of a process.
func init() { zerolog.TimeFieldFormat = "2006-01-02T15:04:05.000Z07:00" }

// Console returns what formats lines of a log for people and writes them to w.
func Console(w io.Writer, colours bool) *zerolog.ConsoleWriter {
	return &zerolog.ConsoleWriter{Out: w, TimeFormat: time.TimeOnly, NoColor: !colours}
}

// ShowsColours reports whether w is a terminal. It returns false if NO_COLOR is set.
func ShowsColours(w io.Writer) bool { return os.Getenv("NO_COLOR") == "" && IsTerminal(w) }

// IsTerminal reports whether w is a terminal.
func IsTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && isatty.IsTerminal(f.Fd())
}
