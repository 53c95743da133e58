package iwarp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
)

// Dial implements fabric.Provider. addr is HOST:PORT. A peer that hangs up on the
// usual Request without a Reply is tried with other kinds: revision 2 in the
// peer-to-peer model, then, if Options.DialRev1, revision 1. What a peer answered is
// tried first the next time. A Reply that rejects is final: *RejectError.
func (p *Provider) Dial(ctx context.Context, on loop.Loop, addr string, o fabric.ConnOptions, h fabric.Handler) (fabric.Conn, error) {
	sl, ok := on.(loop.SocketLoop)
	if !ok {
		return nil, fmt.Errorf("iwarp: loop %T drives no sockets", on)
	}
	o, err := connOptions(o)
	if err != nil {
		return nil, err
	}
	if p.opts.DialTimeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, p.opts.DialTimeout)
		defer cancel()
	}
	var failed error
	for _, kind := range p.ladder(addr) {
		c, err := p.dial(ctx, sl, addr, kind, o, h)
		if err == nil {
			p.remember(addr, kind)
			return c, nil
		}
		if failed == nil {
			failed = err
		}
		if !errors.Is(err, errNoReply) {
			// What the peer said counts for more than an earlier silence.
			return nil, err
		}
	}
	p.forget(addr)
	return nil, failed
}

// ladder lists the kinds of Request to try, what worked last first.
func (p *Provider) ladder(addr string) []request {
	p.mu.Lock()
	w, known := p.worked[addr]
	p.mu.Unlock()
	var l []request
	if known = known && time.Since(w.when) < workedFor; known {
		l = append(l, w.kind)
	}
	for k := range requestKinds {
		if k == requestRev1 && !p.opts.DialRev1 || known && k == w.kind {
			continue
		}
		l = append(l, k)
	}
	return l
}

func (p *Provider) remember(addr string, kind request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.worked) >= workedMax {
		clear(p.worked)
	}
	w := worked{kind, time.Now()}
	if old, ok := p.worked[addr]; ok && old.kind == kind && time.Since(old.when) < workedFor {
		w.when = old.when // from the first time on, or it would never be forgotten
	}
	p.worked[addr] = w
}

func (p *Provider) forget(addr string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.worked, addr)
}

// dial makes one attempt.
func (p *Provider) dial(ctx context.Context, on loop.SocketLoop, addr string, kind request, o fabric.ConnOptions, h fabric.Handler) (*conn, error) {
	if err := p.limits.conn(); err != nil {
		return nil, err
	}
	d := net.Dialer{}
	nc, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		p.limits.connDone()
		return nil, fmt.Errorf("iwarp: %w", err)
	}
	p.tune(nc)
	a, err := p.initiate(ctx, nc, kind, o)
	if err != nil {
		nc.Close()
		p.limits.connDone()
		return nil, err
	}
	c := p.newConn(nc, on, p.config(a, o), a, h, p.limits.connDone)
	c.kick = true
	if a.rtr != rtrNone {
		// "The initiator MUST generate one of the negotiated RTR indications." Nothing
		// may get between the Reply and it: a socket reset here takes down siw's
		// connection manager. RFC 6581 Section 9.2.
		_ = nc.SetDeadline(time.Now().Add(max(p.opts.DialTimeout, time.Second)))
		if _, err := nc.Write(c.qp.rtrFrame(a.rtr == rtrRead)); err != nil {
			nc.Close()
			p.limits.connDone()
			return nil, fmt.Errorf("iwarp: RTR: %w", err)
		}
	}
	if err := c.attach(ctx, on, nc); err != nil {
		return nil, err
	}
	return c, nil
}
