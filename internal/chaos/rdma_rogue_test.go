package chaos

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
	"github.com/rdmabridge/rdmabridge/rdmaside/rpcrdma"
)

// An rdmaRogue is a client over RPC-over-RDMA that breaks the rules for Requesters. None
// of its acts may harm the bridge or another client.
type rdmaRogue struct {
	book   *book
	counts *counts
	p      fabric.Provider
	loop   loop.Loop
	addr   string
	dice   *rand.Rand
	xid    uint32
}

// A rogueConn is one connection of an rdmaRogue, owned by its loop.
type rogueConn struct {
	receives receives
	endc     chan struct{}
}

const rogueReceives = 32

// Setup is part of fabric.Handler.
func (c *rogueConn) Setup(conn fabric.Conn) error {
	return c.receives.post(conn, rogueReceives, 4096)
}

// Completed is part of fabric.Handler.
func (c *rogueConn) Completed(cs []fabric.Completion) {
	for i := range cs {
		if cs[i].Op == fabric.OpReceive && cs[i].Err == nil {
			_, _ = c.receives.again(&cs[i])
		}
	}
}

// Closed is part of fabric.Handler.
func (c *rogueConn) Closed(error) { close(c.endc) }

// run misbehaves until ctx ends.
func (g *rdmaRogue) run(ctx context.Context) {
	for ctx.Err() == nil && !g.book.broken.Load() {
		c := &rogueConn{endc: make(chan struct{})}
		dctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		conn, err := g.p.Dial(dctx, g.loop, g.addr, fabric.ConnOptions{
			PrivateData: rpcrdma.AppendPrivateData(nil, rpcrdma.PrivateData{SendSize: 4096, RecvSize: 4096}), Receives: rogueReceives,
		}, c)
		cancel()
		if err != nil {
			time.Sleep(10 * time.Millisecond)
			continue
		}
		stay := between(g.dice, time.Millisecond, 300*time.Millisecond) // the dice are the loop's from here to the end
		g.loop.Post(loop.TaskFunc(func() {
			g.misbehave(conn)
			conn.Flush()
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

// call is a Call that reads, which the book need not know.
func (g *rdmaRogue) call(k kind, n int) []byte {
	g.xid++
	id := g.book.next.Add(1)
	m := newCall(k, g.xid, id, n)
	return m
}

// An rdmaAct is one misdeed of an rdmaRogue on a connection, with memory to offer for it.
type rdmaAct struct {
	*rdmaRogue
	conn   fabric.Conn
	region fabric.Region
	seg    rpcrdma.Segment // all of region
	h      rpcrdma.Header  // of the Call m, without chunks
	m      []byte          // a GETATTR
}

var rdmaActs = map[fault]func(*rdmaAct){
	rdmaOverrun: (*rdmaAct).overrun, rdmaHeader: (*rdmaAct).header, rdmaReads: (*rdmaAct).reads,
	rdmaWrites: (*rdmaAct).writes, rdmaGone: (*rdmaAct).gone,
}

// misbehave does one thing of many. It runs on the loop.
func (g *rdmaRogue) misbehave(conn fabric.Conn) {
	region, err := conn.Register(make([]byte, 64<<10), fabric.RemoteRead|fabric.RemoteWrite)
	if err != nil {
		return
	}
	a := &rdmaAct{rdmaRogue: g, conn: conn, region: region, m: g.call(getattr, 0)}
	a.seg = rpcrdma.Segment{Handle: uint32(region.Handle), Length: region.Length, Offset: region.Offset}
	a.h.Reset(g.xid, 32, rpcrdma.Msg)
	f := rdmaOverrun + fault(g.dice.IntN(int(rdmaGone-rdmaOverrun)+1))
	g.counts[f].Add(1)
	rdmaActs[f](a)
}

// post sends a message with the header h.
func (a *rdmaAct) post(payload []byte) { a.send(append(a.h.Append(nil), payload...)) }

func (a *rdmaAct) send(b []byte) { _ = a.conn.PostSend(0, fabric.Send{Parts: [][]byte{b}}) }

// overrun sends many more Calls than there are credits.
func (a *rdmaAct) overrun() {
	for range 100 {
		m := a.call(getattr, 0)
		a.h.Reset(a.xid, 1000, rpcrdma.Msg)
		a.post(m)
	}
}

// header sends octets that are no header, or a header of another version or of no use here.
func (a *rdmaAct) header() {
	b := append(a.h.Append(nil), a.m...)
	switch a.dice.IntN(4) {
	case 0:
		b = b[:a.dice.IntN(rpcrdma.PlainLen)]
	case 1:
		b[7] = byte(2 + a.dice.IntN(200))
	case 2:
		b[15] = byte(2 + a.dice.IntN(200))
	case 3:
		b[16+a.dice.IntN(12)] = byte(1 + a.dice.IntN(255))
	}
	a.send(b)
}

// reads offers a Read chunk of nothing, of too much, or beyond its region.
func (a *rdmaAct) reads() {
	switch a.dice.IntN(3) {
	case 0:
		a.seg.Handle ^= 1
	case 1:
		a.seg.Length = 1<<31 - 1
	case 2:
		a.seg.Length += 4096
	}
	a.h.AddRead(uint32(len(a.m)), a.seg)
	a.post(a.m)
}

// read returns a READ, for which h is the header from now on.
func (a *rdmaAct) read() []byte {
	m := a.call(read, 20000)
	a.h.Reset(a.xid, 32, rpcrdma.Msg)
	return m
}

// writes offers a Write or Reply chunk into which nothing fits, or which is not there.
func (a *rdmaAct) writes() {
	m := a.read()
	switch a.dice.IntN(3) {
	case 0:
		a.seg.Handle ^= 1
	case 1:
		a.seg.Length = 64
	case 2:
		a.seg.Offset += uint64(a.seg.Length) - 100
	}
	if a.dice.IntN(2) == 0 {
		a.h.AddWrite(a.seg)
	} else {
		a.h.SetReply(a.seg)
	}
	a.post(m)
}

// gone takes the chunk back, or ends the connection, while the bridge uses the chunk.
func (a *rdmaAct) gone() {
	m := a.read()
	a.h.AddWrite(a.seg)
	a.post(m)
	a.conn.Flush()
	if a.dice.IntN(2) == 0 {
		_, _ = a.conn.Invalidate(1, a.region.Handle)
	} else {
		a.conn.Close(context.Canceled)
	}
}
