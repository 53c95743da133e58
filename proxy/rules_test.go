package proxy_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rules"
	"github.com/rdmabridge/rdmabridge/internal/status"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/internal/testkit/proxytest"
	"github.com/rdmabridge/rdmabridge/proxy"
	"github.com/rdmabridge/rdmabridge/proxy/observe"
	"github.com/rdmabridge/rdmabridge/proxy/settings"
	"github.com/rdmabridge/rdmabridge/rdmaside"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric/fabrictest"
)

// A recorder is a server that remembers the Calls that it gets, without their XIDs, and answers COMPOUNDs as a
// server does that knows SEQUENCE, PUTROOTFH, SETATTR and ILLEGAL.
type recorder struct {
	mu   sync.Mutex
	seen map[string]int
	xids map[string]uint32 // the XID of the latest Call of each kind
	n    int               // Calls, without those of procedure 0, which may be the bridge's own
}

func newRecorder() *recorder { return &recorder{seen: map[string]int{}, xids: map[string]uint32{}} }

func (r *recorder) intercept(c *oncrpc.Call) ([]byte, bool) {
	r.mu.Lock()
	r.seen[string(c.Message[4:])]++
	r.xids[string(c.Message[4:])] = c.XID
	if c.Procedure != 0 {
		r.n++
	}
	r.mu.Unlock()
	if c.Program != oncrpc.ProgramNFS || c.Version != 4 || c.Procedure != 1 || c.Protection != oncrpc.ProtectNone {
		return nil, false
	}
	m := c.Message[c.Args:]
	word := func() uint32 { w := binary.BigEndian.Uint32(m); m = m[4:]; return w }
	if word() != 0 {
		return nil, false
	}
	word()
	var results []byte
	status := uint32(0)
	done := uint32(0)
	for n := word(); n > 0 && status == 0; n-- {
		done++
		switch number := word(); number {
		case 53:
			results = append(testkit.AppendWords(results, 53, 0), m[:32]...)
			results = append(results, 0, 0, 0, 0)
			m = m[32:]
		case 24:
			results = testkit.AppendWords(results, 24, 0)
		case 34:
			m = m[16+4+4:]
			results = testkit.AppendWords(results, 34, 0, 0)
		case 10044:
			status = 10044
			results = testkit.AppendWords(results, 10044, 10044)
		default:
			return nil, false
		}
	}
	b := oncrpc.AppendAccepted(nil, c.XID, oncrpc.Success)
	b = testkit.AppendWords(b, status, 0, done)
	return append(b, results...), true
}

// saw is how often the server got m, whatever its XID.
func (r *recorder) saw(m []byte) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.seen[string(m[4:])]
}

// xid is the XID of the latest Call m that the server got.
func (r *recorder) xid(m []byte) uint32 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.xids[string(m[4:])]
}

// total is how many Calls the server got, without the bridge's own.
func (r *recorder) total() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.n
}

// A policed is a proxy with a TCP and an RDMA listener, each with the same rules, in front of a TCP and an RDMA
// server.
type policed struct {
	*proxytest.Harness
	p      *proxy.Proxy
	ls     []settings.ListenerOptions
	us     []settings.UpstreamOptions
	server *recorder
	other  *recorder // the TCP server named other

	front *fabrictest.Loopback
	loop  loop.Loop
}

// A policedCall is a Call, and what becomes of it.
type policedCall struct {
	name string
	call []byte
	want []byte // nil: what the server answers
	gets []byte // what the server gets; nil: nothing
}

// try makes the Call of c, and looks at what client and server get.
func (x *policed) try(t *testing.T, client caller, listener string, c *policedCall) {
	t.Helper()
	before := x.server.total()
	got, err := client.Call(c.call)
	want := c.want
	if want == nil {
		want = proxytest.Expected(c.call)
	}
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("%s over %s: %v\n got %x\nwant %x", c.name, listener, err, cut(got), cut(want))
	}
	n := x.server.total() - before
	if c.gets == nil && n != 0 || c.gets != nil && (n != 1 || x.server.saw(c.gets) == 0) {
		t.Errorf("%s over %s: the server got %d Calls, want %x", c.name, listener, n, cut(c.gets))
	}
}

