package regmem

import "sync"

const (
	// stockClasses is how many classes stocks have, from the smallest on: blocks of
	// up to 2 KiB, of which a small Call and its Reply take one each.
	stockClasses = 3
	// stockOctets is the most octets of free blocks that a stock keeps of a class.
	stockOctets = 128 << 10
	// stockRefill is how many blocks an empty stock takes at once.
	stockRefill = 16
	// stockLimit is the smallest limit of an account that can afford stocks.
	stockLimit = 64 << 20
)

// A stock is free blocks, kept by one event loop for itself. What it keeps counts
// as used against the account's limit, and goes back as soon as anybody waits for
// memory. It is safe for concurrent use, but what it is for is not to meet others:
// classes and counters that all loops write to cost each of them a cache miss for
// every lease and every release.
type stock struct {
	ledger *ledger

	mu      sync.Mutex // guards the rest; taken before a class's mu and a pool's
	shelves [stockClasses][]*Lease
	out     int // leases that have not come back

	_ [64]byte // not on a cache line with another's
}

// Local returns the same share for the use of one event loop, whose small leases
// then come from a stock of its own: at most 384 KiB, which count against the
// limit. An account of less than 64 MiB has none to spare and returns itself.
// Local is for start-up.
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

// take returns a free block of class i, or nil: then it is to be asked for where
// all others ask.
func (s *stock) take(i int) *Lease {
	s.mu.Lock()
	defer s.mu.Unlock()
	shelf := s.shelves[i]
	if len(shelf) == 0 {
		shelf = s.refill(i, shelf)
		if len(shelf) == 0 {
			return nil
		}
	}
	l := shelf[len(shelf)-1]
	s.shelves[i] = shelf[:len(shelf)-1]
	s.out++
	return l
}

// refill takes blocks of class i from the pool, unless memory is short. s.mu is
// held.
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

// put keeps l, which was lent here. It reports false when it does not.
func (s *stock) put(l *Lease) bool {
	i := l.class
	s.mu.Lock()
	defer s.mu.Unlock()
	s.out--
	if len(s.shelves[i]) == cap(s.shelves[i]) || s.ledger.short() {
		return false
	}
	s.shelves[i] = append(s.shelves[i], l)
	return true
}

// short reports whether anybody waits for memory.
func (acct *ledger) short() bool {
	return acct.contended.Load() != 0 || acct.arena.waiting.Load() != 0
}

// empty gives everything back.
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

// octets is how many the stock keeps, free.
func (s *stock) octets() (n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, shelf := range s.shelves {
		n += int64(len(shelf) * classSizes[i])
	}
	return n
}

// lent is how many leases have not come back.
func (s *stock) lent() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.out
}

func (acct *ledger) allStocks() []*stock {
	acct.mu.Lock()
	defer acct.mu.Unlock()
	return acct.stocks
}

// emptyStocks gives back what the stocks of all accounts keep.
func (a *Arena) emptyStocks() {
	for _, acct := range *a.accounts.Load() {
		for _, s := range acct.allStocks() {
			s.empty()
		}
	}
}
