package proxy_test

import (
	"bytes"
	"encoding/binary"
	"math"
	"net/netip"
	"slices"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rules"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/internal/testkit/proxytest"
	"github.com/rdmabridge/rdmabridge/proxy/authorise"
	"github.com/rdmabridge/rdmabridge/proxy/settings"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric/fabrictest"
)

// squashed is whom a server sees for a user: mode is root or all, to 99 and 98.
func squashed(mode rules.Squash, ids []uint32) []uint32 {
	to := slices.Clone(ids)
	for i := range to {
		if mode == rules.SquashAll || mode == rules.SquashRoot && to[i] == 0 {
			to[i] = 98
			if i == 0 {
				to[i] = 99
			}
		}
	}
	return to
}

// TestSquash: the server sees the users that the listener maps to, and every other octet as the client sent it,
// for TCP and RDMA clients. The XID follows the user that the server sees.
func TestSquash(t *testing.T) {
	t.Parallel()
	modes := []rules.Squash{rules.SquashOff, rules.SquashRoot, rules.SquashAll}
	for _, upstream := range []string{"tcp", "rdma"} {
		x := newPoliced(t, upstream, nil)
		xid := uint32(0)
		for i, mode := range append(modes, modes...) {
			for k := range x.ls { // once as the listener has it, once against it by a rule
				x.ls[k].Squash, x.ls[k].Rules = authorise.Squash{Mode: mode, UID: 99, GID: 98}, nil
				if i >= len(modes) {
					x.ls[k].Squash.Mode = modes[(i+1)%len(modes)]
					x.ls[k].Rules = []rules.Rule{{Name: "a", Targets: []rules.Target{{Programs: []uint32{100003, 4711, proxytest.EchoProgram}}}, Action: rules.Allow, Squash: mode}}
				}
			}
			if err := x.p.Reconfigure(proxytest.Listeners(x.ls...), proxytest.Upstreams(x.us...)); err != nil {
				t.Fatal(err)
			}
			for _, listener := range []string{"tcp", "rdma"} {
				client := x.dial(listener)
				before, mapped := metric(x.Harness, `listener_squashed_calls_total{listener="`+listener+`"}`), 0
				for _, ids := range [][]uint32{{0, 0}, {0, 5, 0, 6}, {1000, 0}, {1000, 1000, 1001, 1002}, {1000, 7, 1, 0, 2}, {99, 98}, append([]uint32{0, 0}, make([]uint32, 16)...)} {
					for _, of := range []func(uint32) []byte{
						proxytest.GetattrCall,
						func(xid uint32) []byte { return proxytest.WriteCall(xid, 0, 70000) },
						func(xid uint32) []byte {
							return proxytest.CompoundCall(xid, 1, proxytest.Sequence([16]byte{1}, xid, 0), putroot)
						},
					} {
						xid++
						m := withUser(of(xid), ids[0], ids[1], ids[2:]...)
						to := squashed(mode, ids)
						want := withUser(of(xid), to[0], to[1], to[2:]...)
						got, err := client.Call(m)
						if err != nil || len(got) < 24 || proxytest.XID(got) != xid || len(m) != len(want) {
							t.Fatalf("%v: %x", err, got)
						}
						if x.server.saw(want) == 0 {
							t.Errorf("mode %d over %s to %s: user %v: the server did not see %v", mode, listener, upstream, ids, to)
						}
						if !slices.Equal(ids, to) {
							mapped++
						}
					}
				}
				x.Eventually("the Calls are counted", func() bool {
					return metric(x.Harness, `listener_squashed_calls_total{listener="`+listener+`"}`) == before+mapped
				})
				xid++
				gss := proxytest.GSSCall(proxytest.GetattrCall(xid), xid, oncrpc.GSSServiceNone)
				if r, err := client.Call(gss); err != nil || !bytes.Equal(r, proxytest.Expected(gss)) || x.server.saw(gss) == 0 {
					t.Errorf("a Call under Kerberos: %v, %x", err, r)
				}
				getattr := proxytest.GetattrCall(xid)
				none := slices.Concat(getattr[:24], make([]byte, 16), getattr[len(proxytest.CallHeader(nil, 1, 1, 1, 1)):])
				if r, err := client.Call(none); err != nil || !bytes.Equal(r, proxytest.Expected(none)) {
					t.Errorf("AUTH_NONE: %v, %x", err, r)
				}
				for name, bad := range map[string]struct {
					flavor, length, stat uint32
				}{
					"AUTH_SHORT":                {oncrpc.FlavorShort, 0, oncrpc.AuthRejectedCredential},
					"AUTH_DH":                   {oncrpc.FlavorDH, 0, oncrpc.AuthRejectedCredential},
					"a flavor of the future":    {300000, 0, oncrpc.AuthRejectedCredential},
					"a malformed credential":    {oncrpc.FlavorSys, 4, oncrpc.AuthBadCredential},
					"more groups than there is": {oncrpc.FlavorSys, 8, oncrpc.AuthBadCredential},
				} {
					xid++
					m := proxytest.GetattrCall(xid)
					binary.BigEndian.PutUint32(m[24:], bad.flavor)
					binary.BigEndian.PutUint32(m[28:], binary.BigEndian.Uint32(m[28:])-bad.length)
					if bad.length > 0 {
						m = slices.Delete(m, 32+int(binary.BigEndian.Uint32(m[28:])), 32+int(binary.BigEndian.Uint32(m[28:])+bad.length))
					}
					if mode == rules.SquashOff {
						continue
					}
					if r, err := client.Call(m); err != nil || !bytes.Equal(r, denied(xid, bad.stat)) {
						t.Errorf("%s: %v, %x", name, err, r)
					}
				}
			}
		}
		// What the server sees as one Call has one XID: with all users mapped, those of two users.
		client := x.dial("tcp")
		seen := func(uid uint32) uint32 {
			m := withUser(proxytest.GetattrCall(0x5eed), uid, uid)
			if _, err := client.Call(m); err != nil {
				t.Fatal(err)
			}
			to := squashed(rules.SquashAll, []uint32{uid, uid})
			return x.server.xid(withUser(proxytest.GetattrCall(1), to[0], to[1]))
		}
		if a, b := seen(0), seen(5); a != b || a == 0x5eed {
			t.Errorf("XIDs %x and %x", a, b)
		}
	}
}

