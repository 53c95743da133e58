package iwarp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"syscall"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
)

// Dial implements fabric.Provider. addr is HOST:PORT. When the peer closes the
// connection without a Reply to the usual Request, Dial tries other kinds: revision 2 in
// the peer-to-peer model, then, if Options.DialRev1, revision 1. The next Dial of addr
// starts with the kind that the peer answered. A Reply that rejects is final: Dial
// returns a *rejectError.
func (p *Provider) Dial(ctx context.Context, on loop.Loop, addr string, o fabric.ConnOptions, h fabric.Handler) (fabric.Conn, error) {
	sl, ok := on.(loop.SocketLoop)
	if !ok {
		return nil, fmt.Errorf("iwarp: loop %T drives no sockets", on)
	}
	o, err := connOptions(o.Dialled(true))
	if err != nil {
		return nil, err
	}
	if p.opts.DialTimeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, p.opts.DialTimeout)
		defer cancel()
	}
	var failed error
	for _, kind := range p.kinds(addr) {
		c, err := p.dial(ctx, sl, addr, kind, o, h)
		if err == nil {
			p.remember(addr, kind)
			return c, nil
		}
		if failed == nil {
			failed = err
		}
		if !errors.Is(err, errNoReply) {
			// An answer tells more than the closed connections before it.
			return nil, err
		}
	}
	p.forget(addr)
	return nil, failed
}

// connect makes the TCP connection, from Options.Source.
func (p *Provider) connect(ctx context.Context, addr string) (net.Conn, error) {
	d := net.Dialer{}
	if a := p.opts.Source; a.IsValid() {
		d.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(a, 0))
		d.Control = portOfPeer
	}
	nc, err := d.DialContext(ctx, "tcp", addr)
	var call *os.SyscallError
	switch {
	case err == nil:
		return nc, nil
	case errors.As(err, &call) && call.Syscall == "bind" && errors.Is(err, syscall.EADDRNOTAVAIL):
		return nil, fmt.Errorf("iwarp: this host does not have the source address %v: %w", p.opts.Source, err)
	}
	return nil, fmt.Errorf("iwarp: %w", err)
}

// kinds lists the kinds of Request to try. The kind that addr answered last comes first.
func (p *Provider) kinds(addr string) []request {
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
		w.when = old.when // counted from the first answer, so that it expires under use
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
	nc, err := p.connect(ctx, addr)
	if err != nil {
		p.limits.connDone()
		return nil, err
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
		// "The initiator MUST generate one of the negotiated RTR indications." RFC 6581
		// Section 9.2. It is written at once after the Reply: resetting the socket in
		// between crashes siw's connection manager.
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
