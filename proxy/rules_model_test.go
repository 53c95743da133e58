package proxy_test

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rules"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/internal/testkit/proxytest"
	"github.com/rdmabridge/rdmabridge/proxy/authorise"
	"github.com/rdmabridge/rdmabridge/proxy/settings"
)

// A ruleCall is a kind of Call.
type ruleCall struct {
	name    string
	make    func(xid uint32) []byte
	changes bool
}

// ruleCalls are Calls that differ in one of what rules look at.
var ruleCalls = []ruleCall{
	{"GETATTR", proxytest.GetattrCall, false},
	{"READDIRPLUS", func(xid uint32) []byte {
		return testkit.AppendWords(proxytest.CallHeader(nil, xid, oncrpc.ProgramNFS, 3, 17), 4, 1, 0, 0, 0, 0, 100, 1000)
	}, false},
	{"READ", func(xid uint32) []byte { return proxytest.ReadCall(xid, 7, 10) }, false},
	{"WRITE", func(xid uint32) []byte { return proxytest.WriteCall(xid, 0, 10) }, true},
	{"COMPOUND that reads", func(xid uint32) []byte { return proxytest.CompoundCall(xid, 0, putroot) }, false},
	{"COMPOUND that changes", func(xid uint32) []byte { return proxytest.CompoundCall(xid, 0, putroot, setattr) }, true},
	{"MNT", func(xid uint32) []byte {
		return testkit.AppendOpaque(proxytest.CallHeader(nil, xid, oncrpc.ProgramMount, 3, 1), []byte("/x"))
	}, false},
	{"MNT of version 1", func(xid uint32) []byte {
		return testkit.AppendOpaque(proxytest.CallHeader(nil, xid, oncrpc.ProgramMount, 1, 1), []byte("/x"))
	}, false},
}

// ruleUsers make the credential of a Call. Two of them have credentials of one length that differ at one place.
var ruleUsers = []func(m []byte, n uint32) []byte{
	func(m []byte, _ uint32) []byte { return withUser(m, 1000, 100) },
	func(m []byte, _ uint32) []byte { return withUser(m, 1001, 100) },
	func(m []byte, _ uint32) []byte { return withUser(m, 1000, 101) },
	func(m []byte, _ uint32) []byte { return withUser(m, 0, 0) },
	func(m []byte, _ uint32) []byte { return withUser(m, 1000, 100, 7) },
	func(m []byte, _ uint32) []byte { return withUser(m, 1000, 100, make([]uint32, 16)...) },
	func(m []byte, _ uint32) []byte { // AUTH_NONE
		var h oncrpc.Call
		_ = oncrpc.ParseCall(m, &h)
		return append(append(slices.Clone(m[:24]), make([]byte, 8)...), m[h.VerifierPos()-8:]...)
	},
	func(m []byte, n uint32) []byte { return proxytest.GSSCall(m, n, oncrpc.GSSServiceNone) },
}

func randomRules(r *rand.Rand) (all []rules.Rule) {
	maybe := func(n int) bool { return r.IntN(n) == 0 }
	pick := func(v ...uint32) uint32 { return v[r.IntN(len(v))] }
	for range 1 + r.IntN(5) {
		x := rules.Rule{Action: rules.Action(r.IntN(2)), Class: rules.Class(r.IntN(3)), DryRun: maybe(8)}
		if maybe(2) {
			x.UIDs = []rules.Range{{Low: pick(0, 1000, 1001), High: pick(1001, 5000)}}
		}
		if maybe(3) {
			x.GIDs = []rules.Range{{Low: pick(0, 7, 100, 101), High: pick(101, 200)}}
		}
		if maybe(2) {
			x.Targets = []rules.Target{{Programs: []uint32{pick(oncrpc.ProgramNFS, oncrpc.ProgramMount)}}}
			if maybe(2) {
				x.Targets[0].Versions = []uint32{pick(1, 3, 4)}
			}
			if maybe(2) {
				x.Targets[0].Procedures = []uint32{pick(1, 17, 7)}
			}
		}
		if maybe(4) {
			x.Flavors = []rules.Flavor{rules.Flavor(r.IntN(3))}
		}
		if maybe(6) {
			x.Clients = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
		}
		if x.Action == rules.Allow && maybe(3) {
			x.Squash = []rules.Squash{rules.SquashRoot, rules.SquashAll}[r.IntN(2)]
		} else if x.Action == rules.Allow && maybe(4) {
			x.Action, x.Upstream = rules.Route, "other"
		}
		all = append(all, x)
	}
	if maybe(2) {
		x := rules.Rule{Action: rules.Limit, Rate: rules.Rate{Calls: 1_000_000}, Class: rules.Class(r.IntN(3)), DryRun: maybe(4)}
		all = slices.Insert(all, r.IntN(len(all)+1), x)
	}
	return all
}

