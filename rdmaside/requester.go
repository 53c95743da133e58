package rdmaside

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/internal/regmem"
	"github.com/rdmabridge/rdmabridge/internal/rpc/xids"
	"github.com/rdmabridge/rdmabridge/rdmaside/credit"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
	"github.com/rdmabridge/rdmabridge/rdmaside/rpcrdma"
)

// A Watcher is notified of the state of a Requester. All methods run on its loop.
type Watcher interface {
	// Granted is called whenever the number of Calls that may be outstanding
	// changes. That number is one in the beginning. Granted is called with 0 when
	// the connection begins to close for any reason except Close, before its
	// Calls fail, so that they are not sent on it again.
	Granted(r *Requester, grant int)
	// Ended is the last method called, after every CallDone. err is nil after
	// Close(nil).
	Ended(r *Requester, err error)
}

// A Requester sends Calls on one connection: the Requester role of RFC 8166. It
// belongs to one loop; its methods must be called on that loop unless they say
// otherwise.
//
// All resources for Calls are allocated when the connection is made: slots, each
// with room for a Transport header, and Receives. There are as many slots as
// credits. A Call has a slot from Send to CallDone.
type Requester struct {
	// Constant after newRequester.
	opts    RequesterOptions
	loop    loop.Loop
	watcher Watcher
	metrics *RequesterMetrics
	base    time.Time  // the origin of since, unless the loop has a clock
	clock   loop.Clock // the loop's clock; nil if it has none

	info RequesterInfo // constant after Setup

	// Owned by the loop.
	conn         fabric.Conn
	tracker      fabric.PlacementTracker // conn, if it has this ability
	copier       fabric.CopySender       // conn, if it has this ability
	state        connState
	asked        bool  // this side closed the connection, for reason
	reason       error // valid when ended, or asked
	credits      credit.Account
	grants       announcedGrants
	recvs        recvRing
	xids         xids.Table[int32] // the slot of each pending Call, plus one
	slots        []pendingCall
	idle         []int32       // free slots
	oldest       int32         // first in the list of pending Calls, in the order sent; -1 for none
	newest       int32         // last in that list; -1 for none
	due          int32         // first in that list whose deadline has not passed; -1 for none
	late         int           // Calls in that list whose deadline has passed: DropKeep
	headers      *regmem.Lease // headerLen octets for each slot and reverse Reply
	reverse      reverseLine
	header       rpcrdma.Header
	tally        requesterTally // counted, and not yet added to metrics
	parts        [3][]byte
	plain        [2][]byte     // of a Call without chunks: a header, and the message
	timer        *time.Timer   // fires at the oldest Call's deadline
	armed        bool          // timer is running
	lastAnswered time.Duration // when the youngest of the answered Calls was sent
	retiring     bool          // the connection is only kept for its outstanding Calls: see retire
	understood   bool          // the peer has answered a Call, and not with ERR_VERS
	warmth       uint8         // what opts.Warm has returned, so that its reads are not left out

	// Written by the loop, read by anyone.
	grant atomic.Int32
}

// headerLen bounds, in octets, the header of a Call of any ulb.Shape and a whole
// reverse Reply made here: 28 for the fixed part and the ends of the lists, 24
// for a Read chunk, and 24 for a Write chunk or 68 for a Reply chunk of
// ulb.MaxSegments.
const headerLen = 128

// DialRequester connects to addr and returns when the connection is ready for its
// first Call. It blocks, so it must not be called on a loop. w may be nil. The
// connection may be closed, and w.Ended called, before DialRequester returns.
func DialRequester(ctx context.Context, p fabric.Provider, on loop.Loop, addr string, o RequesterOptions, w Watcher) (*Requester, error) {
	r, err := newRequester(o, on, w)
	if err != nil {
		return nil, err
	}
	conn, err := p.Dial(ctx, on, addr, r.connOptions(), (*requesterHandler)(r))
	if err != nil {
		// The provider calls no method of the handler any more. Release what
		// Setup leased.
		on.Post(loop.TaskFunc(r.abandon))
		return nil, dialError(addr, err)
	}
	_ = conn // Setup was given the same Conn
	return r, nil
}

