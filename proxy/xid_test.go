package proxy

import (
	"net/netip"
	"testing"

	"github.com/rdmabridge/rdmabridge/rdmaside/oncrpc"
)

// fakeClient is a client that is there or gone.
type fakeClient struct {
	client
	isGone bool
}

func (f *fakeClient) gone() bool         { return f.isGone }
func (f *fakeClient) adopt(*call, *call) {}

// remembered makes a call of cl with the client's XID and arguments.
func remembered(t *xidTable, cl client, xid uint32, args string) (*call, uint32, *call) {
	c := &call{client: cl}
	c.h = oncrpc.Call{Message: []byte(args), XID: xid, Program: oncrpc.ProgramNFS, Procedure: 9}
	c.tag = t.tag(netip.MustParseAddr("192.0.2.1"), &c.h)
	got, twin := t.assign(c)
	return c, got, twin
}

func TestXIDStaysForARetransmission(t *testing.T) {
	x := newXIDTable()
	cl := &fakeClient{}
	a, first, _ := remembered(x, cl, 7, "mkdir a")
	_, again, twin := remembered(x, cl, 7, "mkdir a")
	if twin != a || again != first {
		t.Errorf("in flight: XID %#x then %#x, twin %p of %p", first, again, twin, a)
	}
	x.settle(a)
	b, again, twin := remembered(x, cl, 7, "mkdir a")
	if twin != nil || again != first {
		t.Errorf("after the answer: XID %#x, want %#x as before, and no twin", again, first)
	}
	x.settle(b)
	if _, other, _ := remembered(x, cl, 7, "mkdir b"); other == first {
		t.Error("the same XID for other arguments: the server would answer the one with the other")
	}
}

func TestXIDAdoption(t *testing.T) {
	x := newXIDTable()
	old, young := &fakeClient{}, &fakeClient{}
	a, _, _ := remembered(x, old, 7, "mkdir a")
	b, _, twin := remembered(x, young, 7, "mkdir a")
	if adopted, same := x.adopt(twin, b); adopted || same {
		t.Error("a call was taken from a client that is still there")
	}
	old.isGone = true
	if adopted, _ := x.adopt(twin, b); !adopted || a.client != client(young) {
		t.Error("a call whose client is gone was not given to the one that sent it again")
	}
	x.settle(a)
	if adopted, _ := x.adopt(a, b); adopted {
		t.Error("a call was adopted after it was answered")
	}
}

// TestXIDMemoryIsBounded: what was answered is forgotten, what is in flight
// never, and a set full of Calls in flight costs the next one its memory only.
func TestXIDMemoryIsBounded(t *testing.T) {
	x := newXIDTable()
	cl := &fakeClient{}
	held, want, _ := remembered(x, cl, 1, "held")
	for i := range uint32(xidShards * xidSets * xidWays * 3) {
		c, _, _ := remembered(x, cl, i+2, "x")
		if !c.remembered {
			t.Fatal("a call was not remembered though its set had room")
		}
		x.settle(c)
	}
	if _, got, twin := remembered(x, cl, 1, "held"); twin != held || got != want {
		t.Error("a call in flight was forgotten")
	}
	seen := map[uint32]bool{}
	forgot := 0
	for i := range uint32(xidShards * xidSets * xidWays) {
		c, xid, _ := remembered(x, cl, i, "y")
		if seen[xid] {
			t.Fatalf("XID %#x was given to two calls in flight", xid)
		}
		seen[xid] = true
		if !c.remembered {
			forgot++
		}
	}
	if forgot == 0 {
		t.Error("the table has no bound")
	}
}

func BenchmarkXIDRemember(b *testing.B) {
	x := newXIDTable()
	c := &call{client: &fakeClient{}}
	msg := make([]byte, 200)
	b.ReportAllocs()
	for i := uint32(0); b.Loop(); i++ {
		c.h = oncrpc.Call{Message: msg, XID: i, Program: oncrpc.ProgramNFS, Procedure: 9}
		c.tag = x.tag(netip.Addr{}, &c.h)
		x.assign(c)
		x.settle(c)
	}
}
