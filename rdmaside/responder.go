package rdmaside

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/internal/regmem"
	"github.com/rdmabridge/rdmabridge/rdmaside/credit"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
	"github.com/rdmabridge/rdmabridge/rdmaside/rpcrdma"
)

// A CallHandler handles Calls. It may also be a ConnHandler.
type CallHandler interface {
	// Call hands over x, on the loop of its connection. The handler completes x
	// with exactly one of x.Reply and x.Abort, on that loop, inside Call or
	// later, even if the connection has been closed meanwhile.
	Call(x *Exchange)
}

// A ConnHandler is a CallHandler that is notified of connections. Its methods run
// on the connection's loop.
type ConnHandler interface {
	// Opened is called before the first Call of c.
	Opened(c *ResponderConn)
	// Ended is called after the last Call of c, when the connection is closed.
	// The handler must still complete the Exchanges of c that it has. err is nil
	// after Close(nil).
	Ended(c *ResponderConn, err error)
}

// A Releaser releases lent octets.
type Releaser interface{ Release() }

// A Responder accepts connections and answers Calls: the Responder role of RFC
// 8166. It is safe for concurrent use.
type Responder struct {
	opts    ResponderOptions
	calls   CallHandler
	conns   ConnHandler
	metrics *ResponderMetrics
	lines   responderLines
}

// NewResponder returns a Responder that hands its Calls to h.
func NewResponder(o ResponderOptions, h CallHandler) (*Responder, error) {
	o, err := o.validated()
	if err != nil {
		return nil, err
	}
	s := &Responder{opts: o, calls: h, metrics: o.Metrics}
	var ok bool
	if s.conns, ok = h.(ConnHandler); !ok {
		s.conns = noConnHandler{}
	}
	if s.metrics == nil {
		s.metrics = &ResponderMetrics{}
	}
	return s, nil
}

// Accept accepts in and hands the connection to loop on. It blocks until the
// connection is set up. It may be called on any goroutine except a loop's;
// fabric.Listener calls its incoming function on such a goroutine. The error
// wraps ErrNoReceives when there is no memory for another connection.
func (s *Responder) Accept(ctx context.Context, in fabric.Incoming, on loop.Loop) (*ResponderConn, error) {
	c := s.newConn(on, in.PrivateData())
	if !s.opts.Receives.fits(1+c.spare(), c.block) {
		_ = in.Reject(nil) // the peer notices either way
		return nil, fmt.Errorf("%w: %s", ErrNoReceives, in.Peer())
	}
	if _, err := in.Accept(ctx, on, c.connOptions(), (*responderHandler)(c)); err != nil {
		on.Post(loop.TaskFunc(func() { c.abandon(err) }))
		return nil, fmt.Errorf("rdmaside: accept %s: %w", in.Peer(), err)
	}
	return c, nil
}

// A ResponderConn is one connection of a Responder. It belongs to one loop; its
// methods must be called on that loop unless they say otherwise.
//
// It has a Receive for each credit that its Requester may count on, a few spare
// ones, and some for Calls beyond the grant (responder_excess.go). A Call that came whole and inline keeps its
// Receive buffer until it is answered, unless it is short and is copied. That buffer is posted again before the
// answer is, unless there are more than needed. So the Receives posted and the Calls unanswered always add up
// to more than the grant, and no memory is leased to keep it so. From the first
// reverse Call on there is also a Receive for each reverse Call that may be
// outstanding: reverseCalls.receives.
type ResponderConn struct {
	// Data is for use by the handler.
	Data any

	// Constant after newConn.
	responder  *Responder
	loop       loop.Loop
	peer       rpcrdma.PrivateData
	block      int    // octets of memory that a Receive occupies
	invalidate bool   // both sides allow Send With Invalidate
	wake       func() // called when there may be memory for a starved Call
	unpark     func() // called when there may be memory for a parked message

	// Constant after Setup.
	info        fabric.Info
	replyInline int // the inline threshold of Replies, in octets
	ord         int // RDMA Reads that may be outstanding

	// Owned by the loop.
	conn      fabric.Conn
	copier    fabric.CopySender // conn, if it has this ability
	state     connState
	asked     bool  // this side closed the connection, for reason
	reason    error // valid when ended, or asked
	opened    bool  // the handler was told
	called    bool  // this callback of the loop has handed a Call over
	joined    bool  // counted among the connections that share the ReceivePool
	grants    credit.Grantor
	load      creditLoad
	recvs     recvRing
	extra     int           // Receives for Calls beyond the grant
	exchanges []*Exchange   // all of them, by index
	idle      []*Exchange   // in state exchangeIdle
	memory    CallMemory    // lends the memory that Calls are pulled into
	starved   exchangeQueue // Calls waiting for memory
	pulling   exchangeQueue // Calls with Reads to post
	queued    exchangeQueue // answers waiting for room in the send queue
	work      int           // Work Requests of answers that the send queue has room for now
	reads     int           // Reads outstanding
	held      int           // octets of memory in which Reads are outstanding or queued
	watch     readWatch     // closes the connection when Reads complete too slowly
	waiting   bool          // memory.Wait will call wake
	parked    []parked      // messages waiting for an Exchange, oldest first
	awaiting  bool          // Replies.Wait will call unpark
	reverse   reverseCalls  // the reverse direction
	parts     [][]byte      // scratch for Sends and Writes

	outstanding atomic.Int32 // written by the loop, read by any goroutine
}

