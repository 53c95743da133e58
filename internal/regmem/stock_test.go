package regmem

import (
	"sync"
	"testing"
	"testing/synctest"
)

// A stockLoop is the event loop of an account that Local has made.
type stockLoop struct {
	*Account
	due   bool          // the account has called arrange
	woken chan struct{} // has a value when there is something to do

	mu   sync.Mutex // guards todo
	todo []func()
}

// newStockLoop returns the loop of a share of acct.
func newStockLoop(acct *Account) *stockLoop {
	l := &stockLoop{woken: make(chan struct{}, 1)}
	l.Account = acct.Local(func() { l.due = true }, func(f func()) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.todo = append(l.todo, f)
		select {
		case l.woken <- struct{}{}:
		default:
		}
	})
	return l
}

// pass runs what the account has asked for, and publishes if it has asked for that.
func (l *stockLoop) pass() {
	l.mu.Lock()
	todo := l.todo
	l.todo = nil
	l.mu.Unlock()
	for _, f := range todo {
		f()
	}
	if l.due {
		l.due = false
		l.Publish()
	}
}

// The blocks that a stock keeps do not count as leased, in any account.
func TestStockKeeps(t *testing.T) {
	a := newArena(t, Options{Budget: 128 << 20})
	root := a.Account("calls", 64<<20)
	one, two := newStockLoop(root), newStockLoop(root)
	if one.Account == root || one.Limit() != root.Limit() {
		t.Fatal("an account of 64 MiB has no stock")
	}
	held := []*Lease{lease(t, one.Account, 100), lease(t, two.Account, 1500), lease(t, root, 100), lease(t, one.Account, 64<<10)}
	one.pass()
	two.pass()
	want := int64(512 + 2048 + 512 + 64<<10 + 4<<10)
	for _, acct := range []*Account{root, one.Account, two.Account} {
		if acct.Used() != want || acct.Outstanding() != 4 {
			t.Errorf("%d octets in %d leases, want %d in 4", acct.Used(), acct.Outstanding(), want)
		}
	}
	one.Release(held[0])
	one.Release(held[1]) // of the other's stock
	one.Release(held[2]) // of no stock
	held[3].Release()
	one.pass()
	two.pass()
	if a.Used() != 0 || a.Outstanding() != 0 {
		t.Errorf("%d octets in %d leases after the release of all", a.Used(), a.Outstanding())
	}
	if one.stock.kept() == 0 || two.stock.kept() == 0 || len(two.stock.returned) != 1 {
		t.Error("the stocks keep nothing")
	}
	if l := lease(t, one.Account, 100); &l.Bytes()[0] != &held[0].buf[0] {
		t.Error("the block released last, which is in the cache, is not the next one lent")
	} else {
		one.Release(l)
		panics(t, "second release", func() { one.Release(l) })
		panics(t, "third release", func() { l.Release() })
	}
	one.pass()
	one.due = false
	drain(a)
	one.pass()
	two.pass()
	if one.stock.kept() != 0 || two.stock.kept() != 0 || root.used.Load() != 0 {
		t.Errorf("%d and %d octets still in stock after drain, %d used", one.stock.kept(), two.stock.kept(), root.used.Load())
	}
}

// A stock never keeps more than its bounds, whoever releases.
func TestStockBounded(t *testing.T) {
	a := newArena(t, Options{Budget: 128 << 20})
	acct := newStockLoop(a.Account("calls", 0))
	for _, release := range []func(*Lease){(*Lease).Release, acct.Release} {
		for _, n := range []int{512, 1024, 2048, 4096} {
			var held []*Lease
			for range 1000 {
				held = append(held, lease(t, acct.Account, n))
			}
			for _, l := range held {
				release(l)
			}
			if acct.stock.octets > stockOctets {
				t.Fatalf("%d octets returned, want at most %d", acct.stock.octets, stockOctets)
			}
		}
	}
	acct.pass()
	if n := acct.stock.heldThen.Load(); n != stockClasses*stockOctets {
		t.Errorf("%d octets on the shelves, want %d", n, stockClasses*stockOctets)
	}
	if n := acct.Outstanding(); n != 0 {
		t.Errorf("%d leases are outstanding", n)
	}
}

// What others release, the loop lends again.
func TestStockReturned(t *testing.T) {
	a := newArena(t, Options{Budget: 128 << 20})
	acct := newStockLoop(a.Account("calls", 0))
	var held []*Lease
	for range 2 * stockRefill {
		held = append(held, lease(t, acct.Account, 512))
	}
	used := acct.used.Load()
	for range 100 {
		for _, l := range held {
			l.Release()
		}
		for i := range held {
			held[i] = lease(t, acct.Account, 512)
		}
	}
	if n := acct.used.Load(); n != used {
		t.Errorf("%d octets taken from the pool, want %d as before", n, used)
	}
	releaseAll(held)
	if acct.pass(); acct.Outstanding() != 0 {
		t.Errorf("%d leases are outstanding", acct.Outstanding())
	}
}

