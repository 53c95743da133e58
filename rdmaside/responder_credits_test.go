package rdmaside

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/regmem"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/metrics"
	"github.com/rdmabridge/rdmabridge/rdmaside/credit"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
)

// A keeper is a CallHandler that keeps Calls until the test answers them.
type keeper struct{ exchanges []*Exchange }

func (k *keeper) Call(x *Exchange) { k.exchanges = append(k.exchanges, x) }

// A creditClient is an honest Requester on a stubConn. It sends as many Calls as
// the test wants and its credits allow.
type creditClient struct {
	t       testing.TB
	s       *stubResponder
	k       *keeper
	a       credit.Account
	xid     uint32
	replies int
	late    bool     // Replies stay on their way until hear
	onWay   []uint32 // grants in Replies that are on their way
	starved int64    // the most starved connections that the metric has shown
}

func newCreditClient(t testing.TB, pool *ReceivePool, m *regmem.Account, mm *ResponderMetrics, credits int) *creditClient {
	t.Helper()
	c := &creditClient{t: t, k: &keeper{}, a: credit.NewAccount(128)}
	c.s = newStubResponder(t, m, c.k, func(o *ResponderOptions) {
		o.Receives, o.Credits, o.FirstCredits, o.Metrics = pool, credits, min(8, credits), mm
	})
	c.s.conn.onSend = func(fabric.Send) {
		c.onWay = append(c.onWay, binary.BigEndian.Uint32(c.s.conn.sent[8:]))
		if !c.late {
			c.hear()
		}
	}
	return c
}

// hear delivers the first Reply on its way.
func (c *creditClient) hear() {
	if len(c.onWay) > 0 {
		c.a.Grant(c.onWay[0])
		c.a.Put()
		c.onWay = c.onWay[1:]
		c.replies++
	}
}

// send sends one Call if there is a credit, and reports whether it did.
func (c *creditClient) send() bool {
	if !c.a.Take() {
		return false
	}
	c.xid++
	c.s.conn.deliver(append(plain(c.xid, c.a.Requested), getAttrCall(c.xid)...), 0)
	if c.s.state != up {
		c.t.Fatalf("the connection of an honest client ended: %v", c.s.reason)
	}
	return true
}

// answer answers the oldest Call.
func (c *creditClient) answer() bool {
	if len(c.k.exchanges) == 0 {
		return false
	}
	x := c.k.exchanges[0]
	c.k.exchanges = c.k.exchanges[1:]
	x.Reply([][]byte{getAttrReply(x.XID())}, nil)
	c.s.conn.step()
	return true
}

// busy sends n Calls and keeps deep of them outstanding, as far as its credits
// allow.
func (c *creditClient) busy(n, deep int) {
	for end := c.replies + n; c.replies < end; c.answer() {
		for len(c.k.exchanges) < deep && c.send() {
		}
		c.starved = max(c.starved, c.s.responder.metrics.starved.Value())
	}
	for c.answer() {
	}
}

func (c *creditClient) close() {
	c.s.Close(nil)
	c.s.conn.settle(c.s.loop)
	for len(c.k.exchanges) > 0 {
		c.k.exchanges[0].Abort()
		c.k.exchanges = c.k.exchanges[1:]
	}
}

// many returns n, or less in race builds, where everything takes ten times as
// long.
func many(n int) int {
	if testkit.RaceEnabled {
		return max(1, n/5)
	}
	return n
}

func creditPool(t testing.TB, blocks int) (*ReceivePool, *regmem.Account, *ResponderMetrics) {
	a := newTestArena(t)
	return NewReceivePool(a.Account("receives", int64(blocks*4608))), a.Account("calls", 16<<20), NewResponderMetrics(metrics.New(), "test")
}