func newPoliced(t *testing.T, upstream string, change func(*settings.ListenerOptions)) *policed {
	t.Helper()
	h := proxytest.NewHarness(t, budget)
	x := &policed{Harness: h, server: newRecorder(), other: newRecorder(), front: fabrictest.NewLoopback()}
	b := proxytest.Behaviour{Intercept: x.server.intercept}
	back := fabrictest.NewLoopback()
	l := fabrictest.NewLoop()
	t.Cleanup(l.Stop)
	x.loop = l
	x.us = []settings.UpstreamOptions{
		{Name: "rdma", RDMA: true, Provider: back, Endpoints: []string{"storage"}},
		{Name: "tcp", Endpoints: []string{h.TCPServer(b).Addr()}},
		{Name: "other", Endpoints: []string{h.TCPServer(proxytest.Behaviour{Intercept: x.other.intercept}).Addr()}},
	}
	h.RDMAServer(back, []loop.Loop{l}, "storage", 32, b)
	x.ls = []settings.ListenerOptions{
		{Name: "tcp", Address: "127.0.0.1:0", Upstream: upstream},
		{Name: "rdma", Address: "front", RDMA: true, Provider: x.front, Upstream: upstream},
	}
	for i := range x.ls {
		if change != nil {
			change(&x.ls[i])
		}
	}
	x.p = h.Proxy(x.ls, x.us)
	return x
}

func (x *policed) dial(listener string) caller {
	if listener == "tcp" {
		return x.Client(x.p.Addr("tcp"))
	}
	c, err := x.DialRDMA(x.front, x.loop, "front", rdmaside.RequesterOptions{IdleReceives: 4})
	if err != nil {
		x.T.Fatal(err)
	}
	x.T.Cleanup(func() { _ = c.Close() })
	return c
}

func (x *policed) matched(listener, rule, verdict string) int {
	return metric(x.Harness, fmt.Sprintf("listener_rule_calls_total{listener=%q,rule=%q,verdict=%q}", listener, rule, verdict))
}

// withUser changes the user of a Call that proxytest has made.
func withUser(m []byte, uid, gid uint32, gids ...uint32) []byte {
	var c oncrpc.Call
	if err := oncrpc.ParseCall(m, &c); err != nil {
		panic(err)
	}
	cred := testkit.AppendOpaque(testkit.Words(0), []byte("proxytest"))
	cred = testkit.AppendWords(cred, uid, gid, uint32(len(gids)))
	cred = testkit.AppendWords(cred, gids...)
	b := testkit.AppendWords(bytes.Clone(m[:24]), oncrpc.FlavorSys, uint32(len(cred)))
	b = append(b, cred...)
	return append(b, m[c.VerifierPos()-8:]...)
}

func denied(xid, stat uint32) []byte { return oncrpc.AppendAuthError(nil, xid, stat) }

func accepted(xid, stat uint32, words ...uint32) []byte {
	return testkit.AppendWords(oncrpc.AppendAccepted(nil, xid, stat), words...)
}

var (
	putroot = testkit.Words(24)
	setattr = append(testkit.Words(34), make([]byte, 24)...)
	mkdir4  = testkit.Words(6, 2, 1, 0x61000000, 0, 0)
)

// sequenceResult is the result of proxytest.Sequence(id, 1, 0), as a recorder has it.
func sequenceResult(sequence []byte) []byte {
	return append(append(testkit.Words(53, 0), sequence[4:]...), 0, 0, 0, 0)
}

