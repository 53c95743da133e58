package proxy_test

import (
	"bytes"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/status"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/internal/testkit/proxytest"
	"github.com/rdmabridge/rdmabridge/proxy/observe"
	"github.com/rdmabridge/rdmabridge/proxy/settings"
)

// A refusingTap refuses the changes that it sees while on is set.
type refusingTap struct {
	endsTap
	on atomic.Bool
}

func (r *refusingTap) Wants(c *observe.TapCall) uint32 {
	if c.Version == 4 || c.Procedure == 7 || c.Procedure == 9 { // COMPOUND, WRITE, MKDIR
		return 1
	}
	return 0
}

func (r *refusingTap) Message(m *observe.TapMessage) {
	m.Refuse = !m.Reply && !m.Out && r.on.Load()
}

// TestTapRefuses: the client of a Call that a Tap refuses is told to send it again later, and the server gets nothing that
// changes files, over each transport at both sides.
func TestTapRefuses(t *testing.T) {
	t.Parallel()
	sequence := proxytest.Sequence([16]byte{1, 2, 3}, 1, 0)
	executed := slices.Concat(sequenceResult(sequence), testkit.Words(24, 0))
	compound := proxytest.CompoundCall
	later := func(xid uint32, done []byte, n uint32, last ...uint32) []byte {
		return testkit.AppendWords(append(accepted(xid, 0, 10008, 0, n), done...), last...)
	}
	for _, upstream := range []string{"tcp", "rdma"} {
		t.Run(upstream, func(t *testing.T) {
			t.Parallel()
			x := newPoliced(t, upstream, func(*settings.ListenerOptions) {})
			tap := new(refusingTap)
			x.p.SetTap(tap)
			for _, listener := range []string{"tcp", "rdma"} {
				client := x.dial(listener)
				for i, tt := range []policedCall{
					{name: "GETATTR", call: proxytest.GetattrCall(1), gets: proxytest.GetattrCall(1)},
					{name: "WRITE", call: proxytest.WriteCall(2, 0, 70000), want: accepted(2, 0, 10008, 0, 0)},
					{name: "WRITE again", call: proxytest.WriteCall(3, 0, 70000), want: accepted(3, 0, 10008, 0, 0)},
					{name: "MKDIR", call: proxytest.MkdirCall(4, "x"), want: accepted(4, 0, 10008, 0, 0)},
					{name: "4.0", call: compound(9, 0, putroot, mkdir4), want: later(9, nil, 1, 24, 10008)},
					{name: "4.1", call: compound(10, 1, sequence, putroot, mkdir4, putroot), gets: compound(10, 1, sequence, putroot, testkit.Words(10044)), want: later(10, executed, 3, 6, 10008)},
					{name: "4.2 SETATTR", call: compound(11, 2, sequence, putroot, setattr), gets: compound(11, 2, sequence, putroot, testkit.Words(10044)), want: later(11, executed, 3, 34, 10008, 0)},
					{name: "MKDIR under krb5i", call: proxytest.GSSCall(proxytest.MkdirCall(16, "y"), 2, oncrpc.GSSServiceIntegrity), want: denied(16, oncrpc.AuthTooWeak)},
				} {
					tap.on.Store(i > 0)
					x.try(t, client, listener, &tt)
				}
				tap.on.Store(false)
				m := proxytest.MkdirCall(20, "now")
				if got, err := client.Call(m); err != nil || !bytes.Equal(got, proxytest.Expected(m)) {
					t.Errorf("%s: not refused any more: %x %v", listener, got, err)
				}
			}
			x.Eventually("the Calls are over", func() bool { return tap.all(func(*observe.TapOver) bool { return true }) == 16 })
			if n := tap.all(func(o *observe.TapOver) bool { return o.Postponed }); n != 14 {
				t.Errorf("%d Calls are said to be postponed", n)
			}
		})
	}
}

// TestTapRefusesRepeated: a Call in flight is not refused any more. One that repeats it gets its Reply; and if the first one
// ends without any, the other one does not go in its place.
func TestTapRefusesRepeated(t *testing.T) {
	t.Parallel()
	for _, ends := range []bool{false, true} {
		h, tcp, p, release := oneHeldCall(t)
		tap := new(refusingTap)
		p.SetTap(tap)
		inFlight := 1
		if ends { // another Call has the only credit, so the first one waits
			inFlight = 2
			if _, err := h.KeptPort().Client(p.Addr("nfs")).Go(proxytest.GetattrCall(1)); err != nil {
				t.Fatal(err)
			}
		}
		h.Eventually("the credit is used", func() bool { return !ends || tcp.Calls.Load() == 1 })
		m := proxytest.MkdirCall(77, "once")
		port := h.KeptPort()
		a, b := port.Client(p.Addr("nfs")), port.Client(p.Addr("nfs"))
		if _, err := a.Go(m); err != nil {
			t.Fatal(err)
		}
		h.Eventually("the Call is under way", func() bool { return p.Status(status.Query{}).Upstreams[0].InFlight == inFlight })
		tap.on.Store(true)
		second, err := b.Go(m)
		if err != nil {
			t.Fatal(err)
		}
		h.Eventually("it is taken for the one under way", func() bool { return metric(h, `listener_calls_total{listener="nfs",result="absorbed"}`) == 1 })
		want := proxytest.Expected(m)
		if ends {
			a.Reset()
			want = accepted(77, 0, 10008, 0, 0)
		} else {
			release()
		}
		if r := <-second; !bytes.Equal(r, want) {
			t.Errorf("the first one ends %v: the other one got %x, want %x", ends, r, want)
		}
		h.Eventually("both are over", func() bool { return tap.all(func(*observe.TapOver) bool { return true }) == 2 })
		if n := tap.all(func(o *observe.TapOver) bool { return !o.Repeated && !o.Postponed }); n != 1 {
			t.Errorf("the first one ends %v: the Tap was told of %+v", ends, tap.ends)
		}
		if ends {
			release()
		}
	}
}
