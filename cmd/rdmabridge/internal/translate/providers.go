package translate

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/configs"
	"github.com/rdmabridge/rdmabridge/pool/keeper"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
	"github.com/rdmabridge/rdmabridge/rdmaside/ibverbs"
	"github.com/rdmabridge/rdmabridge/rdmaside/iwarp"
)

// providers has a constructor for each RDMA provider of this build, by the name that
// the setting `provider` and the flag --provider use. A new provider needs its own
// package, a line here, and its settings in package configs.
var providers = builtProviders()

func builtProviders() map[string]func(providerSettings) (fabric.Provider, error) {
	m := map[string]func(providerSettings) (fabric.Provider, error){configs.ProviderIWARP: newIWARP}
	if ibverbs.Compiled {
		m[configs.ProviderIBVerbs] = newIBVerbs
	}
	return m
}

// providerNames lists the keys of providers in order.
func providerNames() []string { return slices.Sorted(maps.Keys(providers)) }

// providerError returns why this build, or this host, cannot use a provider of which this program
// knows. It opens rdma-core only if name is ibverbs.
func providerError(name string) error {
	if name == configs.ProviderIBVerbs {
		return ibverbs.Available()
	}
	return nil
}

// providerSettings is everything that a provider is made from. A constructor uses what
// its provider knows and ignores the rest. A duration that is negative means no bound.
type providerSettings struct {
	iwarp   configs.IWARP   // settings of provider iwarp
	ibverbs configs.IBVerbs // settings of provider ibverbs

	dial     time.Duration // bounds setting up a connection to a server
	start    time.Duration // bounds setting up a connection from a client
	progress time.Duration // bounds how long a peer may stall in the middle of a message
	silent   time.Duration // bounds how long the peer's host may acknowledge nothing

	// memory returns the extents of the arena, which keeps its pages from then on. It is nil
	// where there is no arena.
	memory func() [][]byte

	source  netip.Addr // the address to connect from; the zero Addr leaves it to the kernel
	listens bool       // a listener, which bounds its connections itself, owns the provider
	log     zerolog.Logger
}

// listenerProvider makes the provider of an RDMA listener.
func listenerProvider(l *configs.Listener, memory func() [][]byte, log zerolog.Logger) (fabric.Provider, error) {
	return providers[l.Provider](providerSettings{
		iwarp: l.IWARP, ibverbs: l.IBVerbs, memory: memory,
		dial: -1, start: l.Timeouts.Start.Value(), progress: l.Timeouts.Stall.Value(), silent: -1,
		listens: true, log: log.With().Str("listener", l.Name).Logger(),
	})
}

// UpstreamProvider makes the provider of an RDMA upstream.
func UpstreamProvider(u *configs.Upstream, memory func() [][]byte, log zerolog.Logger) (fabric.Provider, error) {
	return providers[u.Provider](providerSettings{
		iwarp: u.IWARP, ibverbs: u.IBVerbs, memory: memory,
		dial: keeper.AloneTimes * u.Timeouts.Connect.Value(), start: -1, silent: u.Timeouts.Silent.Value(),
		// A server whose process is stopped reads nothing. Its Calls run into their
		// deadline, so the connection need not fail earlier.
		progress: u.Timeouts.Call.Value(),
		source:   Source(u).Address,
		log:      log.With().Str("upstream", u.Name).Logger(),
	})
}

// newIWARP is the constructor of provider iwarp.
func newIWARP(s providerSettings) (fabric.Provider, error) {
	o := iwarp.Options{
		CRCOff: s.iwarp.CRC == configs.Off, DialRev1: s.iwarp.Revision1 == configs.On,
		DialTimeout: s.dial, AcceptTimeout: s.start, ProgressTimeout: s.progress, SilentTimeout: s.silent,
		Source: s.source, Log: s.log,
	}
	if s.iwarp.FPDU == configs.FPDUMax {
		o.FPDU = iwarp.FPDUMax
	}
	if s.listens {
		o.MaxConnections = -1
	}
	return iwarp.New(o)
}

// ibverbsOptions translates the settings of provider ibverbs.
func ibverbsOptions(v configs.IBVerbs) ibverbs.Options {
	o := ibverbs.Options{Select: ibverbs.Selector{Device: v.Device, Port: v.Port}, TOS: uint8(v.TrafficClass)}
	if v.GID != "" {
		o.Select.GID = netip.MustParseAddr(v.GID)
	}
	return o
}

// ibverbsError returns why this host cannot use settings of provider ibverbs. listen is the address of a
// listener, or "".
func ibverbsError(v configs.IBVerbs, listen string) error {
	return ibverbs.Check(ibverbsOptions(v), listen)
}

// newIBVerbs is the constructor of provider ibverbs.
func newIBVerbs(s providerSettings) (fabric.Provider, error) {
	e, err := ibverbs.ParseExposure(s.ibverbs.Exposure)
	if err != nil {
		return nil, err
	}
	o := ibverbsOptions(s.ibverbs)
	o.Exposure, o.BusyPoll = e, max(s.ibverbs.BusyPoll.Value(), 0)
	o.DialTimeout, o.AcceptTimeout, o.SilentTimeout, o.Log = s.dial, s.start, max(s.silent, 0), s.log
	o.Source = s.source
	if s.memory != nil {
		o.Memory = s.memory()
	}
	if s.listens {
		o.MaxConnections = -1
		o.Exposure = ibverbs.ExposeRegistration // clients get no handles
	}
	return ibverbs.New(o)
}
