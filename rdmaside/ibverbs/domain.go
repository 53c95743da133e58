//go:build ibverbs

package ibverbs

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
)

// A domain is what the connections of a Provider on one device share: a protection domain, the
// registered arena, and the channel of completion events, with a goroutine. Providers do not share
// domains: a key is valid in all of its protection domain, so the server of one upstream could use
// those of another.
type domain struct {
	e       *engine
	users   int    // guarded by engine.mu
	context uint64 // of the device

	dev     device
	quirks  Quirks
	pd      uint64
	channel uint64
	poller  *poller
	donec   chan struct{} // closed when the goroutine has ended

	windows bool          // handles are type 2 memory windows, unless these fail
	arena   []arenaExtent // one for each extent of the Provider
	retired retired

	dead atomic.Bool // the device had a fatal error

	mu    sync.RWMutex // guards conns; a leaf
	conns map[uint64]*conn
}

// An arenaExtent is an extent of the arena in a domain.
type arenaExtent struct {
	lkey atomic.Uint64 // the key plus 1<<32 when it is registered

	mu sync.Mutex // guards the rest until lkey is set, and registering; a leaf
	// Constant when lkey is set.
	mr    uint64
	shift uint64 // what the device adds to addresses: nothing, or a random number, which hides them from peers
}

func newDomain(e *engine, context uint64, dev device, q Quirks) (_ *domain, err error) {
	d := &domain{
		e: e, context: context, dev: dev, quirks: q, donec: make(chan struct{}),
		arena: make([]arenaExtent, len(e.p.opts.Memory)), conns: make(map[uint64]*conn),
	}
	e.p.extents.addArena()
	defer func() {
		if err != nil {
			d.destroy()
		}
	}()
	if err = checkMemlock(dev.name, &q, e.p.extents.memlockNeed()); err != nil {
		return nil, err
	}
	if d.windows, err = d.useWindows(); err != nil {
		return nil, err
	}
	if d.pd, err = createPD(context); err != nil {
		return nil, fmt.Errorf("ibverbs: device %s: protection domain: %w", dev.name, err)
	}
	var fd int
	if d.channel, fd, err = createCompletions(context); err != nil {
		d.channel = 0
		return nil, fmt.Errorf("ibverbs: device %s: completion channel: %w", dev.name, err)
	}
	if d.poller, err = newPoller(fd, "completion channel"); err != nil {
		return nil, err
	}
	go d.run()
	if err = watch(d); err != nil {
		return nil, err
	}
	return d, nil
}

// destroy ends what newDomain has made so far.
func (d *domain) destroy() {
	unwatch(d)
	if d.poller != nil {
		d.poller.stop()
		<-d.donec
		d.poller.close()
	}
	if d.channel != 0 {
		_ = destroyCompletions(d.channel)
	}
	for i := range d.arena {
		if mr := d.arena[i].mr; mr != 0 {
			_ = deregisterMR(mr)
		}
	}
	if d.pd != 0 {
		_ = destroyPD(d.pd)
	}
	d.e.p.extents.removeArena()
}

// release undoes one engine.domain. It may block.
func (d *domain) release() {
	d.e.mu.Lock()
	d.users--
	last := d.users == 0
	if last {
		delete(d.e.domains, d.context)
	}
	d.e.mu.Unlock()
	if last {
		d.destroy()
	}
}

// run wakes connections that have completions.
func (d *domain) run() {
	defer close(d.donec)
	tokens := make([]uint64, 64)
	var n int
	var err error
	wait := d.poller.waiter(func() bool {
		n, err = nextCompletions(d.channel, tokens)
		return n > 0 || err != nil
	})
	for {
		if wait() != nil {
			return
		}
		if err != nil && !errors.Is(err, syscall.EINTR) {
			return // the device is gone; its connections get an event of the connection manager
		}
		d.mu.RLock()
		for _, t := range tokens[:n] {
			if c := d.conns[t]; c != nil {
				c.wake()
			}
		}
		d.mu.RUnlock()
	}
}

func (d *domain) enter(c *conn) {
	d.mu.Lock()
	d.conns[c.token] = c
	d.mu.Unlock()
}

func (d *domain) leave(c *conn) {
	d.mu.Lock()
	delete(d.conns, c.token)
	d.mu.Unlock()
}

// element returns the element for b, and the registration that was made for b alone, if b is not in
// the arena. 0 is none.
func (d *domain) element(b []byte) (el element, temporary uint64, err error) {
	el = element{address(b), uint32(min(len(b), math.MaxInt32)), 0}
	if i := d.e.p.extents.find(b); i >= 0 {
		x, err := d.extent(i)
		if err != nil {
			return el, 0, err
		}
		el.addr += x.shift
		el.key = uint32(x.lkey.Load())
		return el, 0, nil
	}
	r, err := registerMR(d.pd, b, address(b), localWrite)
	if err != nil {
		return el, 0, d.memoryError(len(b), err)
	}
	el.key = r.lkey
	return el, r.mr, nil
}

