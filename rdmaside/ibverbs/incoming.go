//go:build ibverbs

package ibverbs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
)

// An incomingConn is a connection that asks to be accepted.
type incomingConn struct {
	l       *listener
	id      *cmID
	ev      cmEvent
	peer    netip.AddrPort
	decided bool
}

// Peer implements fabric.Incoming.
func (in *incomingConn) Peer() netip.AddrPort { return in.peer }

// PrivateData implements fabric.Incoming.
func (in *incomingConn) PrivateData() []byte { return in.ev.private }

func (in *incomingConn) decide() error {
	if in.decided {
		return errors.New("ibverbs: Accept or Reject was called before")
	}
	in.decided = true
	return nil
}

// Accept implements fabric.Incoming. The Receives of Setup are posted before the peer gets its
// answer, because it may send at once. What fails after Setup ends the connection, with Closed.
func (in *incomingConn) Accept(ctx context.Context, on loop.Loop, o fabric.ConnOptions, h fabric.Handler) (fabric.Conn, error) {
	if err := in.decide(); err != nil {
		return nil, err
	}
	p := in.l.p
	ctx, cancel := context.WithTimeout(ctx, p.opts.AcceptTimeout)
	defer cancel()
	c, err := in.prepare(ctx, on, o)
	if err != nil {
		_ = rejectID(in.id.handle, nil)
		in.id.destroy()
		in.l.ended()
		return nil, err
	}
	if err := c.setup(ctx, h); err != nil {
		_ = rejectID(in.id.handle, nil)
		c.discard()
		return nil, err
	}
	err = acceptID(in.id.handle, cmParams{
		ird: c.info.IRD, ord: c.info.ORD, retry: retryCount, rnr: rnrRetryCount, private: o.PrivateData,
	})
	c.loop.Post(loop.TaskFunc(func() {
		if err != nil {
			c.fail(fmt.Errorf("ibverbs: accept %v: %w", in.peer, err))
		} else if c.state == stateStarting {
			c.startTimer(p.opts.AcceptTimeout, errStart)
		}
	}))
	c.id.attach(c)
	c.wake() // an event before Setup found no Handler
	return c, nil
}

// prepare makes the connection, unless the peer has gone already.
func (in *incomingConn) prepare(ctx context.Context, on loop.Loop, o fabric.ConnOptions) (*conn, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	select {
	case ev := <-in.id.eventc:
		return nil, cmp.Or(ev.broken, error(&cmError{fmt.Sprintf("accept %v", in.peer), ev.event, ev.status}))
	default:
	}
	c, err := in.l.p.newConn(in.l.e, in.id, on, o)
	if err != nil {
		return nil, err
	}
	c.ended = in.l.ended
	c.describe(in.ev)
	// What the peer does not offer cannot be used: a Linux client reads nothing.
	c.info.IRD, c.info.ORD = min(c.opts.IRD, in.ev.ird), min(c.opts.ORD, in.ev.ord)
	most := maxPrivateReply
	if c.d.dev.iwarp {
		most = maxPrivateIWARP
	}
	if len(o.PrivateData) > most {
		// newConn has taken the id, and discard would destroy it before the rejection.
		_ = rejectID(in.id.handle, nil)
		c.destroyQP()
		_ = destroyCQ(c.cq)
		c.d.leave(c)
		c.d.release()
		return nil, fmt.Errorf("ibverbs: private data of %d octets, at most %d", len(o.PrivateData), most)
	}
	return c, nil
}

// Reject implements fabric.Incoming.
func (in *incomingConn) Reject(priv []byte) error {
	if err := in.decide(); err != nil {
		return err
	}
	err := rejectID(in.id.handle, priv[:min(len(priv), 148)]) // what a REJ message carries
	in.id.destroy()
	in.l.ended()
	if err != nil {
		return fmt.Errorf("ibverbs: reject %v: %w", in.peer, err)
	}
	return nil
}
