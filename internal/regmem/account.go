package regmem

import (
	"sync"
	"sync/atomic"
	"time"
)

const (
	// maxWaiting is the most waiters that an account calls in order. It calls further ones
	// after retryAfter, whether there is room or not.
	maxWaiting = 1 << 16

	retryAfter = 100 * time.Millisecond

	// turnLasts is how long an account keeps room for a waiter that it has called.
	turnLasts = 50 * time.Millisecond
)

// An Account is a share of an arena's budget. Its methods are safe for
// concurrent use, but for those of an Account that Local has returned.
//
// When a lease fails, its caller may Wait. The account calls its waiters in order, and
// keeps room for each one for a moment after the call. While there are waiters, a lease of
// more than 16.5 KiB fails even if there is room for it. Smaller leases may overtake:
// finishing work needs them (headers, Replies), and if they queued behind a large one,
// the work that frees its room could stop.
type Account struct {
	*ledger
	stock *stock // nil, except in Accounts that Local returned
}

// A ledger is the state that all Accounts of one share have in common.
type ledger struct {
	arena *Arena
	pool  *pool
	name  string
	limit int64

	used    atomic.Int64 // octets, including the blocks in stocks
	peak    atomic.Int64
	leases  atomic.Int64 // leases outstanding, without those from stocks
	refused atomic.Uint64

	// contended is len(queue) plus the sum of turns. While it is 0, Lease does
	// not take mu.
	contended atomic.Int32

	mu      sync.Mutex           // guards the rest; taken before a class's mu and a pool's
	queue   []waiter             // waiters, in order
	next    int                  // index in queue of the first waiter that was not called
	turns   [len(classSizes)]int // waiters that were called and have not leased, by class
	pledged int64                // octets kept for turns
	timer   bool                 // a timer will call expire
	stocks  []*stock
}

type waiter struct {
	class int
	call  func()
}

// Limit returns the most octets that the leases of the account may add up to.
func (acct *ledger) Limit() int64 { return acct.limit }

// Used returns how many octets are leased, counted in blocks. What loops have leased and released since their
// last Publish is not in it, as in Outstanding.
func (acct *ledger) Used() int64 {
	used := acct.used.Load()
	for _, s := range acct.allStocks() {
		used -= s.kept()
	}
	return max(0, used) // what was on a shelf at the last Publish and has been returned since counts twice
}

// Taken returns how many octets count against the limit: Used, and the free blocks in stocks. It
// takes no lock.
func (acct *ledger) Taken() int64 { return acct.used.Load() }

// Outstanding returns how many leases have not been released.
func (acct *ledger) Outstanding() int {
	n := int(acct.leases.Load())
	for _, s := range acct.allStocks() {
		n += s.outstanding()
	}
	return n
}

// stats returns a snapshot of the account.
func (acct *ledger) stats() AccountStats {
	acct.mu.Lock()
	waiting := len(acct.queue) - acct.next
	acct.mu.Unlock()
	return AccountStats{
		Name:    acct.name,
		Limit:   acct.limit,
		Used:    acct.Used(),
		Peak:    acct.peak.Load(),
		Leases:  acct.Outstanding(),
		Waiting: waiting,
		Refused: acct.refused.Load(),
	}
}

// Lease lends n octets, whose contents are undefined. It fails with ErrBudget, or with
// another error if no release could ever make room.
func (acct *Account) Lease(n int) (*Lease, error) {
	if l := acct.Stocked(n); l != nil {
		return l, nil
	}
	i := classOf(n)
	if s := acct.stock; s != nil && uint(i) < stockClasses && s.fill(i) {
		return acct.Stocked(n), nil
	}
	return acct.lease(i, n)
}

// lease lends n octets in a block of class i, from the pool.
func (acct *ledger) lease(i, n int) (*Lease, error) {
	if !acct.holds(i) {
		return nil, errTooLong
	}
	size := int64(classSizes[i])
	if !acct.reserve(i, size) {
		acct.refused.Add(1)
		return nil, ErrBudget
	}
	l := acct.pool.take(i)
	if l == nil {
		acct.used.Add(-size)
		acct.refused.Add(1)
		acct.arena.wake()
		return nil, ErrBudget
	}
	acct.leases.Add(1)
	l.stock = nil
	return acct.begin(l, n), nil
}

