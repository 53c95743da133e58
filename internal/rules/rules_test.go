package rules

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/xdr"
	"github.com/rdmabridge/rdmabridge/internal/tlsconf"
)

// callOf makes the header of a Call. user is the body of an AUTH_SYS credential, uid first.
func callOf(program, version, procedure, flavor, service uint32, control bool, user ...uint32) *oncrpc.Call {
	var b, body []byte
	switch {
	case flavor == oncrpc.FlavorSys && user != nil:
		body = xdr.AppendUint32(xdr.AppendUint32(body, 0), 0)
		body = xdr.AppendUint32(xdr.AppendUint32(body, user[0]), user[1])
		body = xdr.AppendUint32(body, uint32(len(user)-2))
		for _, g := range user[2:] {
			body = xdr.AppendUint32(body, g)
		}
	case flavor == oncrpc.FlavorGSS:
		procedure := uint32(oncrpc.GSSData)
		if control {
			procedure = oncrpc.GSSInit
		}
		for _, w := range []uint32{1, procedure, 1, service, 0} {
			body = xdr.AppendUint32(body, w)
		}
	}
	for _, w := range []uint32{1, 0, 2, program, version, procedure, flavor} {
		b = xdr.AppendUint32(b, w)
	}
	b = append(xdr.AppendOpaque(b, body), make([]byte, 8)...)
	c := new(oncrpc.Call)
	if err := oncrpc.ParseCall(b, c); err != nil {
		panic(err)
	}
	return c
}

// A modelCall is a Call and its connection as the model sees them.
type modelCall struct {
	client                      Client
	program, version, procedure uint32
	flavor                      string // of the words of a configuration; "context" and "other" besides
	user                        []uint32
	changes                     bool
	touched                     Touched
	names                       []string // in the client's certificate
}

func (c *modelCall) facts() Facts { return Facts{c.changes, c.touched} }

// modelMatches is what docs/rules.md says of a rule, written down as plainly as possible.
func modelMatches(r *Rule, c *modelCall) bool {
	network := func(all []netip.Prefix, a netip.Addr) bool {
		for _, p := range all {
			if a.IsValid() && p.Contains(a.Unmap()) {
				return true
			}
		}
		return len(all) == 0
	}
	if !network(r.Clients, c.client.Address) || !network(r.Proxies, c.client.Proxy) {
		return false
	}
	if len(r.Identities) > 0 {
		named := false
		for _, p := range r.Identities {
			for _, n := range c.names {
				_, parent, _ := strings.Cut(n, ".")
				named = named || p.String() == n || p.String() == "*."+parent
			}
		}
		if !named {
			return false
		}
	}
	low := c.client.Port >= 1 && c.client.Port <= 1023
	if r.Privileged == PrivilegedPort && !low || r.Privileged == UnprivilegedPort && low {
		return false
	}
	if len(r.Flavors) > 0 {
		var words []string
		for _, f := range r.Flavors {
			words = append(words, []string{"none", "sys", "krb5", "krb5i", "krb5p"}[f])
		}
		has := slices.Contains(words, c.flavor)
		if c.flavor == "context" {
			a, b, p := slices.Contains(words, "krb5"), slices.Contains(words, "krb5i"), slices.Contains(words, "krb5p")
			has = a && b && p || (a || b || p) && r.Action != Deny
		}
		if !has {
			return false
		}
	}
	inRanges := func(all []Range, v uint32) bool {
		return slices.ContainsFunc(all, func(x Range) bool { return x.Low <= v && v <= x.High })
	}
	if len(r.UIDs) > 0 && (c.user == nil || !inRanges(r.UIDs, c.user[0])) {
		return false
	}
	if len(r.GIDs) > 0 && (c.user == nil || !slices.ContainsFunc(c.user[1:], func(g uint32) bool { return inRanges(r.GIDs, g) })) {
		return false
	}
	if r.Class == Reading && c.changes || r.Class == Changing && !c.changes {
		return false
	}
	if r.Exports != 0 {
		about, other := c.touched.May, false
		if r.Class == Changing {
			about = c.touched.Changes
		}
		one := false
		for i := range 64 {
			in := r.Exports>>i&1 == 1
			one = one || in && about>>i&1 == 1
			other = other || !in && c.touched.May>>i&1 == 1
		}
		may := r.Action == Deny || r.Action == Limit
		if may && !one || !may && (other || c.touched.Unsure) || r.Action == Route && c.touched.May == 0 {
			return false
		}
	}
	has := func(all []uint32, v uint32) bool { return len(all) == 0 || slices.Contains(all, v) }
	for _, t := range r.Targets {
		if has(t.Programs, c.program) && has(t.Versions, c.version) && has(t.Procedures, c.procedure) {
			return true
		}
	}
	return len(r.Targets) == 0
}

