package configs

import (
	"fmt"
	"strconv"
	"time"
)

// A Duration is a time span such as 5s, 100ms or 1h30m, or noDuration.
type Duration time.Duration

// noDuration is the word none: it switches a timeout off.
const noDuration Duration = -1

const (
	second      = Duration(time.Second)
	millisecond = Duration(time.Millisecond)
)

// parseDuration parses a positive duration in the format of time.ParseDuration, or
// the word none.
func parseDuration(s string) (Duration, error) {
	if s == none {
		return noDuration, nil
	}
	d, err := time.ParseDuration(s)
	if _, notNumber := strconv.ParseUint(s, 10, 31); err != nil && notNumber == nil {
		return 0, fmt.Errorf("%q has no unit; write one such as %sms or %ss", s, s, s)
	}
	if err != nil {
		return 0, fmt.Errorf("%q is not a duration; write one such as 500ms, 5s or 1m30s", s)
	}
	if d <= 0 {
		return 0, fmt.Errorf("%q is not greater than 0; write a duration such as 500ms, 5s or 1m30s", s)
	}
	return Duration(d), nil
}

// Value returns the time span. It is negative for none.
func (d Duration) Value() time.Duration { return time.Duration(d) }

// String returns the duration in the format of a file.
func (d Duration) String() string {
	if d < 0 {
		return none
	}
	return time.Duration(d).String()
}
