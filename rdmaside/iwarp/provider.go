package iwarp

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/loglimit"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
)

// A Provider is the userspace iWARP provider. It is safe for concurrent use.
type Provider struct {
	opts    Options // constant after New
	limits  *limits
	batches batchPool
	logs    loglimit.Limit
	copied  atomic.Int64

	mu     sync.Mutex        // guards worked; a leaf
	worked map[string]worked // by the address that was dialed
}

// worked is the kind of Request that a peer answered.
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
	// workedFor is how long a kind is remembered. A peer may close a connection because
	// it is just starting, and must not be mistaken for an adapter for ever.
	workedFor = 10 * time.Minute
)

// New returns a Provider. The Loops given to its methods must be loop.SocketLoops. It
// fails when an option that must be set is not.
func New(o Options) (*Provider, error) {
	if err := o.validate(); err != nil {
		return nil, err
	}
	o = o.withDefaults()
	return &Provider{opts: o, limits: newLimits(o), worked: make(map[string]worked)}, nil
}

// Name returns "iwarp".
func (p *Provider) Name() string { return "iwarp" }

// Copied implements fabric.CopyCounter. The provider copies payload that arrived together with
// a header, and payload that is too short to justify a slice of its own. All other payload
// moves straight between the socket and its place.
func (p *Provider) Copied() int64 { return p.copied.Load() }

// Handles is the number of live handles of all connections.
func (p *Provider) Handles() int { return int(p.limits.handles.Load()) }
