//go:build ibverbs

package ibverbs

import (
	"errors"
	"fmt"
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

	arena   []arenaExtent // one for each extent of the Provider
	retired retired

	dead atomic.Bool // the device had a fatal error

	mu    sync.RWMutex // guards conns; a leaf
	conns map[uint64]*conn
}

// An arenaExtent is an extent of the arena in a domain.
type arenaExtent struct {
	lkey atomic.Uint64 // the key plus 1<<32 when it is registered

	mu sync.Mutex // guards mr, and registering; a leaf
	mr uint64
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
	for {
		n := 0
		var err error
		if d.poller.wait(func() bool {
			n, err = nextCompletions(d.channel, tokens)
			return n > 0 || err != nil
		}) != nil {
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

// key returns the local key of b, and the registration that was made for b alone, if b is not in
// the arena. 0 is none.
func (d *domain) key(b []byte) (lkey uint32, temporary uint64, err error) {
	if i := d.e.p.extents.find(b); i >= 0 {
		if k := d.arena[i].lkey.Load(); k != 0 {
			return uint32(k), 0, nil
		}
		lkey, err = d.register(i)
		return lkey, 0, err
	}
	r, err := registerMR(d.pd, b, address(b), localWrite)
	if err != nil {
		return 0, 0, d.memoryError(len(b), err)
	}
	return r.lkey, r.mr, nil
}

// register registers extent i of the arena, for local use only.
func (d *domain) register(i int) (uint32, error) {
	x := &d.arena[i]
	x.mu.Lock()
	defer x.mu.Unlock()
	if k := x.lkey.Load(); k != 0 {
		return uint32(k), nil
	}
	b := d.e.p.opts.Memory[i]
	r, err := registerMR(d.pd, b, address(b), localWrite)
	if err != nil {
		return 0, d.memoryError(len(b), err)
	}
	x.mr = r.mr
	x.lkey.Store(uint64(r.lkey) | 1<<32)
	return r.lkey, nil
}

// expose registers b for the peer. The offset tells nothing about addresses, unless the driver
// cannot choose it.
func (d *domain) expose(b []byte, a fabric.Access) (registration, uint64, error) {
	access := 0
	if a&fabric.RemoteRead != 0 {
		access |= remoteRead
	}
	if a&fabric.RemoteWrite != 0 {
		access |= remoteWrite | localWrite // the device wants both
	}
	offset := address(b)
	if !d.quirks.AddressOffsets {
		// Kernel and device want the offset within the page.
		const page = 4096
		offset = rand.Uint64()>>1&^(page-1) | address(b)&(page-1)
	}
	r, err := registerMR(d.pd, b, offset, access)
	for err == nil && d.quirks.RepeatsHandles && !d.retired.fresh(r.rkey) {
		old := r.mr
		r, err = registerMR(d.pd, b, offset, access) // before old ends, so that the handle is another
		_ = deregisterMR(old)
	}
	if err != nil {
		return r, 0, d.memoryError(len(b), err)
	}
	return r, offset, nil
}

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
