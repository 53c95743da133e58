package regmem

import (
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// The limit of one account bounds its leases and takes nothing from another account.
func TestAccountLimit(t *testing.T) {
	a := newArena(t, Options{Budget: 8 << 20})
	calls, replies := a.Account("calls", 4<<20), a.Account("replies", 4<<20)
	held := leaseAll(calls, 64<<10)
	if calls.Used() > calls.Limit() || calls.Used() < calls.Limit()-(68<<10) {
		t.Errorf("%d used of %d", calls.Used(), calls.Limit())
	}
	// The other account still has its whole limit.
	more := leaseAll(replies, 1<<20)
	if n := len(more); n != 3 {
		t.Errorf("%d leases of 1 MiB + 8 KiB in 4 MiB", n)
	}
	held = append(held, more...)
	refuse(t, calls, 512<<10, ErrBudget)
	refuse(t, calls, 5<<20, errTooLong)
	st := a.Stats()
	refused := uint64(0)
	for _, s := range st.Accounts {
		refused += s.Refused
	}
	if refused != 3 || a.Outstanding() != len(held) || st.Used != calls.Used()+replies.Used() || len(st.Accounts) != 3 {
		t.Errorf("%+v", st)
	}
	used := calls.Used()
	if s, want := calls.stats(), (AccountStats{Name: "calls", Limit: 4 << 20, Used: used, Peak: used, Leases: calls.Outstanding(), Refused: 2}); s != want {
		t.Errorf("%+v, want %+v", s, want)
	}
	releaseAll(held)
	if s := calls.stats(); s.Used != 0 || s.Peak < 3<<20 {
		t.Errorf("%+v", s)
	}
	for _, limit := range []int64{0, -1, 1 << 40} {
		if got := a.Account("all", limit).Limit(); got != a.Budget() {
			t.Errorf("limit %d became %d", limit, got)
		}
	}
}

// A caller waits for memory and records the calls that it gets.
type caller struct {
	acct  *Account
	calls []string
}

func (c *caller) wait(n int, name string) {
	c.acct.Wait(n, func() { c.calls = append(c.calls, name) })
}

func (c *caller) want(t *testing.T, why string, names ...string) {
	t.Helper()
	if !slices.Equal(c.calls, names) {
		t.Fatalf("called %q, want %q: %s", c.calls, names, why)
	}
}

const (
	block = 1<<20 + 12<<10
	big   = block - indent // the longest lease that it holds
)

func TestWaitInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newArena(t, Options{Budget: 16 << 20})
		c := &caller{acct: a.Account("calls", 4*block)}
		var held []*Lease
		for range 4 {
			held = append(held, lease(t, c.acct, big))
		}
		refuse(t, c.acct, big, ErrBudget)
		for i := range 5 {
			c.wait(big, fmt.Sprint(i))
		}
		c.want(t, "there is no room")
		if s := c.acct.stats(); s.Waiting != 5 {
			t.Errorf("%d waiting, want 5", s.Waiting)
		}
		held[0].Release()
		c.want(t, "room for one", "0")
		held[1].Release()
		c.want(t, "room for another", "0", "1")
		first, second := lease(t, c.acct, big), lease(t, c.acct, big)
		c.want(t, "those two have it now", "0", "1")
		refuse(t, c.acct, big, ErrBudget)
		for _, l := range []*Lease{held[2], held[3], first, second} {
			l.Release()
		}
		c.want(t, "room for all", "0", "1", "2", "3", "4")
		// The waiters do not lease, and their room is not lost.
		time.Sleep(2 * turnLasts)
		for i := range held {
			held[i] = lease(t, c.acct, big)
		}
		for _, l := range held {
			l.Release()
		}
	})
}

// While one waiter wants a large block, newcomers that want large blocks wait behind it.
func TestWaitNoOvertaking(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newArena(t, Options{Budget: 16 << 20})
		c := &caller{acct: a.Account("calls", 5*block)}
		one, two := lease(t, c.acct, 2<<20), lease(t, c.acct, 2<<20)
		refuse(t, c.acct, 2<<20, ErrBudget)
		c.wait(2<<20, "large")
		refuse(t, c.acct, 64<<10, ErrBudget)
		c.wait(64<<10, "medium")
		c.want(t, "the medium one would fit but waits behind the large one")
		// Small leases overtake: they finish work, and so make room.
		lease(t, c.acct, 4096).Release()
		c.want(t, "still no room for the large one")
		two.Release()
		c.want(t, "room for both, in order", "large", "medium")
		// For a moment its room is kept from leases of other classes.
		refuse(t, c.acct, big, ErrBudget)
		three := lease(t, c.acct, 2<<20)
		lease(t, c.acct, 64<<10).Release()
		one.Release()
		three.Release()
	})
}

func TestWaitAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newArena(t, Options{Budget: 4 << 20})
		c := &caller{acct: a.Account("calls", 2<<20)}
		c.wait(4096, "room")
		c.want(t, "a release between the refusal and Wait must not be lost", "room")
		c.wait(3<<20, "never")
		c.want(t, "the caller meets errTooLong", "room", "never")
		refuse(t, c.acct, 3<<20, errTooLong)
		// The room that is kept for the first does not keep others from the rest.
		l := lease(t, c.acct, 512<<10)
		l.Release()
		time.Sleep(2 * turnLasts)
	})
}