// holds reports whether a block of class i could ever be leased.
func (acct *ledger) holds(i int) bool {
	return i >= 0 && int64(classSizes[i]) <= acct.limit && acct.pool.holds(i)
}

// reserve counts size octets of the class as used. It reports false if the limit, or the
// waiters, do not permit that.
func (acct *ledger) reserve(class int, size int64) bool {
	if acct.contended.Load() == 0 {
		return acct.add(size, acct.limit)
	}
	acct.mu.Lock()
	defer acct.mu.Unlock()
	if acct.turns[class] > 0 {
		acct.turns[class]--
		acct.pledged -= size
		acct.contended.Add(-1)
		return acct.add(size, acct.limit)
	}
	if size > smallClass && len(acct.queue) > acct.next {
		return false
	}
	return acct.add(size, acct.limit-acct.pledged)
}

// add counts size octets as used, if limit permits, and keeps peak.
func (acct *ledger) add(size, limit int64) bool {
	for {
		used := acct.used.Load()
		if used+size > limit {
			return false
		}
		if acct.used.CompareAndSwap(used, used+size) {
			for {
				peak := acct.peak.Load()
				if used+size <= peak || acct.peak.CompareAndSwap(peak, used+size) {
					return true
				}
			}
		}
	}
}

// Wait calls t once, when a Lease of n octets may succeed: on any goroutine, possibly
// before Wait returns, and never with a lock held. t must not block. The call is a hint:
// if the Lease fails again, the caller waits again. A caller that needs the memory no more
// does nothing in t; the room that is kept for it is free again shortly after.
func (acct *ledger) Wait(n int, t func()) {
	i := classOf(n)
	if !acct.holds(i) {
		t() // the next Lease returns errTooLong
		return
	}
	acct.mu.Lock()
	if len(acct.queue)-acct.next >= maxWaiting {
		acct.mu.Unlock()
		time.AfterFunc(retryAfter, t)
		return
	}
	acct.queue = append(acct.queue, waiter{i, t})
	acct.contended.Add(1)
	acct.arena.waiting.Add(1)
	acct.mu.Unlock()
	acct.arena.emptyStocks() // they keep nothing more while there are waiters
	// Leases may have been released between the caller's failed Lease and now.
	acct.wake()
}

// wake calls the waiters for which there is room, in order.
func (acct *ledger) wake() {
	for {
		t := acct.call()
		if t == nil {
			return
		}
		t()
	}
}

// call removes the first waiter from the queue if there is room for it.
func (acct *ledger) call() func() {
	acct.mu.Lock()
	defer acct.mu.Unlock()
	if acct.next == len(acct.queue) {
		return nil
	}
	w := acct.queue[acct.next]
	size := int64(classSizes[w.class])
	if acct.used.Load()+acct.pledged+size > acct.limit || !acct.pool.room(w.class) {
		return nil
	}
	acct.queue[acct.next] = waiter{}
	acct.next++
	switch {
	case acct.next == len(acct.queue):
		acct.queue, acct.next = acct.queue[:0], 0
	case acct.next >= 64 && acct.next >= len(acct.queue)/2:
		n := copy(acct.queue, acct.queue[acct.next:])
		clear(acct.queue[n:])
		acct.queue, acct.next = acct.queue[:n], 0
	}
	acct.arena.waiting.Add(-1)
	acct.turns[w.class]++ // contended counts it in place of the waiter
	acct.pledged += size
	if !acct.timer {
		acct.timer = true
		time.AfterFunc(turnLasts, acct.expire)
	}
	return w.call
}

// expire frees the room of waiters that were called and have not leased.
func (acct *ledger) expire() {
	acct.mu.Lock()
	for i, n := range acct.turns {
		acct.contended.Add(int32(-n))
		acct.turns[i] = 0
	}
	acct.pledged = 0
	acct.timer = false
	acct.mu.Unlock()
	acct.wake()
}

// wake calls the waiters of all accounts for which there is room.
func (a *Arena) wake() {
	if a.waiting.Load() == 0 {
		return
	}
	for _, acct := range *a.accounts.Load() {
		acct.wake()
	}
}
