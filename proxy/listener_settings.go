package proxy

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/rdmabridge/rdmabridge/rdmaside"
)

// A listenerSettings is the part of a listener that Reconfigure can change. It never changes
// itself: Reconfigure replaces it, and later Calls and connections see the new one. Clients
// keep copies of their weights and rate limits, and listener.follow has them updated.
type listenerSettings struct {
	opts      ListenerOptions
	routes    routes
	policy    *policy             // nil for none
	maxOwed   int64               // octets of Replies that one client may be owed before it has to wait
	rates     *rates              // nil for no limit
	responder *rdmaside.Responder // accepts RDMA clients; nil for TCP
}

// newSettings makes settings of o, whose routes name some of upstreams. It does not put them
// into force.
func (l *listener) newSettings(o ListenerOptions, upstreams map[string]*upstream) (*listenerSettings, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	p := l.p
	t := &listenerSettings{opts: o, maxOwed: o.outboundOf(p.replies.Limit())}
	var had *rates
	if old := l.current.Load(); old != nil {
		had = old.rates
	}
	t.rates = newRates(p.metrics, &o, had, p.engine.Now)
	find := func(name string) (*upstream, error) {
		if u := upstreams[name]; u != nil {
			return u, nil
		}
		return nil, fmt.Errorf("proxy: listener %q: no upstream %q", o.Name, name)
	}
	var err error
	if o.Upstream != "" {
		if t.routes.other, err = find(o.Upstream); err != nil {
			return nil, err
		}
	}
	t.routes.programs = make(map[uint32][]target)
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
		t.routes.programs[r.Program] = append(t.routes.programs[r.Program], x)
	}
	if t.policy, err = l.newPolicy(&o, find); err != nil {
		return nil, err
	}
	if !o.RDMA {
		if err := l.tcpOptions(t).Validate(); err != nil {
			return nil, fmt.Errorf("proxy: listener %q: %w", o.Name, err)
		}
		return t, nil
	}
	t.responder, err = rdmaside.NewResponder(rdmaside.ResponderOptions{
		Memory: p.calls, Replies: p.replies, Receives: p.receives, Registry: p.registry,
		Credits: o.Credits, CallInline: o.CallInline, ReplyInline: o.ReplyInline, MaxCall: o.MaxRecord,
		StallTimeout: o.StallTimeout, Pace: o.Pace,
		RemoteInvalidation: true,
		Log:                l.log, Metrics: rdmaside.NewResponderMetrics(p.metrics, o.Name),
	}, (*rdmaHandler)(l))
	if err != nil {
		return nil, fmt.Errorf("proxy: listener %q: %w", o.Name, err)
	}
	return t, nil
}

// upstreams returns every upstream that a Call may go to.
func (t *listenerSettings) upstreams() []*upstream {
	us := t.routes.all()
	for _, u := range t.policy.all() {
		if !slices.Contains(us, u) {
			us = append(us, u)
		}
	}
	return us
}

// weight is the weight of a client at a.
func (t *listenerSettings) weight(a netip.Addr) int {
	for _, w := range t.opts.Weights {
		for _, p := range w.Clients {
			if p.Contains(a) {
				return w.Weight
			}
		}
	}
	return 1
}
