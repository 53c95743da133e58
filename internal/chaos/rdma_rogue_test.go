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
	conn fabric.Conn
	bufs [32][]byte
	endc chan struct{}
}

// Setup is part of fabric.Handler.
func (c *rogueConn) Setup(conn fabric.Conn) error {
	c.conn = conn
	for i := range c.bufs {
		c.bufs[i] = make([]byte, 4096)
		if err := conn.PostReceive(uint64(i), c.bufs[i]); err != nil {
			return err
		}
	}
	return nil
}

// Completed is part of fabric.Handler.
func (c *rogueConn) Completed(cs []fabric.Completion) {
	for i := range cs {
		if cs[i].Op == fabric.OpReceive && cs[i].Err == nil {
			_ = c.conn.PostReceive(cs[i].ID, c.bufs[cs[i].ID])
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
			PrivateData: rpcrdma.AppendPrivateData(nil, rpcrdma.PrivateData{SendSize: 4096, RecvSize: 4096}), Receives: len(c.bufs),
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

// misbehave does one thing of many. It runs on the loop.
func (g *rdmaRogue) misbehave(conn fabric.Conn) {
	post := func(h *rpcrdma.Header, payload []byte) {
		_ = conn.PostSend(0, fabric.Send{Parts: [][]byte{append(h.Append(nil), payload...)}})
	}
	buf := make([]byte, 64<<10)
	region, err := conn.Register(buf, fabric.RemoteRead|fabric.RemoteWrite)
	if err != nil {
		return
	}
	seg := rpcrdma.Segment{Handle: uint32(region.Handle), Length: region.Length, Offset: region.Offset}
	var h rpcrdma.Header
	m := g.call(getattr, 0)
	h.Reset(g.xid, 32, rpcrdma.Msg)
	f := rdmaOverrun + fault(g.dice.IntN(int(rdmaGone-rdmaOverrun)+1))
	g.counts[f].Add(1)
	switch f {
	case rdmaOverrun: // many more Calls than credits
		for range 100 {
			m := g.call(getattr, 0)
			h.Reset(g.xid, 1000, rpcrdma.Msg)
			post(&h, m)
		}
	case rdmaHeader: // a header that is none, of another version, or of no use here
		b := append(h.Append(nil), m...)
		switch g.dice.IntN(4) {
		case 0:
			b = b[:g.dice.IntN(rpcrdma.PlainLen)]
		case 1:
			b[7] = byte(2 + g.dice.IntN(200))
		case 2:
			b[15] = byte(2 + g.dice.IntN(200))
		case 3:
			b[16+g.dice.IntN(12)] = byte(1 + g.dice.IntN(255))
		}
		_ = conn.PostSend(0, fabric.Send{Parts: [][]byte{b}})
	case rdmaReads: // a Read chunk of nothing, of too much, or beyond its region
		switch g.dice.IntN(3) {
		case 0:
			seg.Handle ^= 1
		case 1:
			seg.Length = 1<<31 - 1
		case 2:
			seg.Length += 4096
		}
		h.AddRead(uint32(len(m)), seg)
		post(&h, m)
	case rdmaWrites: // a Write or Reply chunk that nothing fits in, or that is not there
		m = g.call(read, 20000)
		h.Reset(g.xid, 32, rpcrdma.Msg)
		switch g.dice.IntN(3) {
		case 0:
			seg.Handle ^= 1
		case 1:
			seg.Length = 64
		case 2:
			seg.Offset += uint64(seg.Length) - 100
		}
		if g.dice.IntN(2) == 0 {
			h.AddWrite(seg)
		} else {
			h.SetReply(seg)
		}
		post(&h, m)
	case rdmaGone: // the chunk is taken back, or the connection ended, under the bridge's hands
		m = g.call(read, 20000)
		h.Reset(g.xid, 32, rpcrdma.Msg)
		h.AddWrite(seg)
		post(&h, m)
		conn.Flush()
		if g.dice.IntN(2) == 0 {
			_, _ = conn.Invalidate(1, region.Handle)
		} else {
			conn.Close(context.Canceled)
		}
	}
}
