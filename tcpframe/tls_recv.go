package tcpframe

import (
	"errors"
	"io"
	"time"

	"github.com/rdmabridge/rdmabridge/tcpframe/eventloop"
	"github.com/rdmabridge/rdmabridge/tcpframe/tlsloop"
)

const (
	// openedPerPass is how many TLS records of one connection a pass opens. Small ones take less than 1 us each. The
	// octets of a pass are bounded by the share of the socket, and 16 KiB take some 5 us.
	openedPerPass = 256

	// uselessEvery and uselessSaved bound the TLS records that bring no data: KeyUpdates, of which each costs new keys
	// in one or both directions, session tickets, and empty records. Peers send a few tickets, and a KeyUpdate once
	// in many gigabytes.
	uselessEvery = int64(time.Second)
	uselessSaved = 32 * uselessEvery
)

// open reads what b, octets of TLS records, brings. It decrypts into the buffer of crypto/tls, and copies from there
// straight into the record. It returns the octets that it must not read now, because reading is paused or the session
// has used its share of the pass. Then crypto/tls may have decrypted octets that were not read, too.
func (s *session) open(b []byte) (rest []byte) {
	c := s.conn
	if p := c.loop.Pass(); s.pass != p {
		s.pass, s.opened = p, 0
	}
	s.behind, s.more = false, true
	s.wire.In = b
	for c.state == open && s.stage == secured && !c.paused() {
		if !s.read() {
			break
		}
	}
	rest, s.wire.In = s.wire.In, nil
	if c.state != open || len(rest) == 0 {
		return nil
	}
	return rest
}

// read reads octets once: of a record mark, or of a fragment, as many as crypto/tls has of one TLS record. It reports
// whether there may be more.
func (s *session) read() bool {
	c := s.conn
	if len(s.wire.In) == 0 && s.unread == 0 {
		s.more = false // saves the call, for which crypto/tls allocates
		return false
	}
	p := s.mark[:markLen-c.split.marked]
	fragment := c.split.left > 0
	switch {
	case fragment && c.drop != nil:
		p = c.loop.linear[:min(c.split.left, linearOctets)] // nobody reads it
	case fragment:
		if !c.room(min(c.split.left, max(s.unread, 1)), c.have) {
			return false
		}
		p = c.buf[c.have:min(c.have+c.split.left, len(c.buf))]
	}
	another := s.opened < openedPerPass
	s.wire.One = another
	ends := s.wire.Ends
	n, err := s.tc.Read(p)
	if s.wire.Ends != ends {
		s.opened++
		s.unread = max(0, s.wire.Length()-tlsloop.Overhead)
	}
	if n > 0 {
		s.unread = max(0, s.unread-n)
		s.rx += int64(n)
		s.place(p[:n], fragment)
		return true
	}
	switch {
	case errors.Is(err, tlsloop.ErrWouldBlock):
		s.unread = 0
		if s.wire.Ends == ends {
			s.behind = !another && len(s.wire.In) > 0
			s.more = s.behind
			return false
		}
		if !s.useless.Take(c.loop.Now(), uselessEvery, uselessSaved) {
			c.failTLS(errFlood)
		}
		c.sock.FlushSoon() // to answer a KeyUpdate
		return true
	case errors.Is(err, io.EOF):
		s.peerClosed()
	default:
		c.alertTLS(asTLSError(err))
	}
	return false
}

// place gives p, octets that were read, their place in the record.
func (s *session) place(p []byte, fragment bool) {
	c := s.conn
	c.copied += len(p)
	switch {
	case fragment && c.drop != nil:
		c.discard(p)
		return
	case fragment:
		c.arrived(len(p))
		return
	}
	c.readMarks(p)
}

// openHeld reads on where open had to stop.
func (s *session) openHeld() {
	c := s.conn
	if s.stage != secured || !s.more && len(c.held) == 0 || c.state != open || c.paused() {
		return
	}
	c.held = s.open(c.held)
}

// received handles the octets of one read.
func (s *session) received(b []byte) {
	c := s.conn
	switch {
	case s.stage < secured:
		s.arrivedEarly(b)
		return
	case s.stage > secured:
		return
	case c.paused() || len(c.held) > 0 || s.more:
		c.hold(b)
		c.sock.FlushSoon()
		return
	}
	for {
		if rest := s.open(b); len(rest) > 0 {
			c.hold(rest)
			return
		}
		if c.state != open || c.paused() || s.behind || c.split.left < directRead {
			return
		}
		// The rest of a long fragment is on its way.
		b = c.loop.takeWire()
		n, _ := c.sock.Read(b)
		if n == 0 {
			return
		}
		c.rx += int64(n)
		c.counters.received.Add(uint64(n))
		b = b[:n]
	}
}

// takeWire returns the loop's buffer for octets of a TLS record, which is free until the pass ends.
func (l *Loop) takeWire() []byte {
	if l.wire == nil {
		l.wire = make([]byte, eventloop.ReadBuffer)
	}
	return l.wire
}