// model returns the rules that count for c, the deciding one last.
func model(rules []Rule, c *modelCall) (counted []int) {
	for i := range rules {
		if modelMatches(&rules[i], c) {
			counted = append(counted, i)
			if !rules[i].DryRun && rules[i].Action != Limit {
				break
			}
		}
	}
	return counted
}

// judge does the same with a Judge.
func judge(j *Judge, b *Bound, h *oncrpc.Call, x Facts) (counted []int) {
	if r, ok := b.Always(); ok {
		return []int{r}
	}
	rule, dry, malformed := j.Decide(b, h, x)
	if malformed {
		panic("a credential of the test cannot be read")
	}
	for _, r := range dry {
		counted = append(counted, int(r))
	}
	if rule >= 0 {
		counted = append(counted, rule)
	}
	return counted
}

// randomly returns v with the chance one in n, else nothing.
func randomly[T any](r *rand.Rand, n int, v func() []T) []T {
	if r.IntN(n) > 0 {
		return nil
	}
	return v()
}

func some[T any](r *rand.Rand, all ...T) func() []T {
	return func() []T {
		var v []T
		for range 1 + r.IntN(3) {
			v = append(v, all[r.IntN(len(all))])
		}
		return v
	}
}

var (
	networks = []netip.Prefix{
		netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("10.1.2.3/32"),
		netip.MustParsePrefix("2001:db8::/32"), netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0"),
	}
	addresses = []netip.Addr{
		netip.MustParseAddr("10.1.2.3"), netip.MustParseAddr("10.1.9.9"), netip.MustParseAddr("10.200.0.1"), netip.MustParseAddr("192.0.2.1"),
		netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("2001:db9::1"), netip.MustParseAddr("::ffff:10.1.2.3"),
	}
	idRanges = []Range{{0, 0}, {0, 999}, {1000, 1999}, {1500, 1500}, {65534, 65534}, {1 << 31, 1<<32 - 1}, {1<<32 - 1, 1<<32 - 1}, {0, 1<<32 - 1}}
	ids      = []uint32{0, 1, 999, 1000, 1500, 1999, 2000, 65533, 65534, 1 << 31, 1<<32 - 1}
)

var patterns = func() (all []tlsconf.Pattern) {
	for _, s := range []string{"a.example.com", "*.example.com", "*.other.example.com", "example.com"} {
		p, err := tlsconf.ParsePattern(s)
		if err != nil {
			panic(err)
		}
		all = append(all, p)
	}
	return all
}()

func randomRule(r *rand.Rand) Rule {
	x := Rule{
		Clients: randomly(r, 2, some(r, networks...)), Proxies: randomly(r, 6, some(r, networks...)),
		Flavors: randomly(r, 4, some(r, FlavorNone, FlavorSys, FlavorKrb5, FlavorKrb5i, FlavorKrb5p)),
		UIDs:    randomly(r, 4, some(r, idRanges...)), GIDs: randomly(r, 5, some(r, idRanges...)),
		Targets: randomly(r, 2, func() (all []Target) {
			for range 1 + r.IntN(2) {
				all = append(all, Target{
					randomly(r, 2, some[uint32](r, 100003, 100005, 100021, 7)), randomly(r, 2, some[uint32](r, 2, 3, 4)),
					randomly(r, 2, some[uint32](r, 0, 1, 6, 7)),
				})
			}
			return all
		}),
		Action: Action(r.IntN(4)),
		DryRun: r.IntN(5) == 0,
	}
	x.Identities = randomly(r, 6, some(r, patterns...))
	if r.IntN(4) == 0 {
		x.Exports = uint64(1 + r.IntN(7))
	}
	if r.IntN(5) == 0 {
		x.Privileged = Port(r.IntN(3))
	}
	if r.IntN(3) == 0 {
		x.Class = Class(r.IntN(3))
	}
	return x
}

