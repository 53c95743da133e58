package regmem

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"unsafe"
)

func newArena(tb testing.TB, o Options) *Arena {
	tb.Helper()
	a, err := New(o)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		st := a.Stats()
		if st.Used != 0 || a.Used() != 0 || a.Outstanding() != 0 {
			tb.Errorf("left behind: %+v", st)
			return
		}
		if err := a.Close(); err != nil {
			tb.Error(err)
		}
	})
	return a
}

func lease(tb testing.TB, acct interface {
	Lease(n int) (*Lease, error)
}, n int,
) *Lease {
	tb.Helper()
	l, err := acct.Lease(n)
	if err != nil {
		tb.Fatalf("lease of %d octets: %v", n, err)
	}
	return l
}

// leaseAll leases blocks for n octets until that fails.
func leaseAll(acct interface {
	Lease(n int) (*Lease, error)
}, n int,
) (all []*Lease) {
	for {
		l, err := acct.Lease(n)
		if err != nil {
			return all
		}
		all = append(all, l)
	}
}

func releaseAll(leases []*Lease) {
	for _, l := range leases {
		l.Release()
	}
}

func refuse(tb testing.TB, acct interface {
	Lease(n int) (*Lease, error)
}, n int, want error,
) {
	tb.Helper()
	if l, err := acct.Lease(n); !errors.Is(err, want) {
		if err == nil {
			l.Release()
		}
		tb.Fatalf("lease of %d octets: %v, want %v", n, err, want)
	}
}

// drain is Trim for everything that is free now.
func drain(a *Arena) int64 {
	a.emptyStocks()
	var n int64
	for _, p := range *a.pools.Load() {
		p.reclaim(everySlab)
		n += p.discard()
	}
	return n
}

// slabOctets returns how many octets are in slabs: in leased blocks, and in free blocks
// that are kept for reuse.
func slabOctets(a *Arena) (n int64) {
	for _, p := range *a.pools.Load() {
		p.mu.Lock()
		n += int64(p.runs.total-p.runs.free) * pageSize
		p.mu.Unlock()
	}
	return n
}

// offsetIn returns where b starts in mem.
func offsetIn(mem, b []byte) (int, bool) {
	if len(mem) == 0 || cap(b) == 0 {
		return 0, false
	}
	start, p := uintptr(unsafe.Pointer(unsafe.SliceData(mem))), uintptr(unsafe.Pointer(unsafe.SliceData(b)))
	if p < start || p-start > uintptr(len(mem)) || uintptr(len(b)) > uintptr(len(mem))-(p-start) {
		return 0, false
	}
	return int(p - start), true
}

func panics(t *testing.T, what string, f func()) {
	t.Helper()
	defer func() {
		t.Helper()
		if r := recover(); r == nil {
			t.Errorf("%s did not panic", what)
		} else if s := fmt.Sprint(r); len(s) < 4 || s[:4] != "BUG:" {
			t.Errorf("%s panicked with %q", what, s)
		}
	}()
	f()
}

func TestNew(t *testing.T) {
	for _, budget := range []int64{-1, 0, minBudget - 1} {
		if a, err := New(Options{Budget: budget}); err == nil {
			t.Errorf("a budget of %d was taken", budget)
			_ = a.Close()
		}
	}
	a := newArena(t, Options{Budget: minBudget + 4095})
	if a.Budget() != minBudget {
		t.Errorf("Budget = %d, want %d", a.Budget(), minBudget)
	}
	l := lease(t, a, 1)
	if err := a.Close(); err == nil {
		t.Error("closed with a lease outstanding")
	}
	l.Release()
}

