//go:build ibverbs

package ibverbs

import (
	"cmp"
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
)

// A connState is the state of a connection:
//
//	STARTING --established--> OPEN --Close(nil)--> CLOSING
//	    |                       |                     |
//	    +-----error, Close------+-------drained-------+--> ENDING --QP destroyed--> GONE
type connState uint8

const (
	// stateStarting: Setup has been or is about to be called. Receives go to the device; other
	// work waits.
	stateStarting connState = iota
	// stateOpen: full operation.
	stateOpen
	// stateClosing: the ULP asked for an orderly close and cannot post any more. Posted work is
	// carried out.
	stateClosing
	// stateEnding: another goroutine ends the connection. Completions are still delivered.
	stateEnding
	// stateGone: Closed was called.
	stateGone
)

// A conn is a connection. Its loop owns it; the fabric.Conn methods are called on the loop.
type conn struct {
	// Constant after newConn, but for info, which is constant after Setup.
	p      *Provider
	d      *domain
	loop   loop.Loop
	id     *cmID
	token  uint64
	cq, qp uint64
	opts   fabric.ConnOptions
	info   fabric.Info
	ended  func() // counts the connection off; called once, on any goroutine

	maxSend, maxInline int // elements of a Send or Write, and octets of an inline Send
	depth              int // of the send queue, in Work Requests

	hushed      bool          // written by takeDown alone, before destroy: see farewell.go
	removed     atomic.Bool   // the device is about to be removed
	begun       atomic.Uint32 // setup* below; decides between Setup and a Dial whose context ended
	scheduled   atomic.Bool   // a connPoll is posted to the loop
	peerClosedc chan struct{} // one deep: the peer has disconnected
	drainedc    chan struct{} // closed by the loop when the device has flushed everything

	// Owned by the loop.
	h         fabric.Handler
	state     connState
	reason    error // why the connection ends
	asked     bool  // Close was called
	settingUp bool  // inside Setup; its caller discards the connection if it ends there
	drained   bool  // drainedc is closed
	due       bool  // a connFlush is posted to the loop
	polling   bool  // inside poll, whose end flushes
	last      time.Time
	stirred   time.Time   // when work was last posted or completed; see Options.BusyPoll
	deadline  *time.Timer // of set-up, and of an orderly close

	queues
	handles map[fabric.Handle]exposed
	windows windowSet
	wcs     []workCompletion
	batch   []fabric.Completion
}

// An exposed region is memory that the peer may access. It keeps the memory from the garbage collector.
type exposed struct {
	mr  uint64 // the registration for this handle alone; 0 for none
	buf []byte

	window *window // nil without one
	dying  bool    // its invalidation is posted
	after  uint64  // the Work Request that does it
}

// deregister ends the registration, if there is one. No window is bound to it.
func (x *exposed) deregister() {
	if x.mr != 0 {
		_ = deregisterMR(x.mr)
	}
}

// Values of conn.begun.
const (
	setupPending uint32 = iota
	setupRunning
	setupAbandoned
)

// newConn makes a connection of id, whose address is resolved: its CQ and QP.
func (p *Provider) newConn(e *engine, id *cmID, on loop.Loop, o fabric.ConnOptions) (c *conn, err error) {
	d, err := e.domain(id)
	if err != nil {
		return nil, err
	}
	o, err = connOptions(o, &d.dev)
	if err != nil {
		d.release()
		return nil, err
	}
	c = &conn{
		p: p, d: d, loop: on, id: id, token: p.tokens.Add(1), opts: o,
		maxSend: min(d.dev.maxSGE, mostElements), peerClosedc: make(chan struct{}, 1), drainedc: make(chan struct{}),
		handles: make(map[fabric.Handle]exposed), wcs: make([]workCompletion, pollBatch),
		last: time.Now(),
	}
	// A Write may need several Work Requests; those for which there is no room wait here.
	c.depth = o.Sends + 4
	if d.windows {
		c.depth += o.Sends // binds
	}
	c.depth = min(c.depth, d.dev.maxWR, max(d.dev.maxCQE-o.Receives-1, 1))
	d.enter(c)
	if c.cq, err = createCQ(d.context, c.depth+o.Receives+1, c.token, d.channel); err != nil {
		d.leave(c)
		d.release()
		return nil, fmt.Errorf("ibverbs: device %s: completion queue of %d: %w", d.dev.name, c.depth+o.Receives+1, err)
	}
	inline := mostInline
	if c.qp, c.maxInline, err = createQP(id.handle, d.pd, c.cq, c.depth, max(o.Receives, 1), c.maxSend, inline); err != nil {
		// A device may have less room for inline data with this many elements.
		c.qp, c.maxInline, err = createQP(id.handle, d.pd, c.cq, c.depth, max(o.Receives, 1), c.maxSend, 0)
	}
	if err != nil {
		err = fmt.Errorf("ibverbs: device %s: queue pair of %d sends and %d receives: %w", d.dev.name, c.depth, o.Receives, err)
	} else {
		if err = armCQ(c.cq); err != nil {
			err = fmt.Errorf("ibverbs: device %s: arm the completion queue: %w", d.dev.name, err)
		} else {
			_, peer := idAddrs(id.handle)
			err = c.windows.first(d, peer.Addr())
		}
		if err != nil {
			destroyQP(id.handle)
		}
	}
	if err != nil {
		_ = destroyCQ(c.cq)
		d.leave(c)
		d.release()
		return nil, err
	}
	c.maxInline = min(c.maxInline, mostInline)
	c.queues.init(c)
	return c, nil
}