func randomModelCall(r *rand.Rand) (modelCall, *oncrpc.Call) {
	pick := func(v ...uint32) uint32 { return v[r.IntN(len(v))] }
	c := modelCall{
		client:  Client{Address: addresses[r.IntN(len(addresses))], Port: uint16(pick(0, 1, 700, 1023, 1024, 65535))},
		program: pick(100003, 100003, 100005, 100021, 7, 8), version: pick(2, 3, 4, 5), procedure: pick(0, 1, 6, 7, 8),
		changes: r.IntN(2) == 0,
		touched: Touched{May: uint64(r.IntN(8)), Unsure: r.IntN(4) == 0},
	}
	if r.IntN(2) == 0 {
		c.touched.May = 1 << r.IntN(3)
	}
	if c.changes {
		c.touched.Changes = c.touched.May & uint64(r.IntN(8))
	}
	if r.IntN(3) == 0 {
		c.client.Proxy = addresses[r.IntN(len(addresses))]
	}
	if r.IntN(2) == 0 {
		c.names = []string{"a.example.com", "b.other.example.com"}[r.IntN(2):]
		c.client.Identity = &tlsconf.Identity{DNS: c.names}
	}
	var flavor, service uint32
	control := false
	switch r.IntN(8) {
	case 0:
		c.flavor = "none"
	case 1:
		c.flavor, flavor, service = "krb5", oncrpc.FlavorGSS, oncrpc.GSSServiceNone
	case 2:
		c.flavor, flavor, service = "krb5i", oncrpc.FlavorGSS, oncrpc.GSSServiceIntegrity
	case 3:
		c.flavor, flavor, service = "krb5p", oncrpc.FlavorGSS, oncrpc.GSSServicePrivacy
	case 4:
		c.flavor, flavor, service, control = "context", oncrpc.FlavorGSS, pick(0, 1, 2, 3, 9), true
	case 5:
		c.flavor, flavor = "other", pick(2, 3, 4, 7, 99)
		if r.IntN(3) == 0 {
			flavor, service = oncrpc.FlavorGSS, 77
		}
	default:
		c.flavor, flavor = "sys", oncrpc.FlavorSys
		c.user = []uint32{pick(ids...), pick(ids...)}
		for range r.IntN(4) {
			c.user = append(c.user, pick(ids...))
		}
	}
	return c, callOf(c.program, c.version, c.procedure, flavor, service, control, c.user...)
}

// TestModel: of many random lists of rules and Calls, the same rules match by the compiled Set, by Explain and
// by the model.
func TestModel(t *testing.T) {
	decided, skipped := 0, 0
	for i := range uint64(4000) {
		r := rand.New(rand.NewPCG(i, 5))
		var rules []Rule
		for n := range r.IntN(24) {
			x := randomRule(r)
			x.Name = fmt.Sprint("rule", n)
			rules = append(rules, x)
		}
		if i%100 == 0 { // across the words of a set
			for len(rules) < 110 {
				x := randomRule(r)
				x.UIDs = []Range{{uint32(5000 + len(rules)), uint32(5000 + len(rules))}}
				rules = slices.Insert(rules, r.IntN(1+len(rules)), x)
			}
		}
		s, err := Compile(rules)
		if err != nil {
			t.Fatal(err)
		}
		j := NewJudge(s)
		for range 40 {
			c, h := randomModelCall(r)
			if c.user != nil && i%100 == 0 && r.IntN(2) == 0 {
				c.user[0] = uint32(4999 + r.IntN(112))
				h = callOf(c.program, c.version, c.procedure, oncrpc.FlavorSys, 0, false, c.user...)
			}
			b := j.Bind(&c.client)
			want := model(rules, &c)
			if got := judge(j, b, h, c.facts()); !slices.Equal(got, want) {
				t.Fatalf("seed %d: %+v: rules %v match, want %v, of %+v", i, c, got, want, rules)
			}
			explained := s.ExplainCall(&c.client, h, c.facts())
			var matched []int
			for k := range explained {
				if explained[k].Matches() {
					matched = append(matched, k)
				}
			}
			if !slices.Equal(matched, want) {
				t.Fatalf("seed %d: %+v: by ExplainCall rules %v match, want %v, of %+v", i, c, matched, want, rules)
			}
			// What cannot match any Call of the client is not said to match some.
			for k, v := range s.ExplainClient(&c.client) {
				if v.Fails != "" && slices.Contains(want, k) || k == len(explained)-1 && v.Matches() && len(want) == 0 {
					t.Fatalf("seed %d: %+v: rule %d: %+v, and rules %v match", i, c, k, v, want)
				}
			}
			if len(want) == 0 {
				skipped++
			} else if len(want) > 1 || want[0] > 0 {
				decided++
			}
		}
	}
	if decided < 10000 || skipped < 1000 {
		t.Errorf("later rules decided %d times, and no rule matched %d times", decided, skipped)
	}
}

