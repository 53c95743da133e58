package tcpframe

import (
	"crypto/tls"
	"errors"
	"net/netip"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/tcpframe/tlsloop"
)

// begin starts the handshake: a client's with the ClientHello, a server's when it has arrived.
func (s *session) begin() {
	q := s.conn.loop.clients
	if s.server {
		q = s.conn.loop.servers
	}
	s.shake = tlsloop.NewHandshake(s, q)
	if s.server {
		s.setStage(helloWait)
		return
	}
	s.enter()
}

// enter gives the handshake to a goroutine, or to the queue for one.
func (s *session) enter() {
	if s.server {
		s.tc = tls.Server(&s.wire, s.opts.config)
	} else {
		s.tc = tls.Client(&s.wire, s.opts.config)
	}
	s.setStage(shaking)
	if !s.shake.Enter(&s.wire, s.tc, s.verify) {
		s.shake = nil
		s.conn.failTLS(errBusy)
	}
}

// shaken ends the handshake, whose goroutine has ended.
func (s *session) shaken() {
	h, c := s.shake, s.conn
	s.shake = nil
	state, err := h.Result(&s.wire)
	gaveWay := err == tlsloop.ErrGaveWay
	if gaveWay {
		err = errGaveWay
	}
	if c.state == closed { // the socket has ended meanwhile
		if err == nil {
			s.state = state
			err = s.refusal(h.Rest())
		}
		if err != nil {
			s.closedEarly(err)
		}
		c.handler.Closed(c, c.err)
		return
	}
	switch {
	case gaveWay:
		c.failTLS(errGaveWay)
		return
	case err != nil:
		c.alertTLS(asTLSError(err))
		return
	}
	s.stage, s.state = secured, state
	s.counts.handshakes.Add(-1)
	s.counts.conns.Add(1)
	s.counts.done(state.DidResume)
	c.active = c.loop.Now()
	c.outSince, c.outMark = c.active, c.tx
	c.handler.(TLSHandler).Secured(c, s.state)
	if rest := h.Rest(); c.state == open && len(rest) > 0 {
		c.hold(rest)
	}
}

// refusal returns the alert in rest, octets behind the handshake of a Conn whose socket has ended. It returns nil if there is
// none. A server of TLS 1.3 looks at the client's certificate when the handshake is over for the client, and its alert may
// arrive, with the end of the connection, before the loop knows that.
func (s *session) refusal(rest []byte) error {
	s.wire.In = rest
	for len(s.wire.In) > 0 {
		s.wire.One = true
		if _, err := s.tc.Read(s.mark[:]); err != nil && !errors.Is(err, tlsloop.ErrWouldBlock) {
			s.wire.In = nil
			if reasonOf(err) == TLSPeerAlert {
				return err
			}
		}
	}
	return nil
}

// verify says what is wrong with what a handshake has agreed on. It runs on the goroutine of the handshake.
func (s *session) verify(state *tls.ConnectionState) error {
	if !s.server && state.NegotiatedProtocol != alpn && !s.opts.withoutALPN {
		return errNoALPN
	}
	return nil
}

// RemoteAddr returns the address of the peer.
func (s *session) RemoteAddr() netip.AddrPort { return s.conn.RemoteAddr() }

// LocalAddr returns this side's address.
func (s *session) LocalAddr() netip.AddrPort { return s.conn.LocalAddr() }

// Post queues t on the loop.
func (s *session) Post(t loop.Task) { s.conn.loop.Post(t) }

// HandshakeMoved follows h on the loop.
func (s *session) HandshakeMoved(h *tlsloop.Handshake, out []byte, done bool) {
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

// WriteTLS queues b, TLS records that crypto/tls has made, if the socket has not ended.
func (s *session) WriteTLS(b []byte) {
	if s.conn.state != closed {
		s.queue(b)
	}
}
