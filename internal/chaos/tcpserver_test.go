package chaos

import (
	"encoding/binary"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/internal/testkit/proxytest"
)

// A tcpServer is an RPC server over TCP with the faults of its sky.
type tcpServer struct {
	name   string
	seed   seed
	server *server
	sky    *sky
	l      net.Listener
	n      atomic.Int64
	wg     sync.WaitGroup

	mu     sync.Mutex // guards the rest
	conns  map[*tcpConn]struct{}
	closed bool
}

// A tcpConn is one connection of a tcpServer.
type tcpConn struct {
	*net.TCPConn
	s *tcpServer

	mu   sync.Mutex // guards writing and the fields below
	dice *rand.Rand
	own  reverses
}

func (s *tcpServer) listen() error {
	var err error
	if s.l, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		return err
	}
	s.conns = make(map[*tcpConn]struct{})
	s.wg.Go(func() {
		for {
			nc, err := s.l.Accept()
			if err != nil {
				return
			}
			c := &tcpConn{TCPConn: nc.(*net.TCPConn), s: s, dice: s.seed.dice(s.name, int(s.n.Add(1))), own: reverses{s: s.server}}
			s.mu.Lock()
			if s.closed {
				c.Close()
			}
			s.conns[c] = struct{}{}
			s.mu.Unlock()
			s.wg.Go(c.serve)
		}
	})
	return nil
}

func (s *tcpServer) close() {
	s.l.Close()
	s.mu.Lock()
	s.closed = true
	for c := range s.conns {
		c.Close()
	}
	s.mu.Unlock()
	s.wg.Wait()
}

func (c *tcpConn) serve() {
	s := c.s
	defer func() {
		c.Close()
		s.mu.Lock()
		delete(s.conns, c)
		s.mu.Unlock()
	}()
	r := bufferedReader(c)
	for {
		m, err := testkit.ReadRecord(r)
		if err != nil {
			return
		}
		if len(m) >= 8 && !proxytest.IsCall(m) {
			c.mu.Lock()
			c.own.answered(m)
			c.mu.Unlock()
			continue
		}
		if m[3]&1 == 0 && c.strikes(lostCall) {
			continue // before it is executed
		}
		j, ok := s.server.take(m)
		if !ok {
			continue
		}
		if c.strikes(hangUp) {
			s.server.finish(&j)
			if m[3]&1 == 0 {
				c.SetLinger(0)
			}
			return
		}
		if c.strikes(lateReply) {
			c.mu.Lock()
			d := between(c.dice, 0, 50*time.Millisecond)
			c.mu.Unlock()
			time.AfterFunc(d, func() { c.answer(&j) })
			continue
		}
		c.answer(&j)
	}
}

func (c *tcpConn) strikes(f fault) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.s.sky.strikes(c.dice, f)
}

// answer sends the Reply to j with the faults that the sky draws.
func (c *tcpConn) answer(j *job) {
	c.s.server.finish(j)
	c.mu.Lock()
	defer c.mu.Unlock()
	sky, dice := c.s.sky, c.dice
	xid := binary.BigEndian.Uint32(j.reply)
	write := func(m []byte) { _ = testkit.WriteRecord(c, m) } // that it has ended is seen by serve
	switch {
	case sky.strikes(dice, lostCall):
		return // it was executed
	case sky.strikes(dice, wrongXID):
		write(proxytest.WithXID(j.reply, xid^1<<31))
		return
	case sky.strikes(dice, cutRecord):
		b := append(testkit.Words(1<<31|uint32(len(j.reply))), j.reply...)
		_, _ = c.Write(b[:dice.IntN(len(b))])
		if dice.IntN(2) == 0 {
			c.SetLinger(0)
		}
		c.Close()
		return
	case sky.strikes(dice, strayReply):
		write(proxytest.WithXID(j.reply, dice.Uint32()|1<<31^xid&(1<<31)))
	}
	write(j.reply)
	// A client whose connection was lost may have sent the Call again by now, under
	// the same XID: the second Reply is as good.
	if sky.strikes(dice, twiceReply) {
		write(j.reply)
	}
	if m := c.own.draw(dice, j); m != nil {
		write(m)
	}
}
