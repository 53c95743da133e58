package tcpframe

import (
	"sync"
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/testkit"
)

// FuzzTLS checks what a client may send behind the Reply with STARTTLS: any octets instead of a ClientHello, a
// ClientHello that is spoiled, and behind a handshake encrypted records of any types, lengths and padding. No input
// panics, delivers a record that the client has not sent, keeps memory, or disturbs a neighbour on the same loop.
func FuzzTLS(f *testing.F) {
	f.Add(uint8(0), []byte("\x16\x03\x01\x00\x04\x01\x00\x00\x00"))
	f.Add(uint8(1), []byte{0, 1, 5, 200, 3})
	f.Add(uint8(2), []byte{contentData, 4, 0, contentHandshake, 5, 24, 0, 0, 1, 1})
	f.Add(uint8(2), []byte{contentData, 12, 0x80, 0, 0, 8, 1, 2, 3, 4, 5, 6, 7, 8, contentAlert, 2, 1, 0})
	f.Add(uint8(3), []byte{contentData, 8, 0x80, 0, 0, 8, 1, 2, 3, 4, contentData, 4, 5, 6, 7, 8})
	y := newTLSTest(f, EngineOptions{Loops: 1}, ListenOptions{Conn: ConnOptions{MaxRecord: 1 << 16, StallTimeout: 50 * time.Millisecond}}, newTLS(f, serverConfig()), nil)
	hello := clientHello(f, clientConfig())
	var once sync.Mutex
	neighbour := y.secure(clientConfig())
	neighbour.SetDeadline(noDeadline)
	f.Fuzz(func(t *testing.T, mode uint8, b []byte) {
		once.Lock()
		defer once.Unlock()
		y.t, neighbour.t = t, t
		var p *peer
		switch mode % 4 {
		case 0:
			p = y.ask()
			p.Write(b)
		case 1: // pairs of a place and a value spoil a ClientHello
			p = y.ask()
			spoiled := append([]byte(nil), hello...)
			for ; len(b) >= 3; b = b[3:] {
				spoiled[(int(b[0])<<8|int(b[1]))%len(spoiled)] = b[2]
			}
			p.Write(spoiled)
		default: // a type, a length and as many octets make a record
			c := y.craft()
			p = &peer{t, c.tcp}
			for len(b) >= 2 {
				n := min(int(b[1]), len(b)-2)
				p.Write(c.record(b[0], b[2:2+n], int(mode)/4*50))
				b = b[2+n:]
			}
		}
		p.CloseWrite()
		p.wantEnd("the client has sent FIN")
		p.Close()
		neighbour.served(100)
		testkit.Eventually(t, "only the neighbour is left", func() bool {
			c := y.counts()
			return connsOf(y.l) == 1 && c.conns.Value() == 1 && c.handshakes.Value() == 0 && y.mem.Used() == 0
		})
	})
}
