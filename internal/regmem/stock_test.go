package regmem

import (
	"testing"
	"testing/synctest"
)

// The blocks that a stock keeps do not count as leased, in any account.
func TestStockKeeps(t *testing.T) {
	a := newArena(t, Options{Budget: 128 << 20})
	root := a.Account("calls", 64<<20)
	one, two := root.Local(), root.Local()
	if one == root || one.Limit() != root.Limit() {
		t.Fatal("an account of 64 MiB has no stock")
	}
	held := []*Lease{lease(t, one, 100), lease(t, two, 1500), lease(t, root, 100), lease(t, one, 64<<10)}
	want := int64(512 + 2048 + 512 + 64<<10 + 4<<10)
	for _, acct := range []*Account{root, one, two} {
		if acct.Used() != want || acct.Outstanding() != 4 {
			t.Errorf("%d octets in %d leases, want %d in 4", acct.Used(), acct.Outstanding(), want)
		}
	}
	for _, l := range held {
		l.Release()
	}
	if a.Used() != 0 || a.Outstanding() != 0 {
		t.Errorf("%d octets in %d leases after the release of all", a.Used(), a.Outstanding())
	}
	if one.stock.octets() == 0 {
		t.Error("the stock keeps nothing")
	}
	if l := lease(t, one, 100); &l.Bytes()[0] != &held[0].buf[0] {
		t.Error("the block released last, which is in the cache, is not the next one lent")
	} else {
		panics(t, "second release", func() { l.Release(); l.Release() })
	}
	if drain(a); one.stock.octets() != 0 || root.used.Load() != 0 {
		t.Errorf("%d octets still in stock after drain, %d used", one.stock.octets(), root.used.Load())
	}
}

// A stock never keeps more than its bounds.
func TestStockBounded(t *testing.T) {
	a := newArena(t, Options{Budget: 128 << 20})
	acct := a.Account("calls", 0).Local()
	for _, n := range []int{512, 1024, 2048, 4096} {
		var held []*Lease
		for range 1000 {
			held = append(held, lease(t, acct, n))
		}
		for _, l := range held {
			l.Release()
		}
	}
	if n := acct.stock.octets(); n != stockClasses*stockOctets {
		t.Errorf("%d octets in stock, want %d", n, stockClasses*stockOctets)
	}
}

// Stocks give their blocks to a waiter: the stock of an idle loop, of another account, and of
// a loop that goes on leasing.
func TestStockGivesToWaiters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newArena(t, Options{Budget: 128 << 20})
		idle, busy := a.Account("idle", 64<<20).Local(), a.Account("busy", 0).Local()
		lease(t, idle, 512).Release()
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
		held[0].Release()
		c.want(t, "a released block does not go into stock while there is a waiter", "idle", "busy")
		for _, l := range held[1:] {
			l.Release()
		}
	})
}

// An account that is too small for stocks has none.
func TestNoStock(t *testing.T) {
	a := newArena(t, Options{Budget: 16 << 20})
	if acct := a.Account("calls", 0); acct.Local() != acct {
		t.Error("an account of 16 MiB has a stock")
	}
}
