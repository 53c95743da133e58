package fabrictest

import "github.com/rdmabridge/rdmabridge/rdmaside/fabric"

// An Operation is a Send, Write or Read that is about to be carried out.
type Operation struct {
	Conn   fabric.Conn // the end that posted it; the hook must not call its methods
	Dialed bool        // whether that end dialled
	Op     fabric.Op
	ID     uint64
	N      int // 1 for the first Send, Write or Read of this end

	// Octets is a copy of the octets of a Send or Write that the peer will get. The hook
	// may corrupt them. nil for a Read.
	Octets []byte
}

// A Verdict decides about an Operation.
type Verdict uint8

// The verdicts.
const (
	Pass Verdict = iota // carry it out
	Drop                // complete it without carrying it out, as if the message was lost
	Fail                // complete it with ErrInjected and end the connection
	Cut                 // as Fail, but half of a Write has been placed
	Hold                // delay it, and all later work, until Resume; then the hook decides again
)

// Inject makes f decide about every Operation from now on. If f is nil, the Loopback carries
// out every Operation. f runs on the poster's loop with locks held, and must not call this
// package.
func (p *Loopback) Inject(f func(Operation) Verdict) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hook = f
}

// AsyncInvalidate makes Conn.Invalidate report false and complete later, as with verbs.
// Until the Completion the peer can still access the memory.
func (p *Loopback) AsyncInvalidate(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.async = on
}

// KeepHandles says that peers may not invalidate handles. It holds for connections that are dialled
// later.
func (p *Loopback) KeepHandles() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.kept = true
}

func (p *Loopback) asynchronous() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.async
}

// inject returns the hook's verdict about w, and the octets to transfer: w's own, or the copy
// that the hook got.
func (c *loopbackConn) inject(w *work) ([][]byte, Verdict) {
	c.link.p.mu.Lock()
	hook := c.link.p.hook
	c.link.p.mu.Unlock()
	if hook == nil {
		c.counts.Operations++
		return w.parts, Pass
	}
	op := Operation{Conn: c, Dialed: c.dialed, Op: w.op, ID: w.id, N: c.counts.Operations + 1}
	parts := w.parts
	if w.op != fabric.OpRead {
		op.Octets = make([]byte, length(w.parts))
		gather(op.Octets, w.parts)
		parts = [][]byte{op.Octets}
	}
	v := hook(op)
	if v != Hold {
		c.counts.Operations++
	}
	return parts, v
}

// Resume makes the hook decide again about the work of c that a Hold delays.
func (p *Loopback) Resume(c fabric.Conn) {
	e := c.(*loopbackConn)
	e.link.mu.Lock()
	e.due = e.state == open || e.state == ending
	wake := e.link.wakes()
	e.link.mu.Unlock()
	wake.post()
}

// HoldCompletions, with on set, delays the completions of c until it is called with on
// clear, or until the connection ends.
func (p *Loopback) HoldCompletions(c fabric.Conn, on bool) {
	e := c.(*loopbackConn)
	e.link.mu.Lock()
	e.held = on
	e.link.mu.Unlock()
	p.Resume(c)
}

// Break ends the connection of c like a network failure: both sides get err. It may be
// called on any goroutine.
func (p *Loopback) Break(c fabric.Conn, err error) {
	e := c.(*loopbackConn)
	e.link.end(err, err)
}

// Counts are the operations of one end of a connection so far.
type Counts struct {
	Operations           int // Sends, Writes and Reads
	Sends, Writes, Reads int
	Received             int // messages
	Registered           int // times a handle was handed out

	PostedReceives int // times a Receive was posted
	Receives       int // Receives posted and not used
	LowReceives    int // the fewest Receives that were posted when a message arrived
	Handles        int // live handles
	Posted         int // Sends, Writes and Reads whose completion the handler has not got
}

// Counts returns the counts of the end c. It may be called on any goroutine.
func (p *Loopback) Counts(c fabric.Conn) Counts {
	e := c.(*loopbackConn)
	e.link.mu.Lock()
	defer e.link.mu.Unlock()
	n := e.counts
	n.Receives, n.Handles, n.Posted = e.receives.len(), len(e.regions), e.posted
	return n
}
