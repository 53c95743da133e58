package identity

import (
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
)

// gssTest is an upstream for the tests of GSSContexts.
type gssTest struct {
	*testing.T
	set    *GSSContexts
	window int
	full   int        // Calls for which the window had no room
	flows  []*gssFlow // of all contexts

	mu        sync.Mutex // guards submitted, which a timer changes, too
	submitted []*gssCall // by their contexts, in order
}

func newGSSTest(t *testing.T, window int) *gssTest {
	x := &gssTest{T: t, window: window}
	start := time.Now()
	x.set = NewGSSContexts(GSSOptions{
		Window: func() int { return x.window },
		Now:    func() int64 { return int64(time.Since(start)) },
		Full:   func() { x.full++ },
	})
	return x
}

// A gssFlow is the Flow of a context.
type gssFlow struct {
	last   OrderedCall // that the next Call follows
	bound  bool        // a Call waits that Unbind moves
	kicked int
}

func (f *gssFlow) Follow(last OrderedCall) { f.last = last }
func (f *gssFlow) Unbind() bool            { return f.bound }
func (f *gssFlow) Kick(int)                { f.kicked++ }

// A gssCall is a Call of a context.
type gssCall struct {
	GSSCall
	x    *gssTest
	sent Transmission
	lane bool // the client is on a lane
	held int  // times that another Call went first
}

func (c *gssCall) Transmission() Transmission { return c.sent }
func (c *gssCall) Hold()                      { c.held++ }
func (c *gssCall) Join(Flow) bool             { return !c.lane }

func (c *gssCall) Submit(int) {
	c.x.mu.Lock()
	defer c.x.mu.Unlock()
	c.x.submitted = append(c.x.submitted, c)
}

func (c *gssCall) OpenFlow(old Flow) Flow {
	if old != nil {
		return old
	}
	f := new(gssFlow)
	c.x.flows = append(c.x.flows, f)
	return f
}

var gssClient = new(testConn)

// call returns a Call with the sequence number n of the context with this handle.
func (x *gssTest) call(handle string, n uint32) *gssCall {
	h := &oncrpc.Call{Flavor: oncrpc.FlavorGSS}
	h.Message = append(make([]byte, oncrpc.CredentialPos+gssHandleAt), handle...)
	h.CredentialLen, h.GSS.HandleLen, h.GSS.Sequence = gssHandleAt+len(handle), uint32(len(handle)), n
	return &gssCall{x: x, sent: Transmission{Header: h, Origin: OriginOf(netip.MustParseAddrPort("192.0.2.1:1"), false), Client: gssClient}}
}

// enter has the Calls 1 to n of a context come.
func (x *gssTest) enter(n uint32) (all []*gssCall) {
	for i := range n {
		c := x.call("handle", i+1)
		x.set.Enter(&c.GSSCall, c, 0)
		all = append(all, c)
	}
	return all
}

// want fails unless these Calls were submitted since want was called last.
func (x *gssTest) want(why string, all ...*gssCall) {
	x.Helper()
	x.mu.Lock()
	defer x.mu.Unlock()
	if !slices.Equal(x.submitted, all) {
		var got []uint32
		for _, c := range x.submitted {
			got = append(got, c.sequence)
		}
		x.Errorf("%s: the Calls %d were submitted, want %d of them", why, got, len(all))
	}
	x.submitted = nil
}

// wantEmpty fails if a context is remembered.
func (x *gssTest) wantEmpty() {
	x.Helper()
	for i := range x.set.shards {
		if n := len(x.set.shards[i].all); n != 0 {
			x.Errorf("%d contexts are remembered that have no Calls", n)
		}
	}
}

