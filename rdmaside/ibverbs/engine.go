//go:build ibverbs

package ibverbs

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"syscall"

	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
)

// An engine is what the connections and listeners of a Provider share: the channel of the
// connection manager's events, with a goroutine, and the domains.
type engine struct {
	p     *Provider
	users int // connections, listeners, requests and Dials; guarded by Provider.mu

	events uint64
	poller *poller
	donec  chan struct{} // closed when the goroutine has ended
	late   []uint64      // ids of requests that came after the last user; owned by the goroutine, then by close

	mu        sync.Mutex // guards the rest; taken before watchers.mu
	ids       map[uint64]*cmID
	listeners map[uint64]*listener
	domains   map[uint64]*domain // by device context
}

func newEngine(p *Provider) (*engine, error) {
	events, fd, err := createEvents()
	if err != nil {
		if errors.Is(err, syscall.ENODEV) || errors.Is(err, syscall.ENOENT) {
			return nil, errors.New("ibverbs: the kernel has no RDMA device: load the adapter's module, and rdma_ucm")
		}
		return nil, fmt.Errorf("ibverbs: open the RDMA connection manager (/dev/infiniband/rdma_cm): %w", err)
	}
	po, err := newPoller(fd, "rdma_cm")
	if err != nil {
		destroyEvents(events)
		return nil, err
	}
	e := &engine{
		p: p, events: events, poller: po, donec: make(chan struct{}),
		ids: make(map[uint64]*cmID), listeners: make(map[uint64]*listener), domains: make(map[uint64]*domain),
	}
	go e.run()
	return e, nil
}

// close ends the engine. Nobody uses it any more.
func (e *engine) close() {
	e.poller.stop()
	<-e.donec
	e.poller.close()
	for _, id := range e.late {
		destroyID(id)
	}
	destroyEvents(e.events)
}

// run hands events to their ids until close.
func (e *engine) run() {
	defer close(e.donec)
	for {
		var ev cmEvent
		var ack func()
		var err error
		if e.poller.wait(func() bool {
			ev, ack, err = nextEvent(e.events)
			return !errors.Is(err, syscall.EAGAIN)
		}) != nil {
			return
		}
		if err != nil {
			// An event that could not be carried out, such as the answer to a connection that
			// is being destroyed, is lost; whoever waits for it has a timeout.
			continue
		}
		e.dispatch(ev)
		ack()
	}
}

// dispatch must not block, nor destroy the id of ev.
func (e *engine) dispatch(ev cmEvent) {
	e.mu.Lock()
	id, own, l := e.ids[ev.id], e.listeners[ev.id], e.listeners[ev.listener]
	e.mu.Unlock()
	switch {
	case id != nil:
		id.deliver(ev)
	case own != nil:
		own.event(ev)
	case ev.event != connectRequest || ev.listener == 0:
		// The id is being destroyed. Only a request is about a new one, and names its listener.
	case !e.p.hold(e):
		e.late = append(e.late, ev.id)
	case l != nil:
		go l.request(e.adopt(ev.id), ev)
	default: // the listener was closed
		go func() {
			destroyID(ev.id)
			e.p.release(e)
		}()
	}
}

// A cmID is an rdma_cm_id that is, or will be, a connection's.
type cmID struct {
	e      *engine
	handle uint64
	eventc chan cmEvent // until attach

	mu   sync.Mutex // guards conn; a leaf
	conn *conn
}

// newID makes an id for Dial.
func (e *engine) newID() (*cmID, error) {
	h, err := createID(e.events)
	if err != nil {
		return nil, fmt.Errorf("ibverbs: create an id: %w", err)
	}
	return e.adopt(h), nil
}

// adopt makes a cmID of a handle that the connection manager gave.
func (e *engine) adopt(h uint64) *cmID {
	id := &cmID{e: e, handle: h, eventc: make(chan cmEvent, 8)}
	e.mu.Lock()
	e.ids[h] = id
	e.mu.Unlock()
	return id
}

// destroy ends the id. It waits for the goroutine of the engine, so that goroutine must not call it.
func (id *cmID) destroy() {
	id.e.mu.Lock()
	delete(id.e.ids, id.handle)
	id.e.mu.Unlock()
	destroyID(id.handle)
}

func (id *cmID) deliver(ev cmEvent) {
	id.mu.Lock()
	c := id.conn
	if c == nil {
		select {
		case id.eventc <- ev:
		default: // no step of set-up has so many events
		}
	}
	id.mu.Unlock()
	if c != nil {
		c.cmEvent(ev)
	}
}

// attach passes all events to c from now on, those included that came before.
func (id *cmID) attach(c *conn) {
	id.mu.Lock()
	id.conn = c
	id.mu.Unlock()
	for {
		select {
		case ev := <-id.eventc:
			c.cmEvent(ev)
		default:
			return
		}
	}
}

// await waits for the event that completes a step of set-up.
func (id *cmID) await(ctx context.Context, step string, want int) (cmEvent, error) {
	for {
		select {
		case <-ctx.Done():
			return cmEvent{}, fmt.Errorf("ibverbs: %s: %w", step, context.Cause(ctx))
		case ev := <-id.eventc:
			switch {
			case ev.broken != nil:
				return ev, fmt.Errorf("ibverbs: %s: %w", step, ev.broken)
			case ev.event == want:
				return ev, nil
			case ev.event != addrChange:
				return ev, &cmError{step, ev.event, ev.status}
			}
		}
	}
}

// domain returns the domain of the device of id, whose address is resolved. It exists until
// domain.release.
func (e *engine) domain(id *cmID) (*domain, error) {
	context, port := idContext(id.handle)
	if context == 0 {
		return nil, errors.New("ibverbs: the address belongs to no RDMA device")
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	d := e.domains[context]
	if d == nil {
		dev, err := queryDevice(context, port)
		if err != nil {
			return nil, fmt.Errorf("ibverbs: query device: %w", err)
		}
		q, _ := QuirksOf(DriverOf(sysClass, dev.name, dev.iwarp))
		if q.Refused != "" {
			return nil, fmt.Errorf("ibverbs: device %s: %s", dev.name, q.Refused)
		}
		if d, err = newDomain(e, context, dev, q); err != nil {
			return nil, err
		}
		e.domains[context] = d
	}
	if d.dead.Load() {
		return nil, fmt.Errorf("ibverbs: device %s: %w", d.dev.name, errFatal)
	}
	d.users++
	return d, nil
}

// connOptions returns o with defaults, bounded by what the device can do.
func connOptions(o fabric.ConnOptions, d *device) (fabric.ConnOptions, error) {
	o = o.Bounded(min(d.maxIRD, maxReads), min(d.maxORD, maxReads))
	if o.Receives > d.maxWR {
		return o, fmt.Errorf("ibverbs: device %s: %w: a queue of %d Receives, at most %d", d.name, fabric.ErrLimit, o.Receives, d.maxWR)
	}
	return o, nil
}

// maxReads is the most Reads that the connection manager can negotiate.
const maxReads = 255
