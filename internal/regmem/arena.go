// Package regmem is the memory of messages: one budget for the process, mapped
// outside the Go heap, lent out as leases.
//
// # Operation
//
// [New] maps one range of addresses as long as the budget. The kernel gives it
// pages as they are touched, so an idle arena costs nothing, and whatever is
// asked of it the arena cannot grow past the budget. The range is cut into
// extents of [extentSize]; extents into runs of pages; a run becomes a slab of
// blocks of one size class, and a [Lease] lends one block. Small classes take
// runs from the low end of the range, large ones from the high end, so that
// small leases do not splinter the room of large ones. A slab whose blocks are
// all free goes back when its pages are wanted by another class.
//
// An [Account] is a share of the budget with a limit of its own. Memory that is
// needed to finish work must not come from the account that starting work can
// exhaust: RPC Calls and RPC Replies each have one. [Arena.Reserve] gives an
// account addresses of its own, so that nothing others do can starve it.
// [Arena.Account] is a limit only: such accounts take from the common rest, where
// the leases of one may splinter the room of another. Leases of mixed sizes fill
// nine tenths of 1 GiB before one is refused, eight of 64 MiB.
//
// # Ownership
//
// A lease belongs to one owner at a time, who may hand it on. It is not safe for
// concurrent use, but may be released on any goroutine. While a Work Request has
// the block, [Lease.Post] marks it and Release panics (invariant B1 of the
// package that posts it). Arena and Account are safe for concurrent use.
//
// # Errors
//
// [ErrBudget] is the one error to expect: pause whoever wants memory and ask
// [Account.Wait] for a call when it is worth trying again. A request beyond
// [MaxLease] is [errTooLong]. Releasing twice is our bug and panics.
package regmem

