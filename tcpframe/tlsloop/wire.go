package tlsloop

import (
	"encoding/binary"
	"net"
	"os"
	"time"
)

const (
	// Header is the length of the header of a TLS record.
	//
	//	type(1) legacy_record_version(2) length(2)
	//
	// RFC 8446 Section 5.1.
	Header = 5
	// Overhead is how many octets an encrypted record has besides its header and its content, at
	// least: the content's type, and the tag.
	Overhead = 1 + 16
	// MaxContent is the most octets of content in a record.
	MaxContent = 16 << 10
)

// A Wire is the net.Conn below crypto/tls. It hands octets on record by record: crypto/tls never holds
// octets of a second record, and the session sees which records bring no data.
//
// During the handshake the goroutine of the handshake owns it, and its octets go through the handshake's pipe. From
// then on the loop owns it, and nothing blocks.
type Wire struct {
	Owner Owner      // constant
	shake *Handshake // nil from the end of the handshake on

	// In are octets that the loop lends for the time of one open.
	In []byte
	// One says that crypto/tls may begin another record.
	One bool
	// Ends counts the records that have ended.
	Ends uint64

	// The record that crypto/tls is reading.
	header [Header]byte
	got    int // octets of header
	left   int // octets of the record that are missing, if got is Header
}

// A wouldBlock is the error of a wire that has no octets at present. crypto/tls does not remember an error that is
// temporary.
type wouldBlock struct{}

func (wouldBlock) Error() string   { return "tcpframe: no octets at present" }
func (wouldBlock) Timeout() bool   { return true }
func (wouldBlock) Temporary() bool { return true }

// ErrWouldBlock says that a Wire has no octets at present.
var ErrWouldBlock net.Error = wouldBlock{}

// Started reports whether crypto/tls has a part of a record.
func (w *Wire) Started() bool { return w.got > 0 }

// Held returns how many octets of an incomplete record crypto/tls holds.
func (w *Wire) Held() int {
	if w.got < Header {
		return w.got
	}
	return Header + w.Length() - w.left
}

func (w *Wire) Length() int { return int(binary.BigEndian.Uint16(w.header[3:])) }

// take copies octets of one record from in to p.
func (w *Wire) take(p, in []byte) (n int) {
	if w.got < Header {
		n = min(Header-w.got, len(p), len(in))
		copy(w.header[w.got:], in[:n])
		copy(p, in[:n])
		if w.got += n; w.got < Header {
			return n
		}
		w.left = w.Length()
	}
	k := min(w.left, len(p)-n, len(in)-n)
	copy(p[n:], in[n:n+k])
	n += k
	if w.left -= k; w.left == 0 {
		w.got = 0
		w.Ends++
		w.One = false
	}
	return n
}

// Read implements net.Conn.
func (w *Wire) Read(p []byte) (int, error) {
	if w.shake != nil {
		return w.shake.read(w, p)
	}
	if len(w.In) == 0 || w.got == 0 && !w.One {
		return 0, ErrWouldBlock
	}
	n := w.take(p, w.In)
	w.In = w.In[n:]
	return n, nil
}

// Write implements net.Conn.
func (w *Wire) Write(b []byte) (int, error) {
	if w.shake != nil {
		return w.shake.write(b)
	}
	w.Owner.WriteTLS(b)
	return len(b), nil
}

// Close implements net.Conn. crypto/tls does not call it: Conn closes the socket.
func (*Wire) Close() error { return nil }

// LocalAddr implements net.Conn.
func (w *Wire) LocalAddr() net.Addr { return net.TCPAddrFromAddrPort(w.Owner.LocalAddr()) }

// RemoteAddr implements net.Conn.
func (w *Wire) RemoteAddr() net.Addr { return net.TCPAddrFromAddrPort(w.Owner.RemoteAddr()) }

// SetDeadline implements net.Conn. The loop has deadlines of its own.
func (*Wire) SetDeadline(time.Time) error { return nil }

// SetReadDeadline implements net.Conn.
func (*Wire) SetReadDeadline(time.Time) error { return os.ErrNoDeadline }

// SetWriteDeadline implements net.Conn.
func (*Wire) SetWriteDeadline(time.Time) error { return os.ErrNoDeadline }
