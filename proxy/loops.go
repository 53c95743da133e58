package proxy

import (
	"net"

	"github.com/rdmabridge/rdmabridge/internal/regmem"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
	"github.com/rdmabridge/rdmabridge/tcpframe"
)

// A loop is one event loop, in the words of both sides: tcpframe and rdmaside
// do not know each other, and this is where they meet.
type loop struct {
	index int
	tcp   *tcpframe.Loop
	free  []*call // owned by the loop

	calls, replies *regmem.Account // the Proxy's, with stocks for this loop
}

func (p *Proxy) newLoop(index int, l *tcpframe.Loop) *loop {
	return &loop{index: index, tcp: l, calls: p.calls.Local(), replies: p.replies.Local()}
}

// Post queues t on the loop. fabric.Loop.
func (l *loop) Post(t fabric.Task) { l.tcp.Post(t) }

// Now is the time of this pass in nanoseconds that only grow, the same for all
// loops. For the loop only.
func (l *loop) Now() int64 { return l.tcp.Now() }

// Attach drives c on the loop. fabric.SocketLoop.
func (l *loop) Attach(c net.Conn, s fabric.Stream) error {
	return l.tcp.Attach(c, stream{s})
}

// stream passes a tcpframe.Socket on as a fabric.Socket.
type stream struct{ fabric.Stream }

func (s stream) Attached(sock tcpframe.Socket) { s.Stream.Attached(sock) }

// newCall takes a call from the loop's free list.
func (l *loop) newCall() *call {
	if n := len(l.free); n > 0 {
		c := l.free[n-1]
		l.free = l.free[:n-1]
		return c
	}
	c := &call{}
	c.entry.Owner = c
	c.rdma.Owner = c
	return c
}

// recycle puts c back. Its memory has been released.
func (l *loop) recycle(c *call) {
	if c.exchange != nil || c.heir != nil {
		panic("BUG: proxy: an exchange is forgotten")
	}
	if c.up != nil {
		c.up.under[l.index].n--
	}
	c.reset()
	if len(l.free) < 1024 {
		l.free = append(l.free, c)
	}
}
