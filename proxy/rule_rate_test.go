package proxy_test

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/internal/rules"
	"github.com/rdmabridge/rdmabridge/internal/status"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/internal/testkit/proxytest"
	"github.com/rdmabridge/rdmabridge/proxy"
	"github.com/rdmabridge/rdmabridge/proxy/settings"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric/fabrictest"
)

// A ruledProxy has one listener with rules, in front of one server.
type ruledProxy struct {
	*proxytest.Harness
	*testing.T
	p    *proxy.Proxy
	lo   settings.ListenerOptions
	us   []settings.UpstreamOptions
	dial func() caller
}

// newRuledProxy returns one with these rules.
func newRuledProxy(t *testing.T, rdma bool, all ...rules.Rule) *ruledProxy {
	h := proxytest.NewHarness(t, budget)
	s := h.TCPServer(proxytest.Behaviour{})
	lp, l := fabrictest.NewLoopback(), fabrictest.NewLoop()
	t.Cleanup(l.Stop)
	x := &ruledProxy{
		Harness: h, T: t,
		lo: settings.ListenerOptions{Name: "nfs", Address: "127.0.0.1:0", RDMA: rdma, Provider: lp, Upstream: "tcp", Rules: all},
		us: []settings.UpstreamOptions{{Name: "tcp", Endpoints: []string{s.Addr()}, Connections: 2}},
	}
	x.p = h.Proxy([]settings.ListenerOptions{x.lo}, x.us)
	x.dial = func() caller {
		if rdma {
			return h.RDMAClient(lp, loop.Loop(l), x.p.Addr("nfs"), 0)
		}
		return h.Client(x.p.Addr("nfs"))
	}
	return x
}

// set puts other rules in force.
func (x *ruledProxy) set(all ...rules.Rule) {
	x.Helper()
	x.lo.Rules = all
	if err := x.p.Reconfigure(proxytest.Listeners(x.lo), proxytest.Upstreams(x.us...)); err != nil {
		x.Fatal(err)
	}
}

// limited is a rule for the Calls of user 7.
func limited(rate rules.Rate) rules.Rule {
	return rules.Rule{Name: "seven", UIDs: []rules.Range{{Low: 7, High: 7}}, Action: rules.Limit, Rate: rate}
}

// TestRuleRates: the Calls that a rule matches have its rate together, with their Replies, and none is dropped.
func TestRuleRates(t *testing.T) {
	const clients, calls = 4, 40
	echo := func(xid uint32) []byte { return withUser(proxytest.EchoCall(xid, 100, 900, 0), 7, 7) }
	sequence := func(xid uint32) []byte { return withUser(proxytest.SequenceCall(xid), 7, 7) }
	for _, tt := range []struct {
		name    string
		rdma    bool
		message func(xid uint32) []byte
		rate    rules.Rate
	}{
		{"calls", false, echo, rules.Rate{Calls: 200}},
		{"octets", false, echo, rules.Rate{Octets: 200 * 1000}},
		{"rdma", true, echo, rules.Rate{Calls: 200}},
		{"octets, rdma", true, echo, rules.Rate{Octets: 200 * 1000}},
		{"NFSv4.1", false, sequence, rules.Rate{Calls: 200}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			x := newRuledProxy(t, tt.rdma, limited(tt.rate))
			began := time.Now()
			var wg sync.WaitGroup
			for i := range uint32(clients) {
				c := x.dial()
				wg.Go(func() {
					for j := range uint32(calls) {
						if _, err := c.Call(tt.message(i<<16 + j + 1)); err != nil {
							t.Error(err)
							return
						}
					}
				})
			}
			wg.Wait()
			// 160 Calls at 200 a second, a quarter of a second's worth at once.
			if d := time.Since(began); d < 500*time.Millisecond {
				t.Errorf("%d Calls took %v", clients*calls, d)
			}
		})
	}
}

// TestRuleRateOfOthers: a client waits for the rate of a rule, and is seen to, only when its Call is one that the rule
// limits; and it goes on when a reload changes the rate, removes it, or makes the rule a dry run.
func TestRuleRateOfOthers(t *testing.T) {
	t.Parallel()
	for _, rdma := range []bool{false, true} {
		t.Run(fmt.Sprintf("rdma %t", rdma), func(t *testing.T) {
			t.Parallel()
			ruleRateOfOthers(t, rdma)
		})
	}
}

func ruleRateOfOthers(t *testing.T, rdma bool) {
	slow, fast, dry := limited(rules.Rate{Octets: 1}), limited(rules.Rate{Calls: 100_000}), limited(rules.Rate{Octets: 1})
	dry.DryRun = true
	x := newRuledProxy(t, rdma)
	seven, other := x.dial(), x.dial()
	xid := uint32(0)
	call := func(c caller, uid uint32) <-chan error {
		xid++
		m := withUser(proxytest.GetattrCall(xid), uid, uid)
		done := make(chan error, 1)
		go func() {
			_, err := c.Call(m)
			done <- err
		}()
		return done
	}
	wait := func(what string, done <-chan error) {
		t.Helper()
		select {
		case err := <-done:
			if err != nil {
				t.Fatalf("%s: %v", what, err)
			}
		case <-time.After(testkit.Patience):
			t.Fatalf("%s hangs", what)
		}
	}
	waits := func(reasons ...string) func() bool {
		return func() bool {
			d := x.p.Status(status.Query{})
			var of []string
			for _, c := range d.Clients.List {
				of = append(of, c.Waiting...)
			}
			byRule := 0
			for _, r := range d.Listeners[0].Rules {
				byRule += r.Waiting
			}
			return slices.Equal(of, reasons) && byRule == len(reasons)
		}
	}
	round := 0
	for name, next := range map[string][]rules.Rule{"another rate": {fast}, "no rule": nil, "a dry run": {dry}} {
		round++
		x.set(slow)
		wait("the Call that is over the rate", call(seven, 7)) // there are minutes to wait behind it
		behind := make([]<-chan error, 6)
		for i := range behind {
			behind[i] = call(seven, uint32(6+i%2)) // of users whom no rule limits, too
		}
		x.Eventually("it is said why the client waits", waits("rule_rate"))
		for range 20 {
			wait("a Call of another client", call(other, 8))
		}
		for _, of := range []string{`listener_pauses_total{listener="nfs",reason="rule_rate"}`, `listener_rate_limit_waits_total{limit="rule",listener="nfs"}`} {
			if n := metric(x.Harness, of); n != round {
				t.Errorf("%s is %d, want %d", of, n, round)
			}
		}
		for _, done := range behind {
			if len(done) > 0 {
				t.Error("a Call does not wait behind one that is over the rate")
			}
		}
		x.set(next...)
		for _, done := range behind {
			wait(name+": a Call that has waited", done)
		}
		for range 50 {
			wait(name+": a Call of the user", call(seven, 7))
		}
		x.Eventually("nobody waits", waits())
	}
}
