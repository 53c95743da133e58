package proxytest

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"sync"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/internal/regmem"
	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
	"github.com/rdmabridge/rdmabridge/rdmaside"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
)

// An RDMAClient is an RPC client over RPC-over-RDMA, for Calls of both directions, as
// [Client] is over TCP. Its methods are safe for concurrent use.
type RDMAClient struct {
	// Calls receives the server's Calls. A Call that finds it full is lost.
	Calls chan []byte

	h    *Harness
	loop loop.Loop
	mem  *regmem.Account
	r    *rdmaside.Requester // constant after dialling

	// Owned by loop.
	waiting []*rdmaCall // for a credit

	mu      sync.Mutex // guards the fields below
	pending map[uint32]*rdmaCall
	err     error
}

// An rdmaCall is a Call until it is answered.
type rdmaCall struct {
	rdmaside.Call
	c   *RDMAClient
	m   *regmem.Lease
	got chan []byte
}

// RDMAClient connects to addr, on loop, offering reverse credits of the reverse
// direction.
func (h *Harness) RDMAClient(p fabric.Provider, loop loop.Loop, addr string, reverse int) *RDMAClient {
	h.T.Helper()
	c, err := h.DialRDMA(p, loop, addr, rdmaside.RequesterOptions{ReverseReceives: reverse})
	if err != nil {
		h.T.Fatal(err)
	}
	h.T.Cleanup(func() { _ = c.Close() })
	return c
}

// RequesterOptions returns o with values for the settings that it leaves open.
func RequesterOptions(o rdmaside.RequesterOptions) rdmaside.RequesterOptions {
	o.Credits = cmp.Or(o.Credits, 128)
	o.CallInline = cmp.Or(o.CallInline, 4096)
	o.ReplyInline = cmp.Or(o.ReplyInline, 4096)
	o.Deadline = cmp.Or(o.Deadline, 60*time.Second)
	return o
}

// DialRDMA connects to addr with the options o, some of which it sets.
func (h *Harness) DialRDMA(p fabric.Provider, loop loop.Loop, addr string, o rdmaside.RequesterOptions) (*RDMAClient, error) {
	c := &RDMAClient{
		h: h, loop: loop, mem: h.servers.Account("client", h.servers.Budget()),
		pending: make(map[uint32]*rdmaCall), Calls: make(chan []byte, 64),
	}
	o.Memory, o.Registry, o.Reverse, o.RemoteInvalidation, o.Log = c.mem, h.Registry, c, true, h.Log
	r, err := rdmaside.DialRequester(context.Background(), p, loop, addr, RequesterOptions(o), c)
	if err != nil {
		return nil, err
	}
	c.r = r
	return c, nil
}

// lease copies m into arena memory.
func (c *RDMAClient) lease(m []byte) *regmem.Lease {
	l, err := Lease(c.mem, m)
	if err != nil {
		panic(err)
	}
	return l
}

// Lease copies m into memory of a.
func Lease(a *regmem.Account, m []byte) (*regmem.Lease, error) {
	l, err := a.Lease(len(m))
	if err != nil {
		return nil, err
	}
	copy(l.Bytes(), m)
	return l, nil
}

// PrepareCall makes x the Call m, which the caller keeps until x is done.
func PrepareCall(x *rdmaside.Call, m *regmem.Lease, r *ulb.Registry) error {
	var h oncrpc.Call
	if err := oncrpc.ParseCall(m.Bytes(), &h); err != nil {
		return err
	}
	x.XID, x.Message = h.XID, m.Bytes()
	x.Binding = r.Analyse(&h, &x.Analysis)
	return nil
}

// Go sends the Call m when there is a credit. The channel it returns receives the Reply,
// and is closed when the connection ends first.
func (c *RDMAClient) Go(m []byte) (<-chan []byte, error) {
	replies, err := c.GoAll(m)
	if err != nil {
		return nil, err
	}
	return replies[0], nil
}

