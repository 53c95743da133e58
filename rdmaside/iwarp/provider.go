package iwarp

import (
	"sync"
	"sync/atomic"
	"time"

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
