package chaos

import (
	"math/rand/v2"
	"sync"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/internal/testkit/proxytest"
)

// A tcpServer is an RPC server over TCP with the faults of its sky.
type tcpServer struct {
	*proxytest.TCPServer
	server *server
}

// A tcpConn is one connection of a tcpServer.
type tcpConn struct {
	*proxytest.TCPConn
	server *server
	sky    *sky

	mu     sync.Mutex // guards the fields below, and keeps the records of an answer together
	dice   *rand.Rand
	own    reverses
	halted bool // inside a record: nothing else comes
}

func listenTCP(name string, s seed, executes *server, sk *sky) (*tcpServer, error) {
	l, err := proxytest.ServeTCP("127.0.0.1:0", func(nc *proxytest.TCPConn) {
		c := &tcpConn{TCPConn: nc, server: executes, sky: sk, dice: s.dice(name, nc.Number)}
		c.own = newReverses(executes, c.dice)
		_ = proxytest.ReadMessages(bufferedReader(c), c.call, c.reply) // wires and faults end connections all the time
	})
	return &tcpServer{TCPServer: l, server: executes}, err
}

// reply receives the Reply m to a Call of the server.
func (c *tcpConn) reply(m []byte) (more bool) {
	if len(m) < 8 {
		c.server.book.wrong("the bridge sent a record of %d octets", len(m))
		return true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.own.answered(m)
	return true
}

// call receives the Call m. It reports false to hang up.
func (c *tcpConn) call(m []byte) (more bool) {
	if m[3]&1 == 0 && c.strikes(lostCall) {
		return true // before it is executed
	}
	j, ok := c.server.take(m)
	if !ok {
		return true
	}
	c.own.took(&j)
	if c.server.hangs(&j, func() { c.answer(&j) }) {
		return true
	}
	if c.strikes(hangUp) {
		c.server.finish(&j)
		if m[3]&1 == 0 {
			c.SetLinger(0)
		}
		return false
	}
	if c.strikes(lateReply) {
		c.mu.Lock()
		d := between(c.dice, 0, 50*time.Millisecond)
		c.mu.Unlock()
		time.AfterFunc(d, func() { c.answer(&j) })
		return true
	}
	c.answer(&j)
	return true
}

func (c *tcpConn) strikes(f fault) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.sky.strikes(c.dice, f)
}

// answer sends the Reply to j with the faults that the sky draws.
func (c *tcpConn) answer(j *job) {
	c.server.finish(j)
	c.mu.Lock()
	defer c.mu.Unlock()
	sky, dice := c.sky, c.dice
	xid := proxytest.XID(j.reply)
	switch {
	case c.halted:
		return
	case sky.strikes(dice, lostCall):
		return // it was executed
	case sky.strikes(dice, wrongXID):
		c.Send(proxytest.WithXID(j.reply, xid^1<<31))
		return
	case j.id != 0 && sky.strikes(dice, longRecord):
		c.server.book.refuse(j.id)
		c.Send(append(testkit.Words(xid, 1, 0, 0, 0, 0), make([]byte, 2<<20)...))
		return
	case j.id != 0 && sky.strikes(dice, shortRecord):
		c.server.book.refuse(j.id)
		c.Send(testkit.Words(xid))
		return
	case j.id != 0 && sky.strikes(dice, badReply):
		c.server.book.refuse(j.id)
		c.Send(testkit.Words(xid, 2, 0, 0, 0, 0))
		return
	case sky.strikes(dice, cutRecord):
		b := testkit.Record(j.reply)
		_, _ = c.Write(b[:dice.IntN(len(b))])
		if dice.IntN(2) == 0 {
			c.SetLinger(0)
		}
		c.Close()
		return
	case sky.strikes(dice, haltRecord):
		b := testkit.Record(j.reply)
		_, _ = c.Write(b[:1+dice.IntN(len(b)-1)])
		c.halted = true
		return
	case sky.strikes(dice, trickleRecord):
		c.server.book.write(j.id)
		c.trickle(testkit.Record(j.reply))
		return
	case sky.strikes(dice, strayReply):
		c.Send(proxytest.WithXID(j.reply, dice.Uint32()|1<<31^xid&(1<<31)))
	}
	c.server.book.write(j.id)
	c.server.book.replying(j.id, "over TCP, XID %#x", xid)
	c.Send(j.reply)
	// A client whose connection was lost may have sent the Call again by now, under
	// the same XID: the second Reply is as good.
	if sky.strikes(dice, twiceReply) {
		c.Send(j.reply)
	}
	if m := c.own.draw(dice, j); m != nil {
		c.Send(m)
	}
}

// trickle sends the beginning of b in pieces of a few octets, and then the rest. c.mu is held.
func (c *tcpConn) trickle(b []byte) {
	for range 40 {
		n := min(1+c.dice.IntN(16), len(b)-1)
		_, _ = c.Write(b[:n])
		b = b[n:]
		time.Sleep(time.Millisecond)
	}
	_, _ = c.Write(b)
}