// dialError says where the provider's err has happened, unless err does so itself.
func dialError(addr string, err error) error {
	if op := (*net.OpError)(nil); errors.As(err, &op) && op.Op == "dial" {
		return fmt.Errorf("rdmaside: %w", err)
	}
	return fmt.Errorf("rdmaside: dial %s: %w", addr, err)
}

func newRequester(o RequesterOptions, on loop.Loop, w Watcher) (*Requester, error) {
	o, err := o.validated()
	if err != nil {
		return nil, err
	}
	r := &Requester{
		opts: o, loop: on, watcher: w, metrics: o.Metrics, base: time.Now(),
		credits: credit.NewAccount(o.Credits),
		slots:   make([]pendingCall, o.Credits),
		idle:    make([]int32, o.Credits),
		oldest:  -1, newest: -1, due: -1,
	}
	r.clock, _ = on.(loop.Clock)
	if r.watcher == nil {
		r.watcher = noWatcher{}
	}
	if r.metrics == nil {
		r.metrics = &RequesterMetrics{}
	}
	for i := range r.slots {
		r.slots[i].index = int32(i)
		r.idle[i] = int32(o.Credits - 1 - i)
	}
	r.plain[0] = rpcrdma.AppendPlain(nil, 0, 0)
	r.reverse.init(o.ReverseReceives)
	r.xids = xids.New[int32](o.Credits)
	r.recvs.init(o.Credits+o.ReverseReceives+extraReceives, o.ReceiveSize, o.Memory)
	return r, nil
}

func (r *Requester) connOptions() fabric.ConnOptions {
	o := &r.opts
	own := r.privateData()
	c := fabric.ConnOptions{
		PrivateData: rpcrdma.AppendPrivateData(nil, own),
		Receives:    len(r.recvs.buffers),
		Sends:       o.Credits + len(r.reverse.slots),
		Handles:     2 * o.Credits,
		InPlace:     true, // keep copies short Replies
		Take:        r.takeInPlace,
	}
	if o.RemoteInvalidation {
		own.RemoteInvalidation = true
		c.InvalidatingData = rpcrdma.AppendPrivateData(nil, own)
	}
	return c
}

// privateData is what a Requester announces whose handles the Responder must not invalidate.
func (r *Requester) privateData() rpcrdma.PrivateData {
	return rpcrdma.PrivateData{SendSize: r.opts.CallInline, RecvSize: r.opts.ReplyInline}
}

// A requesterHandler is a Requester as the provider sees it: its fabric.Handler.
type requesterHandler Requester

// Setup posts the Receives and reads the peer's private data.
func (h *requesterHandler) Setup(c fabric.Conn) error { return (*Requester)(h).setup(c) }

// Completed handles completions.
func (h *requesterHandler) Completed(cs []fabric.Completion) { (*Requester)(h).completed(cs) }

// Closed releases everything.
func (h *requesterHandler) Closed(err error) { (*Requester)(h).closed(err) }

func (r *Requester) setup(c fabric.Conn) error {
	r.conn = c
	r.tracker, _ = c.(fabric.PlacementTracker)
	r.copier, _ = c.(fabric.CopySender)
	r.recvs.conn = c
	r.info.Info = c.Info()
	if n := r.info.MaxParts; n != 0 && n < len(r.parts) {
		return fmt.Errorf("rdmaside: provider %s sends %d parts, %d are needed", r.info.Provider, n, len(r.parts))
	}
	peer, ok := rpcrdma.FindPrivateData(r.info.PrivateData)
	r.info.rfc8797 = ok
	r.info.CallInline = rpcrdma.Inline(r.privateData(), peer)
	r.info.ReplyInline = rpcrdma.Inline(peer, r.privateData())
	if n := r.info.MaxMessage; n != 0 {
		r.info.CallInline = min(r.info.CallInline, n)
	}
	var err error
	if r.headers, err = r.opts.Memory.Lease(headerLen * (len(r.slots) + len(r.reverse.slots))); err != nil {
		return fmt.Errorf("rdmaside: header buffers: %w", err)
	}
	// "A Requester MUST maintain enough receive resources to accommodate expected
	// replies." RFC 8166 Section 3.3.1.
	if err = r.recvs.fill(r.opts.IdleReceives); err != nil {
		return fmt.Errorf("rdmaside: receives: %w", err)
	}
	r.state = up
	r.publish()
	return nil
}

