package iwarp

import (
	"context"
	"errors"

	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
)

// A Provider is the userspace iWARP provider. It is safe for concurrent use.
type Provider struct {
	opts Options // constant after New
}

var _ fabric.Provider = (*Provider)(nil)

// New returns a Provider. The Loops given to it must be fabric.SocketLoops.
func New(o Options) *Provider { return &Provider{opts: o.withDefaults()} }

// Name returns "iwarp".
func (p *Provider) Name() string { return "iwarp" }

// Dial implements fabric.Provider.
func (p *Provider) Dial(ctx context.Context, loop fabric.Loop, addr string, o fabric.ConnOptions, h fabric.Handler) (fabric.Conn, error) {
	return nil, errors.ErrUnsupported
}

// Listen implements fabric.Provider.
func (p *Provider) Listen(addr string, o fabric.ListenOptions, incoming func(fabric.Incoming)) (fabric.Listener, error) {
	return nil, errors.ErrUnsupported
}
