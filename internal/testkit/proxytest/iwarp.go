package proxytest

import (
	"time"

	"github.com/rdmabridge/rdmabridge/rdmaside/iwarp"
)

// IWARP returns a provider with o. Timeouts that must be set and are not get values that
// do not matter to a test.
func IWARP(o iwarp.Options) *iwarp.Provider {
	set := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	set(&o.DialTimeout, 10*time.Second)
	set(&o.AcceptTimeout, 5*time.Second)
	set(&o.ProgressTimeout, 30*time.Second)
	p, err := iwarp.New(o)
	if err != nil {
		panic("BUG: " + err.Error())
	}
	return p
}
