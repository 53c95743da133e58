package iwarp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
)

// A Provider is the userspace iWARP provider. It is safe for concurrent use.
type Provider struct {
	opts    Options // constant after New
	limits  *limits
	batches batchPool
	logs    throttle
	copied  atomic.Int64

	mu     sync.Mutex // guards worked; a leaf
	worked map[string]worked
}

// worked is what a peer answered lately, by the address that was dialed.
type worked struct {
	kind request
	when time.Time
}

var (
	_ fabric.SocketProvider = (*Provider)(nil)
	_ fabric.CopyCounter    = (*Provider)(nil)
)

const (
	// workedMax bounds Provider.worked. Its keys come from this side's configuration.
	workedMax = 1024
	// workedFor is how long an answer is remembered: a peer that hung up because it
	// was just starting should not be taken for an adapter for ever.
	workedFor = 10 * time.Minute
)

// New returns a Provider. The Loops given to it must be fabric.SocketLoops.
func New(o Options) *Provider {
	o = o.withDefaults()
	return &Provider{opts: o, limits: newLimits(o), worked: make(map[string]worked)}
}

// Name returns "iwarp".
func (p *Provider) Name() string { return "iwarp" }

// Copied implements fabric.CopyCounter. Payload is copied when it arrived together
// with a header, and when it is shorter than a slice of its own is worth. All other
// payload moves straight between the socket and its place.
func (p *Provider) Copied() int64 { return p.copied.Load() }

// Handles is how many handles are live, of all connections.
func (p *Provider) Handles() int { return int(p.limits.handles.Load()) }

// newConn returns a conn for what start-up agreed on. release is called when its
// socket is gone.
func (p *Provider) newConn(nc net.Conn, loop loop.Loop, cfg qpConfig, a agreed, h fabric.Handler, release func()) *conn {
	return &conn{
		p: p, loop: loop, h: h, release: release,
		qp:     newQP(cfg),
		setupc: make(chan error, 1),
		last:   time.Now(),
		info: fabric.Info{
			Provider: p.Name(),
			Local:    addrPort(nc.LocalAddr()), Peer: addrPort(nc.RemoteAddr()),
			PrivateData: a.private,
			IRD:         a.ird, ORD: a.ord,
		},
	}
}

// attach hands nc to the loop and waits until the ULP's Setup has returned.
func (c *conn) attach(ctx context.Context, loop loop.SocketLoop, nc net.Conn) error {
	_ = nc.SetDeadline(time.Time{})
	if err := loop.Attach(nc, (*stream)(c)); err != nil {
		c.release()
		return fmt.Errorf("iwarp: attach: %w", err)
	}
	select {
	case err := <-c.setupc:
		return err
	case <-ctx.Done():
	}
	if c.begun.CompareAndSwap(setupPending, setupAbandoned) {
		// The loop drops the socket, and counts it off, when it comes to it.
		return fmt.Errorf("iwarp: attach: %w", ctx.Err())
	}
	return <-c.setupc
}

// localSendBuffer is SO_SNDBUF towards a peer on this host, where a longer queue
// is only more to push other things out of the cache: measured, a quarter with
// four connections of 1 MiB Calls. The kernel doubles it.
const localSendBuffer = 256 << 10

// onThisHost reports whether the peer is at an address of this host, as far as one
// socket tells.
func onThisHost(c *net.TCPConn) bool {
	peer, ok := c.RemoteAddr().(*net.TCPAddr)
	self, ok2 := c.LocalAddr().(*net.TCPAddr)
	return ok && ok2 && (peer.IP.IsLoopback() || peer.IP.Equal(self.IP))
}

// tune sets the options of a connected socket.
func (p *Provider) tune(nc net.Conn) {
	c, ok := nc.(*net.TCPConn)
	if !ok {
		return
	}
	_ = c.SetNoDelay(true)
	if onThisHost(c) {
		_ = c.SetWriteBuffer(localSendBuffer)
	}
	if p.opts.KeepAlive > 0 {
		_ = c.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: p.opts.KeepAlive, Interval: p.opts.KeepAlive / 3, Count: 3})
	}
	if raw, err := c.SyscallConn(); err == nil && p.opts.ProgressTimeout > 0 {
		_ = setUserTimeout(raw, int(p.opts.ProgressTimeout.Milliseconds()))
	}
}

// logEnd writes the line about a connection that ended on its own.
func (p *Provider) logEnd(c *conn, err error) {
	if err == nil || errors.Is(err, io.EOF) || errors.Is(err, loop.ErrStopped) || errors.Is(err, fabric.ErrClosed) {
		return
	}
	ok, dropped := p.logs.allow(time.Now())
	if !ok {
		return
	}
	e := p.opts.Log.Warn().Stringer("peer", c.info.Peer).Err(err)
	if dropped > 0 {
		e = e.Int("suppressed", dropped)
	}
	e.Msg("connection ended")
}

// A throttle limits lines that peers can cause: logBurst at once, one more each
// logEvery.
type throttle struct {
	mu      sync.Mutex // a leaf
	tokens  float64
	last    time.Time
	dropped int
}

const (
	logBurst = 10
	logEvery = 500 * time.Millisecond
)

// allow reports whether a line may be written now, and how many were not since the
// last one.
func (t *throttle) allow(now time.Time) (ok bool, dropped int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.last.IsZero() {
		t.tokens = logBurst
	}
	t.tokens = min(logBurst, t.tokens+float64(now.Sub(t.last))/float64(logEvery))
	t.last = now
	if t.tokens < 1 {
		t.dropped++
		return false, 0
	}
	t.tokens--
	dropped, t.dropped = t.dropped, 0
	return true, dropped
}

// addrPort is the address in netip's words, the zero value if it has none.
func addrPort(a net.Addr) netip.AddrPort {
	t, ok := a.(*net.TCPAddr)
	if !ok {
		return netip.AddrPort{}
	}
	ap := t.AddrPort()
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
}
