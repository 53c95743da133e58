package configs

import (
	"fmt"
	"time"
)

// A Duration is a time span: 5s, 100ms, 1h30m. noDuration is the word none.
type Duration time.Duration

// noDuration switches a timeout off.
const noDuration Duration = -1

// parseDuration reads what time.ParseDuration does, greater than 0, or none.
func parseDuration(s string) (Duration, error) {
	if s == none {
		return noDuration, nil
	}
	d, err := time.ParseDuration(s)
	if err != nil {
		return 0, fmt.Errorf("%q is not a duration; write 500ms, 5s or 1m30s", s)
	}
	if d <= 0 {
		return 0, fmt.Errorf("%q must be greater than 0", s)
	}
	return Duration(d), nil
}

// Value is the time span; negative for none.
func (d Duration) Value() time.Duration { return time.Duration(d) }

// String is the duration as the file would have it.
func (d Duration) String() string {
	if d < 0 {
		return none
	}
	return time.Duration(d).String()
}
