package action

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
	"github.com/rdmabridge/rdmabridge/internal/status"
)

// Path is where actions are, each by its name.
const Path = "/api/v1/actions/"

// A Proxy is what most actions are about.
type Proxy interface {
	Status(status.Query) status.Document
	Eject(upstream, endpoint string, d time.Duration) error
	Return(upstream, endpoint string) error
	Disconnect(who, reason string) (connections int, err error)
}

// A Handler does the actions of one bridge.
type Handler struct {
	Proxy Proxy
	Log   zerolog.Logger
	Sink  *logsink.Sink // whose level changes; nil if that is fixed

	// Drain begins a drain. It returns how long that may take, or why it is not possible.
	Drain func() (time.Duration, error)
}

// cheap asks for a document that costs little.
var cheap = status.Query{Clients: 1}

// Register adds the actions to a server. Patterns are those of http.ServeMux.
func (h *Handler) Register(handle func(pattern string, h http.Handler)) {
	for name, act := range map[string]func(Request) (Answer, error){
		"drain": h.drain, "eject": h.eject, "return": h.endEjection, "disconnect": h.disconnect, "log-level": h.logLevel,
	} {
		handle("POST "+Path+name, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { h.serve(w, r, name, act) }))
	}
}

// serve does one action, and logs who asked for it.
func (h *Handler) serve(w http.ResponseWriter, r *http.Request, name string, act func(Request) (Answer, error)) {
	var q Request
	d := json.NewDecoder(r.Body)
	d.DisallowUnknownFields()
	err := d.Decode(&q)
	var answer Answer
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
		line := h.Log.Warn().Str("event", "operator_action")
		logAction(line, r, name, q)
		line.Err(err).Msg("an operator asked for an action that was refused")
		return
	}
	line := h.Log.Info().Str("event", "operator_action")
	logAction(line, r, name, q)
	line.Str("done", answer.Done).Int("count", answer.Count).Msg("an operator asked for an action")
}

// logAction adds who asked for what.
func logAction(line *zerolog.Event, r *http.Request, name string, q Request) {
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

// drain does what SIGTERM does.
func (h *Handler) drain(Request) (Answer, error) {
	clients, calls := h.busy()
	timeout, err := h.Drain()
	if err != nil {
		return Answer{}, notPossible("%v", err)
	}
	return Answer{Count: clients, Done: fmt.Sprintf(
		"the bridge drains: it listens no more, answers the %s of %s, and ends, in %s at the latest",
		show.Plural(calls, "Call"), show.Plural(clients, "client"), timeout)}, nil
}

// busy returns how many clients there are, and how many Calls they have in flight.
func (h *Handler) busy() (clients, calls int) {
	for _, l := range h.Proxy.Status(cheap).Listeners {
		clients += l.Clients
		calls += l.InFlight
	}
	return clients, calls
}

// logLevel changes the level of the log for a while, or only says it.
func (h *Handler) logLevel(q Request) (Answer, error) {
	if h.Sink == nil {
		return Answer{}, notPossible("the log of this process has a fixed level")
	}
	wait, err := q.duration()
	if err != nil {
		return Answer{}, err
	}
	switch {
	case q.Level == "":
	case q.Level == LevelConfigured:
		h.Sink.Override(0, 0)
	case !slices.Contains(Levels, q.Level):
		return Answer{}, notPossible("%q is no level; write %s, or %s for the level of the configuration", q.Level, strings.Join(Levels, ", "), LevelConfigured)
	case wait == 0:
		return Answer{}, notPossible("for how long the level is to apply is missing")
	default:
		h.Sink.Override(logsink.ParseLevel(q.Level), wait)
	}
	now, configured, until := h.Sink.Levels()
	if until.IsZero() {
		return Answer{Done: fmt.Sprintf("the level of the log is %s, as configured", now)}, nil
	}
	return Answer{Done: fmt.Sprintf("the level of the log is %s until %s, and then %s again", now, until.Format(time.RFC3339), configured)}, nil
}
