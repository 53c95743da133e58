//go:build ibverbs

package ibverbs

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/internal/loglimit"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
)

// A Provider is the provider over RDMA devices. It is safe for concurrent use.
type Provider struct {
	opts    Options // constant after New
	extents extents // constant after New
	logs    loglimit.Limit
	conns   atomic.Int64
	events  [asyncKinds]atomic.Uint64
	lines   loglimit.Limit // of events of devices
	tokens  atomic.Uint64  // numbers of connections, for completion events

	windowFaults sync.Map // windowFaults that were seen
	distrusted   sync.Map // names of devices of which a warning was given

	mu     sync.Mutex // guards the rest; taken before engine.mu
	engine *engine    // nil while there is no connection and no listener
}

var _ fabric.Provider = (*Provider)(nil)

// New returns a Provider. It fails when rdma-core is missing, or an option that must be set is not.
func New(o Options) (fabric.Provider, error) {
	if err := o.validate(); err != nil {
		return nil, err
	}
	if err := o.Select.check(sysClass); err != nil {
		return nil, fmt.Errorf("ibverbs: %w", err)
	}
	ext, err := newExtents(o.Memory)
	if err != nil {
		return nil, err
	}
	if err := load(); err != nil {
		return nil, err
	}
	raiseMemlock()
	return &Provider{opts: o.withDefaults(), extents: ext}, nil
}

// Available returns why New fails whatever the options are: rdma-core is missing. A device may be
// missing nevertheless; that is known when a connection needs one.
func Available() error { return load() }

// Name returns "ibverbs".
func (p *Provider) Name() string { return "ibverbs" }

// acquire returns the engine, which exists until release.
func (p *Provider) acquire() (*engine, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.engine == nil {
		e, err := newEngine(p)
		if err != nil {
			return nil, err
		}
		p.engine = e
	}
	p.engine.users++
	return p.engine, nil
}

// hold is acquire for the goroutine of e. It returns false if e is about to be closed.
func (p *Provider) hold(e *engine) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if e.users == 0 {
		return false
	}
	e.users++
	return true
}

// release undoes one acquire or hold. It may block.
func (p *Provider) release(e *engine) {
	p.mu.Lock()
	e.users--
	last := e.users == 0
	if last {
		p.engine = nil
	}
	p.mu.Unlock()
	if last {
		e.close()
	}
}

// admit counts a connection.
func (p *Provider) admit() error {
	if n := p.conns.Add(1); p.opts.MaxConnections > 0 && n > int64(p.opts.MaxConnections) {
		p.conns.Add(-1)
		return fmt.Errorf("ibverbs: %w: %d connections", fabric.ErrLimit, p.opts.MaxConnections)
	}
	return nil
}

// logEnd logs the error of a connection that the ULP did not close.
func (p *Provider) logEnd(c *conn, err error) {
	p.logs.Line(&p.opts.Log, zerolog.WarnLevel, "rdma_connection_failed").Stringer("peer", c.info.Peer).Str("device", c.d.dev.name).Err(err).Msg("connection ended")
}