import (
	"errors"
	"fmt"
	"math/bits"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

var (
	// ErrBudget reports that the limit of the account or the budget is spent.
	ErrBudget = errors.New("regmem: memory budget spent")
	// errTooLong reports a lease longer than MaxLease or the account's limit,
	// which waiting cannot cure.
	errTooLong = errors.New("regmem: lease too long")
)

const (
	pageSize = 4096

	// extentSize is the length in octets of every extent but the last: 16.5 MiB,
	// which the blocks of the largest classes fill without a rest. No lease crosses
	// the border of an extent, so a provider may pin one at a time.
	extentSize = 2 * MaxLease

	pagesPerExtent = extentSize / pageSize

	// minBudget is the smallest budget: a few small leases, for tests.
	minBudget = 256 << 10
)

// Options describe an Arena.
type Options struct {
	// Budget is the most octets the arena ever uses; at least minBudget, rounded
	// down to a page. There is no default.
	Budget int64

	// Poison fills released blocks with a pattern, and panics when it finds that a
	// block was written to after its release. Costs a pass over every block on
	// release and on lease. Always on in race builds.
	Poison bool
}

// An Arena is the memory of one process. Its methods are safe for concurrent use.
type Arena struct {
	budget int64
	poison bool
	mem    []byte // constant until Close
	common *pool  // what is not reserved
	root   *Account

	epoch   atomic.Uint32 // counts calls of Trim
	waiting atomic.Int32  // waiters of all accounts

	mu       sync.Mutex                // guards changes of the next two; taken before a pool's mu
	accounts atomic.Pointer[[]*ledger] // the first is root's
	pools    atomic.Pointer[[]*pool]   // the first is common
}

// New maps an arena.
func New(o Options) (*Arena, error) {
	budget := o.Budget &^ (pageSize - 1)
	if budget < minBudget {
		return nil, fmt.Errorf("regmem: budget of %d octets is below %d", o.Budget, minBudget)
	}
	if int64(int(budget)) != budget {
		return nil, fmt.Errorf("regmem: budget of %d octets does not fit the address space", o.Budget)
	}
	mem, err := unix.Mmap(-1, 0, int(budget), unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE)
	if err != nil {
		return nil, fmt.Errorf("regmem: map %d octets: %w", budget, err)
	}
	a := &Arena{budget: budget, poison: o.Poison || raceEnabled, mem: mem}
	a.common = newPool(mem, 0, int(budget/pageSize))
	a.root = &Account{ledger: &ledger{arena: a, pool: a.common, name: "arena", limit: budget}}
	a.accounts.Store(&[]*ledger{a.root.ledger})
	a.pools.Store(&[]*pool{a.common})
	return a, nil
}

// Close unmaps the arena. It reports an error, and unmaps nothing, while leases
// are outstanding: somebody still has the addresses.
func (a *Arena) Close() error {
	if n := a.Outstanding(); n != 0 {
		return fmt.Errorf("regmem: close with %d leases outstanding", n)
	}
	return unix.Munmap(a.mem)
}

// Account opens a share of what is not reserved: leases of it never add up to
// more than limit octets, counted in blocks. A limit that is not positive, or
// beyond what there is, means all there is. Accounts live as long as the arena.
func (a *Arena) Account(name string, limit int64) *Account {
	a.mu.Lock()
	defer a.mu.Unlock()
	if limit <= 0 || limit > a.root.limit {
		limit = a.root.limit
	}
	return a.add(&ledger{arena: a, pool: a.common, name: name, limit: limit})
}

// Reserve opens a share that is taken out of the budget: limit octets, rounded
// down to a page, which nobody else can use or splinter. It is for start-up: an
// error says that the arena was in use already, or that no leaseable rest would
// be left.
func (a *Arena) Reserve(name string, limit int64) (*Account, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	limit &^= pageSize - 1
	if limit < pageSize || limit > a.root.limit-pageSize {
		return nil, fmt.Errorf("regmem: reserve %d octets of %d for %s", limit, a.root.limit, name)
	}
	pages := int(limit / pageSize)
	page, ok := a.common.cut(pages)
	if !ok {
		return nil, fmt.Errorf("regmem: reserve %d octets for %s: the arena is in use", limit, name)
	}
	p := newPool(a.mem, page, pages)
	pools := append(append([]*pool(nil), *a.pools.Load()...), p)
	a.pools.Store(&pools)
	a.root.limit -= limit
	return a.add(&ledger{arena: a, pool: p, name: name, limit: limit}), nil
}

// add keeps acct; a.mu is held.
func (a *Arena) add(acct *ledger) *Account {
	list := append(append([]*ledger(nil), *a.accounts.Load()...), acct)
	a.accounts.Store(&list)
	return &Account{ledger: acct}
}

// Lease is Account.Lease without an account: only the budget bounds it.
func (a *Arena) Lease(n int) (*Lease, error) { return a.root.Lease(n) }

// Budget is the budget in octets.
func (a *Arena) Budget() int64 { return a.budget }

// Used is how many octets are leased, counted in blocks.
func (a *Arena) Used() int64 {
	var n int64
	for _, acct := range *a.accounts.Load() {
		n += acct.Used()
	}
	return n
}

// Outstanding is how many leases have not been released.
func (a *Arena) Outstanding() int {
	n := 0
	for _, acct := range *a.accounts.Load() {
		n += acct.Outstanding()
	}
	return n
}

// Trim gives memory back to the kernel: pages that have been free since the call
// before this one. Called every half a minute it returns what was not needed for
// half a minute to a minute. Extents that are pinned stay as they are, since a
// device would go on writing to pages the process no longer sees. It returns how
// many octets it gave back.
func (a *Arena) Trim() int64 {
	a.emptyStocks()
	now := a.epoch.Add(1)
	var n int64
	for _, p := range *a.pools.Load() {
		p.reclaim(func(s *slab) bool { return now-s.idleSince > 1 })
		n += p.discard()
	}
	return n
}

// Stats is a snapshot of an arena for gauges.
type Stats struct {
	Budget   int64 // octets
	Used     int64 // octets in leased blocks
	Resident int64 // octets the process may have touched and not given back
	Waiting  int   // calls of Wait not yet answered
	Accounts []AccountStats
}

// AccountStats is a snapshot of one account.
type AccountStats struct {
	Name    string
	Limit   int64 // octets
	Used    int64 // octets in leased blocks
	Peak    int64 // largest Used so far
	Leases  int
	Waiting int
	Refused uint64 // times ErrBudget was returned
}

// Stats returns a snapshot. The numbers are read one after another and need not
// add up while other goroutines lease and release.
func (a *Arena) Stats() Stats {
	st := Stats{Budget: a.budget}
	for _, acct := range *a.accounts.Load() {
		s := acct.Stats()
		st.Used += s.Used
		st.Waiting += s.Waiting
		st.Accounts = append(st.Accounts, s)
	}
	for _, p := range *a.pools.Load() {
		st.Resident += p.resident()
	}
	return st
}

// BlockSize is how many octets a lease of n takes, 0 for n beyond MaxLease.
func BlockSize(n int) int {
	if i := classOf(n); i >= 0 {
		return classSizes[i]
	}
	return 0
}

// classOf returns the smallest class for n octets, or -1.
func classOf(n int) int {
	switch {
	case n > MaxLease || n < 0:
		return -1
	case n <= classSizes[0]:
		return 0
	}
	// Sizes double, so the class is next to the power of two.
	i := bits.Len(uint(n-1)) - firstClassBits
	if i >= len(classSizes) {
		i = len(classSizes) - 1
	}
	for i > 0 && n <= classSizes[i-1] {
		i--
	}
	for n > classSizes[i] {
		i++
	}
	return i
}
