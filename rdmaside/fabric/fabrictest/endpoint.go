package fabrictest

import (
	"bytes"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
)

// patience bounds how long the suite waits for anything that must happen.
const patience = time.Minute

// firstReceive is the ID of an endpoint's first Receive; other work has smaller
// ones.
const firstReceive = 1 << 32

// An endpoint is the suite's side of one connection: it posts work, records which work
// must still complete, and checks the order of the handler's calls.
type endpoint struct {
	t    *testing.T
	name string
	loop loop.Loop
	conn fabric.Conn // set by Setup
	peer *endpoint   // the other end

	// Constant after start.
	receives int // posted by Setup
	size     int // octets of each
	repost   bool
	setupErr error

	// onReceive runs on the loop, after the Receive was reposted.
	onReceive func(e *endpoint, msg []byte)

	mu          sync.Mutex // guards the rest; a leaf
	setups      int
	calls       int // of Completed
	bufs        map[uint64][]byte
	outstanding map[uint64]fabric.Op
	completions []fabric.Completion
	arrived     [][]byte // messages that are not recorded yet
	messages    [][]byte
	announced   int // regions of which the peer has told
	closed      bool
	closedErr   error
	nextID      uint64
	nextReceive uint64
	changed     chan struct{} // one deep
}

func newEndpoint(t *testing.T, name string, loop loop.Loop) *endpoint {
	return &endpoint{
		t: t, name: name, loop: loop, receives: 16, size: 4096, repost: true,
		bufs: make(map[uint64][]byte), outstanding: make(map[uint64]fabric.Op),
		nextReceive: firstReceive, changed: make(chan struct{}, 1),
	}
}

func (e *endpoint) Setup(c fabric.Conn) error {
	e.mu.Lock()
	e.setups++
	if e.setups > 1 || e.closed || len(e.completions) > 0 {
		e.t.Errorf("%s: Setup is not the first call", e.name)
	}
	e.mu.Unlock()
	e.conn = c
	for range e.receives {
		if err := e.postReceive(); err != nil {
			e.t.Errorf("%s: PostReceive in Setup: %v", e.name, err)
		}
	}
	e.signal()
	return e.setupErr
}

// postReceive posts a fresh Receive. Loop only.
func (e *endpoint) postReceive() error {
	buf := make([]byte, e.size)
	e.mu.Lock()
	id := e.nextReceive
	e.nextReceive++
	e.bufs[id] = buf
	e.outstanding[id] = fabric.OpReceive
	e.mu.Unlock()
	err := e.conn.PostReceive(id, buf)
	if err != nil {
		e.mu.Lock()
		delete(e.bufs, id)
		delete(e.outstanding, id)
		e.mu.Unlock()
	}
	return err
}

func (e *endpoint) Completed(cs []fabric.Completion) {
	var arrived [][]byte
	e.mu.Lock()
	e.calls++
	switch {
	case e.setups == 0:
		e.t.Errorf("%s: Completed before Setup", e.name)
	case e.closed:
		e.t.Errorf("%s: Completed after Closed", e.name)
	}
	for _, c := range cs {
		op, ok := e.outstanding[c.ID]
		switch {
		case c.ID == 0 && c.Err == nil:
			e.t.Errorf("%s: silent work completed: %+v", e.name, c)
		case c.ID == 0:
		case !ok:
			e.t.Errorf("%s: completion of work that is not outstanding: %+v", e.name, c)
		case op != c.Op:
			e.t.Errorf("%s: completion %d: op %d, posted as %d", e.name, c.ID, c.Op, op)
		}
		delete(e.outstanding, c.ID)
		e.completions = append(e.completions, c)
		if c.Op == fabric.OpReceive && c.Err == nil {
			buf := e.bufs[c.ID]
			if c.Bytes < 0 || int(c.Bytes) > len(buf) {
				e.t.Errorf("%s: received %d octets into %d", e.name, c.Bytes, len(buf))
				continue
			}
			got := buf[:c.Bytes]
			if c.Data != nil {
				if got = c.Data; len(got) != int(c.Bytes) {
					e.t.Errorf("%s: %d octets in place, and received %d", e.name, len(got), c.Bytes)
				}
			}
			arrived = append(arrived, bytes.Clone(got))
		}
		delete(e.bufs, c.ID)
	}
	e.mu.Unlock()
	for _, msg := range arrived {
		if e.repost {
			if err := e.postReceive(); err != nil && !errors.Is(err, fabric.ErrClosed) {
				e.t.Errorf("%s: repost: %v", e.name, err)
			}
		}
		if e.onReceive != nil && string(msg) != announcement {
			e.onReceive(e, msg)
		}
	}
	e.signal()
	if len(arrived) == 0 {
		return
	}
	// A test that sees a message can rely on the repost, so that messages are recorded when what was
	// posted here has started.
	e.mu.Lock()
	e.arrived = append(e.arrived, arrived...)
	e.mu.Unlock()
	e.loop.Post(loop.TaskFunc(e.record))
}

