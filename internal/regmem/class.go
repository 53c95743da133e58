package regmem

import (
	"math/bits"
	"sync"
)

// classSizes lists the lengths of blocks in octets: powers of two, and from 4 KiB on a
// little more, so that one block holds a payload of round size and its headers. Of blocks
// of whole pages the first octets are not leased: see indent. 1 MiB and 8 KiB is the Reply chunk for an I/O size of 1 MiB.
var classSizes = [...]int{
	512,
	1 << 10,
	2 << 10,
	4<<10 + 512,
	8<<10 + 512,
	16<<10 + 512,
	32<<10 + 4<<10,
	64<<10 + 4<<10,
	128<<10 + 4<<10,
	256<<10 + 4<<10,
	512<<10 + 12<<10,
	1<<20 + 12<<10,
	2<<20 + 64<<10,
	4<<20 + 128<<10,
	8<<20 + 256<<10,
}

// longest is the longest lease of each class, in octets.
var longest = func() (l [len(classSizes)]int) {
	for i, size := range classSizes {
		l[i] = size - indentOf(size)
	}
	return l
}()

const (
	// indent is how many octets stay unused in front of a block that begins with a page. A Send over TCP puts a record
	// mark of 4 octets before a message, and the kernel often puts the mark at the beginning of a page. If a message began
	// there, too, each octet would be copied to a place 4 octets further in its page than where it came from. Zen 3 and 4
	// of AMD copy at a twentieth of their speed then: an instruction that copies takes its own writes, 1 to 15 octets
	// behind what it reads, modulo 4096, for what it is about to read.
	indent = 512

	// MaxLease is the longest lease in octets. Two of the blocks for it fill an extent.
	MaxLease = 8<<20 + 256<<10 - indent

	firstClassBits = 9            // 512 = 1<<9
	largeClass     = 128 << 10    // longer blocks are in runs from the high end
	smallClass     = 16<<10 + 512 // longer leases do not overtake waiters
)

// indentOf returns how many octets of a block of size octets are not leased.
func indentOf(size int) int {
	if size%pageSize == 0 {
		return indent
	}
	return 0
}

// slabPages returns how many pages a slab of blocks of size octets has. At most 64 whole blocks
// fill it without waste.
func slabPages(size int) int {
	switch {
	case size < pageSize:
		return 8 // 32 KiB
	case size%pageSize == 0:
		return size / pageSize
	default:
		return 8 * size / pageSize // sizes are multiples of 512: eight blocks end on a page
	}
}

// A slab is a run of pages cut into blocks of one class.
type slab struct {
	class *class
	page  int
	free  uint64 // a bit for each free block
	clean uint64 // a bit for each free block that holds only poison

	idleSince uint32 // value of Arena.epoch when the last block was released

	prev, next *slab // in one of the class's lists
	leases     []Lease
}

// A class hands out blocks of one size. Its methods are safe for concurrent use.
type class struct {
	index, size int
	pages       int    // of one slab
	all         uint64 // value of slab.free when no block is leased

	mu      sync.Mutex // guards the rest; a leaf
	partial list       // slabs with free and leased blocks
	idle    list       // slabs with free blocks only, the one used last first
	spare   *slab      // linked list of slabs without pages, for reuse
}

func (c *class) init(i int) {
	c.index, c.size = i, classSizes[i]
	c.pages = slabPages(c.size)
	blocks := c.pages * pageSize / c.size
	c.all = ^uint64(0) >> (64 - blocks)
}

// take leases a free block, or returns nil.
func (c *class) take() *Lease {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.partial.head
	if s == nil {
		if s = c.idle.head; s == nil {
			return nil
		}
		c.idle.remove(s)
		c.partial.push(s)
	}
	return c.takeFrom(s)
}

// takeFrom leases a block of s, which is the head of partial.
func (c *class) takeFrom(s *slab) *Lease {
	i := bits.TrailingZeros64(s.free)
	s.free &^= 1 << i
	if s.free == 0 {
		c.partial.remove(s)
	}
	l := &s.leases[i]
	l.clean = s.clean&(1<<i) != 0
	return l
}

// any reports whether a block is free.
func (c *class) any() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.partial.head != nil || c.idle.head != nil
}

// put makes the block of l free. poisoned says that it holds only poison.
func (c *class) put(l *Lease, epoch uint32, poisoned bool) {
	s := l.slab
	bit := uint64(1) << l.index
	c.mu.Lock()
	defer c.mu.Unlock()
	if s.free&bit != 0 {
		panic("BUG: regmem: block is free already")
	}
	if s.free == 0 && s.free|bit != c.all {
		c.partial.push(s)
	} else if s.free|bit == c.all {
		if s.free != 0 {
			c.partial.remove(s)
		}
		s.idleSince = epoch
		c.idle.push(s)
	}
	s.free |= bit
	if poisoned {
		s.clean |= bit
	} else {
		s.clean &^= bit
	}
}

// add makes a slab of the pages from page on and leases its first block.
func (c *class) add(mem []byte, page int) *Lease {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.spare
	if s != nil {
		c.spare, s.next = s.next, nil
	} else {
		s = &slab{class: c, leases: make([]Lease, bits.OnesCount64(c.all))}
	}
	s.page, s.free, s.clean = page, c.all, 0
	for i := range s.leases {
		off, end := page*pageSize+i*c.size+indentOf(c.size), page*pageSize+(i+1)*c.size
		s.leases[i].slab = s
		s.leases[i].index, s.leases[i].class = uint8(i), uint8(c.index)
		s.leases[i].buf = mem[off:end:end]
	}
	c.partial.push(s)
	return c.takeFrom(s)
}

// detach removes the idle slabs that pass the test and returns them as a linked list.
func (c *class) detach(test func(*slab) bool) (chain *slab) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for s := c.idle.head; s != nil; {
		next := s.next
		if test(s) {
			c.idle.remove(s)
			s.next = chain
			chain = s
		}
		s = next
	}
	return chain
}

// recycle keeps s, whose pages were given back, for reuse.
func (c *class) recycle(s *slab) {
	for i := range s.leases {
		s.leases[i].buf = nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	s.next = c.spare
	c.spare = s
}

// A list is a doubly linked list of slabs.
type list struct{ head *slab }

func (l *list) push(s *slab) {
	s.prev, s.next = nil, l.head
	if l.head != nil {
		l.head.prev = s
	}
	l.head = s
}

func (l *list) remove(s *slab) {
	if s.prev != nil {
		s.prev.next = s.next
	} else {
		l.head = s.next
	}
	if s.next != nil {
		s.next.prev = s.prev
	}
	s.prev, s.next = nil, nil
}
