package regmem

import (
	"sync"

	"golang.org/x/sys/unix"
)

// A pool is a range of pages and the slabs cut from it: what is common to all, or
// what is reserved for one account. Its methods are safe for concurrent use.
type pool struct {
	mem     []byte // of the whole arena: pages are numbered through
	classes [len(classSizes)]class

	mu   sync.Mutex // guards runs; a leaf
	runs runs
}

func newPool(mem []byte, first, pages int) *pool {
	p := &pool{mem: mem}
	p.runs.init(first, pages)
	for i := range p.classes {
		p.classes[i].init(i)
	}
	return p
}

// cut takes n pages off the high end of a pool that was never used.
func (p *pool) cut(n int) (first int, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.runs.free != p.runs.total || p.runs.touched > 0 || n >= p.runs.total {
		return 0, false
	}
	p.runs.init(p.runs.first, p.runs.total-n)
	return p.runs.first + p.runs.total, true
}

// holds reports whether a slab of class i could ever be made.
func (p *pool) holds(i int) bool { return p.classes[i].pages <= p.runs.longest }

// take finds a block of class i, or returns nil when there is no room.
func (p *pool) take(i int) *Lease {
	c := &p.classes[i]
	if l := c.take(); l != nil {
		return l
	}
	// The class is empty: give it another slab. When no run of pages is long
	// enough, slabs of other classes that are entirely free go back first.
	page, ok := p.run(c)
	if !ok {
		p.reclaim(everySlab)
		if page, ok = p.run(c); !ok {
			return c.take() // another goroutine may have released one meanwhile
		}
	}
	return c.add(p.mem, page)
}

// room reports whether take would find a block.
func (p *pool) room(i int) bool {
	c := &p.classes[i]
	if c.any() || p.fits(c) {
		return true
	}
	p.reclaim(everySlab)
	return p.fits(c) || c.any()
}

func (p *pool) run(c *class) (page int, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.runs.take(c.pages, c.size >= largeClass)
}

func (p *pool) fits(c *class) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.runs.fits(c.pages)
}

func everySlab(*slab) bool { return true }

// reclaim takes the free slabs that pass the test from all classes.
func (p *pool) reclaim(test func(*slab) bool) {
	for i := range p.classes {
		c := &p.classes[i]
		for s := c.detach(test); s != nil; {
			next := s.next
			p.mu.Lock()
			p.runs.put(s.page, c.pages)
			p.mu.Unlock()
			c.recycle(s)
			s = next
		}
	}
}

// discard gives free pages that were used back to the kernel and returns how many
// octets they hold.
func (p *pool) discard() (octets int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.runs.discard(func(page, pages int) bool {
		b := p.mem[page*pageSize : (page+pages)*pageSize]
		if unix.Madvise(b, unix.MADV_DONTNEED) != nil {
			return false
		}
		octets += int64(len(b))
		return true
	})
	return octets
}

// resident returns how many octets the process may have touched and not given back.
func (p *pool) resident() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return int64(p.runs.touched) * pageSize
}
