// Package regmem holds the memory of messages: one budget for the process, mapped outside
// the Go heap and lent as leases.
//
// # Operation
//
// [New] maps one range of addresses as long as the budget. The kernel provides pages when
// they are first touched, so an idle arena costs nothing, and no request can make the
// arena exceed its budget. The range is divided into extents, and extents into runs of
// pages. A run becomes a slab of blocks of one size class, and a [Lease] lends one block.
// Small classes get runs from the low end of the range and large ones from the high end,
// so that small leases do not splinter the space for large ones. A slab whose blocks are
// all free gives its pages back when another class wants them.
//
// An [Account] is a share of the budget with a limit of its own. Memory that is needed to
// finish work must not come from the account that starting work can exhaust: Calls and
// Replies each have one. [Arena.Reserve] gives an account its own addresses, so that no
// other account can starve it. [Arena.Account] is only a limit: such accounts lease from
// the common rest, where the leases of one may splinter the space of another. Leases of
// mixed sizes fill nine tenths of 1 GiB before one is refused, and eight tenths of 64 MiB.
//
// # Ownership
//
// A lease belongs to one owner at a time, which may pass it on. It is not safe for
// concurrent use, but may be released on any goroutine. While a Work Request uses the
// block, [Lease.Post] marks it and Release panics (invariant B1 of the package that posts
// it). Arena and Account are safe for concurrent use, but for what [Account.Local] returns: that belongs
// to a loop.
//
// # Errors
//
// [ErrBudget] is the one error to expect: the caller pauses its reader and calls
// [Account.Wait], which tells when to try again. A request beyond [MaxLease] or beyond the
// account's limit fails for ever, with another error. Releasing a lease twice is our bug
// and panics.
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
	// ErrBudget means that the budget, or the limit of the account, is spent for now.
	ErrBudget = errors.New("regmem: memory budget spent")
	// errTooLong means that a lease is longer than MaxLease or the account's limit. It will
	// never succeed.
	errTooLong = errors.New("regmem: lease exceeds what the account can ever lend")
)

const (
	pageSize = 4096

	// extentSize is the length in octets of every extent but the last: 16.5 MiB, which
	// the blocks of the largest classes fill without a rest. No lease crosses the border
	// of an extent.
	extentSize = 2 * (MaxLease + indent)

	pagesPerExtent = extentSize / pageSize

	// minBudget is the smallest budget. It suffices for a few small leases, for tests.
	minBudget = 256 << 10
)

// Options describe an Arena.
type Options struct {
	// Budget is the most octets that the arena ever uses: at least 256 KiB, rounded down
	// to a page. It has no default.
	Budget int64

	// Poison makes the arena fill released blocks with a pattern, and panic when it finds
	// that a block was written to after its release. It costs one pass over every block
	// on release, and one on lease. It is always on in race builds.
	Poison bool
}

// An Arena is the memory of one process. Its methods are safe for concurrent use.
type Arena struct {
	budget int64
	poison bool
	mem    []byte // constant until Close
	common *pool  // the part that is not reserved
	root   *Account

	pinned  atomic.Bool   // an adapter knows the pages
	epoch   atomic.Uint32 // counts calls of Trim
	waiting atomic.Int32  // waiters in all accounts

	mu       sync.Mutex                // guards changes of accounts and pools; taken before a pool's mu
	accounts atomic.Pointer[[]*ledger] // the first is root's
	pools    atomic.Pointer[[]*pool]   // the first is common
}

// New maps an arena.
func New(o Options) (*Arena, error) {
	budget := o.Budget &^ (pageSize - 1)
	if budget < minBudget {
		return nil, fmt.Errorf("regmem: budget of %d octets is below the minimum, %d", o.Budget, minBudget)
	}
	if int64(int(budget)) != budget {
		return nil, fmt.Errorf("regmem: budget of %d octets does not fit the address space", o.Budget)
	}
	mem, err := unix.Mmap(-1, 0, int(budget), unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE)
	if err != nil {
		return nil, fmt.Errorf("regmem: map %d octets: %w", budget, err)
	}
	// Core dumps have neither the messages of clients nor the size of the budget. Kernels that cannot leave them
	// out do without.
	_ = unix.Madvise(mem, unix.MADV_DONTDUMP)
	a := &Arena{budget: budget, poison: o.Poison || raceEnabled, mem: mem}
	a.common = newPool(mem, 0, int(budget/pageSize))
	a.root = &Account{ledger: &ledger{arena: a, pool: a.common, name: "arena", limit: budget}}
	a.accounts.Store(&[]*ledger{a.root.ledger})
	a.pools.Store(&[]*pool{a.common})
	return a, nil
}

// Close unmaps the arena. While leases are outstanding it returns an error and unmaps
// nothing, because their owners still use the addresses. Nobody may use the arena afterwards, and
// a second Close does nothing.
func (a *Arena) Close() error {
	if n := a.Outstanding(); n != 0 {
		return fmt.Errorf("regmem: close with %d leases outstanding", n)
	}
	mem := a.mem
	if a.mem = nil; mem == nil {
		return nil
	}
	return unix.Munmap(mem)
}

