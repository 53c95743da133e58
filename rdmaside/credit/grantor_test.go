package credit

import (
	"math/rand/v2"
	"testing"
)

func TestGrantor(t *testing.T) {
	g := NewGrantor(64, 32)
	reply := func(why string, want uint32) {
		t.Helper()
		if next := g.next(); next != want {
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

// A Requester that acts on an old grant, because the Reply with the smaller one is
// still on its way, has done nothing wrong.
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

// A smaller grant counts from the Call that proves that it was seen, and no
// earlier.
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
	// Five Replies came before the one that lowered: Call 5+16 may be the last under 8.
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
	// Raised again before it was seen: the smaller one is forgotten.
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

// A Requester that overruns a grant it has seen is told off, whatever it once
// had.
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

// TestConversation has both ends talk over a line that delays, while limits
// rise and fall and Receives are posted and given back, and checks what RFC 8166
// Section 3.3.1 promises: a Call always meets a Receive, and nothing gets stuck.
// Some Requesters pass over the grant in some Replies.
func TestConversation(t *testing.T) {
	lowered := 0
	for seed := range uint64(400) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		a := NewAccount(1 + rnd.IntN(64))
		g := NewGrantor(1+rnd.IntN(64), 1)
		deaf := seed%4 == 3
		slack := rnd.IntN(3)
		// How often each thing happens, so that there are lines with everything on its
		// way and such with nothing.
		weights := [4]int{1 + rnd.IntN(8), 1 + rnd.IntN(8), 1 + rnd.IntN(8), 1 + rnd.IntN(8)}
		sum := weights[0] + weights[1] + weights[2] + weights[3]
		pick := func() int {
			n := rnd.IntN(sum)
			for i, w := range weights {
				if n -= w; n < 0 {
					return i
				}
			}
			return 0
		}
		var calls []uint32  // on their way: rdma_credit
		var grants []uint32 // on their way
		owned := 1          // Receives at the Responder, posted or held by a Call
		served, passed := 0, 0
		for range 6000 {
			switch pick() {
			case 0: // the Requester sends
				if a.Take() {
					calls = append(calls, a.Requested)
				} else if a.Free() != 0 {
					t.Fatalf("seed %d: refused with %d free", seed, a.Free())
				}
			case 1: // a Call arrives and holds its Receive
				if len(calls) > 0 {
					if owned-int(g.Outstanding) <= 0 {
						t.Fatalf("seed %d: a Call without a Receive: %+v %+v", seed, a, g)
					}
					if !g.Call(calls[0]) {
						t.Fatalf("seed %d: an honest Requester is told off: %+v %+v", seed, a, g)
					}
					calls = calls[1:]
				}
			case 2: // the Responder answers, which frees a Receive, or gives it back
				if g.Outstanding > 0 {
					if keep := max(g.Needed(), g.Limit) + uint32(slack); owned > int(keep) {
						owned--
						g.Receives = uint32(owned)
						lowered++
					}
					grants = append(grants, g.Reply())
				}
			case 3: // a Reply arrives
				if len(grants) > 0 {
					// Never more in a row than a window, which is what can be given up at once.
					if deaf && passed < int(a.Granted)-1 && rnd.IntN(4) == 0 {
						passed++
					} else {
						a.Grant(grants[0])
						passed = 0
					}
					a.Put()
					grants = grants[1:]
					served++
				}
			}
			if int(a.Outstanding) != len(calls)+int(g.Outstanding)+len(grants) {
				t.Fatalf("seed %d: books do not agree", seed)
			}
			// What is on its way must fit what is posted.
			if posted := owned - int(g.Outstanding); len(calls) > posted {
				t.Fatalf("seed %d: %d Calls on their way to %d Receives: %+v %+v", seed, len(calls), posted, a, g)
			}
			if a.Replied() && a.Granted > g.Needed() {
				t.Fatalf("seed %d: the Requester goes by %d, the Responder by %d", seed, a.Granted, g.Needed())
			}
			if rnd.IntN(100) == 0 {
				g.Limit = uint32(rnd.IntN(65))
			}
			if rnd.IntN(20) == 0 && owned < int(g.Limit) {
				owned++
				g.Receives = uint32(owned)
			}
		}
		if served < 100 {
			t.Errorf("seed %d: only %d Calls served", seed, served)
		}
	}
	if lowered < 10000 {
		t.Errorf("only %d Receives were given back", lowered)
	}
}

// What stays is what is asked for: a grant that was lowered is in force some
// windows of Calls later, whatever the delays.
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
