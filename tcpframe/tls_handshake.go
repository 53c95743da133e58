package tcpframe

import (
	"container/list"
	"crypto/tls"
	"sync"
	"sync/atomic"

	"github.com/rdmabridge/rdmabridge/internal/crowd"
)

// mostShaking is how many octets of the peer wait for the goroutine of a handshake before the loop stops reading. A
// peer may send megabytes of Calls behind its last message.
const mostShaking = 64 << 10

// A handshake is the pipe between a loop and the goroutine that crypto/tls blocks.
type handshake struct {
	session *session                 // constant
	queue   *handshakes              // constant
	place   crowd.Member[*handshake] // the queue's
	began   atomic.Int64             // time at which the goroutine has begun; 0 in the queue
	stalled int64                    // the queue's: time since which the goroutine waits for the peer; 0 if it does not
	evicted bool                     // the queue's: it has given way
	line    *list.Element            // the queue's: its place among those that wait; nil for none

	ready chan struct{} // one deep: octets or the end have come

	mu     sync.Mutex // guards the rest; the loop's lock may be taken with it
	in     []byte     // octets of the peer
	full   bool       // the loop does not read from the socket
	end    error      // no more octets will come
	out    []byte     // octets for the peer
	posted bool       // the task is on its way to the loop
	done   bool       // the goroutine has ended
	err    error      // its result
	state  *tls.ConnectionState
}

func newHandshake(s *session, q *handshakes) *handshake {
	h := &handshake{session: s, queue: q, ready: make(chan struct{}, 1)}
	h.place.Value = h
	return h
}

// arrived takes octets of the peer, on the loop.
func (h *handshake) arrived(b []byte) {
	h.mu.Lock()
	h.in = append(h.in, b...)
	h.full = len(h.in) >= mostShaking
	h.mu.Unlock()
	h.wake()
}

// stop makes the goroutine end when it has read what has arrived. Any goroutine.
func (h *handshake) stop(err error) {
	h.mu.Lock()
	if h.end == nil {
		h.end = err
	}
	h.mu.Unlock()
	h.wake()
}

func (h *handshake) wake() {
	select {
	case h.ready <- struct{}{}:
	default:
	}
}

// buffered returns how many octets of the peer wait.
func (h *handshake) buffered() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.in)
}

// isFull reports whether the loop must not read from the socket.
func (h *handshake) isFull() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.full
}

// read is wire.Read, on the goroutine of the handshake.
func (h *handshake) read(w *wire, p []byte) (int, error) {
	for {
		n, err := h.poll(w, p)
		if n > 0 || err != nil {
			return n, err
		}
		h.queue.stall(h)
		<-h.ready
		h.queue.resume(h)
	}
}

// poll is read without blocking. It returns 0, nil if nothing has arrived.
func (h *handshake) poll(w *wire, p []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.in) > 0 {
		n := w.take(p, h.in)
		if h.in = h.in[n:]; len(h.in) == 0 {
			h.in = nil
			if h.full {
				h.full = false
				h.post()
			}
		}
		return n, nil
	}
	return 0, h.end
}

// write is wire.Write, on the goroutine of the handshake.
func (h *handshake) write(b []byte) (int, error) {
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
func (h *handshake) post() {
	if !h.posted {
		h.posted = true
		h.session.conn.Loop().Post((*handshakeTask)(h))
	}
}

// run is the goroutine of the handshake.
func (h *handshake) run() {
	h.queue.resume(h)
	s := h.session
	err := s.tc.Handshake()
	var state *tls.ConnectionState
	if err == nil {
		x := s.tc.ConnectionState()
		state = &x
		if !s.server && state.NegotiatedProtocol != alpn && !s.opts.withoutALPN {
			err = errNoALPN
		}
	}
	h.queue.leave(h)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.done, h.err, h.state = true, err, state
	h.post()
}

// A handshakeTask is a handshake that has something for the loop.
type handshakeTask handshake

func (t *handshakeTask) Run() {
	h := (*handshake)(t)
	h.mu.Lock()
	h.posted = false
	out, done := h.out, h.done
	h.out = nil
	h.mu.Unlock()
	s := h.session
	if s.shake != h {
		return
	}
	if s.conn.state == open {
		s.queue(out)
	}
	if done {
		s.shaken()
	}
	s.conn.sock.FlushSoon()
}

// begin starts the handshake: a client's with the ClientHello, a server's when it has arrived.
func (s *session) begin() {
	q := s.conn.Loop().engine.handshakesOf(s.server)
	s.shake = newHandshake(s, q)
	if s.server {
		s.setStage(helloWait)
		return
	}
	s.enter()
}

// enter gives the handshake to a goroutine, or to the queue for one.
func (s *session) enter() {
	s.wire.shake = s.shake
	if s.server {
		s.tc = tls.Server(&s.wire, s.opts.config)
	} else {
		s.tc = tls.Client(&s.wire, s.opts.config)
	}
	s.setStage(shaking)
	if !s.shake.queue.enter(s.shake) {
		s.shake = nil
		s.conn.failTLS(errBusy)
	}
}

// shaken ends the handshake, whose goroutine has ended.
func (s *session) shaken() {
	h, c := s.shake, s.conn
	s.shake, s.wire.shake = nil, nil
	if c.state == closed { // the socket has ended meanwhile
		if h.err != nil {
			s.closedEarly(h.err)
		}
		c.bury()
		return
	}
	if h.err != nil {
		if h.evicted {
			c.failTLS(errGaveWay)
		} else {
			c.alertTLS(asTLSError(h.err))
		}
		return
	}
	s.stage, s.state = secured, h.state
	s.counts.handshakes.Add(-1)
	s.counts.conns.Add(1)
	s.counts.done(h.state.DidResume)
	c.active = c.Loop().Now()
	c.outSince, c.outMark = c.active, c.tx
	c.handler.(TLSHandler).Secured(c, s.state)
	if c.state == open && len(h.in) > 0 {
		c.hold(h.in)
	}
}
