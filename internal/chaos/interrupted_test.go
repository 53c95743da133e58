package chaos

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/internal/testkit/proxytest"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
	"github.com/rdmabridge/rdmabridge/rdmaside/rpcrdma"
)

// An interrupted is an RDMA client whose processes are killed, again and again: it gives up
// Calls, takes their credits for others, as Linux does, and ends its connections with Calls
// outstanding. Replies to given up Calls may come or not; each has to be right.
type interrupted struct {
	name   string
	book   *book
	counts *counts
	p      fabric.Provider
	loop   loop.Loop
	addr   string
	dice   *rand.Rand
	xid    uint32
}

// An interruptedConn is one connection of an interrupted, owned by its loop.
type interruptedConn struct {
	*interrupted
	conn        fabric.Conn
	receives    receives
	outstanding map[uint32]*outstanding // those given up, too
	granted     uint32                  // by the first Reply; 0: it has not come
	closed      bool
	endc        chan struct{}
}

const (
	interruptedInline   = 1024
	interruptedCredits  = 32
	interruptedReceives = 3 * interruptedCredits
)

// run is interrupted until ctx ends.
func (g *interrupted) run(ctx context.Context) {
	for ctx.Err() == nil && !g.book.broken.Load() {
		c := &interruptedConn{interrupted: g, outstanding: make(map[uint32]*outstanding), endc: make(chan struct{})}
		dctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		conn, err := g.p.Dial(dctx, g.loop, g.addr, fabric.ConnOptions{
			PrivateData: rpcrdma.AppendPrivateData(nil, rpcrdma.PrivateData{SendSize: interruptedInline, RecvSize: interruptedInline}), Receives: interruptedReceives,
		}, c)
		cancel()
		if err != nil {
			time.Sleep(10 * time.Millisecond)
			continue
		}
		stay := between(g.dice, 50*time.Millisecond, 5*time.Second) // the dice are the loop's from here to the end
		g.loop.Post(loop.TaskFunc(func() {
			c.conn = conn
			c.call(getattr) // one credit until the first Reply
		}))
		select {
		case <-c.endc:
		case <-ctx.Done():
		case <-time.After(stay):
		}
		g.loop.Post(loop.TaskFunc(func() { conn.Close(nil) }))
		<-c.endc
	}
}

// call sends a Call of the kind k.
func (c *interruptedConn) call(k kind) {
	c.xid++
	id := c.book.next.Add(1)
	o := &outstanding{kind: k, id: id, m: newCall(k, c.xid, id, 0)}
	c.book.begin(c.name, k, id, o.m)
	c.book.transmit(id)
	c.outstanding[c.xid] = o
	_ = c.conn.PostSend(0, fabric.Send{Parts: [][]byte{append(rpcrdma.AppendPlain(nil, c.xid, interruptedCredits), o.m...)}})
	c.conn.Flush()
}

// Setup is part of fabric.Handler.
func (c *interruptedConn) Setup(conn fabric.Conn) error {
	return c.receives.post(conn, interruptedReceives, interruptedInline)
}

// Completed is part of fabric.Handler.
func (c *interruptedConn) Completed(cs []fabric.Completion) {
	for i := range cs {
		if cs[i].Op != fabric.OpReceive || cs[i].Err != nil {
			continue
		}
		m, _ := c.receives.again(&cs[i])
		_, credits, plain := rpcrdma.ParsePlain(m)
		if !plain || len(m) < rpcrdma.PlainLen+8 {
			c.book.wrong("%s: a message that answers nothing: %x", c.name, m[:min(len(m), 64)])
			return
		}
		c.answered(credits, m[rpcrdma.PlainLen:])
	}
}

// answered takes the Reply m.
func (c *interruptedConn) answered(credits uint32, m []byte) {
	xid, o := c.book.match(c.name, c.outstanding, m)
	if o == nil {
		return
	}
	delete(c.outstanding, xid)
	c.book.judge(c.name, o, m)
	c.book.abandon([]*outstanding{o})
	if c.granted == 0 {
		c.granted = min(credits, interruptedCredits)
		c.counts[rdmaInterrupted].Add(1)
		for range c.granted {
			c.call(hung)
		}
		// The processes are killed, and others make as many Calls.
		time.AfterFunc(between(c.dice, 0, 300*time.Millisecond), func() {
			c.loop.Post(loop.TaskFunc(func() {
				for i := uint32(0); i < c.granted && !c.closed; i++ {
					c.call(kind(c.dice.IntN(2)) * mkdir) // GETATTR or MKDIR
				}
			}))
		})
	}
}

// Closed is part of fabric.Handler.
func (c *interruptedConn) Closed(error) {
	c.closed = true
	all := make([]*outstanding, 0, len(c.outstanding))
	for _, o := range c.outstanding {
		all = append(all, o)
	}
	c.book.abandon(all)
	close(c.endc)
}

// slowServing is longer than a connection may last that serves its Read chunks octet by octet: the
// bridge looks at it after one stallTimeout, and closes it after two.
const slowServing = 2*stallTimeout + 2*patience

// slow announces the data of WRITEs and serves them slowly, until ctx ends: the wire to the bridge
// lets little through. The bridge must end each connection.
func (g *interrupted) slow(ctx context.Context) {
	m := newCall(write, 1, 1, 512<<10)
	at := len(proxytest.WriteCall(1, 1, 0))
	for ctx.Err() == nil && !g.book.broken.Load() {
		c := &rogueConn{endc: make(chan struct{})}
		dctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		conn, err := g.p.Dial(dctx, g.loop, g.addr, fabric.ConnOptions{
			PrivateData: rpcrdma.AppendPrivateData(nil, rpcrdma.PrivateData{SendSize: 4096, RecvSize: 4096}), Receives: rogueReceives, IRD: 8,
		}, c)
		cancel()
		if err != nil {
			time.Sleep(10 * time.Millisecond)
			continue
		}
		g.counts[rdmaSlow].Add(1)
		stay := between(g.dice, time.Second, 10*time.Second)
		g.loop.Post(loop.TaskFunc(func() {
			region, err := conn.Register(m[at:], fabric.RemoteRead)
			if err != nil {
				return
			}
			var h rpcrdma.Header
			h.Reset(1, 1, rpcrdma.Msg)
			h.AddRead(uint32(at), rpcrdma.Segment{Handle: uint32(region.Handle), Length: region.Length, Offset: region.Offset})
			_ = conn.PostSend(0, fabric.Send{Parts: [][]byte{append(h.Append(nil), m[:at]...)}})
			conn.Flush()
		}))
		if g.dice.IntN(2) == 0 {
			stay = slowServing
		}
		select {
		case <-c.endc:
		case <-ctx.Done():
		case <-time.After(stay):
			if stay == slowServing {
				g.book.wrong("%s: an RDMA client that serves its Read chunks octet by octet keeps its connection for %v", g.name, stay)
			}
		}
		g.loop.Post(loop.TaskFunc(func() { conn.Close(context.Canceled) }))
		<-c.endc
	}
}
