package rdmaside

import (
	"errors"
	"fmt"

	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
)

// Close closes the connection. Every outstanding Call fails with the fate
// InLimbo, then Watcher.Ended is called with err. All of this happens after Close
// has returned.
func (r *Requester) Close(err error) {
	if r.state == up {
		r.asked, r.reason = true, err
		r.setEnding()
		r.conn.Close(err)
	}
}

// end closes the connection for a reason found here. fabric.ErrClosed is not such
// a reason: the provider is about to call Closed with a better one.
func (r *Requester) end(err error) {
	if r.state != up {
		return
	}
	if errors.Is(err, fabric.ErrClosed) {
		r.setEnding()
	} else {
		r.Close(err)
	}
	r.watcher.Granted(r, 0)
}

// setEnding marks the connection as closing.
func (r *Requester) setEnding() {
	r.state = ending
	r.publish()
}

// publish makes the grant visible to other goroutines, and reports whether it has changed. It seldom
// changes, and a load costs much less than a store.
func (r *Requester) publish() (changed bool) {
	grant := int32(0)
	if r.state == up {
		grant = int32(min(r.credits.Granted, r.credits.Requested))
	}
	if r.grant.Load() == grant {
		return false
	}
	r.grant.Store(grant)
	return true
}

// broken closes the connection because a Work Request failed. A flushed Work
// Request is no such failure: the connection is closing already.
func (r *Requester) broken(what string, err error) {
	if !errors.Is(err, fabric.ErrFlushed) {
		r.end(fmt.Errorf("rdmaside: %s: %w", what, err))
	}
}