// TestReadOnlyRule: a Call that changes something is answered with the error for read-only, over each transport
// at both sides, and everything else passes.
func TestReadOnlyRule(t *testing.T) {
	t.Parallel()
	sequence := proxytest.Sequence([16]byte{1, 2, 3}, 1, 0)
	compound := proxytest.CompoundCall
	rofs4 := func(xid uint32, done []byte, n uint32, last ...uint32) []byte {
		b := append(accepted(xid, 0, 30, 0, n), done...)
		return testkit.AppendWords(b, last...)
	}
	executed := slices.Concat(sequenceResult(sequence), testkit.Words(24, 0))
	for _, upstream := range []string{"tcp", "rdma"} {
		t.Run(upstream, func(t *testing.T) {
			t.Parallel()
			x := newPoliced(t, upstream, func(o *settings.ListenerOptions) {
				o.Rules = []rules.Rule{{Name: "readers", Class: rules.Changing, Action: rules.Deny, Answer: rules.AnswerReadOnly}}
			})
			for _, listener := range []string{"tcp", "rdma"} {
				client := x.dial(listener)
				changes := 0
				for _, tt := range []policedCall{
					{name: "GETATTR", call: proxytest.GetattrCall(1), gets: proxytest.GetattrCall(1)},
					{name: "READ", call: proxytest.ReadCall(2, 7, 70000), gets: proxytest.ReadCall(2, 7, 70000)},
					{name: "WRITE", call: proxytest.WriteCall(3, 0, 70000), want: accepted(3, 0, 30, 0, 0)},
					{name: "MKDIR", call: proxytest.MkdirCall(4, "x"), want: accepted(4, 0, 30, 0, 0)},
					{name: "an unknown program", call: proxytest.EchoCall(5, 10, 10, 0), want: accepted(5, oncrpc.ProgramUnavailable)},
					{name: "an unknown procedure", call: proxytest.CallHeader(nil, 6, oncrpc.ProgramNFS, 3, 99), want: accepted(6, oncrpc.ProcedureUnavailable)},
					{name: "an unknown version", call: proxytest.CallHeader(nil, 7, oncrpc.ProgramNFS, 9, 1), want: accepted(7, oncrpc.ProgramMismatch, 2, 4)},
					{name: "4.0 reading", call: compound(8, 0, putroot), gets: compound(8, 0, putroot), want: append(accepted(8, 0, 0, 0, 1), testkit.Words(24, 0)...)},
					{name: "4.0", call: compound(9, 0, putroot, mkdir4), want: rofs4(9, nil, 1, 24, 30)},
					{name: "4.1", call: compound(10, 1, sequence, putroot, mkdir4, putroot), gets: compound(10, 1, sequence, putroot, testkit.Words(10044)), want: rofs4(10, executed, 3, 6, 30)},
					{name: "4.2 SETATTR", call: compound(11, 2, sequence, putroot, setattr), gets: compound(11, 2, sequence, putroot, testkit.Words(10044)), want: rofs4(11, executed, 3, 34, 30, 0)},
					{name: "4.1 reading", call: compound(12, 1, sequence, putroot), gets: compound(12, 1, sequence, putroot), want: append(accepted(12, 0, 0, 0, 2), executed...)},
					{name: "an unknown operation", call: compound(13, 2, sequence, testkit.Words(76, 1)), gets: compound(13, 2, sequence, testkit.Words(10044)), want: append(accepted(13, 0, 10044, 0, 2), slices.Concat(sequenceResult(sequence), testkit.Words(10044, 10044))...)},
					{name: "octets behind", call: append(compound(14, 1, sequence, putroot), 0, 0, 0, 0), want: accepted(14, oncrpc.GarbageArguments)},
					{name: "WRITE under krb5", call: proxytest.GSSCall(proxytest.WriteCall(15, 0, 100), 1, oncrpc.GSSServiceNone), want: denied(15, oncrpc.AuthTooWeak)},
					{name: "READ under krb5p", call: proxytest.GSSCall(proxytest.ReadCall(16, 0, 100), 2, oncrpc.GSSServicePrivacy), gets: proxytest.GSSCall(proxytest.ReadCall(16, 0, 100), 2, oncrpc.GSSServicePrivacy)},
					{name: "4.1 under krb5p", call: proxytest.GSSCall(compound(17, 1, sequence, putroot), 3, oncrpc.GSSServicePrivacy), want: denied(17, oncrpc.AuthTooWeak)},
					{name: "4.1 under krb5", call: proxytest.GSSCall(compound(18, 1, sequence, putroot, setattr), 4, oncrpc.GSSServiceNone), gets: proxytest.GSSCall(compound(18, 1, sequence, putroot, testkit.Words(10044)), 4, oncrpc.GSSServiceNone), want: rofs4(18, executed, 3, 34, 30, 0)},
				} {
					x.try(t, client, listener, &tt)
					if !bytes.Equal(tt.gets, tt.call) {
						changes++
					}
				}
				x.Eventually("the refused Calls are counted", func() bool { return x.matched(listener, "readers", "deny") == changes })
			}
		})
	}
}