// A connection begins with few Receives and gets the credits it is configured to
// have by using them.
func TestCreditsGrow(t *testing.T) {
	for _, tt := range []struct {
		name  string
		deep  int
		calls int // the most Calls until it has all credits
		extra int // Receives for Calls beyond the grant
	}{{"all outstanding", 100, 64, 63}, {"one at a time", 1, 8 + 16 + 32 + 2, 0}} {
		t.Run(tt.name, func(t *testing.T) {
			pool, m, mm := creditPool(t, 1000)
			c := newCreditClient(t, pool, m, mm, 64)
			defer c.close()
			if n := len(c.s.conn.receives); n != 10 {
				t.Errorf("%d Receives posted in the beginning, want 8 and 2 to spare", n)
			}
			c.busy(tt.calls, tt.deep)
			// One Call beyond the grant may use the spare Receives.
			receives := 66 + tt.extra
			if c.a.Granted != 64 || len(c.s.conn.receives) != receives || c.s.extra != tt.extra {
				t.Errorf("after %d Calls %d credits and %d Receives, want 64 and %d", tt.calls, c.a.Granted, len(c.s.conn.receives), receives)
			}
			if mm.granted.Value() != 64 || mm.receives.Value() != int64(receives) || mm.starved.Value() != 0 || pool.used.Load() != int64(receives)*4608 {
				t.Errorf("counted: %d credits, %d Receives, %d starved, %d octets", mm.granted.Value(), mm.receives.Value(), mm.starved.Value(), pool.used.Load())
			}
			c.busy(200, 100)
			if mm.lastCredit.Value() == 0 {
				t.Error("nobody saw that all credits were used")
			}
			c.close()
			if mm.granted.Value() != 0 || mm.receives.Value() != 0 || pool.used.Load() != 0 || pool.conns.Load() != 0 {
				t.Errorf("left behind: %d credits, %d Receives, %d octets, %d connections", mm.granted.Value(), mm.receives.Value(), pool.used.Load(), pool.conns.Load())
			}
		})
	}
}

// A connection gets no more credits than its Requester asks for: they would be
// useless.
func TestCreditsAsAsked(t *testing.T) {
	pool, m, mm := creditPool(t, 1000)
	c := newCreditClient(t, pool, m, mm, 64)
	defer c.close()
	c.a = credit.NewAccount(12)
	c.busy(300, 100)
	if c.a.Granted != 12 || len(c.s.conn.receives) != 14+11 {
		t.Errorf("%d credits and %d Receives for 12 asked for", c.a.Granted, len(c.s.conn.receives))
	}
	if mm.starved.Value() != 0 || mm.creditsDenied.Value() != 0 {
		t.Error("it has what it asked for, and is counted as starved")
	}
}

// A creditCrowd is many connections that share a pool.
type creditCrowd struct {
	t    *testing.T
	pool *ReceivePool
	m    *regmem.Account
	mm   *ResponderMetrics
	cs   []*creditClient
}

// grow connects clients until there are n, each while all others send Calls.
func (x *creditCrowd) grow(n int) {
	x.t.Helper()
	for len(x.cs) < n {
		x.cs = append(x.cs, newCreditClient(x.t, x.pool, x.m, x.mm, 64))
		x.flood(1)
	}
}

// flood has each client send as many Calls as it may, n times.
func (x *creditCrowd) flood(n int) {
	x.t.Helper()
	for range n {
		for _, c := range x.cs {
			c.busy(8, 1000)
		}
	}
}

// close disconnects all clients but the first n.
func (x *creditCrowd) close(n int) {
	for _, c := range x.cs[n:] {
		c.close()
	}
	x.cs = x.cs[:n]
}

// wantFair asserts that the clients have like numbers of credits, and that the
// metrics show the shortage.
func (x *creditCrowd) wantFair() {
	x.t.Helper()
	least, most, starved := uint32(1000), uint32(0), int64(0)
	for _, c := range x.cs {
		starved = max(starved, c.starved)
		least, most = min(least, c.a.Granted), max(most, c.a.Granted)
	}
	if most > 3*least {
		x.t.Errorf("between %d and %d credits for the same use", least, most)
	}
	mm := x.mm
	if mm.creditsTaken.Value() == 0 || starved == 0 || mm.creditsDenied.Value() == 0 {
		x.t.Errorf("unseen: taken %d times, denied %d times, %d starved", mm.creditsTaken.Value(), mm.creditsDenied.Value(), starved)
	}
	if got := mm.receives.Value() * 4608; got != x.pool.used.Load() {
		x.t.Errorf("%d octets of Receives counted, %d used", got, x.pool.used.Load())
	}
}