func TestLease(t *testing.T) {
	a := newArena(t, Options{Budget: 64 << 20})
	for _, size := range longest {
		for _, n := range []int{0, 1, size - 1, size} {
			l := lease(t, a, n)
			b := l.Bytes()
			if len(b) != n || cap(b) != l.Cap() || l.Cap() < n {
				t.Errorf("lease of %d: %d octets, capacity %d", n, len(b), l.Cap())
			}
			if n > 0 && uintptr(unsafe.Pointer(&b[0]))%512 != 0 {
				t.Errorf("lease of %d is not aligned to 512 octets", n)
			}
			l.Resize(l.Cap())
			clear(l.Bytes())
			l.Resize(0)
			if a.Used() != int64(BlockSize(n)) || l.Size() != BlockSize(n) || a.Outstanding() != 1 {
				t.Errorf("lease of %d: %d used, %d outstanding", n, a.Used(), a.Outstanding())
			}
			l.Release()
		}
	}
	for _, n := range []int{-1, MaxLease + 1, 1 << 40} {
		refuse(t, a, n, errTooLong)
	}
}

// The sizes fit together: blocks fill their slab, and a slab fits in an extent.
func TestClasses(t *testing.T) {
	last := 0
	for i, size := range classSizes {
		var c class
		c.init(i)
		blocks := c.pages * pageSize / size
		if size <= last || size%512 != 0 || blocks*size != c.pages*pageSize || blocks < 1 || blocks > 64 || c.pages > pagesPerExtent {
			t.Errorf("class %d of %d octets: %d pages, %d blocks", i, size, c.pages, blocks)
		}
		last = size
	}
	if last != MaxLease+indent || 2*last != extentSize {
		t.Errorf("the largest class has %d octets", last)
	}
	for _, size := range longest {
		for n := max(0, size-2); n <= size+2; n++ {
			want := -1
			for i, s := range longest {
				if n <= s {
					want = i
					break
				}
			}
			if got := classOf(n); got != want {
				t.Errorf("classOf(%d) = %d, want %d", n, got, want)
			}
		}
	}
	for _, size := range []int{512 << 10, 1 << 20, 4 << 20} { // I/O sizes, with the rest of a Reply
		if n := BlockSize(size + 8<<10); n > size+size/32 {
			t.Errorf("a Reply chunk for an I/O size of %d takes %d octets", size, n)
		}
	}
	for n := range 70000 {
		if i := classOf(n); n > longest[i] || i > 0 && n <= longest[i-1] {
			t.Fatalf("classOf(%d) = %d", n, i)
		}
	}
}

// While leases of all sizes are made and released, none overlaps another, and the budget
// holds.
func TestDisjoint(t *testing.T) {
	const budget = 24 << 20
	a := newArena(t, Options{Budget: budget})
	rnd := rand.New(rand.NewPCG(1, 2))
	var all marked
	refused, lowest := 0, 1.0
	for mark := uint64(1); mark < 30000; mark++ {
		if len(all) > 0 && rnd.IntN(5) < 2 {
			all.release(t, rnd.IntN(len(all)))
			continue
		}
		n := 1 << rnd.IntN(22)
		n = min(n+rnd.IntN(n), MaxLease)
		l, err := a.Lease(n)
		if err != nil {
			if !errors.Is(err, ErrBudget) {
				t.Fatal(err)
			}
			refused++
			lowest = min(lowest, float64(a.Used()+int64(classSizes[classOf(n)]))/budget)
			for range rnd.IntN(len(all)) {
				all.release(t, rnd.IntN(len(all)))
			}
			continue
		}
		all.add(l, mark)
		if used := a.Used(); used > budget {
			t.Fatalf("%d octets used of %d", used, budget)
		}
		switch rnd.IntN(2000) {
		case 0:
			a.Trim()
		case 1:
			drain(a)
		}
	}
	for len(all) > 0 {
		all.release(t, len(all)-1)
	}
	if refused == 0 {
		t.Error("the budget was never spent")
	}
	t.Logf("%d refusals; the least full arena to refuse would have been %.0f%% full", refused, 100*lowest)
	st := a.Stats()
	if root := st.Accounts[0]; slabOctets(a) > budget || st.Resident > budget || root.Refused != uint64(refused) || root.Peak > budget {
		t.Errorf("%+v", st)
	}
}

// marked are leases, each with a mark in its octets.
type marked []struct {
	l    *Lease
	mark uint64
}

