package tcpframe

import (
	"encoding/binary"
	"net"
	"os"
	"time"
)

const (
	// tlsHeader is the length of the header of a TLS record.
	//
	//	type(1) legacy_record_version(2) length(2)
	//
	// RFC 8446 Section 5.1.
	tlsHeader = 5
	// tlsOverhead is how many octets an encrypted record has besides its header and its content, at
	// least: the content's type, and the tag.
	tlsOverhead = 1 + 16
	// tlsContent is the most octets of content in a record.
	tlsContent = 16 << 10
)

// A wire is the net.Conn below crypto/tls. It hands octets on record by record: crypto/tls never holds
// octets of a second record, and the session sees which records bring no data.
//
// During the handshake the goroutine of the handshake owns it, and its octets go through the handshake's pipe. From
// then on the loop owns it, and nothing blocks.
type wire struct {
	session *session
	shake   *handshake // nil from the end of the handshake on

	in   []byte // octets that the loop lends for the time of one open
	one  bool   // crypto/tls may begin another record
	ends uint64 // records that have ended

	// The record that crypto/tls is reading.
	header [tlsHeader]byte
	got    int // octets of header
	left   int // octets of the record that are missing, if got is tlsHeader
}

// A wouldBlock is the error of a wire that has no octets at present. crypto/tls does not remember an error that is
// temporary.
type wouldBlock struct{}

func (wouldBlock) Error() string   { return "tcpframe: no octets at present" }
func (wouldBlock) Timeout() bool   { return true }
func (wouldBlock) Temporary() bool { return true }

var errWouldBlock net.Error = wouldBlock{}

// started reports whether crypto/tls has a part of a record.
func (w *wire) started() bool { return w.got > 0 }

// held returns how many octets of an incomplete record crypto/tls holds.
func (w *wire) held() int {
	if w.got < tlsHeader {
		return w.got
	}
	return tlsHeader + w.length() - w.left
}

func (w *wire) length() int { return int(binary.BigEndian.Uint16(w.header[3:])) }

// take copies octets of one record from in to p.
func (w *wire) take(p, in []byte) (n int) {
	if w.got < tlsHeader {
		n = min(tlsHeader-w.got, len(p), len(in))
		copy(w.header[w.got:], in[:n])
		copy(p, in[:n])
		if w.got += n; w.got < tlsHeader {
			return n
		}
		w.left = w.length()
	}
	k := min(w.left, len(p)-n, len(in)-n)
	copy(p[n:], in[n:n+k])
	n += k
	if w.left -= k; w.left == 0 {
		w.got = 0
		w.ends++
		w.one = false
	}
	return n
}

// Read implements net.Conn.
func (w *wire) Read(p []byte) (int, error) {
	if w.shake != nil {
		return w.shake.read(w, p)
	}
	if len(w.in) == 0 || w.got == 0 && !w.one {
		return 0, errWouldBlock
	}
	n := w.take(p, w.in)
	w.in = w.in[n:]
	return n, nil
}

// Write implements net.Conn.
func (w *wire) Write(b []byte) (int, error) {
	if w.shake != nil {
		return w.shake.write(b)
	}
	w.session.queue(b)
	return len(b), nil
}

// Close implements net.Conn. crypto/tls does not call it: Conn closes the socket.
func (*wire) Close() error { return nil }

// LocalAddr implements net.Conn.
func (w *wire) LocalAddr() net.Addr { return net.TCPAddrFromAddrPort(w.session.conn.LocalAddr()) }

// RemoteAddr implements net.Conn.
func (w *wire) RemoteAddr() net.Addr { return net.TCPAddrFromAddrPort(w.session.conn.RemoteAddr()) }

// SetDeadline implements net.Conn. The loop has deadlines of its own.
func (*wire) SetDeadline(time.Time) error { return nil }

// SetReadDeadline implements net.Conn.
func (*wire) SetReadDeadline(time.Time) error { return os.ErrNoDeadline }

// SetWriteDeadline implements net.Conn.
func (*wire) SetWriteDeadline(time.Time) error { return os.ErrNoDeadline }