// Account opens a share of the part that is not reserved. Its leases never add up to more
// than limit octets, counted in blocks. A limit that is not positive, or that exceeds the
// part, means the whole part. Accounts live as long as the arena.
func (a *Arena) Account(name string, limit int64) *Account {
	a.mu.Lock()
	defer a.mu.Unlock()
	if limit <= 0 || limit > a.root.limit {
		limit = a.root.limit
	}
	return a.add(&ledger{arena: a, pool: a.common, name: name, limit: limit})
}

// Reserve opens a share that no other account can use or splinter: limit octets, rounded
// down to a page, taken from the budget. It is for start-up: it fails if the arena is in
// use already, or if less than a page would be left.
func (a *Arena) Reserve(name string, limit int64) (*Account, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	limit &^= pageSize - 1
	if limit < pageSize || limit > a.root.limit-pageSize {
		return nil, fmt.Errorf("regmem: cannot reserve %d octets for %s: %d are left, and a page must remain", limit, name, a.root.limit)
	}
	pages := int(limit / pageSize)
	page, ok := a.common.cut(pages)
	if !ok {
		return nil, fmt.Errorf("regmem: cannot reserve %d octets for %s: the arena is in use already", limit, name)
	}
	p := newPool(a.mem, page, pages)
	pools := append(append([]*pool(nil), *a.pools.Load()...), p)
	a.pools.Store(&pools)
	a.root.limit -= limit
	return a.add(&ledger{arena: a, pool: p, name: name, limit: limit}), nil
}

// add adds acct to the accounts. The caller holds a.mu.
func (a *Arena) add(acct *ledger) *Account {
	list := append(append([]*ledger(nil), *a.accounts.Load()...), acct)
	a.accounts.Store(&list)
	return &Account{ledger: acct}
}

// Lease does what Account.Lease does. Only the budget bounds it.
func (a *Arena) Lease(n int) (*Lease, error) { return a.root.Lease(n) }

// Budget returns the budget in octets.
func (a *Arena) Budget() int64 { return a.budget }

// Used returns how many octets are leased, counted in blocks.
func (a *Arena) Used() int64 {
	var n int64
	for _, acct := range *a.accounts.Load() {
		n += acct.Used()
	}
	return n
}

// Outstanding returns how many leases have not been released.
func (a *Arena) Outstanding() int {
	n := 0
	for _, acct := range *a.accounts.Load() {
		n += acct.Outstanding()
	}
	return n
}

// Trim gives the pages back to the kernel that have been free since the call before this
// one, and returns how many octets they hold. Called every half minute, it gives back the
// pages that were not needed for half a minute to a minute.
func (a *Arena) Trim() int64 {
	a.emptyStocks()
	now := a.epoch.Add(1)
	var n int64
	for _, p := range *a.pools.Load() {
		p.reclaim(func(s *slab) bool { return now-s.idleSince > 1 })
		if !a.pinned.Load() {
			n += p.discard()
		}
	}
	return n
}

// Pin returns the arena's memory for an adapter to register: extents, each of which has the whole
// of every lease in it. From now on Trim gives no page back to the kernel. The adapter would go on
// writing to the page that it knew, and the process would read another.
func (a *Arena) Pin() (extents [][]byte) {
	a.pinned.Store(true)
	for b := a.mem; len(b) > 0; b = b[min(len(b), extentSize):] {
		extents = append(extents, b[:min(len(b), extentSize):min(len(b), extentSize)])
	}
	return extents
}

// Stats is a snapshot of an arena, for gauges.
type Stats struct {
	Budget   int64 // octets
	Used     int64 // octets in leased blocks
	Resident int64 // octets that the process may have touched and has not given back
	Waiting  int   // waiters that have not been called
	Accounts []AccountStats
}

// AccountStats is a snapshot of one account.
type AccountStats struct {
	Name    string
	Limit   int64  // octets
	Used    int64  // octets in leased blocks
	Peak    int64  // largest Used so far, with the free blocks that loops kept at that time
	Leases  int    // leases that have not been released
	Waiting int    // waiters that have not been called
	Refused uint64 // leases that failed with ErrBudget
}

// Stats returns a snapshot. It reads the numbers one after another: they need not add up
// while other goroutines lease and release.
func (a *Arena) Stats() Stats {
	st := Stats{Budget: a.budget}
	for _, acct := range *a.accounts.Load() {
		s := acct.stats()
		st.Used += s.Used
		st.Waiting += s.Waiting
		st.Accounts = append(st.Accounts, s)
	}
	for _, p := range *a.pools.Load() {
		st.Resident += p.resident()
	}
	return st
}

// BlockSize returns how many octets a lease of n octets takes from the budget. It is 0 for
// n beyond MaxLease.
func BlockSize(n int) int {
	if i := classOf(n); i >= 0 {
		return classSizes[i]
	}
	return 0
}

// classOf returns the class with the smallest blocks that hold n octets, or -1.
func classOf(n int) int {
	switch {
	case n > MaxLease || n < 0:
		return -1
	case n <= classSizes[0]:
		return 0
	}
	// Sizes about double from class to class, so the class is next to the power of two.
	i := bits.Len(uint(n-1)) - firstClassBits
	if i >= len(classSizes) {
		i = len(classSizes) - 1
	}
	for i > 0 && n <= longest[i-1] {
		i--
	}
	for n > longest[i] {
		i++
	}
	return i
}
