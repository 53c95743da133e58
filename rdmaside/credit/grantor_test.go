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
			t.Errorf("Next = %d, want %d: %s", next, want, why)
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

// TestConversation has both ends talk over a line that delays, while limits
// change, and checks what RFC 8166 Section 3.3.1 promises: a Call always meets a
// Receive, and nothing gets stuck.
func TestConversation(t *testing.T) {
	for seed := range uint64(200) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		a := NewAccount(1 + rnd.IntN(64))
		g := NewGrantor(1+rnd.IntN(64), 1)
		var calls []uint32  // on their way: rdma_credit
		var grants []uint32 // on their way
		posted := 1         // Receives at the Responder
		served := 0
		for range 3000 {
			switch rnd.IntN(5) {
			case 0, 1: // the Requester sends
				if a.Take() {
					calls = append(calls, a.Requested)
				} else if a.Free() != 0 {
					t.Fatalf("seed %d: refused with %d free", seed, a.Free())
				}
			case 2: // a Call arrives; its Receive is reposted at once
				if len(calls) > 0 {
					if posted == 0 {
						t.Fatalf("seed %d: a Call without a Receive: %+v %+v", seed, a, g)
					}
					if !g.Call(calls[0]) {
						t.Fatalf("seed %d: an honest Requester is told off: %+v %+v", seed, a, g)
					}
					calls = calls[1:]
				}
			case 3: // the Responder answers
				if g.Outstanding > 0 {
					grants = append(grants, g.Reply())
				}
			case 4: // a Reply arrives
				if len(grants) > 0 {
					a.Grant(grants[0])
					a.Put()
					grants = grants[1:]
					served++
				}
			}
			if int(a.Outstanding) != len(calls)+int(g.Outstanding)+len(grants) {
				t.Fatalf("seed %d: books do not agree", seed)
			}
			// Receives of outstanding Calls are reposted, so what is on its way must fit.
			if len(calls) > posted {
				t.Fatalf("seed %d: %d Calls on their way to %d Receives: %+v %+v", seed, len(calls), posted, a, g)
			}
			if rnd.IntN(50) == 0 {
				g.Limit = uint32(rnd.IntN(65))
			}
			if rnd.IntN(50) == 0 && g.Receives < 64 {
				posted++
				g.Receives++
			}
		}
		if served < 100 {
			t.Errorf("seed %d: only %d Calls served", seed, served)
		}
	}
}
