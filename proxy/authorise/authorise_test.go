package authorise

import (
	"bytes"
	"net/netip"
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb/nfs"
	"github.com/rdmabridge/rdmabridge/internal/rules"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/metrics"
)

// A bench is a policy in force on one loop, and the cache of one connection.
type bench struct {
	*testing.T
	all, loop *metrics.Registry
	policy    *Policy
	cache     Cache
	now       int64
}

var benchClient = rules.Client{Address: netip.MustParseAddr("192.0.2.1")}

func newBench(t *testing.T, s Squash, all ...rules.Rule) *bench {
	t.Helper()
	x := &bench{T: t, all: metrics.New()}
	x.loop = x.all.Local(func() {})
	x.policy = x.newPolicy(s, all...)
	x.cache.Bind(x.policy, 0, &benchClient)
	return x
}

// newPolicy makes a policy that is in force.
func (x *bench) newPolicy(s Squash, all ...rules.Rule) *Policy {
	x.Helper()
	p, err := New(all, s, nil)
	if err != nil {
		x.Fatal(err)
	}
	p.Describe("nfs", x.all, []*metrics.Registry{x.loop})
	return p
}

// call returns a Call of the user uid with this procedure of NFSv3.
func call(uid, procedure uint32) *oncrpc.Call {
	m := testkit.Words(7, oncrpc.TypeCall, oncrpc.RPCVersion, oncrpc.ProgramNFS, 3, procedure, oncrpc.FlavorSys)
	m = testkit.AppendOpaque(m, testkit.Words(1, 0, uid, uid, 0))
	var h oncrpc.Call
	if err := oncrpc.ParseCall(testkit.AppendWords(m, 0, 0), &h); err != nil {
		panic(err)
	}
	return &h
}

// passes reports whether a Call like h of the credential user has passed.
func (x *bench) passes(user uint64, h *oncrpc.Call, changes bool) bool {
	x.now++
	return x.cache.Passes(x.policy, user, h, changes, x.now)
}

// decide decides about h, of the credential user.
func (x *bench) decide(user uint64, h *oncrpc.Call, changes bool) Decision {
	x.now++
	return x.cache.Decide(user, h, changes, x.now)
}

// wantCalls fails unless the rules have matched so many Calls.
func (x *bench) wantCalls(want ...uint64) {
	x.Helper()
	x.loop.Publish()
	for i, r := range x.policy.Status(nil, time.Now()) {
		if r.Calls != want[i] {
			x.Errorf("rule %s has matched %d Calls, want %d", r.Name, r.Calls, want[i])
		}
	}
}

// uids is the condition of one user.
func uids(uid uint32) []rules.Range { return []rules.Range{{Low: uid, High: uid}} }

// TestCache: a Call passes like another one of its kind that went on as it is, and no other Call does.
func TestCache(t *testing.T) {
	x := newBench(t, Squash{},
		rules.Rule{Name: "dry", UIDs: uids(3), Action: rules.Deny, DryRun: true},
		rules.Rule{Name: "deny", UIDs: uids(2), Action: rules.Deny},
		rules.Rule{Name: "route", UIDs: uids(4), Action: rules.Route, Upstream: "other"},
		rules.Rule{Name: "allow", UIDs: uids(1)},
	)
	h := call(1, 6)
	if x.passes(1, h, false) {
		t.Error("the first Call passes like another one")
	}
	if d := x.decide(1, h, false); d.Denied || d.Routed || d.Index != 3 || d.Rule.Name != "allow" {
		t.Errorf("the decision is %+v", d)
	}
	if !x.passes(1, h, false) {
		t.Error("a Call like the one before does not pass")
	}
	version := *h
	version.Version = 2
	for what, passes := range map[string]bool{
		"another credential":           x.passes(2, h, false),
		"an unknown credential":        x.passes(0, h, false),
		"a change":                     x.passes(1, h, true),
		"another procedure":            x.passes(1, call(1, 6+passedKinds), false),
		"another version":              x.passes(1, &version, false),
		"another policy, not in force": x.cache.Passes(new(Policy), 1, h, false, 0),
	} {
		if passes {
			t.Errorf("%s: the Call passes like another one", what)
		}
	}
	for user, uid := range []uint32{0, 1, 2, 3, 4} {
		h := call(uid, 1)
		d := x.decide(uint64(user), h, false)
		if d.Denied != (uid == 2) || d.Routed != (uid == 4) {
			t.Errorf("user %d: the decision is %+v", uid, d)
		}
		if got, want := x.passes(uint64(user), h, false), uid == 1; got != want { // number 0 is that of no credential
			t.Errorf("user %d: the next Call passes: %v", uid, got)
		}
	}
	x.wantCalls(1, 1, 1, 4)
	h = call(1, 1)
	if x.cache.Bind(x.policy, 0, &benchClient); x.passes(1, h, false) {
		t.Error("a Call passes by the rules for what is known no longer")
	}
	x.decide(1, h, false)
	if x.cache.Forget(); x.passes(1, h, false) || x.cache.Bound(x.policy) {
		t.Error("a Call passes after everything was forgotten")
	}
}

