package tcpframe

import (
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/loop"
)

// alertTimeout bounds how long a peer may take to read the alert that says why TLS has failed.
const alertTimeout = time.Second

// failTLS ends the connection for e, with RST.
func (c *Conn) failTLS(e *TLSError) {
	if c.tls.fail(e) {
		c.Abort(e)
	}
}

// alertTLS ends the connection for e, in order, so that the peer can read the alert that crypto/tls has made.
func (c *Conn) alertTLS(e *TLSError) {
	switch s := c.tls; {
	case !s.fail(e):
	case s.out == nil:
		c.Abort(e)
	default:
		c.drain(e, alertTimeout)
	}
}

// fail counts that TLS has failed for e. It reports false if it has failed before, or if the connection is ending.
func (s *session) fail(e *TLSError) bool {
	c := s.conn
	if c.state != open {
		return false
	}
	s.counts.fail(c.RemoteAddr(), e)
	s.uncount()
	s.stopHandshake(e)
	s.stage = failed
	return true
}

// uncount takes the connection from the gauge of its stage.
func (s *session) uncount() {
	switch {
	case s.stage < secured:
		s.counts.handshakes.Add(-1)
	case s.stage == secured:
		s.counts.conns.Add(-1)
	}
}

// stopHandshake makes the handshake, if there is one, end with err. The session hears no more of it.
func (s *session) stopHandshake(err error) {
	if h := s.shake; h != nil {
		s.shake = nil
		if s.stage == shaking {
			h.Abandon(err)
		}
	}
}

// notify queues close_notify. RFC 9289 Section 5.1.1: "When operation is complete, an RPC peer terminates a TLS
// session by sending a TLS closure alert."
func (s *session) notify() {
	if s.stage == secured && !s.notified {
		s.notified = true
		_ = s.tc.CloseWrite()
	}
}

// notifyClosed sends close_notify if the Conn is secured. It reports whether that is done.
func (c *Conn) notifyClosed() bool {
	if c.tls == nil {
		return true
	}
	c.tls.notify()
	return c.tls.writeOut()
}

// peerClosed ends the connection because the peer has sent close_notify.
func (s *session) peerClosed() {
	c := s.conn
	err := io.EOF
	if c.split.begun() {
		err = io.ErrUnexpectedEOF
	}
	c.drain(err, alertTimeout)
}

// detached ends the session, whose socket has ended with err. wasOpen says that nothing on this side has ended it. It
// returns false if the Conn's end has to wait for the goroutine of the handshake: an alert that has arrived may say why
// the peer has ended the connection.
func (s *session) detached(wasOpen bool, err error) bool {
	c := s.conn
	s.uncount()
	if err == nil {
		err = io.EOF
	}
	byPeer := wasOpen && !errors.Is(err, loop.ErrStopped)
	switch {
	case s.stage >= secured:
		if s.partial() && c.err == io.EOF {
			c.err = io.ErrUnexpectedEOF
		}
		return true
	case byPeer && s.stage == shaking && !s.shake.Abandon(err):
		return false
	case byPeer:
		s.closedEarly(err)
	}
	s.stopHandshake(err)
	return true
}

// closedEarly notes that the peer has ended the connection, with err, before it was secured.
func (s *session) closedEarly(err error) {
	e := asTLSError(err)
	s.conn.err = e
	s.counts.fail(s.conn.RemoteAddr(), e)
}

// checkTimeout ends a handshake that takes too long.
func (s *session) checkTimeout(now int64) {
	due, why, what := s.due, TLSTimeout, "no ClientHello came"
	switch s.stage {
	case plainTail:
		what = "the peer did not read what was sent in plain text"
	case shaking:
		what = "the handshake was not done"
		if began := s.shake.Began(); began != 0 {
			due = began + int64(s.opts.timeout)
		} else {
			why, what = TLSBusy, "the handshake had no turn, because many are under way,"
		}
	}
	if now > due {
		s.conn.failTLS(&TLSError{why, fmt.Errorf("%s within %v", what, s.opts.timeout)})
	}
}

// settle makes the socket follow the state at the end of the pass. paused says that the owner, or the Conn itself, does
// not want records. It returns whether that counts: octets of a handshake are read nevertheless.
func (s *session) settle(paused bool) bool {
	c := s.conn
	if s.stage < secured {
		c.sock.SetPaused(s.shake != nil && s.shake.IsFull())
		return false
	}
	behind := s.behind && c.state == open
	c.sock.SetPaused(paused || behind || c.state == draining)
	if behind && !paused {
		c.sock.FlushLate()
	}
	return paused
}
