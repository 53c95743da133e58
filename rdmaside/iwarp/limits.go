package iwarp

import (
	"fmt"
	"sync/atomic"

	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
)

// limits is the privileged resource manager of RFC 5042 Section 2.1: the one place
// that counts the connections, handles and registered octets of a Provider. A nil
// *limits has no bounds.
type limits struct {
	conns, handles, octets          atomic.Int64
	maxConns, maxHandles, maxOctets int64 // no bound when not positive
}

func newLimits(o Options) *limits {
	return &limits{
		maxConns:   int64(o.MaxConnections),
		maxHandles: int64(o.MaxHandles),
		maxOctets:  o.MaxRegistered,
	}
}

// take adds n to v and reports true, unless the sum would exceed most.
func take(v *atomic.Int64, n, most int64) bool {
	if v.Add(n) > most && most > 0 {
		v.Add(-n)
		return false
	}
	return true
}

func (l *limits) conn() error {
	if l == nil || take(&l.conns, 1, l.maxConns) {
		return nil
	}
	return fmt.Errorf("%w: %d connections", fabric.ErrLimit, l.maxConns)
}

func (l *limits) connDone() {
	if l != nil {
		l.conns.Add(-1)
	}
}

func (l *limits) handle(octets int) error {
	switch {
	case l == nil:
		return nil
	case !take(&l.handles, 1, l.maxHandles):
		return fmt.Errorf("%w: %d handles", fabric.ErrLimit, l.maxHandles)
	case !take(&l.octets, int64(octets), l.maxOctets):
		l.handles.Add(-1)
		return fmt.Errorf("%w: %d octets registered", fabric.ErrLimit, l.maxOctets)
	}
	return nil
}

func (l *limits) handleDone(octets int) {
	if l != nil {
		l.handles.Add(-1)
		l.octets.Add(-int64(octets))
	}
}
