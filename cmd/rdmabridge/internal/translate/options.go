package translate

import (
	"fmt"
	"time"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/configs"
	"github.com/rdmabridge/rdmabridge/internal/tlsconf"
	"github.com/rdmabridge/rdmabridge/proxy/admit"
	"github.com/rdmabridge/rdmabridge/proxy/admit/gates"
	"github.com/rdmabridge/rdmabridge/proxy/authorise"
	"github.com/rdmabridge/rdmabridge/proxy/settings"
)

// ListenerLimits translates the limits of a listener for package proxy.
func ListenerLimits(l *configs.Listener) settings.ListenerOptions {
	return settings.ListenerOptions{
		Name: l.Name, Address: l.Address, RDMA: l.RDMA(), Upstream: l.Upstream,
		MaxConnections: l.Limits.Connections, MaxConnectionsPerAddress: l.Limits.PerAddress,
		MakeRoom:  l.Limits.MakeRoom == configs.On,
		MaxRecord: int(l.Limits.Record),
		MaxCalls:  l.Limits.Calls, MaxOutbound: int64(l.Limits.Outbound),
		Pace: int64(l.Limits.Pace), StallTimeout: l.Timeouts.Stall.Value(),
		RequestTimeout: max(0, l.Timeouts.Request.Value()), IdleTimeout: max(0, l.Timeouts.Idle.Value()), // proxy: 0 means no timeout
		Privileged: l.Privileged == configs.PrivilegedRequired,
		Credits:    l.Credits, CallInline: int(l.Inline.Call), ReplyInline: int(l.Inline.Reply),
	}
}

// Listener translates a listener of the configuration for package proxy.
func Listener(l *configs.Listener, memory func() [][]byte, log zerolog.Logger) (settings.ListenerOptions, error) {
	o := ListenerLimits(l)
	if l.RDMA() {
		var err error
		if o.Provider, err = listenerProvider(l, memory, log); err != nil {
			return o, fmt.Errorf("listener %s: %w", l.Name, err)
		}
		o.MaxStarting, o.MaxStartingPerAddress = l.Limits.Starting, l.Limits.StartingPerAddress
	}
	o.Rate, o.ClientRate = rate(l.Rates.Listener), rate(l.Rates.Client)
	o.ConnectionsRate, o.ClientConnectionsRate = l.Rates.Listener.Connections, l.Rates.Client.Connections
	for _, w := range l.Weights {
		o.Weights = append(o.Weights, admit.Weight{Weight: w.Weight, Clients: Prefixes(w.Clients)})
	}
	o.Allow, o.Proxies = Prefixes(l.Allow), Prefixes(l.ProxyProtocol.From)
	o.ProxyTimeout = l.ProxyProtocol.Timeout.Value()
	for _, r := range l.Routes {
		program, err := Known.ResolveProgram(r.Program)
		if err != nil {
			return o, fmt.Errorf("listener %s: %w", l.Name, err)
		}
		o.Routes = append(o.Routes, settings.Route{Program: program, Versions: r.Versions, Upstream: r.Upstream})
	}
	o.Squash = authorise.Squash{Mode: ruleSquashes[l.Squash.Mode], UID: uint32(l.Squash.UID), GID: uint32(l.Squash.GID)}
	var err error
	if o.Rules, err = Rules(l); err != nil {
		return o, fmt.Errorf("listener %s: %w", l.Name, err)
	}
	return o, nil
}

// Tenants translates the tenants of the configuration for package proxy.
func Tenants(c *configs.Config) (all []admit.TenantOptions) {
	for i := range c.Tenants {
		t := &c.Tenants[i]
		all = append(all, admit.TenantOptions{
			Name: t.Name, Clients: Prefixes(t.Clients), Names: patterns(t.Names), Weight: t.Weight,
			Total: tenantLimits(&t.Total), Address: tenantLimits(&t.Address),
		})
	}
	return all
}

// patterns translates patterns of names, which configs has checked.
func patterns(names []string) (ps []tlsconf.Pattern) {
	for _, n := range names {
		p, err := tlsconf.ParsePattern(n)
		if err != nil {
			panic("BUG: a name that configs has checked: " + err.Error())
		}
		ps = append(ps, p)
	}
	return ps
}

func tenantLimits(l *configs.TenantLimits) admit.TenantLimits {
	return admit.TenantLimits{
		Connections: l.Connections, ConnectionsRate: l.Rate.Connections,
		Calls: l.Calls, Memory: int64(l.Memory), Rate: rate(l.Rate),
	}
}

func rate(r configs.Rate) gates.Rate { return gates.Rate{Calls: r.Calls, Octets: int64(r.Bytes)} }

// poolModes translates pool.mode.
var poolModes = map[string]settings.Mode{
	configs.PoolAuto: settings.ModeAuto, configs.PoolShared: settings.ModeShared,
	configs.PoolSessions: settings.ModeSessions, configs.PoolPinned: settings.ModePinned,
}

// A connection without Calls is probed when it has been silent for probeIdleTimes as long as one with
// Calls, and for leastProbeIdle at least.
const (
	probeIdleTimes = 12
	leastProbeIdle = time.Minute
)

// slowStart is the number of Calls that an upstream may have under way when its slow start
// begins. Users cannot set it. docs/memory.md describes slow start to them.
const slowStart = 16

// UpstreamLimits translates the limits of an upstream for package proxy.
func UpstreamLimits(u *configs.Upstream) settings.UpstreamOptions {
	return settings.UpstreamOptions{
		Name: u.Name, RDMA: u.RDMA(), Endpoints: u.Endpoints,
		Failover: u.Failover == configs.On, Priority: u.Balance == configs.BalancePriority,
		Connections: u.Pool.Connections, Credits: u.Pool.Credits, Share: u.Pool.Share,
		Mode: poolModes[u.Pool.Mode], NamesClients: u.ProxyProtocol == configs.ProxyV2, Pinned: u.Pool.Pinned, PinnedCalls: u.Pool.PinnedCalls, GSSWindow: u.Pool.GSSWindow, SlowStart: slowStart,
		Idle:       max(u.Pool.Idle.Value(), 0), // none keeps all connections
		CallInline: int(u.Inline.Call), ReplyInline: int(u.Inline.Reply), HideLayouts: u.Layouts == configs.LayoutsHide,
		CallTimeout: u.Timeouts.Call.Value(), ConnectTimeout: u.Timeouts.Connect.Value(),
		UnavailableAfter: u.Timeouts.Unavailable.Value(),
		BackoffMin:       u.Backoff.Min.Value(), BackoffMax: u.Backoff.Max.Value(),
		SilentTimeout: u.Timeouts.Silent.Value(), ProbeInterval: u.Timeouts.Probe.Value(), ProbeIdle: max(probeIdleTimes*u.Timeouts.Probe.Value(), leastProbeIdle),
	}
}

// Upstream translates an upstream of the configuration for package proxy.
func Upstream(u *configs.Upstream, memory func() [][]byte, log zerolog.Logger) (settings.UpstreamOptions, error) {
	o := UpstreamLimits(u)
	if u.RDMA() {
		var err error
		if o.Provider, err = UpstreamProvider(u, memory, log); err != nil {
			return o, fmt.Errorf("upstream %s: %w", u.Name, err)
		}
		return o, nil
	}
	o.Source = Source(u)
	return o, nil
}