// Many connections in one pool that has room for a few: all have their share, the
// first lose what they had, and none is closed.
func TestCreditsShared(t *testing.T) {
	const blocks = 400
	pool, m, mm := creditPool(t, blocks)
	x := &creditCrowd{t: t, pool: pool, m: m, mm: mm}
	defer func() {
		x.close(0)
		if mm.granted.Value() != 0 || mm.receives.Value() != 0 || mm.starved.Value() != 0 || pool.used.Load() != 0 {
			t.Errorf("left behind: %d credits, %d Receives, %d starved, %d octets", mm.granted.Value(), mm.receives.Value(), mm.starved.Value(), pool.used.Load())
		}
	}()
	x.grow(1)
	x.flood(19)
	if got := x.cs[0].a.Granted; got != 64 {
		t.Fatalf("one alone has %d credits, want 64", got)
	}
	x.grow(20)
	x.flood(many(100))
	// A share is 3/4 of 400 blocks by 20: 15.
	for i, c := range x.cs {
		if c.a.Granted < 13 {
			t.Errorf("client %d has %d credits, want 13 at least", i, c.a.Granted)
		}
	}
	if used := pool.used.Load(); used > blocks*4608*7/8 {
		t.Errorf("%d octets of %d are used: nothing is left for new connections", used, blocks*4608)
	}
	x.grow(80)
	x.flood(many(100))
	x.wantFair()
	x.close(1)
	x.flood(20)
	if got := x.cs[0].a.Granted; got != 64 || mm.starved.Value() != 0 {
		t.Errorf("alone again it has %d credits, %d connections are starved", got, mm.starved.Value())
	}
}

// A connection that always uses all its credits does not get those that small
// clients need.
func TestCreditsFlood(t *testing.T) {
	pool, m, mm := creditPool(t, 900)
	flooder := newCreditClient(t, pool, m, mm, 1000)
	defer flooder.close()
	flooder.busy(5000, 2000)
	if pool.used.Load() > 450*4608 {
		t.Errorf("one connection has %d of 900 Receives", pool.used.Load()/4608)
	}
	var small []*creditClient
	for range 100 {
		c := newCreditClient(t, pool, m, mm, 1000)
		defer c.close()
		small = append(small, c)
		flooder.busy(10, 2000)
		c.busy(20, 3)
	}
	for range 40 {
		flooder.busy(50, 2000)
		for _, c := range small {
			c.busy(5, 3)
		}
	}
	for i, c := range small {
		if c.a.Granted < 3 {
			t.Errorf("small client %d has %d credits", i, c.a.Granted)
		}
	}
	if pool.used.Load() > 900*4608*7/8 {
		t.Errorf("%d of 900 Receives are used", pool.used.Load()/4608)
	}
}

// Honest clients are never disconnected, whatever their grants are, and Receives
// never run out for them: the rule in ResponderConn's comment.
func TestCreditsInvariant(t *testing.T) {
	for seed := range uint64(many(20)) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(seed, 7))
			pool, m, mm := creditPool(t, 60+rnd.IntN(300))
			var cs []*creditClient
			for range 4000 {
				switch n := rnd.IntN(100); {
				case n < 2 && len(cs) < 60 && pool.fits(3, 4608):
					c := newCreditClient(t, pool, m, mm, 1<<rnd.IntN(8))
					c.late = rnd.IntN(2) == 0
					cs = append(cs, c)
				case n < 3 && len(cs) > 0:
					i := rnd.IntN(len(cs))
					cs[i].close()
					cs = append(cs[:i], cs[i+1:]...)
				case len(cs) > 0:
					c := cs[rnd.IntN(len(cs))]
					for range rnd.IntN(20) {
						switch rnd.IntN(3) {
						case 0:
							c.send()
						case 1:
							c.answer()
						case 2:
							c.hear()
						}
						if posted := c.s.recvs.posted; posted+int(c.a.Outstanding) <= int(c.a.Granted) {
							t.Fatalf("%d Receives posted and %d Calls outstanding under a grant of %d", posted, c.a.Outstanding, c.a.Granted)
						}
					}
				}
				if pool.used.Load() > pool.limit {
					t.Fatalf("%d octets of %d", pool.used.Load(), pool.limit)
				}
			}
			for _, c := range cs {
				c.close()
			}
			if pool.used.Load() != 0 || pool.conns.Load() != 0 || mm.receives.Value() != 0 || mm.granted.Value() != 0 || mm.starved.Value() != 0 {
				t.Errorf("left behind: %d octets, %d connections", pool.used.Load(), pool.conns.Load())
			}
		})
	}
}