// TestRules: rules are looked at in order, and do what they say, for TCP and RDMA clients.
func TestRules(t *testing.T) {
	t.Parallel()
	any := []rules.Target{{Programs: []uint32{proxytest.EchoProgram}}}
	all := []rules.Rule{
		{Name: "elsewhere", Clients: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}, Action: rules.Deny},
		{Name: "counted", UIDs: []rules.Range{{Low: 0, High: 9}}, Action: rules.Deny, DryRun: true},
		{Name: "nobody", UIDs: []rules.Range{{Low: 65534, High: 65534}}, Action: rules.Deny},
		{Name: "group", GIDs: []rules.Range{{Low: 50, High: 59}}, Targets: any, Action: rules.Deny, Answer: rules.AnswerUnavailable},
		{Name: "closed", UIDs: []rules.Range{{Low: 7, High: 7}}, Action: rules.Deny, Answer: rules.AnswerClose},
		{Name: "moved", GIDs: []rules.Range{{Low: 60, High: 60}}, Action: rules.Route, Upstream: "other"},
		{Name: "kerberos", Flavors: []rules.Flavor{rules.FlavorKrb5i}, Action: rules.Deny, Answer: rules.AnswerUnavailable},
		{Name: "system", Flavors: []rules.Flavor{rules.FlavorSys}, Action: rules.Allow},
		{Name: "rest", Action: rules.Deny},
	}
	x := newPoliced(t, "tcp", func(o *settings.ListenerOptions) { o.Rules = all })
	for _, listener := range []string{"tcp", "rdma"} {
		client := x.dial(listener)
		echo := func(xid uint32) []byte { return proxytest.EchoCall(xid, 10, 100, 0) }
		short := withUser(echo(9), 1, 1)
		binary.BigEndian.PutUint32(short[28:], binary.BigEndian.Uint32(short[28:])-4)
		noneCall := append(bytes.Clone(echo(10)[:24]), slices.Concat(make([]byte, 16), echo(10)[len(proxytest.CallHeader(nil, 1, 1, 1, 1)):])...)
		for _, tt := range []struct {
			name     string
			call     []byte
			want     []byte // nil: what the server answers
			rule     string // that decides
			verdict  string
			elsewher bool // the other server gets it
		}{
			{"any user", withUser(echo(1), 1000, 1000), nil, "system", "allow", false},
			{"counted, then allowed", withUser(echo(2), 3, 3), nil, "counted", "dry_run", false},
			{"nobody", withUser(echo(3), 65534, 50), denied(3, oncrpc.AuthTooWeak), "nobody", "deny", false},
			{"a group of several", withUser(echo(4), 1, 1, 7, 55), accepted(4, oncrpc.ProgramUnavailable), "group", "deny", false},
			{"the group, another program", withUser(proxytest.GetattrCall(5), 1, 1, 7, 55), nil, "system", "allow", false},
			{"another upstream", withUser(echo(6), 1, 60), nil, "moved", "upstream", true},
			{"krb5i", proxytest.GSSCall(proxytest.GetattrCall(7), 1, oncrpc.GSSServiceIntegrity), denied(7, oncrpc.AuthTooWeak), "kerberos", "deny", false},
			{"krb5", proxytest.GSSCall(proxytest.GetattrCall(8), 1, oncrpc.GSSServiceNone), denied(8, oncrpc.AuthTooWeak), "rest", "deny", false},
			{"AUTH_NONE", noneCall, denied(10, oncrpc.AuthTooWeak), "rest", "deny", false},
		} {
			here, there, matched := x.server.total(), x.other.total(), x.matched(listener, tt.rule, tt.verdict)
			got, err := client.Call(tt.call)
			want := tt.want
			if want == nil {
				want = proxytest.Expected(tt.call)
			}
			if err != nil || !bytes.Equal(got, want) {
				t.Errorf("%s over %s: %v\n got %x\nwant %x", tt.name, listener, err, got, want)
			}
			here, there = x.server.total()-here, x.other.total()-there
			if n := here + there; n > 0 != (tt.want == nil) || tt.elsewher != (there > 0) {
				t.Errorf("%s over %s: the servers got %d and %d Calls", tt.name, listener, here, there)
			}
			x.Eventually(tt.name+" is counted", func() bool { return x.matched(listener, tt.rule, tt.verdict) == matched+1 })
		}
		if got, err := client.Call(short); err == nil {
			var r oncrpc.Reply
			if _ = oncrpc.ParseReply(got, &r); !r.Denied || r.AuthStat != oncrpc.AuthBadCredential {
				t.Errorf("a credential that cannot be read: %x", got)
			}
		}
		closing := x.dial(listener)
		if r, err := closing.Call(withUser(echo(11), 7, 7)); err == nil {
			t.Errorf("a client over %s that is to be closed gets %x", listener, r)
		}
		x.Eventually("the Call is counted", func() bool { return x.matched(listener, "closed", "deny") == 1 })
	}
}

