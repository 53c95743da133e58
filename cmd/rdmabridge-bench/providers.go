package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/configs"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
	"github.com/rdmabridge/rdmabridge/rdmaside/ibverbs"
	"github.com/rdmabridge/rdmabridge/rdmaside/iwarp"
)

// A providerOpener makes a provider for the memory that messages are in.
type providerOpener func(memory func() [][]byte) (fabric.Provider, error)

// providers has what makes the opener of each RDMA provider of this build, by the name that --provider uses. o has the
// options of iWARP that there are flags for.
var providers = builtProviders()

func builtProviders() map[string]func(o iwarp.Options, log zerolog.Logger) providerOpener {
	m := map[string]func(iwarp.Options, zerolog.Logger) providerOpener{configs.ProviderIWARP: iwarpOpener}
	if ibverbs.Compiled {
		m[configs.ProviderIBVerbs] = ibverbsOpener
	}
	return m
}

// providerNames lists the keys of providers in order.
func providerNames() []string { return slices.Sorted(maps.Keys(providers)) }

// newOpener returns the opener of the provider name.
func newOpener(name string, o iwarp.Options, log zerolog.Logger) (providerOpener, error) {
	opener, ok := providers[name]
	if !ok {
		return nil, fmt.Errorf("--provider: this build has no %q; write %s", name, strings.Join(providerNames(), " or "))
	}
	return opener(o, log), nil
}

// Bounds of setting up a connection, and of how long a peer may stall in the middle of a message.
const (
	dialTimeout     = 10 * time.Second
	acceptTimeout   = 5 * time.Second
	progressTimeout = 30 * time.Second
)

func iwarpOpener(o iwarp.Options, log zerolog.Logger) providerOpener {
	o.DialTimeout, o.AcceptTimeout, o.Log = dialTimeout, acceptTimeout, log
	o.ProgressTimeout, o.SilentTimeout = progressTimeout, -1
	return func(func() [][]byte) (fabric.Provider, error) { return iwarp.New(o) }
}

func ibverbsOpener(_ iwarp.Options, log zerolog.Logger) providerOpener {
	return func(memory func() [][]byte) (fabric.Provider, error) {
		return ibverbs.New(ibverbs.Options{
			DialTimeout: dialTimeout, AcceptTimeout: acceptTimeout, Memory: memory(), Log: log,
		})
	}
}