// TestGSSOrder: each Call of a context is submitted when the one before was sent, and follows it.
func TestGSSOrder(t *testing.T) {
	x := newGSSTest(t, 8)
	all := x.enter(3)
	other := x.call("another", 1)
	x.set.Enter(&other.GSSCall, other, 0)
	x.want("nothing was sent", all[0], other)
	f := x.flows[0]
	for i, c := range all {
		c.Sent(0)
		if f.last != c {
			t.Errorf("Call %d is not followed", i+1)
		}
		if c.held != 1 {
			t.Errorf("Call %d was held %d times, want once", i+1, c.held)
		}
		if i < 2 {
			x.want("the one before was sent", all[i+1])
		}
	}
	for _, c := range append(all, other) {
		if c.Leave(0); c.InOrder() {
			t.Error("a Call that has left is in a context")
		}
	}
	x.want("all were")
	x.wantEmpty()
	c := x.enter(1)[0]
	if f := c.context.flow.(*gssFlow); f.last != nil || len(x.flows) != 2 {
		t.Errorf("a context that is used again follows an old Call: %v; there are %d flows", f.last != nil, len(x.flows))
	}
}

// TestGSSLane: no Call follows one of a client on a lane.
func TestGSSLane(t *testing.T) {
	x := newGSSTest(t, 8)
	a, b := x.call("handle", 1), x.call("handle", 2)
	a.lane = true
	for _, c := range []*gssCall{a, b} {
		x.set.Enter(&c.GSSCall, c, 0)
	}
	a.Sent(0)
	x.want("the first was sent", a, b)
	if f := x.flows[0]; f.last != nil {
		t.Error("the first is followed")
	}
	b.Sent(0)
	if f := x.flows[0]; f.last != b {
		t.Error("the second is not followed")
	}
}

// TestGSSOutstanding: no more Calls are outstanding than the window has, and one that is full counts once.
func TestGSSOutstanding(t *testing.T) {
	x := newGSSTest(t, 2)
	all := x.enter(4)
	all[0].Sent(0)
	all[1].Sent(0)
	x.want("the window has room for two", all[0], all[1])
	all[0].Leave(0)
	x.want("there is room", all[2])
	all[2].Sent(0)
	x.want("the window is full")
	if x.full != 2 {
		t.Errorf("%d Calls found no room, want 2", x.full)
	}
	x.window = 3
	all[2].Leave(0)
	x.want("there is room", all[3])
}

// TestGSSSequence: a Call waits while its number is a window above that of the first that is outstanding, but no longer
// than the first may take to reach the server.
func TestGSSSequence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newGSSTest(t, 4)
		a, b := x.call("handle", 0xfffffffe), x.call("handle", 2)
		for _, c := range []*gssCall{a, b} {
			x.set.Enter(&c.GSSCall, c, 0)
		}
		a.Sent(0)
		x.want("the second is four above the first", a)
		time.Sleep(gssPatience - time.Nanosecond)
		synctest.Wait()
		x.want("the server may not have seen the first")
		time.Sleep(gssPatience + time.Nanosecond) // the timer looks twice
		synctest.Wait()
		x.want("the server has seen the first", b)
	})
}

// TestGSSAgain: a Call that was sent and did not arrive goes before those that came after it; one that was not sent keeps
// its turn.
func TestGSSAgain(t *testing.T) {
	x := newGSSTest(t, 8)
	all := x.enter(4)
	if all[0].Again(0) {
		t.Error("a Call that was not sent waits again")
	}
	all[0].Sent(0)
	all[1].Sent(0)
	x.want("two were sent", all[:3]...)
	if !all[1].Again(0) || !all[0].Again(0) || all[0].held != 2 {
		t.Error("a Call that was sent does not wait again")
	}
	all[2].Sent(0)
	x.want("the third was sent", all[0])
	all[0].Sent(0)
	x.want("the first was sent again", all[1])
	all[1].Sent(0)
	x.want("the second was sent again", all[3])
}