// Stocks give their blocks to a waiter: the stock of an idle loop, of another account, and of
// a loop that goes on leasing.
func TestStockGivesToWaiters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newArena(t, Options{Budget: 128 << 20})
		idle, busy := newStockLoop(a.Account("idle", 64<<20)), newStockLoop(a.Account("busy", 0))
		idle.Release(lease(t, idle.Account, 512))
		idle.pass()
		lease(t, busy.Account, 2<<10).Release() // returned, and not on a shelf
		var held []*Lease
		for {
			l, err := busy.Lease(512)
			if err != nil {
				break
			}
			held = append(held, l)
		}
		c := &caller{acct: a.Account("calls", 0)}
		refuse(t, c.acct, 512, ErrBudget)
		c.wait(512, "idle")
		idle.pass()
		c.want(t, "an idle stock had blocks", "idle")
		held = append(held, lease(t, c.acct, 512))
		for {
			l, err := busy.Lease(512)
			if err != nil {
				break
			}
			held = append(held, l)
		}
		c.wait(512, "busy")
		c.want(t, "nothing is free", "idle")
		busy.Release(held[0])
		c.want(t, "a released block does not go into stock while there is a waiter", "idle", "busy")
		held[0] = lease(t, c.acct, 512)
		c.wait(512, "other")
		c.want(t, "nothing is free", "idle", "busy")
		held[1].Release()
		c.want(t, "nor if another releases it", "idle", "busy", "other")
		held[0].Release()
		for _, l := range held[2:] {
			busy.Release(l)
		}
		busy.pass()
	})
}

// A loop that takes blocks from the pool while another begins to wait gives them back at the end of
// its pass: the waiter could not see them.
func TestStockHidden(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newArena(t, Options{Budget: 128 << 20})
		acct := a.Account("calls", 64<<20)
		busy := newStockLoop(acct)
		held := leaseAll(acct, 512)
		for _, l := range held[:stockRefill] {
			l.Release()
		}
		l := lease(t, busy.Account, 512) // and the others are on the shelf
		c := &caller{acct: acct}
		refuse(t, c.acct, 512, ErrBudget)
		c.wait(512, "waiter")
		c.want(t, "nobody knows what is on the shelf")
		busy.pass()
		c.want(t, "the end of the pass", "waiter")
		l.Release()
		releaseAll(held[stockRefill:])
	})
}

// An account that is too small for stocks has none.
func TestNoStock(t *testing.T) {
	a := newArena(t, Options{Budget: 16 << 20})
	acct := a.Account("calls", 0)
	if acct.Local(nil, nil) != acct {
		t.Error("an account of 16 MiB has a stock")
	}
	acct.Release(lease(t, acct, 512))
	if acct.Publish(); acct.Outstanding() != 0 {
		t.Error("a lease is outstanding")
	}
}

// What a loop lends after its Publish, and other goroutines return before its next one, does not make Used negative.
func TestStockUsedBetween(t *testing.T) {
	a := newArena(t, Options{Budget: 128 << 20})
	root := a.Account("calls", 64<<20)
	l := newStockLoop(root)
	l.Release(lease(t, l.Account, 100))
	l.pass()
	for range stockRefill {
		lease(t, l.Account, 100).Release()
	}
	if n := root.Used(); n != 0 {
		t.Errorf("%d octets are used, want none", n)
	}
	l.pass()
	if n := root.Used(); n != 0 {
		t.Errorf("%d octets are used after the pass, want none", n)
	}
}

// EmptyStocks gives what the loops keep back to the pool.
func TestEmptyStocks(t *testing.T) {
	a := newArena(t, Options{Budget: 128 << 20})
	root := a.Account("calls", 64<<20)
	l := newStockLoop(root)
	one, two := lease(t, l.Account, 100), lease(t, l.Account, 100)
	one.Release()
	l.Release(two)
	l.pass()
	if root.Taken() == 0 {
		t.Fatal("the loop keeps nothing")
	}
	root.EmptyStocks()
	l.pass()
	if n := root.Taken(); n != 0 {
		t.Errorf("%d octets are kept", n)
	}
}

// TestStocked: Stocked lends what is on a shelf, and otherwise asks nobody.
func TestStocked(t *testing.T) {
	root := newArena(t, Options{Budget: 128 << 20}).Account("calls", 64<<20)
	if root.Stocked(100) != nil {
		t.Error("an account without a stock has lent from it")
	}
	acct := newStockLoop(root)
	if acct.Stocked(100) != nil || root.used.Load() != 0 {
		t.Error("an empty stock has lent a block")
	}
	acct.Release(lease(t, acct.Account, 100))
	l := acct.Stocked(200)
	switch {
	case l == nil:
		t.Fatal("a block is on the shelf, and Stocked lends none")
	case len(l.Bytes()) != 200 || l.Cap() != 512:
		t.Errorf("lent %d octets in a block of %d, want 200 in 512", len(l.Bytes()), l.Cap())
	case acct.Stocked(3000) != nil:
		t.Error("lent a block of a class that no stock has")
	}
	acct.pass()
	if n := root.Outstanding(); n != 1 {
		t.Errorf("%d leases are outstanding, want 1", n)
	}
	acct.Release(l)
	acct.pass()
	if n := root.Outstanding(); n != 0 {
		t.Errorf("%d leases are outstanding, want none", n)
	}
	defer func() {
		if recover() == nil {
			t.Error("a lease was released twice")
		}
	}()
	acct.Release(l)
}