// A waiter in one account is called when a lease of another is released, since both share
// one budget.
func TestWaitForOtherAccount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newArena(t, Options{Budget: 4 << 20})
		greedy := a.Account("greedy", 0)
		var held []*Lease
		for {
			l, err := greedy.Lease(64 << 10)
			if err != nil {
				break
			}
			held = append(held, l)
		}
		c := &caller{acct: a.Account("calls", 2<<20)}
		refuse(t, c.acct, 512<<10, ErrBudget)
		c.wait(512<<10, "woken")
		c.want(t, "the arena is full")
		for _, l := range held[:len(held)/2] {
			l.Release()
		}
		c.want(t, "neighbours of the released blocks make room", "woken")
		lease(t, c.acct, 512<<10).Release()
		for _, l := range held[len(held)/2:] {
			l.Release()
		}
	})
}

// A waiter that never leases, and one that leases too late, do not stop the others.
func TestWaitLostInterest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newArena(t, Options{Budget: 16 << 20})
		c := &caller{acct: a.Account("calls", 2*block)}
		x, y := lease(t, c.acct, big), lease(t, c.acct, big)
		c.wait(big, "gone")
		c.wait(big, "patient")
		x.Release()
		c.want(t, "it is the first in the queue", "gone")
		refuse(t, c.acct, 300<<10, ErrBudget)
		time.Sleep(turnLasts + time.Millisecond)
		synctest.Wait()
		c.want(t, "its room goes to the next", "gone", "patient")
		lease(t, c.acct, big).Release()
		y.Release()
		if s := c.acct.stats(); s.Waiting != 0 || c.acct.contended.Load() != 0 || c.acct.pledged != 0 {
			t.Errorf("%+v, contended %d, pledged %d", s, c.acct.contended.Load(), c.acct.pledged)
		}
	})
}

func TestWaitBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newArena(t, Options{Budget: 4 << 20})
		acct := a.Account("calls", 600<<10)
		l := lease(t, acct, 512<<10)
		var called atomic.Int64
		for range maxWaiting + 10 {
			acct.Wait(512<<10, func() { called.Add(1) })
		}
		if s := acct.stats(); s.Waiting != maxWaiting || called.Load() != 0 {
			t.Errorf("%d waiting, %d called", s.Waiting, called.Load())
		}
		time.Sleep(2 * retryAfter)
		synctest.Wait()
		if called.Load() != 10 {
			t.Errorf("%d called, want those beyond the bound", called.Load())
		}
		l.Release()
		// They are called one at a time: each keeps the room for a moment.
		for acct.stats().Waiting > 0 {
			time.Sleep(turnLasts)
		}
		time.Sleep(2 * turnLasts)
		if called.Load() != maxWaiting+10 || acct.contended.Load() != 0 {
			t.Errorf("%d called", called.Load())
		}
	})
}

// Reserve gives an account its limit, and the others the rest.
func TestReserve(t *testing.T) {
	const budget = 64 << 20
	a := newArena(t, Options{Budget: budget})
	calls := a.Account("early", 0)
	replies, pulled := reserve(t, a, "replies", budget/2+1), reserve(t, a, "pulled", 5<<20)
	if replies.Limit() != budget/2 || pulled.Limit() != 5<<20 {
		t.Errorf("limits %d and %d", replies.Limit(), pulled.Limit())
	}
	if late := a.Account("late", 0); late.Limit() != budget/2-5<<20 {
		t.Errorf("the rest is %d", late.Limit())
	}
	for _, limit := range []int64{-1, 0, 4095, budget/2 - 5<<20, budget} {
		if _, err := a.Reserve("nonsense", limit); err == nil {
			t.Errorf("%d octets were reserved", limit)
		}
	}
	held := splinter(t, calls, budget/2-5<<20)
	refuse(t, calls, 1<<20, ErrBudget)
	// The reserve is whole all the same.
	held = append(held, leaseAll(replies, 1<<20)...)
	if n := replies.Used(); n < replies.Limit()-2<<20 {
		t.Errorf("%d of %d octets could be leased", n, replies.Limit())
	}
	l := lease(t, pulled, 4<<20)
	refuse(t, pulled, 8<<20, errTooLong)
	wantDistinct(t, held)
	if _, ok := offsetIn(a.mem, l.Bytes()); !ok {
		t.Error("a reserved block is not of the arena")
	}
	l.Release()
	if n := drain(a); n < 4<<20 {
		t.Errorf("gave back %d octets", n)
	}
	if _, err := a.Reserve("late", 1<<20); err == nil {
		t.Error("reserved while the arena was in use")
	}
	releaseAll(held)
}

func reserve(t *testing.T, a *Arena, name string, limit int64) *Account {
	t.Helper()
	acct, err := a.Reserve(name, limit)
	if err != nil {
		t.Fatal(err)
	}
	return acct
}

// splinter leases all of acct's memory, at most limit octets, releases every second block,
// and returns the other leases.
func splinter(t *testing.T, acct *Account, limit int64) (held []*Lease) {
	t.Helper()
	all := leaseAll(acct, 32<<10)
	if n := acct.Used(); n > limit {
		t.Errorf("%d octets used beside the reserves", n)
	}
	for i, l := range all {
		if i%2 == 0 {
			held = append(held, l)
		} else {
			l.Release()
		}
	}
	return held
}

// wantDistinct fails if two leases have the same block.
func wantDistinct(t *testing.T, leases []*Lease) {
	t.Helper()
	blocks := make(map[*byte]bool)
	for _, l := range leases {
		if b := &l.Bytes()[0]; blocks[b] {
			t.Fatal("a block was leased twice")
		} else {
			blocks[b] = true
		}
	}
}
