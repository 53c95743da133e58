package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/internal/control"
	"github.com/rdmabridge/rdmabridge/internal/logsink"
	"github.com/rdmabridge/rdmabridge/internal/show"
)

// handleActions adds the actions, which only the control socket has.
func (b *bridge) handleActions(handle func(pattern string, h http.Handler)) {
	for name, act := range map[string]func(actionRequest) (actionAnswer, error){
		"drain": b.actDrain, "eject": b.actEject, "return": b.actReturn, "disconnect": b.actDisconnect, "log-level": b.actLogLevel,
	} {
		handle("POST /api/v1/actions/"+name, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { b.serveAction(w, r, name, act) }))
	}
}

// serveAction does one action, and logs who asked for it.
func (b *bridge) serveAction(w http.ResponseWriter, r *http.Request, name string, act func(actionRequest) (actionAnswer, error)) {
	var q actionRequest
	d := json.NewDecoder(r.Body)
	d.DisallowUnknownFields()
	err := d.Decode(&q)
	var answer actionAnswer
	if err != nil {
		err = notPossible("the request cannot be read: %v", err)
	} else {
		answer, err = act(q)
	}
	w.Header().Set("Content-Type", "application/json")
	var wrong *errNotPossible
	switch {
	case errors.As(err, &wrong):
		w.WriteHeader(http.StatusBadRequest)
	case err != nil:
		w.WriteHeader(http.StatusInternalServerError)
	}
	if err != nil {
		_ = json.NewEncoder(w).Encode(map[string]string{"error": err.Error()})
	} else {
		_ = json.NewEncoder(w).Encode(answer) // an error means that the client has disconnected
	}
	if name == "log-level" && q.Level == "" {
		return // it only asked
	}
	if err != nil {
		line := b.log.Warn().Str("event", "operator_action")
		logAction(line, r, name, q)
		line.Err(err).Msg("an operator asked for an action that was refused")
		return
	}
	line := b.log.Info().Str("event", "operator_action")
	logAction(line, r, name, q)
	line.Str("done", answer.Done).Int("count", answer.Count).Msg("an operator asked for an action")
}

// logAction adds who asked for what.
func logAction(line *zerolog.Event, r *http.Request, name string, q actionRequest) {
	peer, _ := control.PeerOf(r.Context())
	line.Str("action", name).Int("uid", peer.UID).Int("by_pid", peer.PID)
	for _, m := range [][2]string{{"upstream", q.Upstream}, {"endpoint", q.Endpoint}, {"client", q.Client}, {"log_level", q.Level}} {
		if m[1] != "" {
			line.Str(m[0], m[1])
		}
	}
	if q.For > 0 {
		line.Float64("for_s", q.For)
	}
}

// actDrain does what SIGTERM does.
func (b *bridge) actDrain(actionRequest) (actionAnswer, error) {
	clients, calls := b.busy()
	if b.draining.Load() {
		return actionAnswer{}, notPossible("the bridge is draining already")
	}
	select {
	case b.stop <- stopReason{operator: true}:
	default:
		return actionAnswer{}, notPossible("the bridge is about to drain already")
	}
	return actionAnswer{Count: clients, Done: fmt.Sprintf(
		"the bridge drains: it listens no more, answers the %s of %s, and ends, in %s at the latest",
		show.Plural(calls, "Call"), show.Plural(clients, "client"), time.Duration(b.drainIn.Load()))}, nil
}

// busy returns how many clients there are, and how many Calls they have in flight.
func (b *bridge) busy() (clients, calls int) {
	for _, l := range b.proxy.Status(oneClient).Listeners {
		clients += l.Clients
		calls += l.InFlight
	}
	return clients, calls
}

// actLogLevel changes the level of the log for a while, or only says it.
func (b *bridge) actLogLevel(q actionRequest) (actionAnswer, error) {
	if b.sink == nil {
		return actionAnswer{}, notPossible("the log of this process has a fixed level")
	}
	wait, err := q.duration()
	if err != nil {
		return actionAnswer{}, err
	}
	switch {
	case q.Level == "":
	case q.Level == levelConfigured:
		b.sink.Override(0, 0)
	case !slices.Contains(logLevels, q.Level):
		return actionAnswer{}, notPossible("%q is no level; write %s, or %s for the level of the configuration", q.Level, strings.Join(logLevels, ", "), levelConfigured)
	case wait == 0:
		return actionAnswer{}, notPossible("for how long the level is to apply is missing")
	default:
		b.sink.Override(logsink.ParseLevel(q.Level), wait)
	}
	now, configured, until := b.sink.Levels()
	if until.IsZero() {
		return actionAnswer{Done: fmt.Sprintf("the level of the log is %s, as configured", now)}, nil
	}
	return actionAnswer{Done: fmt.Sprintf("the level of the log is %s until %s, and then %s again", now, until.Format(time.RFC3339), configured)}, nil
}