// TestSquashed: a user is mapped as the rule says, or else the policy, and counts.
func TestSquashed(t *testing.T) {
	x := newBench(t, Squash{Mode: rules.SquashRoot, UID: 99, GID: 98}, rules.Rule{Name: "all", UIDs: uids(5), Squash: rules.SquashAll})
	for uid, want := range map[uint32]uint32{0: 99, 1: 1, 5: 99} {
		h := call(uid, 1)
		d := x.decide(uint64(uid)+1, h, false)
		mapped, stat := x.cache.Squash(&d, h)
		u, _ := h.Sys()
		if mapped != (uid != want) || stat != 0 || u.UID() != want {
			t.Errorf("user %d is mapped (%v) to %d with auth_stat %d, want %d", uid, mapped, u.UID(), stat, want)
		}
		if x.passes(uint64(uid)+1, h, false) {
			t.Errorf("user %d: the next Call passes without being mapped", uid)
		}
	}
	h := call(1, 1)
	h.Flavor = oncrpc.FlavorShort
	if _, stat := x.cache.Squash(&Decision{squash: rules.SquashAll}, h); stat != oncrpc.AuthRejectedCredential {
		t.Errorf("a user without numbers is rejected with %d", stat)
	}
	x.loop.Publish()
	if n := x.all.Counter(metrics.ListenerSquashedCalls, "nfs").Value(); n != 2 {
		t.Errorf("%d Calls count as mapped, want 2", n)
	}
}

// TestAlways: a rule without conditions of Calls decides about all of them, and looks at none.
func TestAlways(t *testing.T) {
	x := newBench(t, Squash{}, rules.Rule{Name: "nobody", Action: rules.Deny, Answer: rules.AnswerClose})
	if d := x.decide(1, call(1, 1), false); !d.Denied || !d.Always {
		t.Errorf("the decision is %+v", d)
	}
}

// TestDenial: what the client of a denied Call gets.
func TestDenial(t *testing.T) {
	sys := call(1, 12)
	gss := *sys
	gss.Flavor = oncrpc.FlavorGSS
	tooWeak := oncrpc.AppendAuthError(nil, sys.XID, oncrpc.AuthTooWeak)
	for _, tt := range []struct {
		name    string
		h       *oncrpc.Call
		answer  rules.Answer
		session bool
		cuts    bool
		want    []byte
	}{
		{"auth", sys, rules.AnswerAuth, false, false, tooWeak},
		{"unavailable", sys, rules.AnswerUnavailable, false, false, oncrpc.AppendAccepted(nil, sys.XID, oncrpc.ProgramUnavailable)},
		{"a verifier that only the server has", &gss, rules.AnswerUnavailable, false, true, tooWeak},
		{"read-only, signed", &gss, rules.AnswerReadOnly, false, true, tooWeak},
		{"read-only of a session", sys, rules.AnswerReadOnly, true, true, oncrpc.AppendAccepted(nil, sys.XID, oncrpc.GarbageArguments)},
		{"close", sys, rules.AnswerClose, true, true, nil},
	} {
		r := &rules.Rule{Action: rules.Deny, Answer: tt.answer}
		if got := AppendDenial(nil, tt.h, r, tt.session); !bytes.Equal(got, tt.want) || (got == nil) != (tt.want == nil) {
			t.Errorf("%s: %x, want %x", tt.name, got, tt.want)
		}
		if got := Cuts(tt.h, tt.session); got != tt.cuts {
			t.Errorf("%s: cut: %v", tt.name, got)
		}
	}
	r := &rules.Rule{Action: rules.Deny, Answer: rules.AnswerReadOnly}
	if b := AppendDenial(nil, sys, r, false); len(b) <= len(tooWeak) || Cuts(sys, false) {
		t.Errorf("read-only: %x, which is no Reply of NFSv3", b)
	}
}

// TestNoPolicy: without rules and with a Squash that is off there is no policy, and its methods may be called.
func TestNoPolicy(t *testing.T) {
	p, err := New(nil, Squash{UID: 1}, nil)
	if p != nil || err != nil {
		t.Fatalf("the policy is %v, %v", p, err)
	}
	p.Describe("nfs", nil, nil)
	if p.Rules() != nil || p.Status([]Report{p.Report(0, 0)}, time.Now()) != nil {
		t.Error("no policy has rules")
	}
}

