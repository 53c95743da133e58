package proxytest

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
	"github.com/rdmabridge/rdmabridge/rdmaside/rpcrdma"
)

// Callbacks is a provider whose listeners' connections can be used in the reverse
// direction of RFC 8167, beside the server that has them.
type Callbacks struct {
	fabric.Provider

	mu    sync.Mutex // guards conns
	conns []*Callback
}

// NewCallbacks wraps p.
func NewCallbacks(p fabric.Provider) *Callbacks { return &Callbacks{Provider: p} }

// Listen is part of fabric.Provider.
func (p *Callbacks) Listen(addr string, o fabric.ListenOptions, incoming func(fabric.Incoming)) (fabric.Listener, error) {
	return p.Provider.Listen(addr, o, func(in fabric.Incoming) { incoming(&callbackIncoming{in, p}) })
}

// Conns are the connections that are up, in the order they came.
func (p *Callbacks) Conns() []*Callback {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]*Callback(nil), p.conns...)
}

type callbackIncoming struct {
	fabric.Incoming
	p *Callbacks
}

func (in *callbackIncoming) Accept(ctx context.Context, l loop.Loop, o fabric.ConnOptions, h fabric.Handler) (fabric.Conn, error) {
	return in.Incoming.Accept(ctx, l, o, &Callback{p: in.p, loop: l, handler: h, got: make(chan []byte, 1024)})
}

// A Callback is one connection of a server. It sees every completion before its handler
// does.
type Callback struct {
	fabric.Conn // owned by loop

	p       *Callbacks
	loop    loop.Loop
	handler fabric.Handler
	bufs    map[uint64][]byte // of Receives posted; owned by loop
	got     chan []byte
}

// PostReceive is part of fabric.Conn.
func (c *Callback) PostReceive(id uint64, buf []byte) error {
	err := c.Conn.PostReceive(id, buf)
	if err == nil {
		c.bufs[id] = buf
	}
	return err
}

// Setup is part of fabric.Handler.
func (c *Callback) Setup(conn fabric.Conn) error {
	c.Conn, c.bufs = conn, make(map[uint64][]byte)
	c.p.mu.Lock()
	c.p.conns = append(c.p.conns, c)
	c.p.mu.Unlock()
	return c.handler.Setup(c)
}

// Completed is part of fabric.Handler.
func (c *Callback) Completed(cs []fabric.Completion) {
	for i := range cs {
		if p := &cs[i]; p.Op == fabric.OpReceive && p.Err == nil {
			b := p.Message(c.bufs[p.ID])
			_, _, plain := rpcrdma.ParsePlain(b)
			reply := plain && IsReply(b[rpcrdma.PlainLen:])
			if reply || len(b) >= rpcrdma.FixedLen && binary.BigEndian.Uint32(b[12:]) == uint32(rpcrdma.Error) {
				c.got <- bytes.Clone(b)
			}
		}
	}
	// The handler does not know the Sends of Send, and gets none of their completions.
	c.handler.Completed(slices.DeleteFunc(cs, func(p fabric.Completion) bool { return p.Op == fabric.OpSend && p.ID == 0 }))
}

// Closed is part of fabric.Handler.
func (c *Callback) Closed(err error) {
	c.p.mu.Lock()
	for i, x := range c.p.conns {
		if x == c {
			c.p.conns = append(c.p.conns[:i], c.p.conns[i+1:]...)
			break
		}
	}
	c.p.mu.Unlock()
	close(c.got)
	c.handler.Closed(err)
}

// Call sends m in RDMA_MSG without chunks, asking for credits.
func (c *Callback) Call(m []byte, credits uint32) {
	c.Send(rpcrdma.AppendPlain(nil, binary.BigEndian.Uint32(m), credits), m)
}

// Send sends one message, header and all.
func (c *Callback) Send(parts ...[]byte) {
	c.loop.Post(loop.TaskFunc(func() {
		_ = c.PostSend(0, fabric.Send{Parts: parts}) // the connection has ended: that is seen elsewhere
		c.Flush()
	}))
}

// Drop ends the connection.
func (c *Callback) Drop(err error) { c.loop.Post(loop.TaskFunc(func() { c.Close(err) })) }

// ErrEnded reports that a connection has ended.
var ErrEnded = errors.New("proxytest: connection ended")

// Next returns the next answer to a message of Send, with its header.
func (c *Callback) Next(wait time.Duration) ([]byte, error) {
	return next(c.got, wait)
}

// next is the next message that comes, before the connection ends.
func next(got <-chan []byte, wait time.Duration) ([]byte, error) {
	select {
	case m, ok := <-got:
		if !ok {
			return nil, ErrEnded
		}
		return m, nil
	case <-time.After(wait):
		return nil, ErrTimeout
	}
}