// extent returns the extent i of the arena, registered for local use only.
func (d *domain) extent(i int) (*arenaExtent, error) {
	x := &d.arena[i]
	if x.lkey.Load() != 0 {
		return x, nil
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.lkey.Load() != 0 {
		return x, nil
	}
	b := d.e.p.opts.Memory[i]
	access, offset := localWrite, address(b)
	if d.binds() {
		access, offset = localWrite|bindWindows, d.offset(b, 2<<20) // pages of 2 MiB stay whole
	}
	r, err := registerMR(d.pd, b, offset, access)
	if err != nil {
		return nil, d.memoryError(len(b), err)
	}
	x.mr, x.shift = r.mr, offset-address(b)
	x.lkey.Store(uint64(r.lkey) | 1<<32)
	return x, nil
}

// binds says whether windows are bound to the arena.
func (d *domain) binds() bool { return d.windows && d.quirks.Windows == WindowsTrusted }

// offset returns an offset for b that tells nothing about addresses but their place in a page, which
// kernel and device want, unless the driver cannot choose it.
func (d *domain) offset(b []byte, page uint64) uint64 {
	if d.quirks.AddressOffsets {
		return address(b)
	}
	return rand.Uint64()>>1&^(page-1) | address(b)&(page-1)
}

const pageSize = 4096

// A region is memory that windows can be bound to, and where in it the window begins.
type region struct{ mr, offset uint64 }

// behind returns the region to which a window for b is bound. own says that it was made for this window.
func (d *domain) behind(b []byte) (r region, own bool, err error) {
	if i := d.e.p.extents.find(b); i >= 0 && d.binds() {
		x, err := d.extent(i)
		if err != nil {
			return r, false, err
		}
		return region{x.mr, address(b) + x.shift}, false, nil
	}
	offset := d.offset(b, pageSize)
	reg, err := registerMR(d.pd, b, offset, localWrite|bindWindows)
	if err != nil {
		return r, false, d.memoryError(len(b), err)
	}
	return region{reg.mr, offset}, true, nil
}

// expose registers b for the peer.
func (d *domain) expose(b []byte, a fabric.Access) (registration, uint64, error) {
	access := 0
	if a&fabric.RemoteRead != 0 {
		access |= remoteRead
	}
	if a&fabric.RemoteWrite != 0 {
		access |= remoteWrite | localWrite // the device wants both
	}
	offset := d.offset(b, pageSize)
	r, err := registerMR(d.pd, b, offset, access)
	for tries := 1; err == nil && d.quirks.RepeatsHandles && !d.retired.fresh(r.rkey); tries++ {
		if tries == mostRepeats {
			_ = deregisterMR(r.mr)
			return r, 0, fmt.Errorf("ibverbs: device %s gives only keys that it gave lately", d.dev.name)
		}
		old := r.mr
		r, err = registerMR(d.pd, b, offset, access) // before old ends, so that the handle is another
		_ = deregisterMR(old)
	}
	if err != nil {
		return r, 0, d.memoryError(len(b), err)
	}
	return r, offset, nil
}

// mostRepeats bounds how often a key that was given lately is exchanged for another. siw chooses keys at
// random, of which one in 8,192 was given lately.
const mostRepeats = 64

// A retired list has the handles that were given last. It is safe for concurrent use.
type retired struct {
	mu    sync.Mutex // guards the rest; a leaf
	given map[uint32]struct{}
	order [2048]uint32
	next  int
}

// fresh adds a handle, and reports false if the list has it already.
func (r *retired) fresh(handle uint32) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, known := r.given[handle]; known {
		return false
	}
	if r.given == nil {
		r.given = make(map[uint32]struct{}, len(r.order))
	}
	delete(r.given, r.order[r.next])
	r.given[handle] = struct{}{}
	r.order[r.next] = handle
	r.next = (r.next + 1) % len(r.order)
	return true
}

// memoryError explains why n octets could not be registered.
func (d *domain) memoryError(n int, err error) error {
	if errors.Is(err, syscall.ENOMEM) {
		var lim syscall.Rlimit
		_ = syscall.Getrlimit(rlimitMemlock, &lim)
		return fmt.Errorf("ibverbs: register %d octets: %w", n, memlockError(d.dev.name, lim.Cur, d.e.p.extents.memlockNeed()))
	}
	return fmt.Errorf("ibverbs: device %s: register %d octets: %w", d.dev.name, n, err)
}