// TestRulesModel: of random Calls, of a few users over a few connections, and under rules that are replaced, each is
// denied, mapped, counted and passed on as the rules say that are explained one by one, whatever came before it on its
// connection; and a Call that comes again has the XID that it had.
func TestRulesModel(t *testing.T) {
	t.Parallel()
	const denied, mapped, elsewhere, passed, again = 0, 1, 2, 3, 4
	var saw [5]int
	r := rand.New(rand.NewPCG(16, 3))
	x := newPoliced(t, "tcp", func(o *settings.ListenerOptions) {
		o.Squash = authorise.Squash{Mode: rules.SquashOff, UID: 99, GID: 98}
	})
	type client struct {
		caller
		listener string
	}
	clients := []client{{x.dial("tcp"), "tcp"}, {x.dial("tcp"), "tcp"}, {x.dial("rdma"), "rdma"}}
	from := rules.Client{Address: netip.MustParseAddr("127.0.0.1"), Port: 50000} // all of them
	set, err := rules.Compile(nil)
	if err != nil {
		t.Fatal(err)
	}
	xids := make(map[string]uint32) // that the server saw, by the client and by everything else of the Call
	user, kind := 0, 0
	type series struct{ listener, rule, verdict string }
	counted := make(map[series]int)
	const reload = 50
	steps := 4000
	if testing.Short() {
		steps = 1000
	}
	for i := range uint32(steps) {
		if i%reload == 0 {
			if i%(5*reload) == 0 { // a look at the counters takes long
				for of, n := range counted {
					x.Eventually(fmt.Sprintf("%+v has counted %d Calls", of, n), func() bool { return x.matched(of.listener, of.rule, of.verdict) == n })
				}
			}
			clear(counted)
			all := randomRules(r)
			for n := range all {
				all[n].Name = fmt.Sprintf("r%d-%d", n, i) // series of its own
			}
			if set, err = rules.Compile(all); err != nil {
				t.Fatal(err)
			}
			for k := range x.ls {
				x.ls[k].Rules = all
			}
			if err := x.p.Reconfigure(proxytest.Listeners(x.ls...), proxytest.Upstreams(x.us...)); err != nil {
				t.Fatal(err)
			}
		}
		// Most Calls differ from the one before in one thing, or in none.
		switch r.IntN(16) {
		case 0:
			user = r.IntN(len(ruleUsers))
		case 1, 2, 3, 4, 5:
			kind = r.IntN(len(ruleCalls))
		}
		who := r.IntN(len(clients))
		c := &clients[who]
		k := &ruleCalls[kind]
		m := ruleUsers[user](k.make(uint32(1+r.IntN(3))), i)
		var h oncrpc.Call
		if err := oncrpc.ParseCall(m, &h); err != nil {
			t.Fatal(err)
		}
		var rule *rules.Rule
		for _, v := range set.ExplainCall(&from, &h, rules.Facts{Changes: k.changes}) {
			if !v.Matches() {
				continue
			}
			verdict := "dry_run"
			if !v.Rule.DryRun {
				verdict = []string{"allow", "deny", "upstream", "limit"}[v.Rule.Action]
				if v.Rule.Action != rules.Limit {
					rule = v.Rule
				}
			}
			counted[series{c.listener, v.Rule.Name, verdict}]++
		}
		what := fmt.Sprintf("Call %d, %s of user %d over %s, rule %+v", i, k.name, user, c.listener, rule)
		want, server, result := slices.Clone(m), x.server, passed
		switch {
		case rule == nil:
		case rule.Action == rules.Deny:
			want, result = nil, denied
		case rule.Action == rules.Route:
			server, result = x.other, elsewhere
		case rule.Squash != rules.SquashDefault && h.Flavor == oncrpc.FlavorSys:
			ids, _ := h.Sys()
			words := []uint32{ids.UID()}
			for g := range ids.Groups() {
				words = append(words, ids.Group(g))
			}
			before := slices.Clone(words)
			words = squashed(rule.Squash, words)
			want = withUser(m, words[0], words[1], words[2:]...)
			if !slices.Equal(before, words) {
				result = mapped
			}
		}
		here, there, saws := x.server.total(), x.other.total(), 0
		if want != nil {
			saws = server.saw(want)
		}
		got, err := c.Call(m)
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		var reply oncrpc.Reply
		if err := oncrpc.ParseReply(got, &reply); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if reply.Denied != (want == nil) {
			t.Fatalf("%s: denied: %v", what, reply.Denied)
		}
		n := x.server.total() - here + x.other.total() - there
		if want == nil && n != 0 || want != nil && (n != 1 || server.saw(want) != saws+1) {
			t.Fatalf("%s: the servers got %d Calls, and not this one", what, n)
		}
		saw[result]++
		if want == nil || h.Flavor == oncrpc.FlavorGSS {
			continue
		}
		// The client's XID is the only octets of want that the server does not see.
		key := fmt.Sprint(who, server == x.other, binary.BigEndian.Uint32(want), string(want[4:]))
		if was, ok := xids[key]; ok {
			saw[again]++
			if got := server.xid(want); got != was {
				t.Fatalf("%s: it has the XID %#x, and had %#x", what, got, was)
			}
		}
		xids[key] = server.xid(want)
	}
	t.Logf("denied, mapped, elsewhere, passed, again: %v", saw)
	for i, n := range saw {
		if n < steps/50 {
			t.Errorf("%d Calls of sort %d: too few", n, i)
		}
	}
}
