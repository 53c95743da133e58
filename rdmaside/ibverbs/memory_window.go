//go:build ibverbs

package ibverbs

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sync"
	"syscall"

	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
)

// A window is a type 2 memory window of a connection. The connection knows its state exactly, because
// rxe stops the kernel when a window is invalidated that is not bound:
//
//	FREE --Register--> BOUND --Invalidate--> DYING --its completion--> FREE
//	                     +-------------invalidated by the peer----------^
//
// Binds and invalidations are Work Requests, in the order in which they are posted. So a bind reaches
// the device with the Send that advertises its handle, and before it. When the connection ends, its
// windows are deallocated whatever their state is, before the queue pair, which rxe keeps while a
// window is bound to it, and before the regions that they are bound to.
type window struct {
	handle uint64 // of rdma-core; 0 when it is deallocated
	key    uint32 // of the last bind
}

// A windowSet has the windows of a connection. The loop owns it until the connection ends. From then
// on none is added, and they are deallocated, on any goroutine.
type windowSet struct {
	on   bool // handles are windows; constant after newConn
	all  []*window
	free queue[*window]

	mu sync.Mutex // guards window.handle when the connection ends; a leaf
}

// spareWindows is how many free windows a connection keeps. A bind chooses 8 bits of the key, and the
// window has the rest: with this many windows, thousands of other handles come before one is given
// again.
const spareWindows = 64

// errNoWindows is the error of a connection that must have windows.
var errNoWindows = errors.New("it has no type 2 memory windows: set ibverbs.exposure to auto or registration")

// useWindows says whether handles on the device are windows.
func (d *domain) useWindows() (bool, error) {
	trusted := d.quirks.Windows == WindowsTrusted
	switch d.e.p.opts.Exposure {
	case ExposeWindows:
		if !d.dev.windows {
			return false, fmt.Errorf("ibverbs: device %s: %w", d.dev.name, errNoWindows)
		}
		if _, known := d.e.p.distrusted.LoadOrStore(d.dev.name, true); !trusted && !known {
			d.e.p.opts.Log.Warn().Str("event", "memory_windows_untested").Str("device", d.dev.name).Str("driver", d.quirks.Driver).
				Msg("ibverbs.exposure is windows, and it is not known that this driver checks memory windows well: with rxe of Linux 6.1 " +
					"a server can stop this host's kernel; auto or registration is safer")
		}
		return true, nil
	case ExposeAuto:
		return d.dev.windows && trusted, nil
	}
	return false, nil
}

// A windowFault names the connections on which windows have failed: those on a device, or those on a
// device to one server.
type windowFault struct {
	device string
	server netip.Addr // the zero Addr for all servers
}

// first makes the first window of a connection, so that a device that has none to give is known before
// the peer is told what it may do.
func (s *windowSet) first(d *domain, server netip.Addr) error {
	if !d.windows {
		return nil
	}
	for _, which := range []netip.Addr{{}, server} {
		if _, failed := d.e.p.windowFaults.Load(windowFault{d.dev.name, which}); failed {
			return nil
		}
	}
	w, err := s.add(d)
	if err != nil {
		if d.e.p.opts.Exposure == ExposeAuto {
			d.failWindows(err, netip.Addr{})
			return nil
		}
		return err
	}
	*s.free.push() = w
	s.on = true
	return nil
}

// add makes a window.
func (s *windowSet) add(d *domain) (*window, error) {
	handle, key, err := createWindow(d.pd)
	if err != nil {
		if errors.Is(err, syscall.ENOMEM) || errors.Is(err, syscall.ENOSPC) {
			err = fmt.Errorf("%w: %w", fabric.ErrLimit, err)
		}
		return nil, fmt.Errorf("ibverbs: device %s: memory window: %w", d.dev.name, err)
	}
	w := &window{handle, key&^0xff | rand.Uint32()&0xff}
	s.all = append(s.all, w)
	return w, nil
}

// take takes a free window, at random from the half that has been free longest.
func (s *windowSet) take(d *domain) (*window, error) {
	if s.free.n < spareWindows {
		if w, err := s.add(d); err == nil {
			return w, nil
		} else if s.free.n == 0 {
			return nil, err
		}
	}
	oldest, one := s.free.at(0), s.free.at(rand.IntN(s.free.n/2+1))
	w := *one
	*one = *oldest
	s.free.pop()
	return w, nil
}

// next gives w the key of its next bind.
func (w *window) next() uint32 {
	for {
		w.key = w.key&^0xff | (w.key+1)&0xff
		if w.key != 0 {
			return w.key
		}
	}
}

// destroy deallocates w, unless that was done before. After that the device does not know its key.
func (s *windowSet) destroy(w *window) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if w.handle == 0 {
		return nil
	}
	if err := destroyWindow(w.handle); err != nil {
		return fmt.Errorf("ibverbs: deallocate a memory window: %w", err)
	}
	w.handle = 0
	return nil
}

