package main

import (
	"io"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/internal/cli"
)

// newLog makes a logger that writes the lines of level and above to w, for people.
func newLog(w io.Writer, level zerolog.Level) zerolog.Logger {
	return zerolog.New(zerolog.SyncWriter(cli.Console(w, cli.ShowsColours(w)))).Level(level).With().Timestamp().Logger()
}

// newJSONLog makes a logger that writes the lines of level info and above to w, for programs.
func newJSONLog(w io.Writer) zerolog.Logger {
	return zerolog.New(zerolog.SyncWriter(w)).Level(zerolog.InfoLevel).With().Timestamp().Logger()
}
