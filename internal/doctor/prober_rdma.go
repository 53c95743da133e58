package doctor

import (
	"context"
	"slices"
	"time"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/internal/regmem"
	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/rdmaside"
)

// An rdmaConversation is a conversation over RDMA.
type rdmaConversation struct {
	p      *Prober
	r      *rdmaside.Requester
	endedc chan struct{} // closed when the connection has ended
}

// dialRDMA connects as the bridge does.
func (p *Prober) dialRDMA(ctx context.Context, t *Target, address string) (conversation, error) {
	c := &rdmaConversation{p: p, endedc: make(chan struct{})}
	r, err := rdmaside.DialRequester(ctx, t.Provider, p.engine.Loops()[0], address, rdmaside.RequesterOptions{
		Memory: p.memory, Registry: p.registry,
		Credits: t.Credits, CallInline: t.CallInline, ReplyInline: t.ReplyInline,
		IdleReceives: 1, // as few as possible: one Call is outstanding
		Deadline:     -1, RemoteInvalidation: true, Log: zerolog.Nop(),
	}, c)
	if err != nil {
		return nil, err
	}
	c.r = r
	return c, nil
}

// Granted is part of rdmaside.Watcher.
func (c *rdmaConversation) Granted(*rdmaside.Requester, int) {}

// Ended is part of rdmaside.Watcher.
func (c *rdmaConversation) Ended(*rdmaside.Requester, error) { close(c.endedc) }

// A nullExchange is a NULL Call over RDMA and its Reply.
type nullExchange struct {
	call  rdmaside.Call
	lease *regmem.Lease
	reply []byte
	err   error
	donec chan struct{} // closed when reply and err are set
}

// CallDone is part of rdmaside.CallOwner.
func (x *nullExchange) CallDone(c *rdmaside.Call, err *rdmaside.CallError) {
	if err != nil {
		x.end(err)
		return
	}
	x.reply = slices.Concat(c.Reply.Parts()...)
	c.Reply.Release()
	x.end(nil)
}

func (x *nullExchange) end(err error) {
	x.lease.Release()
	x.err = err
	close(x.donec)
}

// null is part of conversation.
func (c *rdmaConversation) null(ctx context.Context, xid uint32, message []byte) ([]byte, error) {
	l, err := c.p.memory.Lease(len(message))
	if err != nil {
		return nil, err
	}
	x := &nullExchange{lease: l, donec: make(chan struct{})}
	copy(l.Bytes(), message)
	x.call = rdmaside.Call{XID: xid, Message: l.Bytes(), Owner: x}
	var h oncrpc.Call
	if err := oncrpc.ParseCall(l.Bytes(), &h); err != nil {
		panic("BUG: doctor: a NULL Call is none: " + err.Error())
	}
	x.call.Binding = c.p.registry.Analyse(&h, &x.call.Analysis)
	c.r.Loop().Post(loop.TaskFunc(func() {
		if err := c.r.Send(&x.call); err != nil {
			x.end(err)
		}
	}))
	select {
	case <-x.donec:
		c.settle()
		return x.reply, x.err
	case <-ctx.Done():
	}
	// The Requester ends the Call when its connection ends.
	c.end(ctx.Err())
	select {
	case <-x.donec:
	case <-time.After(closeWait):
	}
	return nil, ctx.Err()
}

// settle waits until the loop has done what else belongs to a Reply: the grant comes into force after
// CallDone.
func (c *rdmaConversation) settle() {
	done := make(chan struct{})
	c.r.Loop().Post(loop.TaskFunc(func() { close(done) }))
	select {
	case <-done:
	case <-time.After(closeWait):
	}
}

// end ends the connection; a nil err asks for an orderly end.
func (c *rdmaConversation) end(err error) {
	c.r.Loop().Post(loop.TaskFunc(func() { c.r.Close(err) }))
}

// close is part of conversation.
func (c *rdmaConversation) close() {
	c.end(nil)
	select {
	case <-c.endedc:
	case <-time.After(closeWait):
	}
}

// describe is part of conversation.
func (c *rdmaConversation) describe(e *Endpoint) {
	info := c.r.Info()
	e.Local, e.Peer = info.Local.String(), info.Peer.String()
	e.PrivateData = privateData(info.PrivateData)
	e.CallInline, e.ReplyInline, e.Credits = info.CallInline, info.ReplyInline, c.r.Grant()
}
