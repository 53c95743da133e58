//go:build ibverbs

package ibverbs

import (
	"context"
	"encoding/binary"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
)

// Steps of FuzzLibrary. Each octet of the input that is a step is followed by what it needs.
const (
	stepDial = iota
	stepSend
	stepWrite
	stepRegister
	stepInvalidate
	stepClose
	stepWork  // the library reports a completion
	stepEvent // the connection manager reports an event
	stepAsync // the device reports an event
	stepFault // a function of the library fails from now on, or none does
	stepRemoval
	steps
)

// FuzzLibrary has the library say anything: completions of work that was never posted, or in another
// order, with any status, length, flags and key; events of the connection manager and of the device
// of any kind, about anything that exists; functions that fail. The provider must not panic, must complete all
// work exactly once, must pass on no octet outside the Receives, and must destroy every object. Under the
// address sanitizer it must not touch memory that is not its own.
func FuzzLibrary(f *testing.F) {
	if standIn == nil {
		f.Skip("the tests run on a device")
	}
	work := func(which, number, status, octets, flags byte) []byte {
		return []byte{stepWork, which, number, status, 0, 0, 0, octets, 0, 0, 0, flags, 0, 0, 0, 0}
	}
	event := func(which, kind, status byte) []byte {
		return []byte{stepEvent, which, kind, 0, 0, 0, status, 0, 0, 0, 8, 16, 16, 0}
	}
	dialled := []byte{0, stepDial, stepSend, 0, 2}
	for _, tail := range [][]byte{
		{},
		{stepClose, 0, 0},
		{stepRegister, 0, 3, stepInvalidate, 0, 0},
		{stepWrite, 0},
		{stepRemoval, 0, stepDial, stepRemoval, 1, stepDial},
		work(0, 2, 0, 0, 0), work(0, 0x81, 0, 5, 0), work(0, 0x82, 0, 255, 0), work(0, 0x80, 10, 0, 0), work(1, 0x83, 0, 9, 4), work(0, 1, 5, 0, 0),
		event(0, 10, 0), event(0, 11, 0), event(0, 9, 0), event(0, 200, 3), event(1, 4, 0), event(2, 8, 28), event(0, 255, 255),
		append(event(0, 4, 0)[:13], 1), append(event(0, 11, 0)[:13], 1), append(event(0, 4, 0)[:13], 3), // about the listener
		{stepAsync, 1, 0, 0, 0, 0, 0},
		{stepAsync, 0, 0, 0, 0, 1, 0},
		{stepAsync, 8, 0, 0, 0, 2, 0},
		{stepAsync, 255, 255, 255, 255, 3, 0},
		{stepFault, faultPoll, 5, stepSend, 0, 1},
		{stepFault, faultBatchSend, 1, stepSend, 0, 3},
		{stepFault, faultConnect, 11, stepDial},
	} {
		f.Add(append(slices.Clone(dialled), tail...))
		f.Add(append(append([]byte{1}, dialled[1:]...), tail...))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		if len(in) > 200 {
			return
		}
		fz := newLibraryFuzz(t, in)
		for len(fz.in) > 0 {
			fz.step()
		}
		fz.end()
	})
}

// A libraryFuzz is one run of FuzzLibrary.
type libraryFuzz struct {
	t     *testing.T
	in    []byte
	et    *eventTest
	lines []line
}

func newLibraryFuzz(t *testing.T, in []byte) *libraryFuzz {
	fz := &libraryFuzz{t: t, in: in}
	o := Options{CloseTimeout: 20 * time.Millisecond}
	standIn.windows.Store(noWindows)
	if fz.octet()&1 == 1 {
		o.Exposure = ExposeWindows
		standIn.windows.Store(goodWindows)
	}
	fz.et = newEventTestWith(t, "127.0.0.1:0", o)
	return fz
}

func (fz *libraryFuzz) octet() byte {
	if len(fz.in) == 0 {
		return 0
	}
	b := fz.in[0]
	fz.in = fz.in[1:]
	return b
}

func (fz *libraryFuzz) word() uint32 {
	return binary.LittleEndian.Uint32([]byte{fz.octet(), fz.octet(), fz.octet(), fz.octet()})
}

// line returns one of the connections that were dialled. ok is false if there is none.
func (fz *libraryFuzz) line() (ln line, ok bool) {
	n := int(fz.octet())
	if len(fz.lines) == 0 {
		return ln, false
	}
	return fz.lines[n%len(fz.lines)], true
}

