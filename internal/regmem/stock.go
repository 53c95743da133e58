package regmem

import (
	"sync"
	"sync/atomic"
)

const (
	// stockClasses is how many classes a stock has, from the smallest on: blocks of up to
	// 2 KiB. A small Call and its Reply use one each.
	stockClasses = 3
	// stockOctets is the most octets of free blocks that a stock keeps of each class, and the most
	// that other goroutines have returned to it.
	stockOctets = 128 << 10
	// stockRefill is how many blocks an empty stock gets from the pool at once.
	stockRefill = 16
	// stockLimit is the smallest limit of an account that has stocks.
	stockLimit = 64 << 20
)

// A stock keeps free blocks for one event loop. The blocks count as used against the
// account's limit, and return to the pool as soon as there are waiters.
//
// The stock saves cache misses and atomic operations. Classes and counters that all loops write
// cost each loop a miss for every lease and every release, and a lock that nobody else wants still
// costs two atomic operations, each of which waits for all stores before it. So the loop takes
// blocks from its shelves, and puts them there, without a lock. A lease that another goroutine
// releases goes to returned, and the loop fetches all of these when a shelf is empty.
type stock struct {
	ledger  *ledger
	arrange func()       // constant; has the loop call publish at the end of its pass
	run     func(func()) // constant; runs a function on the loop
	asked   func()       // constant; the argument of run: obey

	// Owned by the loop.
	shelves [stockClasses][]*Lease
	lent    int      // leases that were lent, less those that the loop itself has taken back
	changed bool     // the shelves or lent have changed since publish
	spare   []*Lease // empty; the next returned

	// What the loop had at its last publish, for other goroutines.
	heldThen, lentThen atomic.Int64
	waits              atomic.Bool // the loop has been asked to empty the stock, and has not done so

	mu       sync.Mutex // guards the rest; a leaf
	returned []*Lease   // blocks that other goroutines have released
	octets   int        // their length in all
	back     int        // leases that other goroutines have ever released

	_ [64]byte // keeps other stocks off the cache line
}

// Local returns the same share for use by one event loop: Lease, Release and Publish of the Account
// that it returns must be called on the loop. Small leases come from a stock of the loop's own, which
// keeps at most 512 KiB; they count against the limit. When the loop has used the stock for the first
// time after a Publish, Local's account calls arrange, on the loop, so that the loop publishes again.
// run has the loop call a function; it is called on any goroutine, and must not block. An account of
// less than 64 MiB cannot spare a stock, and its leases come from the pool. Local is for start-up.
func (acct *Account) Local(arrange func(), run func(func())) *Account {
	if acct.limit < stockLimit {
		return acct
	}
	s := &stock{ledger: acct.ledger, arrange: arrange, run: run}
	s.asked = s.obey
	for i := range s.shelves {
		s.shelves[i] = make([]*Lease, 0, stockOctets/classSizes[i])
	}
	acct.mu.Lock()
	acct.stocks = append(acct.stocks, s)
	acct.mu.Unlock()
	return &Account{ledger: acct.ledger, stock: s}
}

// Stocked lends n octets in a block that is on a shelf of the loop's stock. If there is none, it returns nil, and
// counts nothing.
func (acct *Account) Stocked(n int) *Lease {
	s, i := acct.stock, classOf(n)
	if s == nil || uint(i) >= stockClasses {
		return nil
	}
	shelf := &s.shelves[i]
	last := len(*shelf) - 1
	if last < 0 {
		return nil
	}
	l := (*shelf)[last]
	*shelf = (*shelf)[:last]
	s.lent++
	s.change()
	if l.out || s.ledger.arena.poison {
		return acct.begin(l, n)
	}
	l.length, l.out = int32(n), true
	return l
}

// Release does what Lease.Release does, for less if l comes from this loop's stock. It is called on
// the loop for which Local has made the account.
func (acct *Account) Release(l *Lease) {
	s := acct.stock
	switch {
	case s == nil || l.stock != s:
		l.Release()
		return
	case !l.out || l.posted != 0 || s.ledger.arena.poison || s.ledger.short():
		if l, _ = l.end(); !s.put(l) {
			s.ledger.putBack(l)
		}
		return
	}
	s.lent--
	s.change()
	l.out, l.clean = false, false
	if shelf := &s.shelves[l.class]; len(*shelf) < cap(*shelf) {
		*shelf = append(*shelf, l)
		return
	}
	s.ledger.putBack(l)
}

// Publish shows other goroutines how many leases of this loop there are. It is called on the loop for
// which Local has made the account.
func (acct *Account) Publish() {
	if s := acct.stock; s != nil && s.changed {
		s.publish()
	}
}

func (s *stock) publish() {
	s.changed = false
	s.heldThen.Store(s.held())
	s.lentThen.Store(int64(s.lent))
	// Whoever began to wait before it could see what is here did not ask for the stock.
	if s.ledger.short() {
		s.empty()
	}
}

