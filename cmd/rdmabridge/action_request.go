package main

import (
	"fmt"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/show"
)

// An actionRequest is the body of POST /api/v1/actions/NAME. Each action needs some of the members.
type actionRequest struct {
	Upstream string  `json:"upstream,omitempty"` // eject, return
	Endpoint string  `json:"endpoint,omitempty"` // eject, return
	Client   string  `json:"client,omitempty"`   // disconnect: address:port, address or network
	Level    string  `json:"level,omitempty"`    // log-level: "" only asks
	For      float64 `json:"for,omitempty"`      // eject, log-level: seconds
}

// An actionAnswer says what an action did.
type actionAnswer struct {
	Done  string `json:"done"`  // in words
	Count int    `json:"count"` // to how many connections
}

// maxFor bounds how long an ejection or a level of the log may last.
const maxFor = 30 * 24 * time.Hour

// errNotPossible is an error that the one who asked can do something about.
type errNotPossible struct{ text string }

func (e *errNotPossible) Error() string { return e.text }

func notPossible(format string, args ...any) error {
	return &errNotPossible{fmt.Sprintf(format, args...)}
}

// duration returns how long an action is to last; 0 if the request does not say.
func (q *actionRequest) duration() (time.Duration, error) {
	if !(q.For >= 0 && q.For <= maxFor.Seconds()) {
		return 0, notPossible("for is out of range: write at most %s", show.Duration(maxFor.Seconds()))
	}
	return time.Duration(q.For * float64(time.Second)), nil
}
