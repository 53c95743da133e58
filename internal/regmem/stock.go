package regmem

import "sync"

const (
	// stockClasses is how many classes a stock has, from the smallest on: blocks of up to
	// 2 KiB. A small Call and its Reply use one each.
	stockClasses = 3
	// stockOctets is the most octets of free blocks that a stock keeps of each class.
	stockOctets = 128 << 10
	// stockRefill is how many blocks an empty stock gets from the pool at once.
	stockRefill = 16
	// stockLimit is the smallest limit of an account that has stocks.
	stockLimit = 64 << 20
)

// A stock keeps free blocks for one event loop. The blocks count as used against the
// account's limit, and return to the pool as soon as there are waiters.
//
// The stock saves cache misses: classes and counters that all loops write cost each loop
// one for every lease and every release. It is safe for concurrent use.
type stock struct {
	ledger *ledger

	mu      sync.Mutex // guards the rest; taken before a class's mu and a pool's
	shelves [stockClasses][]*Lease
	out     int // leases that were lent and not released

	_ [64]byte // keeps other stocks off the cache line
}

// Local returns the same share for use by one event loop. Its small leases come from a
// stock of its own, which keeps at most 384 KiB; they count against the limit. An account
// of less than 64 MiB cannot spare that, and Local returns the account itself. Local is for
// start-up.
func (acct *Account) Local() *Account {
	if acct.limit < stockLimit {
		return acct
	}
	s := &stock{ledger: acct.ledger}
	for i := range s.shelves {
		s.shelves[i] = make([]*Lease, 0, stockOctets/classSizes[i])
	}
	acct.mu.Lock()
	acct.stocks = append(acct.stocks, s)
	acct.mu.Unlock()
	return &Account{ledger: acct.ledger, stock: s}
}

// take returns a free block of class i. If it returns nil, the caller asks the pool.
func (s *stock) take(i int) *Lease {
	s.mu.Lock()
	shelf := s.shelves[i]
	if len(shelf) == 0 {
		shelf = s.refill(i, shelf)
		if len(shelf) == 0 {
			s.mu.Unlock()
			return nil
		}
	}
	l := shelf[len(shelf)-1]
	s.shelves[i] = shelf[:len(shelf)-1]
	s.out++
	s.mu.Unlock() // not deferred: with four leases and releases a Call, that is seen
	return l
}

// refill gets blocks of class i from the pool, unless memory is short. The caller holds
// s.mu.
func (s *stock) refill(i int, shelf []*Lease) []*Lease {
	l := s.ledger
	size := int64(classSizes[i])
	if l.short() || !l.add(size*stockRefill, l.limit) {
		return shelf
	}
	for n := range stockRefill {
		b := l.pool.take(i)
		if b == nil {
			l.used.Add(-size * int64(stockRefill-n))
			break
		}
		shelf = append(shelf, b)
	}
	return shelf
}

// put keeps the block of l, which this stock has lent. It returns false if it does not keep
// it.
func (s *stock) put(l *Lease) bool {
	i := l.class
	s.mu.Lock()
	s.out--
	keep := len(s.shelves[i]) < cap(s.shelves[i]) && !s.ledger.short()
	if keep {
		s.shelves[i] = append(s.shelves[i], l)
	}
	s.mu.Unlock()
	return keep
}

// short reports whether there are waiters, in this account or in another.
func (acct *ledger) short() bool {
	return acct.contended.Load() != 0 || acct.arena.waiting.Load() != 0
}

// empty gives all blocks back to the pool.
func (s *stock) empty() {
	var all []*Lease
	s.mu.Lock()
	for i, shelf := range s.shelves {
		all = append(all, shelf...)
		clear(shelf)
		s.shelves[i] = shelf[:0]
	}
	s.mu.Unlock()
	for _, l := range all {
		s.ledger.putBack(l)
	}
}

// octets returns how many octets the free blocks of the stock have.
func (s *stock) octets() (n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, shelf := range s.shelves {
		n += int64(len(shelf) * classSizes[i])
	}
	return n
}

// lent returns how many leases have not been released.
func (s *stock) lent() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.out
}

// allStocks returns the stocks of the account.
func (acct *ledger) allStocks() []*stock {
	acct.mu.Lock()
	defer acct.mu.Unlock()
	return acct.stocks
}

// emptyStocks empties the stocks of all accounts.
func (a *Arena) emptyStocks() {
	for _, acct := range *a.accounts.Load() {
		for _, s := range acct.allStocks() {
			s.empty()
		}
	}
}
