package credit

import (
	"math/rand/v2"
	"testing"
)

func TestGrantor(t *testing.T) {
	g := NewGrantor(64, 32)
	reply := func(why string, want uint32) {
		t.Helper()
		if next := g.Next(); next != want {
			t.Errorf("next = %d, want %d: %s", next, want, why)
		}
		if got := g.Reply(); got != want || g.Granted != want {
			t.Errorf("Reply = %d, want %d: %s", got, want, why)
		}
	}
	if !g.Call(128) {
		t.Error("the first Call is always within the grant")
	}
	reply("no more than there are Receives", 32)
	g.Receives = 100
	g.Call(128)
	reply("no more than the limit", 64)
	g.Call(8)
	reply("no more than was requested", 8)
	g.Call(0)
	reply("never zero", 1)
	g.Limit = 0
	g.Call(128)
	reply("never zero, whatever the limit", 1)
}

// A Requester that uses an old grant, because the Reply with the smaller one is
// still on its way, keeps to its grant.
func TestGrantorKept(t *testing.T) {
	g := NewGrantor(4, 4)
	if !g.Call(4) || g.Call(4) {
		t.Error("one Call before the first Reply, not two")
	}
	g.Reply()
	g.Reply()
	for i := range 4 {
		if !g.Call(4) {
			t.Errorf("Call %d of 4", i+1)
		}
	}
	g.Limit = 1
	g.Reply()
	if !g.Call(4) {
		t.Error("the Call may have been sent before the smaller grant arrived")
	}
	if g.Call(4) {
		t.Error("Call 5 of 4 is within the grant")
	}
}

// A smaller grant takes effect with the Call that proves that the Requester has
// seen it, and no earlier.
func TestGrantorLowered(t *testing.T) {
	g := NewGrantor(8, 8)
	round := func() uint32 { // one Call, answered before the next
		t.Helper()
		if !g.Call(128) {
			t.Fatal("an honest Requester is told off")
		}
		return g.Reply()
	}
	for range 5 {
		round()
	}
	g.Limit = 2
	if n := round(); n != 2 || g.Needed() != 8 {
		t.Fatalf("granted %d, %d Receives needed; want 2 and, for what is on its way, 8", n, g.Needed())
	}
	// Five Replies came before the one that lowered the grant: Call 5+16 may be
	// the last under 8.
	for call := uint64(7); call <= 21; call++ {
		round()
		if g.Needed() != 8 {
			t.Fatalf("after Call %d %d Receives are needed, want 8", call, g.Needed())
		}
	}
	round()
	if g.Needed() != 2 {
		t.Errorf("after Call 22 %d Receives are needed, want 2", g.Needed())
	}
	// The grant is raised again before the Requester has seen the smaller one,
	// which has no effect then.
	g.Limit = 8
	round()
	g.Limit = 4
	round()
	g.Limit = 8
	round()
	g.Limit = 6
	for range 2 * (4 + 8) {
		round()
		if g.Needed() < 6 {
			t.Fatalf("%d Receives needed under a grant of 6", g.Needed())
		}
	}
	if g.Needed() != 6 {
		t.Errorf("%d Receives needed, want 6", g.Needed())
	}
}

// Call reports false for a Requester that overruns a grant it has seen, however
// large an earlier grant was.
func TestGrantorOverrunAfterLowering(t *testing.T) {
	g := NewGrantor(8, 8)
	g.Call(128)
	g.Reply()
	g.Limit = 2
	for range 20 {
		g.Call(128)
		g.Reply()
	}
	for i := range 3 {
		if kept := g.Call(128); kept != (i < 2) {
			t.Errorf("Call %d under 2 credits: kept = %v", i+1, kept)
		}
	}
}

// A Requester that has given up Calls keeps to a lower grant by its own count, although they are still
// outstanding at the Responder.
func TestGrantorLoweredBesideGivenUp(t *testing.T) {
	g := NewGrantor(8, 8)
	g.Call(128)
	g.Reply()
	for range 6 { // are never answered, and their processes were killed
		g.Call(128)
	}
	g.Limit = 2
	for i := range 50 {
		if !g.Call(128) {
			t.Fatalf("Call %d, the only one that the Requester waits for, overruns its grant", i)
		}
		g.Reply()
	}
	for range 6 {
		g.Drop()
	}
	g.Call(128)
	g.Reply()
	if g.Needed() != 2 {
		t.Errorf("%d Receives are needed when the others are done, want 2", g.Needed())
	}
}

// A conversation is an Account and a Grantor that talk over a line that delays,
// while limits rise and fall and Receives are posted and released.
type conversation struct {
	t    *testing.T
	seed uint64
	rnd  *rand.Rand
	a    Account
	g    Grantor

	deaf  bool // the Requester ignores the grant in some Replies
	slack int  // Receives beyond those needed that the Responder keeps

	calls  []uint32 // rdma_credit of the Calls on their way
	grants []uint32 // rdma_credit of the Replies on their way
	owned  int      // Receives at the Responder, posted or held by a Call

	granted bool // the Account has seen a grant
	passed  int  // grants ignored since the last that was not
	served  int  // Replies that arrived
	lowered int  // Receives released
}

func newConversation(t *testing.T, seed uint64) *conversation {
	rnd := rand.New(rand.NewPCG(seed, 1))
	return &conversation{
		t: t, seed: seed, rnd: rnd,
		a: NewAccount(1 + rnd.IntN(64)), g: NewGrantor(1+rnd.IntN(64), 1),
		deaf: seed%4 == 3, slack: rnd.IntN(3), owned: 1,
	}
}