// TestTooMany: a Set does not have more cases than fit.
func TestTooMany(t *testing.T) {
	rules := make([]Rule, maxCases)
	if _, err := Compile(rules); err != nil {
		t.Error(err)
	}
	rules[3].Targets = make([]Target, 2)
	if _, err := Compile(rules); err == nil {
		t.Errorf("%d cases are compiled", maxCases+1)
	}
}

// hundred are rules that no Call of the benchmark matches but the last.
func hundred() (rules []Rule) {
	for i := range uint32(99) {
		r := Rule{Action: Deny}
		switch i % 4 {
		case 0:
			r.UIDs = []Range{{10 * i, 10*i + 5}}
		case 1:
			r.GIDs = []Range{{10 * i, 10*i + 5}}
		case 2:
			r.Targets = []Target{{Programs: []uint32{100003}, Versions: []uint32{3}, Procedures: []uint32{30 + i}}}
		case 3:
			r.Flavors, r.Class = []Flavor{FlavorKrb5, FlavorKrb5i}, Changing
		}
		rules = append(rules, r)
	}
	return append(rules, Rule{Action: Allow})
}

func TestAllocations(t *testing.T) {
	s, err := Compile(hundred())
	if err != nil {
		t.Fatal(err)
	}
	j := NewJudge(s)
	b := j.Bind(&Client{Address: addresses[0]})
	h := callOf(100003, 3, 6, oncrpc.FlavorSys, 0, false, 5000, 5000, 5001, 5002)
	for name, known := range map[string]bool{"a Call that is remembered": true, "a Call that is not": false} {
		if n := testing.AllocsPerRun(100, func() {
			if !known {
				clear(j.headers[:])
				clear(j.users[:])
				clear(j.decisions[:])
			}
			if r, _, _ := j.Decide(b, h, Facts{}); r != 99 {
				t.Fatal("matches", r)
			}
		}); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

// BenchmarkDecide is what a hundred rules cost a Call that is like another one, and a Call that is not.
func BenchmarkDecide(b *testing.B) {
	s, err := Compile(hundred())
	if err != nil {
		b.Fatal(err)
	}
	j := NewJudge(s)
	bound := j.Bind(&Client{Address: addresses[0]})
	h := callOf(100003, 3, 6, oncrpc.FlavorSys, 0, false, 5000, 5000, 5001, 5002)
	decide := func(b *testing.B, before func()) {
		b.ReportAllocs()
		for b.Loop() {
			before()
			if r, _, _ := j.Decide(bound, h, Facts{}); r != 99 {
				b.Fatal("another rule matches")
			}
		}
	}
	b.Run("known", func(b *testing.B) { decide(b, func() {}) })
	// A header that is new, of a user who is not; and a user who is new, too.
	b.Run("header", func(b *testing.B) {
		decide(b, func() {
			for i := range j.headers {
				j.headers[i].bound = nil
			}
		})
	})
	b.Run("new", func(b *testing.B) {
		decide(b, func() {
			for i := range j.headers {
				j.headers[i].bound = nil
			}
			for i := range j.users {
				j.users[i].n = 0
			}
			for i := range j.decisions {
				j.decisions[i].call.bound = nil
			}
		})
	})
}