func (s *Responder) newConn(on loop.Loop, priv []byte) *ResponderConn {
	o := &s.opts
	c := &ResponderConn{responder: s, loop: on, memory: accountMemory{o.Memory}}
	own := c.privateData()
	c.peer, _ = rpcrdma.FindPrivateData(priv)
	c.replyInline = rpcrdma.Inline(own, c.peer)
	c.invalidate = own.RemoteInvalidation && c.peer.RemoteInvalidation
	c.grants = credit.NewGrantor(1, 1)
	c.block = regmem.BlockSize(o.CallInline)
	c.recvs.init(c.receives(), o.CallInline, nil)
	c.recvs.pool = o.Receives
	c.work = max(1024, 4*o.Credits)
	c.wake = func() { on.Post((*memoryTask)(c)) }
	c.unpark = func() { on.Post((*parkedTask)(c)) }
	return c
}

// receives is the most Receives that the connection can have, without those for Calls beyond the
// grant.
func (c *ResponderConn) receives() int {
	o := &c.responder.opts
	return o.Credits + spareReceives + o.ReverseCredits
}

func (c *ResponderConn) privateData() rpcrdma.PrivateData {
	o := &c.responder.opts
	return rpcrdma.PrivateData{RemoteInvalidation: o.RemoteInvalidation, SendSize: o.ReplyInline, RecvSize: o.CallInline}
}

func (c *ResponderConn) connOptions() fabric.ConnOptions {
	return fabric.ConnOptions{
		PrivateData: rpcrdma.AppendPrivateData(nil, c.privateData()),
		Receives:    c.receives() + c.responder.opts.Credits, // the latter for Calls beyond the grant
		Sends:       c.work + c.responder.opts.ORD + 2*c.responder.opts.ReverseCredits,
		Handles:     1,  // a Responder registers nothing; 0 means 4096
		IRD:         -1, // a Responder serves no Reads
		ORD:         c.responder.opts.ORD,
		InPlace:     true, // received copies short Calls
	}
}

// A responderHandler is a ResponderConn as the provider sees it: its
// fabric.Handler.
type responderHandler ResponderConn

// Setup posts the Receives.
func (h *responderHandler) Setup(c fabric.Conn) error { return (*ResponderConn)(h).setup(c) }

// Completed handles completions.
func (h *responderHandler) Completed(cs []fabric.Completion) { (*ResponderConn)(h).completed(cs) }

// Closed releases everything.
func (h *responderHandler) Closed(err error) { (*ResponderConn)(h).closed(err) }

func (c *ResponderConn) setup(conn fabric.Conn) error {
	c.conn, c.recvs.conn = conn, conn
	c.copier, _ = conn.(fabric.CopySender)
	c.info = conn.Info()
	c.ord = min(c.responder.opts.ORD, c.info.ORD)
	if n := c.info.MaxMessage; n != 0 {
		c.replyInline = min(c.replyInline, n)
	}
	if err := c.joinPool(); err != nil {
		if errors.Is(err, regmem.ErrBudget) {
			err = ErrNoReceives
		}
		return fmt.Errorf("rdmaside: receives: %w", err)
	}
	c.state, c.opened = up, true
	c.responder.conns.Opened(c)
	return nil
}

// abandon releases what Setup leased for a connection that was never established.
func (c *ResponderConn) abandon(err error) {
	if c.state == ended {
		return
	}
	c.state = ended
	c.recvs.abandon()
	c.leavePool()
	if c.opened {
		c.responder.conns.Ended(c, err)
	}
}

// closed is the last call of the provider. Every Work Request has completed.
func (c *ResponderConn) closed(err error) {
	if c.state == ended {
		return
	}
	if !c.asked {
		c.reason = err
	}
	c.state = ended
	c.watch.stop()
	if c.recvs.posted != 0 || c.reads != 0 {
		panic(fmt.Sprintf("BUG: fabric: %s closed with %d Receives and %d Reads posted", c.info.Provider, c.recvs.posted, c.reads))
	}
	c.starved, c.pulling, c.queued = exchangeQueue{}, exchangeQueue{}, exchangeQueue{}
	c.dropParked()
	defer c.leavePool() // after the Calls have released their Receives
	for _, x := range c.exchanges {
		switch x.state {
		case exchangeIdle:
			if x.buffer != nil { // it was not answered just now, when a Call before it was dropped
				x.buffer.Release()
				x.buffer = nil
			}
		case exchangePulling:
			c.held -= x.pulled.Size()
			x.pulled.Unpost()
			c.drop(x)
		case exchangeStarved, exchangeQueued:
			c.drop(x)
		case exchangeLost:
			c.recycle(x)
		case exchangeSending:
			panic(fmt.Sprintf("BUG: fabric: %s closed with a Send posted", c.info.Provider))
		case exchangeHanded, exchangeBusy:
			// Owned by the handler until it completes the Call.
		}
	}
	c.idle = nil
	c.closeReverse()
	c.responder.conns.Ended(c, c.reason)
}

// Info describes the connection. It may be called on any goroutine.
func (c *ResponderConn) Info() fabric.Info { return c.info }

// Loop returns the loop that owns c. It may be called on any goroutine.
func (c *ResponderConn) Loop() loop.Loop { return c.loop }

// Outstanding returns how many Calls are unanswered. It may be called on any
// goroutine.
func (c *ResponderConn) Outstanding() int { return int(c.outstanding.Load()) }

// LastActivity returns when the peer was last heard from.
func (c *ResponderConn) LastActivity() time.Time { return c.conn.LastActivity() }

// Unwritten reports whether the provider may still have to send a Reply of ReplyCopy.
func (c *ResponderConn) Unwritten() bool { return c.copier != nil && c.copier.Unwritten() }

// Flush starts the posted Work Requests now rather than at the end of the loop's
// pass.
func (c *ResponderConn) Flush() {
	if c.state == up {
		c.conn.Flush()
	}
}

type noConnHandler struct{}

func (noConnHandler) Opened(*ResponderConn)       {}
func (noConnHandler) Ended(*ResponderConn, error) {}
