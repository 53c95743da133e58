//go:build ibverbs

package ibverbs

import (
	"errors"
	"fmt"
	"time"
)

// validate returns an error for each option that must be set and is not.
func (o *Options) validate() error {
	var errs []error
	for _, v := range []struct {
		name string
		d    time.Duration
	}{
		{"DialTimeout", o.DialTimeout},
		{"AcceptTimeout", o.AcceptTimeout},
	} {
		if v.d == 0 {
			errs = append(errs, fmt.Errorf("ibverbs: Options.%s is 0: want a duration, or a negative one for no timeout", v.name))
		}
	}
	return errors.Join(errs...)
}

// noTimeout stands for a timeout that the configuration sets to none. The provider bounds every
// wait, because a connection manager may never answer.
const noTimeout = 5 * time.Minute

// withDefaults sets the options that no setting of the configuration sets.
func (o Options) withDefaults() Options {
	for _, d := range []*time.Duration{&o.DialTimeout, &o.AcceptTimeout} {
		if *d <= 0 {
			*d = noTimeout
		}
	}
	if o.CloseTimeout <= 0 {
		o.CloseTimeout = 5 * time.Second
	}
	if o.MaxConnections == 0 {
		o.MaxConnections = 16384
	}
	return o
}
