package tcpframe

import (
	"encoding/binary"

	"github.com/rdmabridge/rdmabridge/tcpframe/tlsloop"
)

const (
	// mostHello is the longest ClientHello. crypto/tls has the same bound for a message. One with a session ticket
	// that has a chain of certificates takes a few KiB.
	mostHello = 64 << 10

	recordHandshake  = 22 // ContentType, RFC 8446 Section 5.1
	messageHello     = 1  // HandshakeType, RFC 8446 Section 4
	handshakeMessage = 4  // octets of msg_type and length
)

// checkHello starts the handshake when the ClientHello is there, and ends the connection when it is none. A client
// that sends nothing, little or garbage thus costs neither a goroutine nor any cryptography.
func (s *session) checkHello() {
	// The goroutine, which shares h.in, does not exist yet.
	whole, err := helloIn(s.shake.Rest())
	switch {
	case err != nil:
		s.conn.failTLS(err)
	case whole:
		s.enter()
	}
}

// helloIn reports whether b begins with a whole ClientHello, or why it cannot.
func helloIn(b []byte) (whole bool, err *TLSError) {
	var head [handshakeMessage]byte // the first octets of the message
	have := 0                       // octets of the message
	for len(b) > 0 {
		if b[0] != recordHandshake || len(b) > 1 && b[1] != 3 {
			return false, errNotTLS
		}
		if len(b) < tlsloop.Header {
			return false, nil
		}
		n := int(binary.BigEndian.Uint16(b[3:]))
		if n == 0 || n > tlsloop.MaxContent {
			return false, errNotTLS
		}
		content := b[tlsloop.Header:min(tlsloop.Header+n, len(b))]
		if have < handshakeMessage {
			copy(head[have:], content)
		}
		have += len(content)
		if have > 0 && head[0] != messageHello {
			return false, errNotTLS
		}
		if have >= handshakeMessage {
			long := int(head[1])<<16 | int(head[2])<<8 | int(head[3])
			if long > mostHello {
				return false, errLongHello
			}
			if have >= handshakeMessage+long {
				return true, nil
			}
		}
		b = b[min(tlsloop.Header+n, len(b)):]
	}
	return false, nil
}