// markEvery is the distance of two copies of the mark.
const markEvery = 504

func (m *marked) add(l *Lease, mark uint64) {
	b := l.Bytes()
	for j := 0; j+8 <= len(b); j += markEvery {
		binary.NativeEndian.PutUint64(b[j:], mark)
	}
	*m = append(*m, struct {
		l    *Lease
		mark uint64
	}{l, mark})
}

// release checks the marks of lease i and releases it.
func (m *marked) release(t *testing.T, i int) {
	t.Helper()
	all := *m
	h := all[i]
	b := h.l.Bytes()
	for j := 0; j+8 <= len(b); j += markEvery {
		if got := binary.NativeEndian.Uint64(b[j:]); got != h.mark {
			t.Fatalf("a block of %d octets was overwritten at %d", h.l.Cap(), j)
		}
	}
	h.l.Release()
	all[i] = all[len(all)-1]
	*m = all[:len(all)-1]
}

// The memory of one class can move to any other class and back.
func TestReclaim(t *testing.T) {
	a := newArena(t, Options{Budget: 2 * extentSize})
	for range 2 {
		for _, size := range longest {
			all := leaseAll(a, size)
			got := float64(len(all)*size) / float64(a.Budget())
			if got < 0.97 {
				t.Errorf("blocks of %d octets fill %.1f%% of the budget", size, 100*got)
			}
			releaseAll(all)
		}
	}
}

func TestTrim(t *testing.T) {
	a := newArena(t, Options{Budget: 64 << 20})
	touch := func(n int) *Lease {
		l := lease(t, a, n)
		fill(l.Bytes(), 0x55)
		return l
	}
	kept, gone := touch(64<<10), touch(1<<20)
	gone.Release()
	if n := a.Trim(); n != 0 {
		t.Errorf("Trim gave back %d octets that were in use since the last one", n)
	}
	if n := a.Trim(); n != 1<<20+12<<10 {
		t.Errorf("Trim gave back %d octets, want the idle block", n)
	}
	if n := a.Trim() + drain(a); n != 0 {
		t.Errorf("gave back %d octets twice", n)
	}
	if st := a.Stats(); st.Resident != slabOctets(a) || st.Resident != 64<<10+4<<10 {
		t.Errorf("%+v", st)
	}
	if i := findOther(kept.Bytes(), 0x55); i >= 0 {
		t.Error("a leased block was given back")
	}
	// Pages that were given back are zero when they are used again, like fresh memory.
	again := lease(t, a, 1<<20)
	if i := findOther(again.Bytes(), 0); i >= 0 {
		t.Errorf("octet %d was not given back", i)
	}
	again.Release()
	kept.Release()
	if rss := residentKiB(t); rss > 0 {
		t.Logf("process has %d KiB resident", rss)
	}
}

func residentKiB(t *testing.T) int {
	b, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		t.Log(err)
		return 0
	}
	var size, resident int
	_, _ = fmt.Sscan(string(b), &size, &resident)
	return resident * os.Getpagesize() / 1024
}

// A mapping costs nothing until it is used.
func TestResident(t *testing.T) {
	before := residentKiB(t)
	a := newArena(t, Options{Budget: 4 << 30})
	l := lease(t, a, 4096)
	fill(l.Bytes(), 1)
	if after := residentKiB(t); before > 0 && after-before > 64<<10 {
		t.Errorf("an idle arena of 4 GiB costs %d KiB", after-before)
	}
	l.Release()
}

// No block crosses the border of an extent.
func TestExtents(t *testing.T) {
	a := newArena(t, Options{Budget: 40<<20 + 4096})
	for _, l := range leaseAll(a, 300<<10) {
		off, ok := offsetIn(a.mem, l.Bytes())
		if !ok || off%extentSize+l.Cap() > extentSize || off+l.Cap() > len(a.mem) {
			t.Errorf("a block is at %d, %v", off, ok)
		}
		l.Release()
	}
}