// events returns a function that picks the next event. Each conversation has its
// own frequencies, so that some lines have everything on its way and some nothing.
func (c *conversation) events() func() {
	all := [...]func(){c.send, c.arrive, c.answer, c.reply}
	var weights [len(all)]int
	sum := 0
	for i := range weights {
		weights[i] = 1 + c.rnd.IntN(8)
		sum += weights[i]
	}
	return func() {
		n := c.rnd.IntN(sum)
		for i, w := range weights {
			if n -= w; n < 0 {
				all[i]()
				return
			}
		}
	}
}

// send sends a Call if the Requester has a credit.
func (c *conversation) send() {
	if c.a.Take() {
		c.calls = append(c.calls, c.a.Requested)
	} else if c.a.Free() != 0 {
		c.t.Fatalf("seed %d: refused with %d free", c.seed, c.a.Free())
	}
}

// arrive delivers the first Call on its way, which then holds its Receive.
func (c *conversation) arrive() {
	if len(c.calls) == 0 {
		return
	}
	if c.owned-int(c.g.Outstanding) <= 0 {
		c.t.Fatalf("seed %d: a Call without a Receive: %+v %+v", c.seed, c.a, c.g)
	}
	if !c.g.Call(c.calls[0]) {
		c.t.Fatalf("seed %d: an honest Requester is told off: %+v %+v", c.seed, c.a, c.g)
	}
	c.calls = c.calls[1:]
}

// answer sends a Reply, which reposts a Receive or releases it.
func (c *conversation) answer() {
	if c.g.Outstanding == 0 {
		return
	}
	if keep := max(c.g.Needed(), c.g.Limit) + uint32(c.slack); c.owned > int(keep) {
		c.owned--
		c.g.Receives = uint32(c.owned)
		c.lowered++
	}
	c.grants = append(c.grants, c.g.Reply())
}

// reply delivers the first Reply on its way.
func (c *conversation) reply() {
	if len(c.grants) == 0 {
		return
	}
	// A Requester can give up on one window of Calls at once, and not on more.
	if c.deaf && c.passed < int(c.a.Granted)-1 && c.rnd.IntN(4) == 0 {
		c.passed++
	} else {
		c.a.Grant(c.grants[0])
		c.granted = true
		c.passed = 0
	}
	c.a.Put()
	c.grants = c.grants[1:]
	c.served++
}

// check asserts that a Call always meets a Receive and that both sides agree.
func (c *conversation) check() {
	a, g := &c.a, &c.g
	if int(a.Outstanding) != len(c.calls)+int(g.Outstanding)+len(c.grants) {
		c.t.Fatalf("seed %d: books do not agree", c.seed)
	}
	if posted := c.owned - int(g.Outstanding); len(c.calls) > posted {
		c.t.Fatalf("seed %d: %d Calls on their way to %d Receives: %+v %+v", c.seed, len(c.calls), posted, *a, *g)
	}
	if c.granted && a.Granted > g.Needed() {
		c.t.Fatalf("seed %d: the Requester goes by %d, the Responder by %d", c.seed, a.Granted, g.Needed())
	}
}

// adjust sometimes changes the limit, and sometimes posts a Receive.
func (c *conversation) adjust() {
	if c.rnd.IntN(100) == 0 {
		c.g.Limit = uint32(c.rnd.IntN(65))
	}
	if c.rnd.IntN(20) == 0 && c.owned < int(c.g.Limit) {
		c.owned++
		c.g.Receives = uint32(c.owned)
	}
}

// TestConversation lets both ends talk and checks what RFC 8166 Section 3.3.1
// promises: a Call always meets a Receive, and nothing gets stuck.
func TestConversation(t *testing.T) {
	lowered := 0
	for seed := range uint64(400) {
		c := newConversation(t, seed)
		next := c.events()
		for range 6000 {
			next()
			c.check()
			c.adjust()
		}
		if c.served < 100 {
			t.Errorf("seed %d: only %d Calls served", seed, c.served)
		}
		lowered += c.lowered
	}
	if lowered < 10000 {
		t.Errorf("only %d Receives were given back", lowered)
	}
}

// A lowered grant takes effect some windows of Calls later, whatever the delays.
func TestConversationSettles(t *testing.T) {
	for seed := range uint64(100) {
		rnd := rand.New(rand.NewPCG(seed, 2))
		a, g := NewAccount(64), NewGrantor(64, 64)
		var calls, grants []uint32
		n := 0
		for n < 2000 {
			switch rnd.IntN(4) {
			case 0:
				if a.Take() {
					calls = append(calls, a.Requested)
				}
			case 1:
				if len(calls) > 0 {
					g.Call(calls[0])
					calls = calls[1:]
					n++
				}
			case 2:
				if g.Outstanding > 0 {
					grants = append(grants, g.Reply())
				}
			case 3:
				if len(grants) > 0 {
					a.Grant(grants[0])
					a.Put()
					grants = grants[1:]
				}
			}
			if n == 1000 {
				g.Limit = 3
			}
			if n > 1000+5*64 && g.Needed() != 3 {
				t.Fatalf("seed %d: %d Calls after the limit became 3 there are %d Receives needed", seed, n-1000, g.Needed())
			}
		}
	}
}
