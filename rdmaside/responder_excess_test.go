package rdmaside

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
)

// A killer is a creditClient whose processes are killed: it gives up Calls, uses their credits
// again, and ignores their Replies and the grants in them, as Linux does.
type killer struct {
	*creditClient
	given    map[uint32]bool // the Calls that it gave up
	pending  []uint32        // the Calls that it waits for
	answered int
}

func newKiller(t *testing.T, c *creditClient) *killer {
	k := &killer{creditClient: c, given: make(map[uint32]bool)}
	var last uint32
	c.s.conn.onSend = func(fabric.Send) {
		xid := binary.BigEndian.Uint32(c.s.conn.sent[:])
		if xid != last+1 {
			t.Fatalf("the Reply to %d follows that to %d", xid, last)
		}
		last = xid
		k.answered++
		if k.given[xid] {
			delete(k.given, xid)
			return
		}
		c.a.Grant(binary.BigEndian.Uint32(c.s.conn.sent[8:]))
		c.a.Put()
		k.pending = k.pending[1:]
	}
	return k
}

// fill sends as many Calls as the credits allow.
func (k *killer) fill() {
	for k.a.Outstanding < k.a.Granted {
		k.pending = append(k.pending, k.xid+1)
		k.send()
	}
}

// kill gives up all Calls.
func (k *killer) kill() {
	for _, xid := range k.pending {
		k.given[xid] = true
		k.a.Put()
	}
	k.pending = nil
}

// drain answers everything.
func (k *killer) drain() {
	for k.answer() {
		k.s.conn.settle(k.s.loop)
	}
}

// A client whose processes are killed whenever they like, and whose Calls are answered in
// between, is never disconnected, and has each Call answered once and in order. Grants rise and
// fall meanwhile, because a crowd of others comes and goes.
func TestExcessOfKilledProcesses(t *testing.T) {
	for seed := range uint64(many(20)) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(seed, 8))
			pool, m, mm := creditPool(t, 400)
			k := newKiller(t, newCreditClient(t, pool, m, mm, 64))
			defer k.close()
			var others []*creditClient
			defer func() {
				for _, c := range others {
					c.close()
				}
			}()
			for range 200 {
				k.fill()
				for range rnd.IntN(40) {
					k.answer()
					k.fill()
				}
				if pool.plenty(4608 * 64) { // else there may be no Receives for it
					k.kill()
					k.fill()
				}
				k.drain()
				switch rnd.IntN(10) {
				case 0:
					others = append(others, newCreditClient(t, pool, m, mm, 64))
				case 1:
					for _, c := range others {
						c.busy(20, 1000)
					}
				case 2:
					if len(others) > 8 {
						others[0].close()
						others = others[1:]
					}
				}
				k.s.conn.settle(k.s.loop)
			}
			if k.answered != int(k.xid) || mm.excess.Value() == 0 {
				t.Errorf("%d of %d answered, %d beyond the grant", k.answered, k.xid, mm.excess.Value())
			}
		})
	}
}

// A client that goes on, and sends Calls although twice as many as it was granted wait, is
// disconnected by this package and not by the provider.
func TestExcessGoesOn(t *testing.T) {
	pool, m, mm := creditPool(t, 1000)
	k := newKiller(t, newCreditClient(t, pool, m, mm, 16))
	defer k.close()
	k.busyAll()
	for range 2 {
		k.fill()
		k.kill()
	}
	if k.s.state != up || mm.excess.Value() != 16 {
		t.Fatalf("state %d after %d Calls beyond the grant: %v", k.s.state, mm.excess.Value(), k.s.reason)
	}
	k.s.conn.deliver(append(plain(9999, 128), getAttrCall(9999)...), 0)
	if k.s.state == up || !errors.Is(k.s.reason, errOverrun) || mm.refusals[reasonCredits].Value() != 1 {
		t.Errorf("state %d, %v, counted %d times", k.s.state, k.s.reason, mm.refusals[reasonCredits].Value())
	}
}

// busyAll gets all credits.
func (k *killer) busyAll() {
	for range 20 {
		k.fill()
		k.drain()
	}
}

// RDMA_DONE and RDMA_ERROR are discarded at once, whatever waits.
func TestExcessAndControl(t *testing.T) {
	pool, m, mm := creditPool(t, 1000)
	k := newKiller(t, newCreditClient(t, pool, m, mm, 16))
	defer k.close()
	k.busyAll()
	k.fill()
	k.kill()
	k.fill()
	for range 40 {
		k.s.conn.deliver(words(1, 1, 16, 3), 0)       // RDMA_DONE
		k.s.conn.deliver(words(1, 1, 16, 4, 2, 0), 0) // RDMA_ERROR
	}
	if k.s.state != up || mm.droppedProc.Value() != 80 {
		t.Errorf("state %d, %d discarded: %v", k.s.state, mm.droppedProc.Value(), k.s.reason)
	}
	k.drain()
}

// The Receives for Calls beyond the grant are the first that a connection gives up when memory
// is short, and it takes none while memory is not plentiful.
func TestExcessGivesUpMemory(t *testing.T) {
	pool, m, mm := creditPool(t, 400)
	x := &creditCrowd{t: t, pool: pool, m: m, mm: mm}
	defer func() { x.close(0) }()
	x.grow(1)
	x.flood(19)
	if n := x.cs[0].s.extra; n != 63 {
		t.Fatalf("one alone has %d Receives for Calls beyond the grant, want 63", n)
	}
	x.grow(40)
	x.flood(many(50))
	extra := 0
	for _, c := range x.cs {
		extra += c.s.extra
	}
	if used := pool.used.Load() / 4608; extra > 40 || used > 350 {
		t.Errorf("%d of %d Receives in use are for Calls beyond the grant", extra, used)
	}
}