// held returns how many octets are on the shelves.
func (s *stock) held() (n int64) {
	for i, shelf := range s.shelves {
		n += int64(len(shelf) * classSizes[i])
	}
	return n
}

// change notes that the shelves or lent have changed.
func (s *stock) change() {
	if !s.changed {
		s.changed = true
		s.arrange()
	}
}

// fill puts blocks of class i on their empty shelf, unless memory is short: those that others have
// returned, or else some from the pool. It reports whether the shelf has blocks now.
func (s *stock) fill(i int) bool {
	l := s.ledger
	if l.short() {
		return false
	}
	s.fetch()
	if len(s.shelves[i]) > 0 {
		return true
	}
	size := classSizes[i]
	if !l.add(int64(size*stockRefill), l.limit) {
		return false
	}
	for n := range stockRefill {
		b := l.pool.take(i)
		if b == nil {
			l.used.Add(-int64(size * (stockRefill - n)))
			break
		}
		s.shelve(b)
	}
	return len(s.shelves[i]) > 0
}

// fetch puts the blocks that others have returned on the shelves.
func (s *stock) fetch() {
	s.mu.Lock()
	all := s.returned
	s.returned, s.octets = s.spare, 0
	s.mu.Unlock()
	s.spare = nil
	for _, l := range all {
		if !s.shelve(l) {
			s.ledger.putBack(l)
		}
	}
	clear(all)
	s.spare = all[:0]
}

// shelve puts l on its shelf, if there is room. What is there is ready to be lent by this stock.
func (s *stock) shelve(l *Lease) bool {
	shelf := &s.shelves[l.class]
	if len(*shelf) == cap(*shelf) {
		return false
	}
	l.acct, l.stock, l.posted = s.ledger, s, 0
	*shelf = append(*shelf, l)
	s.change()
	return true
}

// put keeps the block of l, which this stock has lent and the loop releases. It returns false if it
// does not keep it.
func (s *stock) put(l *Lease) bool {
	s.lent--
	s.change()
	return !s.ledger.short() && s.shelve(l)
}

// putElsewhere does what put does, on any goroutine.
func (s *stock) putElsewhere(l *Lease) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.back++
	if s.octets+l.Size() > stockOctets || s.ledger.short() {
		return false
	}
	s.octets += l.Size()
	s.returned = append(s.returned, l)
	return true
}

// short reports whether there are waiters, in this account or in another.
func (acct *ledger) short() bool {
	return acct.contended.Load() != 0 || acct.arena.waiting.Load() != 0
}

// empty gives all blocks back to the pool. It is called on the loop.
func (s *stock) empty() {
	for i := range s.shelves {
		for len(s.shelves[i]) > 0 {
			shelf := s.shelves[i]
			l := shelf[len(shelf)-1]
			s.shelves[i] = shelf[:len(shelf)-1]
			s.ledger.putBack(l)
		}
	}
	s.heldThen.Store(0)
	s.giveReturned()
}

// obey does what ask has asked for.
func (s *stock) obey() {
	s.waits.Store(false)
	s.empty()
}

// giveReturned gives the blocks that others have returned back to the pool. Any goroutine.
func (s *stock) giveReturned() {
	s.mu.Lock()
	all := s.returned
	s.returned, s.octets = nil, 0
	s.mu.Unlock()
	for _, l := range all {
		s.ledger.putBack(l)
	}
}

// ask gives all blocks back to the pool: those that others have returned at once, and the others when
// the loop gets to it. Any goroutine.
func (s *stock) ask() {
	s.giveReturned()
	if s.heldThen.Load() != 0 && s.waits.CompareAndSwap(false, true) {
		s.run(s.asked)
	}
}

// kept returns how many octets the free blocks of the stock have.
func (s *stock) kept() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.heldThen.Load() + int64(s.octets)
}

// outstanding returns how many leases have not been released.
func (s *stock) outstanding() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return max(0, int(s.lentThen.Load())-s.back) // what the loop has lent since publish may be back already
}

// allStocks returns the stocks of the account.
func (acct *ledger) allStocks() []*stock {
	acct.mu.Lock()
	defer acct.mu.Unlock()
	return acct.stocks
}

// EmptyStocks gives the free blocks in the stocks of all accounts back to the pool, those of busy loops a moment later.
// It is for callers that wait for memory in another way than Wait. It is safe for concurrent use.
func (acct *ledger) EmptyStocks() { acct.arena.emptyStocks() }

// emptyStocks empties the stocks of all accounts. Those of loops that have something in them do so
// themselves, soon.
func (a *Arena) emptyStocks() {
	for _, acct := range *a.accounts.Load() {
		for _, s := range acct.allStocks() {
			s.ask()
		}
	}
}