// abandon releases what Setup leased for a connection that was never established.
func (r *Requester) abandon() {
	if r.state == ended {
		return
	}
	r.state = ended
	r.recvs.abandon()
	if r.headers != nil {
		r.headers.Release()
		r.headers = nil
	}
	r.publish()
}

// closed is the last call of the provider. Every Work Request has completed.
func (r *Requester) closed(err error) {
	if r.state == ended {
		return
	}
	if r.state == up {
		r.setEnding()
		r.watcher.Granted(r, 0)
	}
	if !r.asked {
		r.reason = err
	}
	r.misused(err)
	r.state = ended // the peer cannot reach memory by any handle now
	if r.timer != nil {
		r.timer.Stop()
	}
	if r.recvs.posted != 0 {
		panic(fmt.Sprintf("BUG: fabric: %s closed with %d Receives posted", r.info.Provider, r.recvs.posted))
	}
	cause := r.reason
	if cause == nil {
		cause = ErrClosed
	}
	for r.oldest >= 0 {
		pc := &r.slots[r.oldest]
		if pc.sending {
			panic(fmt.Sprintf("BUG: fabric: %s closed with a Send posted", r.info.Provider))
		}
		r.xids.Remove(pc.call.XID)
		pc.handles = [callHandles]fabric.Handle{}
		// A Reply that only waited for its handles to be invalidated is
		// delivered.
		if pc.err == nil {
			if !pc.replied {
				pc.err = cause
			} else {
				r.read(pc)
			}
		}
		r.finish(pc)
	}
	r.metrics.add(&r.tally)
	r.metrics.reverseLost.Add(uint64(len(r.reverse.calls)))
	r.reverse.calls = r.reverse.calls[:0]
	r.headers.Release()
	r.headers = nil
	r.watcher.Ended(r, r.reason)
}

// Flush starts the posted Work Requests now rather than at the end of the loop's
// pass.
func (r *Requester) Flush() {
	if r.state == up {
		r.conn.Flush()
	}
}

// Free returns how many Calls can be sent now.
func (r *Requester) Free() int { return max(0, r.Grant()-r.Outstanding()) }

// Outstanding returns how many Calls Send has accepted that are not completed.
func (r *Requester) Outstanding() int { return int(r.credits.Outstanding) }

// Late returns how many of the outstanding Calls are past their deadline and were kept: DropKeep.
func (r *Requester) Late() int { return r.late }

// Grant returns how many Calls may be outstanding: the lower of the credits
// requested and granted, or 0 when the connection is closing. It may be called on
// any goroutine.
func (r *Requester) Grant() int { return int(r.grant.Load()) }

// RequesterInfo describes a connection. It is constant after set-up.
type RequesterInfo struct {
	fabric.Info
	CallInline, ReplyInline int  // thresholds in effect, in octets
	rfc8797                 bool // the peer sent private data of RFC 8797
}

// Info describes the connection. It may be called on any goroutine.
func (r *Requester) Info() RequesterInfo { return r.info }

// LastActivity returns when the peer was last heard from.
func (r *Requester) LastActivity() time.Time { return r.conn.LastActivity() }

// Loop returns the loop that owns r. It may be called on any goroutine.
func (r *Requester) Loop() loop.Loop { return r.loop }

type noWatcher struct{}

func (noWatcher) Granted(*Requester, int) {}
func (noWatcher) Ended(*Requester, error) {}