func TestBugs(t *testing.T) {
	a := newArena(t, Options{Budget: 1 << 20, Poison: true})
	l := lease(t, a, 10)
	panics(t, "Resize beyond the block", func() { l.Resize(l.Cap() + 1) })
	panics(t, "Resize below zero", func() { l.Resize(-1) })
	panics(t, "Unpost without Post", l.Unpost)
	l = func() *Lease { l.posted = 0; return l }()
	l.Post()
	l.Post()
	l.Unpost()
	if l.posted != 1 {
		t.Error("one of two marks is left")
	}
	panics(t, "Release of a posted buffer", l.Release)
	l.Unpost()
	l.Release()
	panics(t, "a second Release", l.Release)
	// It also panics after the block was lent again.
	other := lease(t, a, 10)
	panics(t, "a second Release after the block was lent again", l.Release)
	other.Release()
}

func TestDoubleReleaseWithoutPoison(t *testing.T) {
	if raceEnabled {
		t.Skip("race builds always poison")
	}
	a := newArena(t, Options{Budget: 1 << 20})
	l := lease(t, a, 10)
	l.Release()
	panics(t, "a second Release", l.Release)
}

func TestPoison(t *testing.T) {
	a := newArena(t, Options{Budget: 1 << 20, Poison: true})
	for _, n := range []int{100, 4096, 300 << 10} {
		l := lease(t, a, n)
		b := l.Bytes()
		b[n-1] = 1
		l.Release()
		if i := findOther(b, poison); i >= 0 {
			t.Errorf("octet %d of a released block is not poisoned", i)
		}
		lease(t, a, n).Release()
		b[n/2] = 1
		panics(t, "a write after Release", func() { _, _ = a.Lease(n) })
		// Correct the counters that the panic left behind.
		a.root.used.Add(-int64(classSizes[classOf(n)]))
		a.root.leases.Add(-1)
	}
}

func TestAllocs(t *testing.T) {
	if raceEnabled {
		t.Skip("race builds poison, and allocate for it")
	}
	a := newArena(t, Options{Budget: 64 << 20})
	acct := a.Account("test", 32<<20)
	for _, size := range longest {
		if n := testing.AllocsPerRun(100, func() {
			l, err := acct.Lease(size)
			if err != nil {
				t.Fatal(err)
			}
			l.Resize(size - 1)
			l.Post()
			l.Unpost()
			l.Release()
		}); n != 0 {
			t.Errorf("lease of %d octets: %v allocs", size, n)
		}
	}
}

// Goroutines lease, check and release while others trim. None finds the octets of another.
func TestConcurrent(t *testing.T) {
	a := newArena(t, Options{Budget: 16 << 20})
	testConcurrent(t, a, []*Account{a.Account("one", 8<<20), a.Account("two", 8<<20)}, 19)
}

// Stocks give their blocks to waiters in time.
func TestConcurrentStocks(t *testing.T) {
	a := newArena(t, Options{Budget: 67 << 20})
	acct := a.Account("stocked", 0)
	// Half a MiB is left, so that some have to wait.
	var rest []*Lease
	for range 8 {
		rest = append(rest, lease(t, acct, MaxLease))
	}
	rest = append(rest, lease(t, acct, 512<<10))
	testConcurrentLoops(t, a, acct)
	for _, l := range rest {
		l.Release()
	}
}

// stamp writes g to the first octet of l and to the last, and returns l.
func stamp(l *Lease, g int) *Lease {
	b := l.Bytes()
	b[0], b[len(b)-1] = byte(g), byte(g)
	return l
}

// checkStamp fails the test if l has no more what stamp wrote.
func checkStamp(t *testing.T, l *Lease, g int) {
	if b := l.Bytes(); b[0] != byte(g) || b[len(b)-1] != byte(g) {
		t.Errorf("goroutine %d finds octets of another", g)
	}
}

