package tlsloop

import (
	"crypto/tls"
	"net/netip"
	"sync"

	"github.com/rdmabridge/rdmabridge/internal/loop"
)

// mostShaking is how many octets of the peer wait for the goroutine of a handshake before the loop stops reading. A
// peer may send megabytes of Calls behind its last message.
const mostShaking = 64 << 10

// An Owner is the connection that a handshake is for.
type Owner interface {
	LocalAddr() netip.AddrPort
	RemoteAddr() netip.AddrPort
	// WriteTLS takes TLS records for the peer, after the handshake. It borrows b.
	WriteTLS(b []byte)
	// Post queues t on the connection's loop. Any goroutine.
	Post(t loop.Task)
	// HandshakeMoved says, on the loop, that h has octets for the peer, or that it is done, or that the loop may read from
	// the socket again.
	HandshakeMoved(h *Handshake, out []byte, done bool)
}

// A Handshake is the pipe between a loop and the goroutine that crypto/tls blocks.
type Handshake struct {
	owner  Owner // constant, as the next one
	queue  *Queue
	conn   *tls.Conn                        // constant from Enter on, as the next one
	verify func(*tls.ConnectionState) error // says what is wrong with a result
	entry  entry                            // the queue's

	ready chan struct{} // one deep: octets or the end have come

	mu     sync.Mutex // guards the rest; the loop's lock may be taken with it
	in     []byte     // octets of the peer
	end    error      // no more octets will come
	out    []byte     // octets for the peer
	posted bool       // the task is on its way to the loop
	done   bool       // the goroutine has ended
	err    error      // its result
	state  *tls.ConnectionState
}

// NewHandshake makes a handshake of o that has not begun: it only collects octets of the peer.
func NewHandshake(o Owner, q *Queue) *Handshake {
	h := &Handshake{owner: o, queue: q, ready: make(chan struct{}, 1)}
	h.entry.addr, h.entry.run, h.entry.stop = o.RemoteAddr().Addr(), h.run, h.stop
	h.entry.place.Value = &h.entry
	return h
}

// Arrived takes octets of the peer, on the loop.
func (h *Handshake) Arrived(b []byte) {
	h.mu.Lock()
	h.in = append(h.in, b...)
	h.mu.Unlock()
	h.wake()
}

// stop makes the goroutine end when it has read what has arrived. Any goroutine.
func (h *Handshake) stop(err error) {
	h.mu.Lock()
	if h.end == nil {
		h.end = err
	}
	h.mu.Unlock()
	h.wake()
}

func (h *Handshake) wake() {
	select {
	case h.ready <- struct{}{}:
	default:
	}
}

// Buffered returns how many octets of the peer wait.
func (h *Handshake) Buffered() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.in)
}

// IsFull reports whether the loop must not read from the socket.
func (h *Handshake) IsFull() bool { return h.Buffered() >= mostShaking }

// read is wire.Read, on the goroutine of the handshake.
func (h *Handshake) read(w *Wire, p []byte) (int, error) {
	for {
		n, err := h.poll(w, p)
		if n > 0 || err != nil {
			return n, err
		}
		h.queue.stall(&h.entry)
		<-h.ready
		h.queue.resume(&h.entry)
	}
}

// poll is read without blocking. It returns 0, nil if nothing has arrived.
func (h *Handshake) poll(w *Wire, p []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.in) > 0 {
		full := len(h.in) >= mostShaking
		n := w.take(p, h.in)
		if h.in = h.in[n:]; len(h.in) == 0 {
			h.in = nil
		}
		if full && len(h.in) < mostShaking {
			h.post()
		}
		return n, nil
	}
	return 0, h.end
}

// write is wire.Write, on the goroutine of the handshake.
func (h *Handshake) write(b []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.end != nil {
		return 0, h.end
	}
	h.out = append(h.out, b...)
	h.post()
	return len(b), nil
}

// post makes the loop look at the handshake. The caller holds mu.
func (h *Handshake) post() {
	if !h.posted {
		h.posted = true
		h.owner.Post((*handshakeTask)(h))
	}
}

// Enter gives the handshake of c, which reads and writes w, to a goroutine, or to the queue for one. It returns false if
// too many wait. verify says what is wrong with what the handshake has agreed on.
func (h *Handshake) Enter(w *Wire, c *tls.Conn, verify func(*tls.ConnectionState) error) bool {
	w.shake = h
	h.conn, h.verify = c, verify
	return h.queue.enter(&h.entry)
}

// Abandon makes a handshake end that has begun. It reports false if its goroutine runs, until the loop hears that it is
// done.
func (h *Handshake) Abandon(err error) bool {
	if h.queue.abandon(&h.entry) {
		return true
	}
	h.stop(err)
	return false
}

// run is the goroutine of the handshake.
func (h *Handshake) run() {
	h.queue.resume(&h.entry)
	err := h.conn.Handshake()
	var state *tls.ConnectionState
	if err == nil {
		x := h.conn.ConnectionState()
		state = &x
		err = h.verify(state)
	}
	h.queue.leave(&h.entry)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.done, h.err, h.state = true, err, state
	h.post()
}

// Result ends the pipe between w and h, and returns what a handshake that is done has agreed on, or why it has failed:
// ErrGaveWay if others needed its goroutine.
func (h *Handshake) Result(w *Wire) (*tls.ConnectionState, error) {
	w.shake = nil
	if h.err != nil && h.entry.evicted {
		return nil, ErrGaveWay
	}
	return h.state, h.err
}

// Rest returns the octets of the peer behind those of the handshake, which is done.
func (h *Handshake) Rest() []byte { return h.in }

// Began returns when the goroutine has begun, or 0.
func (h *Handshake) Began() int64 { return h.entry.began.Load() }

// A handshakeTask is a handshake that has something for the loop.
type handshakeTask Handshake

func (t *handshakeTask) Run() {
	h := (*Handshake)(t)
	h.mu.Lock()
	h.posted = false
	out, done := h.out, h.done
	h.out = nil
	h.mu.Unlock()
	h.owner.HandshakeMoved(h, out, done)
}