// TestSquashRepeats: a Call of a mapped user that is repeated on another connection while it is in flight reaches the
// server once, and both get its Reply.
func TestSquashRepeats(t *testing.T) {
	t.Parallel()
	h := proxytest.NewHarness(t, budget)
	gate := new(proxytest.Gate)
	r := newRecorder()
	server := h.TCPServer(proxytest.Behaviour{Intercept: r.intercept, Gate: gate})
	front := fabrictest.NewLoopback()
	p := h.Proxy([]settings.ListenerOptions{
		{Name: "tcp", Address: "0.0.0.0:0", Upstream: "tcp", Squash: authorise.Squash{Mode: rules.SquashRoot, UID: 99, GID: 98}},
		{Name: "rdma", Address: "front", RDMA: true, Provider: front, Upstream: "tcp", Squash: authorise.Squash{Mode: rules.SquashRoot, UID: 99, GID: 98}},
	}, []settings.UpstreamOptions{{Name: "tcp", Endpoints: []string{server.Addr()}}})
	port := h.KeptPort()
	gate.Shut()
	m := withUser(proxytest.MkdirCall(7, "d"), 0, 0)
	want := withUser(proxytest.MkdirCall(7, "d"), 99, 98)
	var answers []<-chan []byte
	for range 2 {
		ch, err := port.Client(p.Addr("tcp")).Go(bytes.Clone(m))
		if err != nil {
			t.Fatal(err)
		}
		answers = append(answers, ch)
		h.Eventually("the server has the Call", func() bool { return r.saw(want) == 1 })
	}
	h.Eventually("the second is held", func() bool { return metric(h, `listener_calls_total{listener="tcp",result="absorbed"}`) == 1 })
	gate.Open()
	for _, ch := range answers {
		if got := <-ch; !bytes.Equal(got, proxytest.Expected(want)) {
			t.Errorf("Reply %x", got)
		}
	}
	if n := r.saw(want); n != 1 {
		t.Errorf("the server got the Call %d times", n)
	}
}

// TestPolicyAllocations: neither rules nor squash allocate for a Call, over a connection that has made Calls before.
func TestPolicyAllocations(t *testing.T) {
	if testkit.RaceEnabled {
		t.Skip("the race detector allocates")
	}
	all := []rules.Rule{
		{Name: "elsewhere", Clients: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}, Action: rules.Deny},
		{Name: "group", GIDs: []rules.Range{{Low: 50, High: 59}}, Action: rules.Deny},
		{Name: "writers", Class: rules.Changing, UIDs: []rules.Range{{Low: 7, High: 7}}, Action: rules.Deny, Answer: rules.AnswerReadOnly},
	}
	one := withUser(proxytest.GetattrCall(1), 1000, 1000, 1001)
	perCall := func(enough float64, policy func(*settings.ListenerOptions), calls ...[]byte) float64 {
		client := newPoliced(t, "tcp", policy).dial("tcp")
		call := func() {
			for _, m := range calls {
				if _, err := client.Call(m); err != nil {
					t.Fatal(err)
				}
			}
		}
		call()
		const n = 200
		least := math.Inf(1) // of at least ten rounds, because other goroutines allocate now and then, and more on a busy machine
		for round := 0; round < 10 || least > enough && round < 100; round++ {
			least = min(least, testing.AllocsPerRun(1, func() { // one run: the average of several is rounded down
				for range n / len(calls) {
					call()
				}
			})/n)
		}
		return least
	}
	ruled := func(o *settings.ListenerOptions) { o.Rules = all }
	for what, with := range map[string]func(enough float64) float64{
		"rules": func(enough float64) float64 { return perCall(enough, ruled, one) },
		"rules, and a Call of another user each time": func(enough float64) float64 {
			return perCall(enough, ruled, one, withUser(proxytest.GetattrCall(2), 1001, 1000, 1001))
		},
		"rules and squash": func(enough float64) float64 {
			return perCall(enough, func(o *settings.ListenerOptions) {
				o.Rules, o.Squash = all, authorise.Squash{Mode: rules.SquashAll, UID: 99, GID: 98}
			}, one)
		},
	} {
		var n, without float64
		for range 5 { // what others allocate may have become more since the count without a policy
			without = perCall(math.Inf(1), nil, one)
			if n = with(without + 0.5); n <= without+0.5 {
				break
			}
		}
		if n > without+0.5 {
			t.Errorf("%s: %v allocations for a Call, %v without a policy, in client, bridge and server together", what, n, without)
		}
	}
}
