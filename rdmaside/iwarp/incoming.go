package iwarp

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
	"github.com/rdmabridge/rdmabridge/rdmaside/iwarp/wire"
)

// An incoming is a connection whose Request has been read.
type incoming struct {
	*startup
	l       *listener
	req     wire.Frame
	decided bool
}

// Peer implements fabric.Incoming.
func (in *incoming) Peer() netip.AddrPort { return in.peer }

// PrivateData implements fabric.Incoming.
func (in *incoming) PrivateData() []byte { return in.req.Private }

// Accept implements fabric.Incoming. It writes the Reply, then the loop calls Setup, and
// after that the loop reads. The conn sends nothing until it has received a good FPDU
// from the peer. RFC 5044 Section 7.1.2.
func (in *incoming) Accept(ctx context.Context, on loop.Loop, o fabric.ConnOptions, h fabric.Handler) (fabric.Conn, error) {
	if err := in.decide(); err != nil {
		return nil, err
	}
	l, p := in.l, in.l.p
	c, sl, err := in.prepare(on, o, h)
	if err == nil {
		err = in.reply(ctx, c)
	}
	if err != nil {
		in.nc.Close()
		l.started(in.startup)
		l.done()
		return nil, err
	}
	if d := p.opts.AcceptTimeout; d > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, d)
		defer cancel()
	}
	l.started(in.startup)
	if err := c.conn.attach(ctx, sl, in.nc); err != nil {
		return nil, err
	}
	return c.conn, nil
}

// An accepted is a conn and the Reply to be written before it is attached.
type accepted struct {
	conn  *conn
	reply wire.Frame
}

func (in *incoming) decide() error {
	if in.decided {
		return errors.New("iwarp: Accept or Reject was called before")
	}
	in.decided = true
	return nil
}

func (in *incoming) prepare(on loop.Loop, o fabric.ConnOptions, h fabric.Handler) (accepted, loop.SocketLoop, error) {
	sl, ok := on.(loop.SocketLoop)
	if !ok {
		return accepted{}, nil, fmt.Errorf("iwarp: loop %T drives no sockets", on)
	}
	o, err := connOptions(o)
	if err != nil {
		return accepted{}, nil, err
	}
	p := in.l.p
	r, a := p.answer(in.req, o)
	cfg := p.config(a, o)
	cfg.hold, cfg.rtrSend = true, a.rtr == rtrSend
	return accepted{p.newConn(in.nc, on, cfg, a, h, in.l.done), r}, sl, nil
}

// reply writes the Reply of c.
func (in *incoming) reply(ctx context.Context, c accepted) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if d := in.l.p.opts.AcceptTimeout; d > 0 {
		_ = in.nc.SetDeadline(time.Now().Add(d))
	}
	if _, err := in.nc.Write(c.reply.Append(nil)); err != nil {
		return fmt.Errorf("iwarp: reply: %w", err)
	}
	return nil
}

// Reject implements fabric.Incoming. priv is at most 248 octets.
func (in *incoming) Reject(priv []byte) error {
	if err := in.decide(); err != nil {
		return err
	}
	in.l.mu.Lock()
	in.l.conns--
	in.l.mu.Unlock()
	return in.refuse(priv)
}

// refuse sends a Reply that rejects the connection, and ends it.
func (in *incoming) refuse(priv []byte) error {
	defer func() {
		in.nc.Close()
		in.l.ended(in.startup)
	}()
	r := wire.Frame{
		Reply: true, Revision: in.req.Revision,
		Flags:   wire.FlagReject | in.req.Flags&wire.FlagEnhanced,
		Private: priv[:min(len(priv), maxPrivate)],
	}
	if d := in.l.p.opts.AcceptTimeout; d > 0 {
		_ = in.nc.SetDeadline(time.Now().Add(d))
	}
	if _, err := in.nc.Write(r.Append(nil)); err != nil {
		return fmt.Errorf("iwarp: reject: %w", err)
	}
	return nil
}
