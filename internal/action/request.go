// Package action is what an operator can make a running bridge do: drain, eject an endpoint and return it, disconnect
// clients, and change the level of the log. A [Handler] serves the actions at the control socket, and logs who asked
// for them. Commands send a [Request] and get an [Answer].
package action

import (
	"fmt"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/show"
)

// A Request is the body of POST /api/v1/actions/NAME. Each action needs some of the members.
type Request struct {
	Upstream string  `json:"upstream,omitempty"` // eject, return
	Endpoint string  `json:"endpoint,omitempty"` // eject, return
	Client   string  `json:"client,omitempty"`   // disconnect: address:port, address or network
	Level    string  `json:"level,omitempty"`    // log-level: "" only asks
	For      float64 `json:"for,omitempty"`      // eject, log-level: seconds
}

// An Answer says what an action did.
type Answer struct {
	Done  string `json:"done"`  // in words
	Count int    `json:"count"` // to how many connections
}

// Levels are the levels of the log.
var Levels = []string{"debug", "info", "warn", "error"}

// LevelConfigured stands for the level of the configuration.
const LevelConfigured = "configured"

// MaxFor bounds how long an ejection or a level of the log may last.
const MaxFor = 30 * 24 * time.Hour

// errNotPossible is an error that the one who asked can do something about.
type errNotPossible struct{ text string }

func (e *errNotPossible) Error() string { return e.text }

func notPossible(format string, args ...any) error {
	return &errNotPossible{fmt.Sprintf(format, args...)}
}

// duration returns how long an action is to last; 0 if the request does not say.
func (q *Request) duration() (time.Duration, error) {
	if !(q.For >= 0 && q.For <= MaxFor.Seconds()) {
		return 0, notPossible("for is out of range: write at most %s", show.Duration(MaxFor.Seconds()))
	}
	return time.Duration(q.For * float64(time.Second)), nil
}