const (
	// mostElements is how many parts a Send has at most without a copy.
	mostElements = 16
	// mostInline is how many octets are copied into a Work Request. siw takes 80, and every
	// known adapter 64.
	mostInline = 64
	// mostMessage is how many octets a Work Request has at most.
	mostMessage = 1 << 30
	// pollBatch is how many completions one cgo call fetches.
	pollBatch = 64
)

// describe sets info from the event that brought the peer's parameters.
func (c *conn) describe(ev cmEvent) {
	local, peer := idAddrs(c.id.handle)
	agreed := func(own, event int) int {
		if event > 0 {
			return min(own, event)
		}
		return own
	}
	c.info = fabric.Info{
		Provider: c.p.Name(), Local: local, Peer: peer, PrivateData: ev.private,
		IRD: agreed(c.opts.IRD, ev.ird), ORD: agreed(c.opts.ORD, ev.ord),
		MaxParts: c.maxSend, MaxMessage: int(min(c.d.dev.maxMessage, mostMessage)),
	}
}

// setup calls h.Setup on the loop and waits for it. When it returns an error, the caller discards
// the connection, and no method of h has been or will be called, but Setup if the error is its own.
func (c *conn) setup(ctx context.Context, h fabric.Handler) error {
	donec := make(chan error, 1)
	c.loop.Post(loop.TaskFunc(func() {
		if !c.begun.CompareAndSwap(setupPending, setupRunning) {
			return
		}
		c.h, c.settingUp = h, true
		err := h.Setup(c)
		if err == nil {
			c.flush()
		}
		if err == nil && c.state != stateStarting {
			err = cmp.Or(c.reason, fabric.ErrClosed) // Setup called Close, or a Receive failed
		}
		if c.settingUp = false; err != nil {
			c.h, c.state = nil, stateGone
		}
		donec <- err
	}))
	select {
	case err := <-donec:
		return err
	case <-ctx.Done():
		if c.begun.CompareAndSwap(setupPending, setupAbandoned) {
			return fmt.Errorf("ibverbs: set-up: %w", context.Cause(ctx))
		}
		return <-donec
	}
}

// discard ends a connection that has no Handler. It may block.
func (c *conn) discard() {
	if c.portDown() {
		c.destroyQP()
		c.dropWork()
		c.ended = c.outlive(c.ended)
		go c.destroy()
		return
	}
	_ = disconnectID(c.id.handle)
	c.destroyQP()
	c.dropWork()
	c.destroy()
}

// destroy ends what is left when the QP is destroyed. It may block.
func (c *conn) destroy() {
	_ = destroyCQ(c.cq)
	c.d.leave(c)
	c.awaitPort()
	// librdmacm closes the context of a removed device with the last id on it, so the domain ends
	// before.
	c.d.release()
	c.id.destroy()
	c.ended()
}

// Info implements fabric.Conn.
func (c *conn) Info() fabric.Info { return c.info }

// LastActivity implements fabric.Conn.
func (c *conn) LastActivity() time.Time { return c.last }

// postable returns the error of posting when nothing can be posted.
func (c *conn) postable() error {
	if c.state > stateOpen {
		return fabric.ErrClosed
	}
	return nil
}

// cmEvent receives an event of the connection manager, on the engine's goroutine.
func (c *conn) cmEvent(ev cmEvent) {
	if ev.broken != nil {
		c.loop.Post(loop.TaskFunc(func() { c.fail(ev.broken) }))
		return
	}
	switch ev.event {
	case established:
		c.loop.Post((*connOpen)(c))
	case disconnected:
		c.loop.Post((*connPeerClosed)(c))
		select {
		case c.peerClosedc <- struct{}{}:
		default:
		}
	case deviceRemoval:
		c.removed.Store(true)
		c.loop.Post((*connRemoved)(c))
	case connectError, unreachable, rejected:
		err := &cmError{"set up", ev.event, ev.status}
		c.loop.Post(loop.TaskFunc(func() { c.fail(err) }))
	}
}
