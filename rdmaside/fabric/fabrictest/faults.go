package fabrictest

import "github.com/rdmabridge/rdmabridge/rdmaside/fabric"

// An Operation is a Send, Write or Read that is about to be carried out.
type Operation struct {
	Conn   fabric.Conn // the end that posted it; not to be called from the hook
	Dialed bool        // that end dialled
	Op     fabric.Op
	ID     uint64
	N      int // 1 for the first Send, Write or Read of this end

	// Octets of a Send or Write; nil for a Read. They are a copy, and what the
	// peer gets: change them to corrupt.
	Octets []byte
}

// A Verdict is what becomes of an Operation.
type Verdict uint8

// The verdicts.
const (
	Pass Verdict = iota // carry it out
	Drop                // complete it without carrying it out: a lost message
	Fail                // complete it with ErrInjected and end the connection
	Cut                 // as Fail, but half of a Write has been placed
	Hold                // keep it and what was posted after it until Resume; then ask again
)

// Inject has f decide about every Operation from now on; nil carries all out. f
// runs on the poster's loop with locks held, and must not call into this package.
func (p *Loopback) Inject(f func(Operation) Verdict) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hook = f
}

// AsyncInvalidate makes Conn.Invalidate report false and complete later, as verbs
// do. Until the Completion the peer still reaches the memory.
func (p *Loopback) AsyncInvalidate(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.async = on
}

func (p *Loopback) asynchronous() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.async
}

// inject asks the hook about w. The octets are w's own, or the hook's copy.
func (c *Conn) inject(w *work) ([][]byte, Verdict) {
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

// Resume asks again about the work of c that a Hold keeps.
func (p *Loopback) Resume(c fabric.Conn) {
	e := c.(*Conn)
	e.link.mu.Lock()
	e.due = e.state == open || e.state == ending
	wake := e.link.wakes()
	e.link.mu.Unlock()
	wake.post()
}

// HoldCompletions keeps completions from the handler of c while on is set, or
// until the connection ends.
func (p *Loopback) HoldCompletions(c fabric.Conn, on bool) {
	e := c.(*Conn)
	e.link.mu.Lock()
	e.held = on
	e.link.mu.Unlock()
	p.Resume(c)
}

// Break ends the connection of c as a network failure would: both sides are told
// err. It may be called on any goroutine.
func (p *Loopback) Break(c fabric.Conn, err error) {
	e := c.(*Conn)
	e.link.end(err, err)
}

// Counts are what one end of a connection has done so far.
type Counts struct {
	Operations           int // Sends, Writes and Reads
	Sends, Writes, Reads int
	Received             int // messages
	Registered           int // times a handle was handed out

	PostedReceives int // times a Receive was posted
	Receives       int // Receives posted and not used
	LowReceives    int // the fewest that were posted when a message came
	Handles        int // live handles
	Posted         int // Sends, Writes and Reads whose completion was not told
}

// Counts returns what the end c has done so far. It may be called on any
// goroutine.
func (p *Loopback) Counts(c fabric.Conn) Counts {
	e := c.(*Conn)
	e.link.mu.Lock()
	defer e.link.mu.Unlock()
	n := e.counts
	n.Receives, n.Handles, n.Posted = e.receives.len(), len(e.regions), e.posted
	return n
}
