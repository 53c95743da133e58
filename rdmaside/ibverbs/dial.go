//go:build ibverbs

package ibverbs

import (
	"context"
	"fmt"
	"math/bits"
	"net"
	"net/netip"
	"strconv"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
)

// What Linux's client asks for: the transport repeats a message six times, and a message for which
// the peer has no Receive fails at once, because credits ensure that there is one.
// net/sunrpc/xprtrdma/verbs.c, rpcrdma_ep_create.
const (
	retryCount    = 6
	rnrRetryCount = 0
)

// Most octets of private data: what remains of those of InfiniBand's messages behind the header of
// the RDMA connection manager, and what MPA allows.
const (
	maxPrivateRequest = 56
	maxPrivateReply   = 196
	maxPrivateIWARP   = 248
)

// Dial implements fabric.Provider.
func (p *Provider) Dial(ctx context.Context, on loop.Loop, addr string, o fabric.ConnOptions, h fabric.Handler) (fabric.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, p.opts.DialTimeout)
	defer cancel()
	to, err := resolve(ctx, addr)
	if err != nil {
		return nil, err
	}
	if err := p.admit(); err != nil {
		return nil, err
	}
	e, err := p.acquire()
	if err != nil {
		p.conns.Add(-1)
		return nil, err
	}
	ended := func() {
		p.conns.Add(-1)
		p.release(e)
	}
	var c *conn
	for _, a := range to { // the addresses of a name, until one answers
		if c, err = p.dial(ctx, e, on, a, o, ended); err == nil || ctx.Err() != nil {
			break
		}
	}
	if err != nil {
		ended()
		return nil, err
	}
	if err := c.setup(ctx, h); err != nil {
		c.discard()
		return nil, err
	}
	c.loop.Post((*connOpen)(c))
	c.id.attach(c)
	c.wake() // an event before Setup found no Handler
	return c, nil
}

// dial connects to one address. The conn that it returns has had no Setup.
func (p *Provider) dial(ctx context.Context, e *engine, on loop.Loop, to netip.AddrPort, o fabric.ConnOptions, ended func()) (c *conn, err error) {
	from, err := e.sourceFor(to.Addr())
	if err != nil {
		return nil, err
	}
	id, err := e.newID()
	if err != nil {
		return nil, err
	}
	owned := true // the id, by this function
	defer func() {
		if owned {
			id.destroy()
		}
	}()
	if p.opts.TOS != 0 {
		if err := setTOS(id.handle, p.opts.TOS); err != nil {
			return nil, fmt.Errorf("ibverbs: type of service: %w", err)
		}
	}
	ms := func() int {
		d, _ := ctx.Deadline()
		return int(max(time.Until(d).Milliseconds(), 1))
	}
	if err := resolveAddr(id.handle, from, to, ms()); err != nil {
		return nil, fmt.Errorf("ibverbs: resolve address %v: %w: no RDMA device reaches it", to.Addr(), err)
	}
	if _, err := id.await(ctx, fmt.Sprintf("resolve address %v", to.Addr()), addrResolved); err != nil {
		return nil, err
	}
	if err := p.selects(id.handle); err != nil {
		return nil, fmt.Errorf("ibverbs: connect to %v: %w", to, err)
	}
	if t := ackTimeout(p.opts.SilentTimeout); t > 0 {
		_ = setAckTimeout(id.handle, t) // old kernels lack the option, and iWARP has another
	}
	if err := resolveRoute(id.handle, ms()); err != nil {
		return nil, fmt.Errorf("ibverbs: resolve route to %v: %w", to.Addr(), err)
	}
	if _, err := id.await(ctx, fmt.Sprintf("resolve route to %v", to.Addr()), routeResolved); err != nil {
		return nil, err
	}
	if c, err = p.newConn(e, id, on, o); err != nil {
		return nil, err
	}
	if c.portDown() {
		// The kernel resolves addresses all the same. Nothing was sent yet, so that nothing is
		// sent at the end either.
		c.destroyQP()
		_ = destroyCQ(c.cq)
		c.d.leave(c)
		err := fmt.Errorf("ibverbs: connect to %v: device %s: %w", to, c.d.dev.name, errPortDown)
		c.d.release()
		return nil, err
	}
	owned = false
	c.opts = c.opts.Dialled(c.RemoteInvalidation())
	ev, err := c.connect(ctx, to)
	if err != nil {
		return nil, err
	}
	c.ended = ended
	c.describe(ev)
	return c, nil
}

// connect sends the request and waits for the reply. When it fails it discards the connection.
func (c *conn) connect(ctx context.Context, to netip.AddrPort) (cmEvent, error) {
	c.ended = func() {} // Dial may try another address
	var err error
	sentc := make(chan struct{})
	go func() {
		err = c.request(to)
		close(sentc)
	}()
	select {
	case <-sentc:
		if err != nil {
			c.discard()
			return cmEvent{}, err
		}
	case <-ctx.Done():
		// siw connects within the call, which takes two minutes if nothing answers. Nobody can end the
		// call, nor destroy the id meanwhile.
		c.ended = c.outlive(c.ended)
		go func() {
			<-sentc
			c.discard()
		}()
		return cmEvent{}, fmt.Errorf("ibverbs: connect to %v: %w", to, context.Cause(ctx))
	}
	ev, err := c.id.await(ctx, fmt.Sprintf("connect to %v", to), established)
	if err != nil {
		c.discard()
	}
	return ev, err
}

// request sends the request.
func (c *conn) request(to netip.AddrPort) error {
	most := maxPrivateRequest
	if c.d.dev.iwarp {
		most = maxPrivateIWARP
	}
	if len(c.opts.PrivateData) > most {
		return fmt.Errorf("ibverbs: private data of %d octets, at most %d", len(c.opts.PrivateData), most)
	}
	err := connectID(c.id.handle, cmParams{
		ird: max(c.opts.IRD, 1), // a Linux server refuses a client of which it cannot read
		ord: c.opts.ORD, retry: retryCount, rnr: rnrRetryCount, private: c.opts.PrivateData,
	})
	if err != nil {
		return fmt.Errorf("ibverbs: connect to %v: %w", to, err)
	}
	return nil
}

// ackTimeout returns the exponent of the longest acknowledgement timeout, in units of 4.096 us, with
// which retryCount repetitions end within d. 0 leaves it to the kernel.
func ackTimeout(d time.Duration) uint8 {
	units := d / (retryCount + 1) / 4096
	if units < 2 {
		return 0
	}
	return uint8(min(bits.Len64(uint64(units))-1, 31))
}

// resolve returns the addresses of HOST:PORT.
func resolve(ctx context.Context, addr string) ([]netip.AddrPort, error) {
	if a, err := netip.ParseAddrPort(addr); err == nil {
		return []netip.AddrPort{a}, nil
	}
	host, service, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, fmt.Errorf("ibverbs: %w", err)
	}
	port, err := strconv.ParseUint(service, 10, 16)
	if err != nil {
		return nil, fmt.Errorf("ibverbs: port %q: %w", service, err)
	}
	if host == "" {
		host = "0.0.0.0"
	}
	ips, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return nil, fmt.Errorf("ibverbs: %w", err)
	}
	var out []netip.AddrPort
	for _, ip := range ips {
		out = append(out, netip.AddrPortFrom(ip.Unmap(), uint16(port)))
	}
	return out, nil
}
