package tcpframe

import (
	"math"

	"github.com/rdmabridge/rdmabridge/tcpframe/eventloop"
	"github.com/rdmabridge/rdmabridge/tcpframe/tlsloop"
)

const (
	// sealAtOnce is how many octets become TLS records before they are written: enough for few system calls, and few
	// enough to stay in the cache, and to bound what a peer that does not read can hold.
	sealAtOnce = 4 * tlsloop.MaxContent
	// outBuffer is the length of the records of sealAtOnce octets, with some that are shorter than they could be.
	outBuffer = sealAtOnce + 2<<10
	// keepOuts is how many spare buffers of TLS records a loop keeps.
	keepOuts = 16
	// mostOuts is how many connections of a loop may have a buffer that the socket does not take before each of
	// them gets by with one TLS record.
	mostOuts = 64
)

// write writes what is queued, in plain text or in TLS records.
func (s *session) write() {
	c := s.conn
	switch s.stage {
	case plainTail:
		s.writePlain()
	case shaking:
		s.writeShaking()
	case secured:
		for s.writeOut() && c.head != nil && s.stage == secured && s.hasShare() {
			s.seal()
		}
	default:
		s.writeOut()
	}
}

// queue adds b, TLS records, to those that wait to be written.
func (s *session) queue(b []byte) {
	if len(b) == 0 {
		return
	}
	if s.out == nil {
		s.out = s.conn.loop.takeOut(len(b))
	}
	s.out = append(s.out, b...)
	s.conn.outbound += int64(len(b))
	s.conn.copied += len(b)
}

// writeOut writes the TLS records that wait. It reports whether none is left.
func (s *session) writeOut() bool {
	c := s.conn
	for s.outAt < len(s.out) {
		if c.blocked {
			return false
		}
		b := s.out[s.outAt:]
		n, err := c.sock.WriteIOV(eventloop.AppendIOV(c.loop.iov[:0], b), len(b))
		s.outAt += n
		c.outbound -= int64(n)
		c.wrote(n)
		c.blocked = n < len(b)
		s.release(s.outAt)
		if err != nil {
			c.fail(err)
			return false
		}
	}
	if s.out != nil {
		c.loop.putOut(s.out)
		s.out, s.outAt = nil, 0
	}
	return true
}

// seal makes TLS records of the front of the queue. Short parts are joined in one TLS record. Long parts are sealed
// where they lie.
func (s *session) seal() {
	c, l := s.conn, s.conn.loop
	left := sealAtOnce
	if l.outs > mostOuts || c.sock.Spare() < sealAtOnce {
		left = tlsloop.MaxContent
	}
	joined := l.linear[:0]
	var first *outRecord // of those whose last octets joined has
	flush := func() {
		s.encrypt(joined)
		joined = joined[:0]
		for ; first != nil; first = first.next {
			first.end = len(s.out)
		}
	}
	for left > 0 && c.head != nil {
		r := c.head
		skip := c.headSent
		for i := -1; i < r.n && left > 0; i++ {
			b := r.mark[:]
			if i >= 0 {
				b = r.parts[i]
			}
			if skip >= len(b) {
				skip -= len(b)
				continue
			}
			b = b[skip:]
			skip = 0
			b = b[:min(len(b), left)]
			left -= len(b)
			c.headSent += len(b)
			if room := tlsloop.MaxContent - len(joined); len(b) > room && len(joined) > 0 {
				flush()
			}
			if whole := len(b) / tlsloop.MaxContent * tlsloop.MaxContent; whole > 0 {
				s.encrypt(b[:whole])
				b = b[whole:]
			}
			joined = append(joined, b...)
			c.copied += len(b)
		}
		if c.headSent < r.size {
			break
		}
		s.sealed.enqueue(c.unlink(), false)
		if first == nil {
			first = r
		}
		if len(joined) == 0 {
			flush()
		}
	}
	flush()
	if s.sealErr != nil {
		c.alertTLS(asTLSError(s.sealErr))
	}
}

// encrypt makes TLS records of b.
func (s *session) encrypt(b []byte) {
	if len(b) == 0 || s.sealErr != nil {
		return
	}
	s.conn.outbound -= int64(len(b)) // queue adds the octets of the records
	_, s.sealErr = s.tc.Write(b)
}

// hasShare reports whether the socket may write more in this pass. If not, Writable follows.
func (s *session) hasShare() bool {
	c := s.conn
	if c.sock.Spare() > 0 {
		return true
	}
	c.blocked = true
	c.sock.GoOn()
	return false
}

// release releases the kept records that end in the first n octets of out. It does not wait for the rest of out: the
// peer may have answered those records already.
func (s *session) release(n int) {
	for s.sealed.head != nil && s.sealed.head.end <= n {
		s.conn.loop.release(s.sealed.unlink())
	}
}

// dropOut forgets the TLS records that wait to be written, and releases what they were made of.
func (s *session) dropOut() {
	if s.out != nil {
		s.conn.loop.putOut(s.out)
		s.out, s.outAt = nil, 0
	}
	s.release(math.MaxInt)
}

// takeOut returns an empty buffer for TLS records, the first of which has n octets.
func (l *Loop) takeOut(n int) []byte {
	if l.outs++; l.outs <= mostOuts {
		n = max(n, outBuffer)
	}
	if k := len(l.spareOuts); k > 0 && n == outBuffer {
		b := l.spareOuts[k-1]
		l.spareOuts[k-1] = nil
		l.spareOuts = l.spareOuts[:k-1]
		return b
	}
	return make([]byte, 0, n)
}

// putOut gives back a buffer of takeOut.
func (l *Loop) putOut(b []byte) {
	l.outs--
	if cap(b) == outBuffer && len(l.spareOuts) < keepOuts {
		l.spareOuts = append(l.spareOuts, b[:0])
	}
}