func testConcurrent(t *testing.T, a *Arena, accounts []*Account, bits int) {
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(g), 3))
			acct := accounts[g%2]
			var held []*Lease
			for range 2000 {
				if len(held) > 20 || len(held) > 0 && rnd.IntN(2) == 0 {
					l := held[len(held)-1]
					held = held[:len(held)-1]
					checkStamp(t, l, g)
					l.Release()
					continue
				}
				n := 1 << rnd.IntN(bits)
				l, err := acct.Lease(n)
				if err != nil {
					c := make(chan struct{})
					acct.Wait(n, func() { close(c) })
					for _, l := range held {
						l.Release()
					}
					held = held[:0]
					<-c
					continue
				}
				held = append(held, stamp(l, g))
				if rnd.IntN(500) == 0 {
					a.Trim()
				}
			}
			for _, l := range held {
				l.Release()
			}
		})
	}
	wg.Wait()
	if st := a.Stats(); st.Waiting != 0 {
		t.Errorf("%d waiters left", st.Waiting)
	}
}

// testConcurrentLoops has four loops lease from acct, and release their own leases and those of others.
func testConcurrentLoops(t *testing.T, a *Arena, acct *Account) {
	var loops [4]*stockLoop
	for i := range loops {
		loops[i] = newStockLoop(acct)
	}
	passed := make(chan *Lease, 64)
	var wg, working sync.WaitGroup
	working.Add(len(loops))
	for g, l := range loops {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(g), 5))
			var held []*Lease
			for range 4000 {
				switch n := 1 << rnd.IntN(15); {
				case len(held) > 20 || len(held) > 0 && rnd.IntN(2) == 0:
					x := held[len(held)-1]
					held = held[:len(held)-1]
					checkStamp(t, x, g)
					select {
					case passed <- x:
					default:
						l.Release(x)
					}
				case rnd.IntN(4) == 0:
					select {
					case x := <-passed:
						checkStamp(t, x, int(x.Bytes()[0])) // of whichever loop
						l.Release(x)
					default:
					}
				default:
					x, err := l.Lease(n)
					if err != nil {
						done := make(chan struct{})
						l.Wait(n, func() { close(done) })
						for _, x := range held {
							l.Release(x)
						}
						held = held[:0]
						for waiting := true; waiting; {
							l.pass()
							select {
							case <-done:
								waiting = false
							case x := <-passed:
								x.Release()
							case <-l.woken:
							}
						}
						continue
					}
					held = append(held, stamp(x, g))
				}
				if rnd.IntN(8) == 0 {
					l.pass()
				}
				if rnd.IntN(500) == 0 {
					a.Trim()
				}
			}
			for _, x := range held {
				l.Release(x)
			}
			// A loop that has nothing to do goes on giving its stock to others.
			working.Done()
			idle := make(chan struct{})
			go func() { working.Wait(); close(idle) }()
			for ended := false; !ended; {
				l.pass()
				select {
				case <-idle:
					ended = true
				case <-l.woken:
				}
			}
			l.pass()
		})
	}
	wg.Wait()
	for len(passed) > 0 {
		(<-passed).Release()
	}
	if st := a.Stats(); st.Waiting != 0 {
		t.Errorf("%d waiters left", st.Waiting)
	}
}

func BenchmarkLease(b *testing.B) {
	for _, n := range []int{512, 4096, 64 << 10, 1 << 20} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			a := newArena(b, Options{Budget: 64 << 20})
			acct := a.Account("bench", 0)
			b.ReportAllocs()
			for b.Loop() {
				l, err := acct.Lease(n)
				if err != nil {
					b.Fatal(err)
				}
				l.Release()
			}
		})
	}
	b.Run("parallel", func(b *testing.B) {
		a := newArena(b, Options{Budget: 64 << 20})
		b.ReportAllocs()
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				l, err := a.Lease(4096)
				if err != nil {
					b.Error(err)
					return
				}
				l.Release()
			}
		})
	})
	// The slow path: the class loses its slabs after each lease.
	b.Run("reclaim", func(b *testing.B) {
		a := newArena(b, Options{Budget: 1 << 30})
		for b.Loop() {
			l, err := a.Lease(64 << 10)
			if err != nil {
				b.Fatal(err)
			}
			l.Release()
			a.common.reclaim(everySlab)
		}
	})
}
