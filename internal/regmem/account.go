package regmem

import (
	"sync"
	"sync/atomic"
	"time"
)

const (
	// maxWaiting is how many calls of Wait an account remembers in order. Those
	// beyond are told to try again every retryAfter.
	maxWaiting = 1 << 16

	retryAfter = 100 * time.Millisecond

	// turnLasts is how long room is kept for a waiter that was called.
	turnLasts = 50 * time.Millisecond
)

// An Account is a share of an arena's budget. Its methods are safe for
// concurrent use.
//
// Who is refused may Wait. Waiters are called in order; room that was found for
// one is kept for it for a moment, and while somebody waits a newcomer that
// wants more than 16.5 KiB is refused even if there is room. Small leases may
// overtake: they are what finishing work takes (headers, replies), and making
// them queue behind a large one could stop the work that frees its room.
type Account struct {
	*ledger
	stock *stock // nil, except in what Local returned
}

// A ledger is what the Accounts of one share have in common.
type ledger struct {
	arena *Arena
	pool  *pool
	name  string
	limit int64

	used    atomic.Int64 // blocks in stocks included
	peak    atomic.Int64
	leases  atomic.Int64 // without those that stocks have lent
	refused atomic.Uint64

	// contended is len(queue) plus the sum of turns. While it is 0, Lease does
	// not take mu.
	contended atomic.Int32

	mu      sync.Mutex // guards the rest; taken before a class's mu and a pool's
	queue   []waiter   // from next on
	next    int
	turns   [len(classSizes)]int // waiters that were called and have not leased yet
	pledged int64                // octets kept for turns
	timer   bool                 // expire is due
	stocks  []*stock
}

type waiter struct {
	class int
	call  func()
}

// Limit is the most octets the account's leases add up to.
func (acct *ledger) Limit() int64 { return acct.limit }

// Used is how many octets are leased, counted in blocks.
func (acct *ledger) Used() int64 {
	used := acct.used.Load()
	for _, s := range acct.allStocks() {
		used -= s.octets()
	}
	return used
}

// Outstanding is how many leases have not been released.
func (acct *ledger) Outstanding() int {
	n := int(acct.leases.Load())
	for _, s := range acct.allStocks() {
		n += s.lent()
	}
	return n
}

// Stats returns a snapshot.
func (acct *ledger) Stats() AccountStats {
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

// Lease lends n octets, whose contents are whatever was there before. The error
// is ErrBudget, or errTooLong when no release could ever make room.
func (acct *Account) Lease(n int) (*Lease, error) {
	i := classOf(n)
	if s := acct.stock; s != nil && uint(i) < stockClasses {
		if l := s.take(i); l != nil {
			l.stock = s
			return acct.begin(l, n), nil
		}
	}
	return acct.lease(i, n)
}

// lease lends n octets in a block of class i.
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

// reserve counts size octets as used, if they may be.
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

// Wait calls t once, when a Lease of n octets may succeed: on any goroutine,
// possibly before Wait returns, and never with a lock held. t must not block. It
// is a hint: when the Lease is refused again, Wait again. A waiter that lost
// interest does nothing in t; the room kept for it is free again shortly after.
func (acct *ledger) Wait(n int, t func()) {
	i := classOf(n)
	if !acct.holds(i) {
		t() // so that the caller meets errTooLong
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
	acct.arena.emptyStocks() // and while somebody waits they stay empty
	// What was released since the caller was refused counts as well.
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

// call takes the first waiter off the queue if there is room for it.
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
	acct.turns[w.class]++ // contended stays as it is
	acct.pledged += size
	if !acct.timer {
		acct.timer = true
		time.AfterFunc(turnLasts, acct.expire)
	}
	return w.call
}

// expire frees the room kept for waiters that were called and did not come.
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

// wake calls waiters of all accounts, if there are any.
func (a *Arena) wake() {
	if a.waiting.Load() == 0 {
		return
	}
	for _, acct := range *a.accounts.Load() {
		acct.wake()
	}
}