func (fz *libraryFuzz) step() {
	switch fz.octet() % steps {
	case stepDial:
		fz.dial()
	case stepSend:
		if ln, ok := fz.line(); ok {
			n := int(fz.octet() % 8)
			fz.et.loop.Do(func() { ln.own.post(ln.c, n) })
		}
	case stepWrite:
		if ln, ok := fz.line(); ok {
			to := fabric.Region{Handle: fabric.Handle(fz.octet()), Offset: uint64(fz.octet()), Length: 64}
			fz.et.loop.Do(func() {
				id := ln.own.next()
				if ln.c.PostWrite(id, fabric.Write{Parts: [][]byte{make([]byte, 64)}, To: to}) == nil {
					ln.own.posted[id] = 0
				}
				ln.c.Flush()
			})
		}
	case stepRegister:
		if ln, ok := fz.line(); ok {
			buf, access := make([]byte, 64), fabric.Access(fz.octet()&3)
			fz.et.loop.Do(func() { _, _ = ln.c.Register(buf, access) })
		}
	case stepInvalidate:
		if ln, ok := fz.line(); ok {
			n := int(fz.octet())
			fz.et.loop.Do(func() { fz.invalidate(ln, n) })
		}
	case stepClose:
		if ln, ok := fz.line(); ok {
			var err error
			if fz.octet()&1 == 1 {
				err = fabric.ErrClosed
			}
			fz.et.loop.Do(func() { ln.c.Close(err) })
		}
	case stepWork:
		fz.work()
	case stepEvent:
		fz.event()
	case stepAsync:
		fz.async()
	case stepFault:
		setFault(uint32(fz.octet())%(faultPort+1), uint32(fz.octet()))
		if standIn.fault.Load() == faultSilent {
			setFault(noFault, 0) // which would take all of DialTimeout
		}
	case stepRemoval:
		command := uint32(standInRemove)
		if fz.octet()&1 == 1 {
			command = standInAdd
		}
		tellStandIn(fz.t, command, 0, 0)
	}
	fz.et.loop.Do(func() {})
}

// invalidate invalidates a handle that ln has, or one that it does not have.
func (fz *libraryFuzz) invalidate(ln line, n int) {
	handles := slices.Sorted(maps.Keys(ln.c.handles))
	h := fabric.Handle(n)
	if len(handles) > 0 {
		h = handles[n%len(handles)]
	}
	id := ln.own.next()
	if done, err := ln.c.Invalidate(id, h); !done && err == nil {
		ln.own.posted[id] = 0
	}
}

// dial dials without waiting long: the library may say anything instead of an answer.
func (fz *libraryFuzz) dial() {
	if len(fz.lines) == 4 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	own := newRecorderOf(4)
	c, err := fz.et.p.Dial(ctx, fz.et.loop, fz.et.l.Addr().String(), fabric.ConnOptions{Sends: 4, Receives: 4, Handles: 4}, own)
	if err == nil {
		fz.lines = append(fz.lines, line{c: c.(*conn), own: own})
	}
}

// conn returns any connection that exists.
func (fz *libraryFuzz) conn() (cq, qp, id uint64) {
	n := int(fz.octet())
	var all []*conn
	fz.et.p.mu.Lock()
	e := fz.et.p.engine
	fz.et.p.mu.Unlock()
	e.mu.Lock()
	for _, d := range e.domains {
		d.mu.RLock()
		all = slices.AppendSeq(all, maps.Values(d.conns))
		d.mu.RUnlock()
	}
	e.mu.Unlock()
	if len(all) == 0 {
		return 0, 0, 0
	}
	slices.SortFunc(all, func(a, b *conn) int { return int(a.token) - int(b.token) })
	c := all[n%len(all)]
	return c.cq, c.qp, c.id.handle
}

// work reports a completion. Its number is near those of work that was posted, or any.
func (fz *libraryFuzz) work() {
	cq, _, _ := fz.conn()
	b, status := fz.octet(), fz.word()
	number := int64(b & 0x7f)
	if b&0x80 != 0 {
		number |= -1 << 63 // a Receive
	}
	octets, flags, key := fz.word(), fz.word(), fz.word()
	if flags&1 == 1 {
		number = number&(-1<<63) | int64(key)<<8
	}
	tellStandIn(fz.t, standInWork, cq, number, int64(int32(status)), int64(flags>>8&0xff), int64(octets), int64(flags), int64(key))
}

// event reports an event of the connection manager, about a connection or about the listener.
func (fz *libraryFuzz) event() {
	_, _, id := fz.conn()
	kind := int64(int32(fz.word()))
	status, private, ird, ord, other := fz.word(), fz.octet(), fz.octet(), fz.octet(), fz.octet()
	if other&1 == 1 {
		l := fz.et.l.(*listener)
		l.mu.Lock()
		id = l.id
		l.mu.Unlock()
	}
	tellStandIn(fz.t, standInEvent, id, kind, int64(int32(status)), int64(private), int64(ird), int64(ord), int64(other>>1&1))
}

// async reports an event of the device.
func (fz *libraryFuzz) async() {
	kind, which := int64(int32(fz.word())), fz.octet()
	cq, qp, _ := fz.conn()
	object := []uint64{cq, qp, 1, uint64(which)}[which&3]
	tellStandIn(fz.t, standInAsync, object, kind)
}

// end closes all, and checks what the handlers of both sides were told.
func (fz *libraryFuzz) end() {
	setFault(noFault, 0)
	tellStandIn(fz.t, standInAdd, 0, 0)
	fz.et.l.Close()
	sides := make([]*recorder, 0, 8)
	for _, ln := range fz.lines {
		fz.et.loop.Do(func() { ln.c.Close(nil) })
		sides = append(sides, ln.own)
	}
	fz.et.until("all connections are gone", func() bool {
		select {
		case other := <-fz.et.otherc:
			fz.et.loop.Do(func() { other.c.Close(nil) })
			sides = append(sides, other)
		default:
		}
		return fz.et.p.conns.Load() == 0 && len(fz.et.otherc) == 0
	})
	for _, r := range sides {
		select {
		case <-r.closedc:
		default:
			fz.t.Error("a connection is gone without a Closed")
		}
		if r.wrong != "" {
			fz.t.Error(r.wrong)
		}
	}
	fz.et.loop.Stop()
	fz.et.until("no object of rdma-core is left", func() bool { return standIn.live.Load() == 0 })
}
