package main

import (
	"errors"
	"net/http"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/action"
	"github.com/rdmabridge/rdmabridge/internal/control"
	"github.com/rdmabridge/rdmabridge/internal/names"
	"github.com/rdmabridge/rdmabridge/internal/tap"
)

// startControl listens for commands at the path of the configuration. The process predecessor, 0 for
// none, hands over to this one. A bridge that cannot listen there runs without: clients matter more.
func (b *bridge) startControl(predecessor int) {
	path := b.config.Control.Path
	switch {
	case !b.config.Control.Enabled():
		return
	case path == "":
		path = control.DefaultPath()
	}
	if path == "" {
		b.log.Info().Str("event", "control_off").Msg("no control socket: this user has no runtime directory (XDG_RUNTIME_DIR); commands such as rdmabridge top need control.path")
		return
	}
	s := control.NewServer(path, b.log)
	b.handleControl(s.Handle)
	err := s.Start(predecessor)
	var inUse *control.InUseError
	switch {
	case err == nil:
		b.control = s
		b.log.Info().Str("event", "control_listening").Str("path", path).Msg("control socket listening")
	case errors.As(err, &inUse):
		b.log.Warn().Str("event", "control_off").Str("path", path).Int("other_pid", inUse.PID).
			Msg("no control socket: that of another bridge is there; set control.path to another path so that commands such as rdmabridge top reach this process")
	default:
		b.log.Warn().Str("event", "control_off").Str("path", path).Err(err).
			Msg("no control socket; commands such as rdmabridge top cannot reach this process")
	}
}

// handleControl adds what the control socket serves. Patterns are those of http.ServeMux.
func (b *bridge) handleControl(handle func(pattern string, h http.Handler)) {
	handle("/", b.pages)
	handle("GET "+tap.Path, b.taps)
	handle("GET "+names.Path, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { names.Serve(w, r, b.names.Load()) }))
	handle("GET /api/v1/config", http.HandlerFunc(b.serveConfig))
	(&action.Handler{Proxy: b.proxy, Log: b.log, Sink: b.sink, Drain: b.askToDrain}).Register(handle)
}

// askToDrain does what SIGTERM does. It returns drain.timeout.
func (b *bridge) askToDrain() (time.Duration, error) {
	if b.draining.Load() {
		return 0, errors.New("the bridge is draining already")
	}
	select {
	case b.stop <- stopReason{reason: "operator"}:
		return time.Duration(b.drainIn.Load()), nil
	default:
		return 0, errors.New("the bridge is about to drain already")
	}
}
