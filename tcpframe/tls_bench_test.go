package tcpframe

import (
	"crypto/tls"
	"testing"
)

// BenchmarkTLS has one client Conn that keeps records outstanding at an echoing Conn of another loop, with TLS and
// without. "calls" sends the length and gets 100 octets back, "replies" the other way round.
func BenchmarkTLS(b *testing.B) {
	for _, bb := range []struct {
		name               string
		call, reply, depth int
	}{{"100x1", 100, 100, 1}, {"100x16", 100, 100, 16}, {"8Kx16", 8 << 10, 8 << 10, 16}, {"calls1M", 1 << 20, 100, 4}, {"replies1M", 100, 1 << 20, 4}} {
		for _, secure := range []bool{false, true} {
			name := bb.name + "/plain"
			if secure {
				name = bb.name + "/tls"
			}
			b.Run(name, func(b *testing.B) {
				e := startEngine(b, EngineOptions{Loops: 2})
				server, client := newTLS(b, serverConfig()), newTLS(b, clientConfig())
				l := listen(b, e, ListenOptions{Conn: ConnOptions{Memory: lend(&testMemory{})}}, func(*Conn) RecordHandler {
					return &benchEnd{x: pick(secure, server), send: pattern(bb.reply, 1)}
				})
				c := &benchEnd{x: pick(secure, client), send: pattern(bb.call, 1), client: true, ready: make(chan *Conn, 1), done: make(chan struct{}, 1)}
				if _, err := dial(e, l.Addr().String(), DialOptions{Conn: ConnOptions{Memory: lend(&testMemory{})}}, c); err != nil {
					b.Fatal(err)
				}
				conn := <-c.ready
				b.SetBytes(int64(bb.call + bb.reply))
				b.ReportAllocs()
				b.ResetTimer()
				c.left, c.more = b.N, b.N
				conn.Loop().Post(benchStart{c, conn, bb.depth})
				<-c.done
			})
		}
	}
}

func pick(secure bool, x *TLS) *TLS {
	if secure {
		return x
	}
	return nil
}

// A benchEnd is one end of BenchmarkTLS.
type benchEnd struct {
	x          *TLS
	send       []byte
	client     bool
	left, more int
	parts      [2][]byte
	ready      chan *Conn
	done       chan struct{}
}

func (h *benchEnd) Opened(c *Conn) {
	h.parts = [2][]byte{h.send[:8], h.send[8:]}
	switch {
	case !h.client:
	case h.x != nil:
		c.Send([][]byte{probe}, nil)
	default:
		h.ready <- c
	}
}

func (h *benchEnd) Secured(c *Conn, _ *tls.ConnectionState) {
	if h.client {
		h.ready <- c
	}
}

func (h *benchEnd) Record(c *Conn, b Buffer) {
	b.Release()
	switch {
	case h.x != nil && c.TLS() == nil:
		if !h.client {
			c.Send([][]byte{starttls}, nil)
		}
		c.StartTLS(h.x)
		return
	case !h.client:
		c.Send(h.parts[:], nil)
		return
	}
	h.next(c)
	if h.left--; h.left == 0 {
		h.done <- struct{}{}
	}
}

func (h *benchEnd) next(c *Conn) {
	if h.more > 0 {
		h.more--
		c.Send(h.parts[:], nil)
	}
}

func (h *benchEnd) Closed(_ *Conn, err error) {
	if h.client && h.left > 0 {
		panic(err)
	}
}

type benchStart struct {
	h     *benchEnd
	c     *Conn
	depth int
}

func (s benchStart) Run() {
	for range s.depth {
		s.h.next(s.c)
	}
}
