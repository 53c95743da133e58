package rules

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/tlsconf"
)

// A scene is a loop with a few connections, whose rules are replaced now and then, and the model of it.
type scene struct {
	t     *testing.T
	r     *rand.Rand
	rules []Rule
	j     *Judge
	conns []sceneConn
	calls []modelCall // that connections have made; the client is that of the connection
	heads []*oncrpc.Call

	again, decided int // Calls like an earlier one; Calls that a rule decided about
}

type sceneConn struct {
	client Client
	names  []string
	bound  *Bound // as in a front: nil until the next Call, and of old rules until then
}

func newScene(t *testing.T, r *rand.Rand) *scene {
	x := &scene{t: t, r: r, conns: make([]sceneConn, 6)}
	for i := range x.conns {
		x.connect(&x.conns[i])
	}
	x.reload()
	return x
}

func (x *scene) connect(c *sceneConn) {
	call, _ := randomModelCall(x.r)
	*c = sceneConn{client: call.client, names: call.names}
	if x.r.IntN(2) == 0 { // without TLS yet
		c.client.Identity, c.names = nil, nil
	}
}

func (x *scene) reload() {
	x.rules = nil
	for n := range x.r.IntN(24) {
		rule := randomRule(x.r)
		rule.Name = fmt.Sprint("rule", n)
		x.rules = append(x.rules, rule)
	}
	if x.r.IntN(8) == 0 { // more than a decision remembers
		for i := range x.rules {
			x.rules[i].DryRun = true
		}
	}
	s, err := Compile(x.rules)
	if err != nil {
		x.t.Fatal(err)
	}
	x.j = NewJudge(s)
}

// step has one connection make a Call, after something may have changed.
func (x *scene) step() {
	c := &x.conns[x.r.IntN(len(x.conns))]
	switch x.r.IntN(40) {
	case 0:
		x.reload()
	case 1:
		x.connect(c)
	case 2: // TLS begins: the connection forgets what it was bound to, as the proxy does
		c.names = []string{"a.example.com", "b.other.example.com"}[x.r.IntN(2):]
		c.client.Identity, c.bound = &tlsconf.Identity{DNS: c.names}, nil
	}
	if c.bound == nil || c.bound.Set() != x.j.set {
		c.bound = x.j.Bind(&c.client)
	}
	i := len(x.calls)
	if i > 0 && x.r.IntN(4) > 0 {
		i = max(0, i-1-x.r.IntN(12))
		x.again++
	} else {
		call, h := randomModelCall(x.r)
		if call.user != nil && x.r.IntN(3) == 0 { // one of many users
			call.user[0] = uint32(x.r.IntN(4000))
			h = callOf(call.program, call.version, call.procedure, oncrpc.FlavorSys, 0, false, call.user...)
		}
		x.calls, x.heads = append(x.calls, call), append(x.heads, h)
	}
	call, h := x.calls[i], x.heads[i]
	call.client, call.names = c.client, c.names
	want := model(x.rules, &call)
	if got := judge(x.j, c.bound, h, call.facts()); !slices.Equal(got, want) {
		x.t.Fatalf("Call %d %+v: rules %v match, want %v, of %+v", len(x.calls), call, got, want, x.rules)
	}
	if len(want) > 0 {
		x.decided++
	}
}

// TestScene: a Judge decides as the model does, also about Calls like earlier ones, of many connections, through
// reloads, and when TLS begins on a connection.
func TestScene(t *testing.T) {
	again, decided := 0, 0
	for i := range uint64(60) {
		x := newScene(t, rand.New(rand.NewPCG(i, 6)))
		for range 1500 {
			x.step()
		}
		again, decided = again+x.again, decided+x.decided
	}
	if again < 50000 || decided < 30000 {
		t.Errorf("%d Calls were like an earlier one, and rules decided about %d", again, decided)
	}
}