// TestReplaced: the series of rules end that the next policy does not have, and the time of a match is told by the loops
// that have the same policy.
func TestReplaced(t *testing.T) {
	x := newBench(t, Squash{}, rules.Rule{Name: "a"}, rules.Rule{Name: "b", UIDs: uids(1)})
	x.now = int64(time.Hour)
	x.decide(1, call(1, 1), false)
	wall := time.Now()
	reports := []Report{x.policy.Report(0, x.now+int64(time.Minute)), {}}
	if s := x.policy.Status(reports, wall); s[0].Latest == nil || !s[0].Latest.Equal(wall.Add(-time.Minute)) || s[1].Latest != nil {
		t.Errorf("the status is %+v", s)
	}
	next := x.newPolicy(Squash{}, rules.Rule{Name: "b", UIDs: uids(1)})
	next.ForgetSeries(x.all, "nfs", x.policy)
	next.ForgetSeries(x.all, "nfs", nil)
	if s := next.Status(reports, wall); s[0].Latest != nil {
		t.Error("a rule has matched by a report about another policy")
	}
	all, err := x.all.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, f := range all {
		if f.GetName() != "rdmabridge_listener_rule_calls_total" {
			continue
		}
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if l.GetName() == "rule" {
					names = append(names, l.GetValue())
				}
			}
		}
	}
	if len(names) != 1 || names[0] != "b" {
		t.Errorf("the rules %q have series, want b", names)
	}
}

// TestExports: rules with exports are asked about each Call anew, because its header does not say which export it is about; and
// a Call that was cut is looked at again.
func TestExports(t *testing.T) {
	x := newBench(t, Squash{}, rules.Rule{Name: "archive", Class: rules.Changing, Action: rules.Deny, Exports: 1})
	known := nfs.NewExports([]string{"/archive"})
	p, err := New(x.policy.Rules(), Squash{}, known)
	if err != nil {
		t.Fatal(err)
	}
	p.Describe("nfs", x.all, []*metrics.Registry{x.loop})
	x.policy = p
	x.cache.Bind(p, 0, &benchClient)
	handle := func(fsid byte) []byte { return []byte{1, 0, 1, 0, fsid, 0, 0, 0} }
	known.Know(map[string][][]byte{"/archive": {handle(1)}})
	setattr := func(fsid byte) *oncrpc.Call {
		h := call(1, 2)
		m := testkit.AppendOpaque(h.Message, append(handle(fsid), 5, 5, 5, 5))
		var with oncrpc.Call
		if err := oncrpc.ParseCall(m, &with); err != nil {
			t.Fatal(err)
		}
		return &with
	}
	for range 3 {
		for fsid, denied := range map[byte]bool{1: true, 2: false} {
			h := setattr(fsid)
			if x.passes(1, h, true) {
				t.Fatal("the Call passes without a look at its handle")
			}
			if d := x.decide(1, h, true); d.Denied != denied {
				t.Errorf("a change in export %d: %+v", fsid, d)
			}
			if d := x.cache.DecideAgain(h, true); d.Denied != denied {
				t.Errorf("a change in export %d, again: %+v", fsid, d)
			}
			if d := x.decide(1, h, false); d.Denied {
				t.Errorf("a Call that changes nothing in export %d: %+v", fsid, d)
			}
		}
	}
	x.wantCalls(3)
}

// TestLimits: the first rule with action limit that matches a Call limits it, whatever becomes of it behind that rule. It is
// asked about each such Call, and counts them.
func TestLimits(t *testing.T) {
	x := newBench(t, Squash{},
		rules.Rule{Name: "dry", Action: rules.Limit, DryRun: true},
		rules.Rule{Name: "two", UIDs: uids(2), Action: rules.Limit},
		rules.Rule{Name: "some", UIDs: []rules.Range{{Low: 2, High: 4}}, Action: rules.Limit},
		rules.Rule{Name: "nobody", UIDs: uids(4), Action: rules.Deny},
		rules.Rule{Name: "late", UIDs: []rules.Range{{Low: 1, High: 4}}, Action: rules.Limit},
		rules.Rule{Name: "rest", Action: rules.Allow},
		rules.Rule{Name: "never", Action: rules.Limit},
	)
	for range 3 {
		for uid, want := range []int{1: 5, 2: 2, 3: 3, 4: 3, 5: 0} {
			if uid == 0 {
				continue
			}
			h := call(uint32(uid), 1)
			if d := x.decide(uint64(uid), h, false); d.Limits != want || d.Denied != (uid == 4) {
				t.Errorf("a Call of user %d: %+v, want the limit %d", uid, d, want)
			}
			if x.passes(uint64(uid), h, false) {
				t.Fatalf("the next Call of user %d passes, and no rule is asked", uid)
			}
		}
	}
	x.wantCalls(15, 3, 9, 3, 9, 12, 0)
}
