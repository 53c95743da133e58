package listener

import (
	"fmt"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/rules"
	"github.com/rdmabridge/rdmabridge/metrics"
	"github.com/rdmabridge/rdmabridge/proxy/admit/gates"
	"github.com/rdmabridge/rdmabridge/proxy/authorise"
	"github.com/rdmabridge/rdmabridge/proxy/settings"
	"github.com/rdmabridge/rdmabridge/proxy/upstream"
	"github.com/rdmabridge/rdmabridge/rdmaside"
	"github.com/rdmabridge/rdmabridge/tcpframe"
)

// NewSettings makes settings of o, whose routes name some of upstreams. It does not put them
// into force.
func (l *Listener) NewSettings(o settings.ListenerOptions, upstreams map[string]*upstream.Upstream) (*Settings, error) {
	if err := o.Check(); err != nil {
		return nil, err
	}
	t := &Settings{Opts: o, Path: l.Registry.Path(o.MaxRecord), maxOwed: o.OutboundOf(l.Replies.Limit())}
	var had *gates.Rates
	if old := l.current.Load(); old != nil {
		had = old.Rates
	}
	find := func(name string) (*upstream.Upstream, error) {
		if u := upstreams[name]; u != nil {
			return u, nil
		}
		return nil, fmt.Errorf("proxy: listener %q: no upstream %q", o.Name, name)
	}
	var err error
	if o.Upstream != "" {
		if t.Routes.other, err = find(o.Upstream); err != nil {
			return nil, err
		}
	}
	t.Routes.programs = make(map[uint32][]target)
	for _, r := range o.Routes {
		x := target{versions: r.Versions}
		if x.upstream, err = find(r.Upstream); err != nil {
			return nil, err
		}
		for i, v := range r.Versions {
			if i == 0 || v < x.low {
				x.low = v
			}
			x.high = max(x.high, v)
		}
		t.Routes.programs[r.Program] = append(t.Routes.programs[r.Program], x)
	}
	if t.Policy, err = authorise.New(o.Rules, o.Squash, o.Exports); err != nil {
		return nil, fmt.Errorf("proxy: listener %q: %w", o.Name, err)
	}
	var rates []gates.RuleRate
	for _, r := range t.Policy.Rules() {
		rate := gates.RuleRate{Rule: r.Name}
		if r.Action == rules.Limit && !r.DryRun {
			rate.Rate = gates.Rate(r.Rate)
		}
		rates = append(rates, rate)
		var u *upstream.Upstream
		if r.Action == rules.Route {
			if u, err = find(r.Upstream); err != nil {
				return nil, err
			}
		}
		t.Ruled = append(t.Ruled, u)
	}
	t.Rates = gates.NewRates(l.Metrics, o.Name, o.Rate, o.ClientRate, rates, had, l.Engine.Now)
	if !o.RDMA {
		if err := l.tcpOptions(t).Validate(); err != nil {
			return nil, fmt.Errorf("proxy: listener %q: %w", o.Name, err)
		}
		return t, nil
	}
	t.responder, err = rdmaside.NewResponder(rdmaside.ResponderOptions{
		Memory: l.Calls, Replies: l.Replies, Receives: l.Receives, Registry: l.Registry,
		Credits: o.Credits, CallInline: o.CallInline, ReplyInline: o.ReplyInline, MaxCall: o.MaxRecord,
		StallTimeout: o.StallTimeout, Pace: o.Pace,
		RemoteInvalidation: true,
		Log:                l.Log, Metrics: rdmaside.NewResponderMetrics(l.Metrics, o.Name),
	}, l.ServeRDMA(l))
	if err != nil {
		return nil, fmt.Errorf("proxy: listener %q: %w", o.Name, err)
	}
	return t, nil
}

// describePolicy registers the counters of the policy, for l. It is called before t comes into force.
func (t *Settings) describePolicy(l *Listener) {
	var loops []*metrics.Registry
	for _, on := range l.Loops {
		loops = append(loops, on.Metrics)
	}
	t.Policy.Describe(l.Name, l.Metrics, loops)
}

// sendTimeout bounds how long a TCP client may take to read 64 KiB of its Replies.
const sendTimeout = 2 * time.Minute

func (l *Listener) tcpOptions(t *Settings) tcpframe.ListenOptions {
	o := &t.Opts
	return tcpframe.ListenOptions{
		Address: o.Address, Name: o.Name,
		MaxConns: o.MaxConnections, MaxConnsPerAddr: perAddress(o), Allow: o.Allow, Privileged: o.Privileged,
		MakeRoom: l.makeRoom,
		Proxies:  o.Proxies, ProxyTimeout: o.ProxyTimeout,
		Admit: l.admitTCP, Prefer: l.preferredLoop, Rate: o.ConnectionsRate,
		Conn: tcpframe.ConnOptions{
			// tcpClient.Opened sets Memory, because each client has its share.
			MaxRecord:   o.MaxRecord,
			MaxOutbound: t.maxOwed, OutboundLimit: l.MaxHeld + 1<<20,
			StallTimeout: o.StallTimeout, Pace: o.Pace, RecordTimeout: o.RequestTimeout, SendTimeout: sendTimeout,
			IdleTimeout: o.IdleTimeout,
		},
	}
}