// octets is a source of random numbers that begins with data.
type octets struct {
	data []byte
	then rand.Source
}

func (o *octets) Uint64() (v uint64) {
	if len(o.data) == 0 {
		return o.then.Uint64()
	}
	// IntN looks at the highest bits.
	v, o.data = uint64(o.data[0])<<56, o.data[1:]
	return v
}

// FuzzJudge does what TestScene does with scenes that a fuzzer chooses.
func FuzzJudge(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{1, 2, 3, 4, 5, 6, 7, 8, 200, 100, 50, 25, 12, 6, 3})
	f.Fuzz(func(t *testing.T, data []byte) {
		x := newScene(t, rand.New(&octets{data: data, then: rand.NewPCG(uint64(len(data)), 7)}))
		for range 40 + len(data)/4 {
			x.step()
		}
	})
}

// TestManyUsers: a Judge that has seen more classes of users than it remembers still decides by each user.
func TestManyUsers(t *testing.T) {
	var rules []Rule
	for i := range uint32(maxCases) {
		rules = append(rules, Rule{UIDs: []Range{{i, i}}, Action: Deny})
	}
	s, err := Compile(rules)
	if err != nil {
		t.Fatal(err)
	}
	j := NewJudge(s)
	b := j.Bind(&Client{Address: addresses[0]})
	for range 3 {
		for uid := range uint32(maxCases + 20) {
			want := int(uid)
			if uid >= maxCases {
				want = -1
			}
			for range 2 {
				if r, _, _ := j.Decide(b, callOf(100003, 3, 1, oncrpc.FlavorSys, 0, false, uid, 1), Facts{}); r != want {
					t.Fatalf("rule %d decides about user %d", r, uid)
				}
			}
		}
	}
	if n := len(j.classes); n > judgedClasses {
		t.Errorf("%d classes of users are remembered", n)
	}
}

// TestManyBounds: connections that the same rules can match share a Bound, and the Bounds that a Judge keeps are
// limited in number.
func TestManyBounds(t *testing.T) {
	var rules []Rule
	for i := range 200 {
		client := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), 32)
		rules = append(rules, Rule{Clients: []netip.Prefix{client}, UIDs: []Range{{1, 1}}})
	}
	s, err := Compile(rules)
	if err != nil {
		t.Fatal(err)
	}
	j := NewJudge(s)
	first := Client{Address: rules[0].Clients[0].Addr()}
	if one, other := j.Bind(&first), j.Bind(&first); one != other {
		t.Error("two connections of one client do not share a Bound")
	}
	for i := range rules {
		c := Client{Address: rules[i].Clients[0].Addr()}
		b := j.Bind(&c)
		if r, _, _ := j.Decide(b, callOf(1, 1, 1, oncrpc.FlavorSys, 0, false, 1, 1), Facts{}); r != i {
			t.Fatalf("rule %d decides about client %d", r, i)
		}
	}
	if n := len(j.bounds); n > judgedBounds {
		t.Errorf("%d Bounds are kept", n)
	}
}

// TestMalformed: nothing is decided about a credential that cannot be read if a rule asks for users.
func TestMalformed(t *testing.T) {
	h := callOf(100003, 3, 1, oncrpc.FlavorSys, 0, false, 1, 1)
	h.CredentialLen -= 4
	for _, tt := range []struct {
		rule      Rule
		malformed bool
	}{{Rule{UIDs: []Range{{1, 1}}}, true}, {Rule{GIDs: []Range{{1, 1}}}, true}, {Rule{Class: Changing}, false}} {
		s, err := Compile([]Rule{tt.rule})
		if err != nil {
			t.Fatal(err)
		}
		j := NewJudge(s)
		if _, _, malformed := j.Decide(j.Bind(&Client{Address: addresses[0]}), h, Facts{Changes: true}); malformed != tt.malformed {
			t.Errorf("%+v: malformed is %v", tt.rule, malformed)
		}
	}
}
