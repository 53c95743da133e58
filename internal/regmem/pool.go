package regmem

import (
	"sync"

	"golang.org/x/sys/unix"
)

// A pool is a range of pages and the slabs in it: the common part of the budget, or the
// part reserved for one account. Its methods are safe for concurrent use.
type pool struct {
	mem     []byte // memory of the whole arena, in which pages are numbered
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

// cut removes n pages from the high end of the pool. It fails if the pool was ever used.
func (p *pool) cut(n int) (first int, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.runs.free != p.runs.total || p.runs.touched > 0 || n >= p.runs.total {
		return 0, false
	}
	p.runs.init(p.runs.first, p.runs.total-n)
	return p.runs.first + p.runs.total, true
}

// holds reports whether the pool is large enough for a slab of class i.
func (p *pool) holds(i int) bool { return p.classes[i].pages <= p.runs.longest }

// take leases a block of class i, or returns nil if there is no room.
func (p *pool) take(i int) *Lease {
	c := &p.classes[i]
	if l := c.take(); l != nil {
		return l
	}
	// No block of the class is free: make another slab. If no run of pages is long enough,
	// first give back the slabs of other classes whose blocks are all free.
	page, ok := p.run(c)
	if !ok {
		p.reclaim(everySlab)
		if page, ok = p.run(c); !ok {
			return c.take() // another goroutine may have released a block meanwhile
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

// run allocates the pages of a slab of class c.
func (p *pool) run(c *class) (page int, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.runs.take(c.pages, c.size >= largeClass)
}

// fits reports whether run would find the pages of a slab of class c.
func (p *pool) fits(c *class) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.runs.fits(c.pages)
}

func everySlab(*slab) bool { return true }

// reclaim gives back the pages of the idle slabs that pass the test, in all classes.
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

// discard gives the free pages that were used back to the kernel, and returns how many
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

// resident returns how many octets the process may have touched and has not given back.
func (p *pool) resident() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return int64(p.runs.touched) * pageSize
}