// took notes a message that ConnOptions.Take takes.
func (e *endpoint) took(m []byte) {
	e.mu.Lock()
	e.arrived = append(e.arrived, bytes.Clone(m))
	e.mu.Unlock()
	e.loop.Post(loop.TaskFunc(e.record))
}

// record records the messages that have arrived.
func (e *endpoint) record() {
	e.mu.Lock()
	defer e.signal()
	defer e.mu.Unlock()
	for _, msg := range e.arrived {
		if string(msg) == announcement {
			e.announced++
		} else {
			e.messages = append(e.messages, msg)
		}
	}
	e.arrived = nil
}

func (e *endpoint) Closed(err error) {
	e.record()
	e.mu.Lock()
	defer e.signal()
	defer e.mu.Unlock()
	switch {
	case e.setups == 0:
		e.t.Errorf("%s: Closed before Setup", e.name)
	case e.closed:
		e.t.Errorf("%s: Closed twice", e.name)
	}
	for id, op := range e.outstanding {
		e.t.Errorf("%s: Closed(%v) with work %#x, op %d, outstanding", e.name, err, id, op)
	}
	e.closed, e.closedErr = true, err
}

func (e *endpoint) signal() {
	select {
	case e.changed <- struct{}{}:
	default:
	}
}

// wait waits until cond, which runs with mu held, is true.
func (e *endpoint) wait(what string, cond func() bool) {
	e.t.Helper()
	limit := patience
	if e.t.Failed() {
		limit = time.Second // the failure may have prevented the event
	}
	timeout := time.NewTimer(limit)
	defer timeout.Stop()
	for {
		e.mu.Lock()
		ok := cond()
		e.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-e.changed:
		case <-timeout.C:
			e.mu.Lock()
			defer e.mu.Unlock()
			e.t.Fatalf("%s: waited for %s: %d messages, %d completions, %d outstanding, closed %v (%v)", e.name, what,
				len(e.messages), len(e.completions), len(e.outstanding), e.closed, e.closedErr)
		}
	}
}

func (e *endpoint) waitMessages(n int) [][]byte {
	e.t.Helper()
	e.wait(fmt.Sprintf("%d messages", n), func() bool { return len(e.messages) >= n || e.closed })
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.messages) < n {
		e.t.Fatalf("%s: closed (%v) after %d of %d messages", e.name, e.closedErr, len(e.messages), n)
	}
	return e.messages
}

// waitClosed waits for Closed and returns its error.
func (e *endpoint) waitClosed() error {
	e.t.Helper()
	e.wait("Closed", func() bool { return e.closed })
	return e.closedErr
}

// waitDone waits for the completion of work id and returns it.
func (e *endpoint) waitDone(id uint64) fabric.Completion {
	e.t.Helper()
	e.wait(fmt.Sprintf("completion of %#x", id), func() bool {
		_, ok := e.outstanding[id]
		return !ok
	})
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, c := range e.completions {
		if c.ID == id {
			return c
		}
	}
	e.t.Fatalf("%s: work %#x was never posted", e.name, id)
	panic("unreachable")
}

// do runs f on the loop.
func (e *endpoint) do(f func()) {
	e.t.Helper()
	done := make(chan struct{})
	e.loop.Post(loop.TaskFunc(func() {
		defer close(done)
		f()
	}))
	select {
	case <-done:
	case <-time.After(patience):
		e.t.Fatalf("%s: the loop did not run a task", e.name)
	}
}