// GoAll does what Go does for each Call of ms, and sends them together as far as there are credits.
func (c *RDMAClient) GoAll(ms ...[]byte) (replies []<-chan []byte, err error) {
	var calls []*rdmaCall
	drop := func() {
		for _, x := range calls {
			x.m.Release()
		}
	}
	for _, m := range ms {
		x := &rdmaCall{c: c, got: make(chan []byte, 1), m: c.lease(m)}
		x.Owner = x
		calls, replies = append(calls, x), append(replies, x.got)
		if err := PrepareCall(&x.Call, x.m, c.h.Registry); err != nil {
			drop()
			return nil, err
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pending == nil {
		drop()
		return nil, c.err
	}
	for _, x := range calls {
		c.pending[x.XID] = x
	}
	c.loop.Post(loop.TaskFunc(func() {
		c.waiting = append(c.waiting, calls...)
		c.pull()
	}))
	return replies, nil
}

// pull sends Calls as long as there are credits.
func (c *RDMAClient) pull() {
	if len(c.waiting) == 0 {
		return // before the first Call there may be no Requester yet
	}
	for len(c.waiting) > 0 {
		x := c.waiting[0]
		switch err := c.r.Send(&x.Call); {
		case err == nil:
		case errors.Is(err, rdmaside.ErrNoCredit):
			c.r.Flush()
			return
		default:
			x.end(nil, err)
		}
		c.waiting = c.waiting[1:]
	}
	c.r.Flush()
}

// CallDone is part of rdmaside.CallOwner.
func (x *rdmaCall) CallDone(_ *rdmaside.Call, err *rdmaside.CallError) {
	if err != nil {
		x.end(nil, err)
	} else {
		b := bytes.Join(x.Reply.Parts(), nil)
		x.Reply.Release()
		x.end(b, nil)
	}
	x.c.loop.Post(loop.TaskFunc(x.c.pull))
}

func (x *rdmaCall) end(b []byte, err error) {
	x.m.Release()
	c := x.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil && c.err == nil {
		c.err = err
	}
	if c.pending[x.XID] == x {
		delete(c.pending, x.XID)
	}
	if b != nil {
		x.got <- b
	}
	close(x.got)
}

// Granted is part of rdmaside.Watcher.
func (c *RDMAClient) Granted(*rdmaside.Requester, int) { c.loop.Post(loop.TaskFunc(c.pull)) }

// Ended is part of rdmaside.Watcher.
func (c *RDMAClient) Ended(_ *rdmaside.Requester, err error) {
	if err == nil {
		err = ErrEnded
	}
	for _, x := range c.waiting {
		x.end(nil, err)
	}
	c.waiting = nil
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pending, c.err = nil, err
	close(c.Calls)
}

// ReverseCall is part of rdmaside.ReverseHandler.
func (c *RDMAClient) ReverseCall(_ *rdmaside.Requester, m *regmem.Lease) bool {
	b := bytes.Clone(m.Bytes())
	m.Release()
	select {
	case c.Calls <- b:
	default:
	}
	return true
}

// Send sends m, the Reply to a Call of the server's.
func (c *RDMAClient) Send(m []byte) error {
	l := c.lease(m)
	err := make(chan error, 1)
	c.loop.Post(loop.TaskFunc(func() {
		e := c.r.ReverseReply(binary.BigEndian.Uint32(m), l.Bytes(), l)
		if e != nil {
			l.Release()
		}
		c.r.Flush()
		err <- e
	}))
	return <-err
}

// NextCall waits for a Call of the server.
func (c *RDMAClient) NextCall(wait time.Duration) ([]byte, error) {
	return next(c.Calls, wait)
}

// Call sends m and waits for its Reply.
func (c *RDMAClient) Call(m []byte) ([]byte, error) {
	ch, err := c.Go(m)
	if err != nil {
		return nil, err
	}
	return await(ch, &c.mu, &c.err)
}

// Close ends the connection.
func (c *RDMAClient) Close() error {
	c.loop.Post(loop.TaskFunc(func() { c.r.Close(nil) }))
	return nil
}