// close deallocates all windows. The connection has ended, or was never set up.
func (s *windowSet) close() {
	for _, w := range s.all {
		_ = s.destroy(w) // destroying the queue pair ends what it grants
	}
}

// destroyQP ends the windows and the queue pair. It may block.
func (c *conn) destroyQP() {
	c.windows.close()
	destroyQP(c.id.handle)
}

// bindWork is the fabric.Op of a bind, which the ULP is not told of.
const bindWork fabric.Op = 0

// bind binds a window to b, and posts that.
func (c *conn) bind(b []byte, a fabric.Access) (fabric.Region, exposed, error) {
	if len(b) == 0 {
		return fabric.Region{}, exposed{}, errors.New("ibverbs: a memory window of no octets")
	}
	access := 0
	if a&fabric.RemoteRead != 0 {
		access |= remoteRead
	}
	if a&fabric.RemoteWrite != 0 {
		access |= remoteWrite
	}
	r, own, err := c.d.behind(b)
	if err != nil {
		return fabric.Region{}, exposed{}, err
	}
	x := exposed{buf: b}
	if own {
		x.mr = r.mr
	}
	if x.window, err = c.windows.take(c.d); err != nil {
		x.deregister()
		return fabric.Region{}, exposed{}, err
	}
	w := c.push(0, bindWork)
	mark := len(c.wrs)
	c.wrs = append(c.wrs, workRequest{
		op: opBind, raddr: r.offset, rkey: x.window.next(), access: uint32(access), len: uint32(len(b)),
		window: x.window.handle, mr: r.mr,
	})
	c.finish(w, mark)
	return fabric.Region{Handle: fabric.Handle(x.window.key), Offset: r.offset, Length: uint32(len(b))}, x, nil
}

// unbind posts the invalidation of the handle h, which is x.
func (c *conn) unbind(id uint64, h fabric.Handle, x exposed) (done bool, err error) {
	switch {
	case c.state >= stateEnding:
		// Nothing can be posted. Work that names the window fails, as all work does now.
		if err := c.windows.destroy(x.window); err != nil {
			return false, err
		}
		c.forget(h)
		return true, nil
	case x.dying: // the completion of the first Invalidate is that of this one, too
		c.idle = append(c.idle, idleWork{id, fabric.OpInvalidate, x.after})
		c.sendN++
		return false, nil
	}
	w := c.push(id, fabric.OpInvalidate)
	w.handle = h
	mark := len(c.wrs)
	c.wrs = append(c.wrs, workRequest{op: opInvalidate, flags: flagSignaled, rkey: uint32(h)})
	c.finish(w, mark)
	x.dying, x.after = true, w.last
	c.handles[h] = x
	return false, nil
}

// forget ends the handle h, which is dead for the device. Its window is free.
func (c *conn) forget(h fabric.Handle) {
	x := c.handles[h]
	delete(c.handles, h)
	x.deregister()
	if x.window != nil {
		*c.windows.free.push() = x.window
	}
}

// RemoteInvalidation implements fabric.RemoteInvalidator. The peer may invalidate a window only where
// the device checks that it is bound, and to this connection, and tells when it was invalidated.
func (c *conn) RemoteInvalidation() bool {
	return c.windows.on && c.d.quirks.Windows == WindowsTrusted && c.d.quirks.InvalidatedBit != 0
}

// failedWindow follows the failure of the Work Request n, which may be a bind or an invalidation.
func (c *conn) failedWindow(n uint64, err error) {
	for i := range c.sends.n {
		w := c.sends.at(i)
		switch {
		case w.last < n:
			continue
		case w.op == bindWork:
			c.d.failWindows(err, netip.Addr{})
		case w.op == fabric.OpInvalidate:
			// The server may have invalidated the window meanwhile, which it must not do so late. Or the
			// device has not told of an invalidation. It cannot be known which it was.
			c.d.failWindows(err, c.info.Peer.Addr())
		}
		return
	}
}

// failWindows makes later connections on the device do without windows, unless they must have them. The
// zero server stands for all servers.
func (d *domain) failWindows(err error, server netip.Addr) {
	p := d.e.p
	if p.opts.Exposure != ExposeAuto {
		return
	}
	if _, known := p.windowFaults.LoadOrStore(windowFault{d.dev.name, server}, true); known {
		return
	}
	line := p.opts.Log.Warn().Str("event", "memory_windows_failed").Str("device", d.dev.name).Err(err)
	if server.IsValid() {
		line.Stringer("server", server).Msg("a memory window could not be invalidated; new connections to this server register memory for each Call")
		return
	}
	line.Msg("memory windows fail on this device; new connections on it register memory for each Call")
}