// TestGSSUnbind: the Call that waits for the connection of others may use any when they have ended.
func TestGSSUnbind(t *testing.T) {
	x := newGSSTest(t, 8)
	all := x.enter(3)
	f := x.flows[0]
	f.bound = true
	all[0].Sent(0)
	all[1].Sent(0)
	if all[0].Leave(0); f.kicked != 0 {
		t.Error("the third may use any connection while the second is outstanding")
	}
	if all[1].Leave(0); f.kicked != 1 {
		t.Error("the third waits for the connection of Calls that have ended")
	}
}

// TestGSSBehind: a Call does not overtake others while one of its context waits behind them.
func TestGSSBehind(t *testing.T) {
	x := newGSSTest(t, 8)
	all := x.enter(2)
	if !all[0].MayOvertake() {
		t.Error("the first may not overtake")
	}
	all[0].KeepBehind()
	all[0].Sent(0)
	if all[1].MayOvertake() {
		t.Error("the second may overtake, and the first waits")
	}
	if all[0].Leave(0); !all[1].MayOvertake() {
		t.Error("the second may not overtake, and nothing waits")
	}
	all[1].KeepBehind()
	all[1].Leave(0) // before it was sent
	x.wantEmpty()
}

// TestGSSForget: what waits of a client that has gone is handed out, and the others go on.
func TestGSSForget(t *testing.T) {
	x := newGSSTest(t, 8)
	all := x.enter(3)
	other := x.call("handle", 4)
	other.sent.Client = new(testConn)
	x.set.Enter(&other.GSSCall, other, 0)
	ended, flows := x.set.Forget(other.sent.Origin, gssClient)
	n := 0
	for ; ended != nil; ended = ended.Unlink() {
		if ended.InOrder() {
			t.Error("a Call that was handed out is in the context")
		}
		n++
	}
	if n != 2 || len(flows) != 1 || flows[0] != Flow(x.flows[0]) {
		t.Errorf("%d Calls and the flows %v, want 2 and that of the Call whose turn it is", n, flows)
	}
	x.want("the first has its turn", all[0])
	all[0].Leave(0)
	x.want("the first has ended", other)
	if ended, flows = x.set.Forget(other.sent.Origin, gssClient); ended != nil || flows != nil {
		t.Error("another client's Call is handed out")
	}
	other.Leave(0)
	x.wantEmpty()
}

// TestGSSAllocations: a context that always has Calls costs no memory for each.
func TestGSSAllocations(t *testing.T) {
	x := newGSSTest(t, 8)
	c := x.enter(1)[0]
	c.Sent(0)
	x.submitted = make([]*gssCall, 0, 2000)
	next := x.call("handle", 2)
	if n := testing.AllocsPerRun(1000, func() {
		x.set.Enter(&next.GSSCall, next, 0)
		next.Sent(0)
		next.Leave(0)
	}); n != 0 {
		t.Errorf("%v allocations for a Call", n)
	}
}

// TestKeepsOrder: Calls that create a context keep no order, and neither do those that have none.
func TestKeepsOrder(t *testing.T) {
	h := oncrpc.Call{Flavor: oncrpc.FlavorGSS, Protection: oncrpc.ProtectIntegrity}
	h.GSS.HandleLen = 4
	if !KeepsOrder(&h) {
		t.Error("a Call of a context keeps no order")
	}
	for why, change := range map[string]func(h *oncrpc.Call){
		"no handle":       func(h *oncrpc.Call) { h.GSS.HandleLen = 0 },
		"no GSS":          func(h *oncrpc.Call) { h.Flavor = oncrpc.FlavorSys },
		"it creates one":  func(h *oncrpc.Call) { h.GSS.Procedure = oncrpc.GSSInit },
		"it goes on so":   func(h *oncrpc.Call) { h.GSS.Procedure = oncrpc.GSSContinueInit },
		"nobody knows it": func(h *oncrpc.Call) { h.Protection = oncrpc.ProtectUnknown },
	} {
		c := h
		if change(&c); KeepsOrder(&c) {
			t.Errorf("%s: the Call keeps an order", why)
		}
	}
}