// TestRulesReload: new rules hold from the next Call on, connections stay, and the series of old rules end.
func TestRulesReload(t *testing.T) {
	t.Parallel()
	x := newPoliced(t, "tcp", nil)
	clients := []caller{x.dial("tcp"), x.dial("rdma")}
	xid := uint32(0)
	see := func(want func(m []byte) []byte) {
		t.Helper()
		for _, c := range clients {
			xid++
			m := proxytest.MkdirCall(xid, "d")
			if got, err := c.Call(m); err != nil || !bytes.Equal(got, want(m)) {
				t.Errorf("%v: %x, want %x", err, got, want(m))
			}
		}
	}
	set := func(rs ...rules.Rule) {
		t.Helper()
		for i := range x.ls {
			x.ls[i].Rules = rs
		}
		if err := x.p.Reconfigure(proxytest.Listeners(x.ls...), proxytest.Upstreams(x.us...)); err != nil {
			t.Fatal(err)
		}
	}
	deny := rules.Rule{Name: "a", Action: rules.Deny}
	readOnly := rules.Rule{Name: "b", Class: rules.Changing, Action: rules.Deny, Answer: rules.AnswerReadOnly}
	tooWeak := func(m []byte) []byte { return denied(proxytest.XID(m), oncrpc.AuthTooWeak) }
	rofs := func(m []byte) []byte { return accepted(proxytest.XID(m), 0, 30, 0, 0) }
	see(proxytest.Expected)
	set(deny)
	see(tooWeak)
	set(readOnly, deny)
	see(rofs)
	x.Eventually("it is counted", func() bool { return x.matched("tcp", "b", "deny") == 1 })
	set(rules.Rule{Name: "c", Action: rules.Allow}, deny)
	see(proxytest.Expected)
	if n := x.matched("tcp", "b", "deny"); n != 0 {
		t.Errorf("a rule that is gone has the count %d", n)
	}
	readOnly.DryRun = true
	set(readOnly)
	see(proxytest.Expected)
	x.Eventually("it is counted", func() bool { return x.matched("rdma", "b", "dry_run") == 1 })
	bad := readOnly
	bad.Action, bad.Upstream = rules.Route, "nowhere"
	x.ls[0].Rules = []rules.Rule{bad}
	if err := x.p.Reconfigure(proxytest.Listeners(x.ls...), proxytest.Upstreams(x.us...)); err == nil {
		t.Error("a rule names an upstream that there is not")
	}
	see(proxytest.Expected)
	set()
	see(proxytest.Expected)
}