// begin records new work of kind op as outstanding and returns its ID. Loop only.
func (e *endpoint) begin(op fabric.Op) uint64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.nextID++
	e.outstanding[e.nextID] = op
	return e.nextID
}

// posted records that posting id returned err, and returns both.
func (e *endpoint) posted(id uint64, err error) (uint64, error) {
	if err != nil {
		e.mu.Lock()
		delete(e.outstanding, id)
		e.mu.Unlock()
	}
	return id, err
}

func (e *endpoint) postSend(s fabric.Send) (uint64, error) {
	id := e.begin(fabric.OpSend)
	return e.posted(id, e.conn.PostSend(id, s))
}

func (e *endpoint) postWrite(w fabric.Write) (uint64, error) {
	id := e.begin(fabric.OpWrite)
	return e.posted(id, e.conn.PostWrite(id, w))
}

func (e *endpoint) postRead(r fabric.Read) (uint64, error) {
	id := e.begin(fabric.OpRead)
	return e.posted(id, e.conn.PostRead(id, r))
}

// send posts one message from off the loop.
func (e *endpoint) send(parts ...[]byte) (id uint64) {
	e.t.Helper()
	e.do(func() {
		var err error
		if id, err = e.postSend(fabric.Send{Parts: parts}); err != nil {
			e.t.Errorf("%s: PostSend: %v", e.name, err)
		}
		e.conn.Flush()
	})
	return id
}

func (e *endpoint) write(to fabric.Region, parts ...[]byte) (id uint64) {
	e.t.Helper()
	e.do(func() {
		var err error
		if id, err = e.postWrite(fabric.Write{Parts: parts, To: to}); err != nil {
			e.t.Errorf("%s: PostWrite: %v", e.name, err)
		}
		e.conn.Flush()
	})
	return id
}

func (e *endpoint) read(into []byte, from fabric.Region) (id uint64) {
	e.t.Helper()
	e.do(func() {
		var err error
		if id, err = e.postRead(fabric.Read{Into: into, From: from}); err != nil {
			e.t.Errorf("%s: PostRead: %v", e.name, err)
		}
		e.conn.Flush()
	})
	return id
}

// announcement is the message that follows a registration, because peers can use a handle when a later
// message has come.
const announcement = "a region was registered"

// register registers memory, and waits until the peer can use it.
func (e *endpoint) register(buf []byte, a fabric.Access) (r fabric.Region) {
	e.t.Helper()
	e.peer.mu.Lock()
	n := e.peer.announced
	e.peer.mu.Unlock()
	e.do(func() {
		var err error
		if r, err = e.conn.Register(buf, a); err != nil {
			e.t.Errorf("%s: Register: %v", e.name, err)
		}
		if _, err := e.postSend(fabric.Send{Parts: [][]byte{[]byte(announcement)}}); err != nil {
			e.t.Errorf("%s: PostSend: %v", e.name, err)
		}
		e.conn.Flush()
	})
	e.peer.wait("an announcement", func() bool { return e.peer.announced > n || e.peer.closed })
	return r
}

// invalidate invalidates h and waits until it is dead.
func (e *endpoint) invalidate(h fabric.Handle) {
	e.t.Helper()
	var id uint64
	var done bool
	e.do(func() {
		id = e.begin(fabric.OpInvalidate)
		var err error
		if done, err = e.conn.Invalidate(id, h); err != nil {
			e.t.Errorf("%s: Invalidate: %v", e.name, err)
			done = true
		}
		if done {
			_, _ = e.posted(id, fabric.ErrClosed)
		}
		e.conn.Flush()
	})
	if !done {
		if c := e.waitDone(id); c.Err != nil {
			e.t.Errorf("%s: Invalidate completed: %v", e.name, c.Err)
		}
	}
}

func (e *endpoint) close(err error) {
	e.t.Helper()
	e.do(func() { e.conn.Close(err) })
}

// silent fails the test if the handler was ever called.
func (e *endpoint) silent() {
	e.t.Helper()
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.setups > 0 || e.closed || len(e.completions) > 0 {
		e.t.Errorf("%s: handler was called: Setup %d times, closed %v", e.name, e.setups, e.closed)
	}
}