// ruleNames is an Observer that keeps the rules of Calls.
type ruleNames struct {
	mu   sync.Mutex
	seen map[uint32]string // by the client's XID
}

func (o *ruleNames) Wants(*observe.CallRecord) bool { return true }

func (o *ruleNames) Observe(r *observe.CallRecord) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.seen[r.XID] = r.Rule
}

// TestRulesShown: the status has what each rule has matched, and when, with the numbers of the metrics; and an Observer sees
// which rule has denied a Call or has sent it elsewhere.
func TestRulesShown(t *testing.T) {
	t.Parallel()
	x := newPoliced(t, "tcp", func(o *settings.ListenerOptions) {
		o.Rules = []rules.Rule{
			{Name: "counted", Class: rules.Changing, DryRun: true, Action: rules.Deny},
			{Name: "nobody", UIDs: []rules.Range{{Low: 7, High: 7}}, Action: rules.Deny},
			{Name: "moved", UIDs: []rules.Range{{Low: 8, High: 8}}, Action: rules.Route, Upstream: "other"},
			{Name: "unused", UIDs: []rules.Range{{Low: 9, High: 9}}, Action: rules.Deny},
			{Name: "rest", Action: rules.Allow},
		}
	})
	observer := &ruleNames{seen: make(map[uint32]string)}
	x.p.SetObserver(observer)
	began := time.Now().Add(-time.Second)
	for _, listener := range []string{"tcp", "rdma"} {
		client := x.dial(listener)
		for xid, uid := range []uint32{0, 7, 8, 8, 5} {
			m := proxytest.GetattrCall(uint32(100 + xid))
			if xid == 0 {
				m = proxytest.MkdirCall(100, "d")
			}
			if _, err := client.Call(withUser(m, uid, 1)); err != nil {
				t.Fatal(err)
			}
		}
		want := []status.Rule{
			{Name: "counted", Verdict: "dry_run", Effect: "only counted (dry run of: deny: AUTH_TOOWEAK)", Calls: 1},
			{Name: "nobody", Verdict: "deny", Effect: "deny: AUTH_TOOWEAK", Calls: 1},
			{Name: "moved", Verdict: "upstream", Effect: "upstream other", Calls: 2},
			{Name: "unused", Verdict: "deny", Effect: "deny: AUTH_TOOWEAK"},
			{Name: "rest", Verdict: "allow", Effect: "allow", Calls: 2},
		}
		var got []status.Rule
		x.Eventually("the rules are in the status", func() bool {
			d := x.p.Status(status.Query{})
			i := slices.IndexFunc(d.Listeners, func(l status.Listener) bool { return l.Name == listener })
			got = slices.Clone(d.Listeners[i].Rules)
			for k := range got {
				if at := got[k].Latest; at != nil && (at.Before(began) || at.After(time.Now())) || (at != nil) != (got[k].Calls > 0) {
					return false
				}
				got[k].Latest = nil
			}
			return slices.Equal(got, want)
		})
		for _, r := range want {
			if n := x.matched(listener, r.Name, r.Verdict); n != int(r.Calls) {
				t.Errorf("rule %s over %s: the metrics have %d Calls, and the status %d", r.Name, listener, n, r.Calls)
			}
		}
		x.Eventually("the Observer has seen all Calls", func() bool {
			observer.mu.Lock()
			defer observer.mu.Unlock()
			return maps.Equal(observer.seen, map[uint32]string{100: "", 101: "nobody", 102: "moved", 103: "moved", 104: ""})
		})
		observer.mu.Lock()
		clear(observer.seen)
		observer.mu.Unlock()
	}
}
