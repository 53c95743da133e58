package upstream

import (
	"errors"

	"github.com/rdmabridge/rdmabridge/metrics"
	"github.com/rdmabridge/rdmabridge/pool"
	"github.com/rdmabridge/rdmabridge/proxy/reach"
	"github.com/rdmabridge/rdmabridge/rdmaside"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
	"github.com/rdmabridge/rdmabridge/tcpframe"
)

// The reasons why connections to an upstream end: labels of
// rdmabridge_upstream_disconnects_total.
const (
	endedSilent   = iota // the server's host is gone
	endedDeadline        // the server did not answer a Call in time
	endedDropped         // the server did not answer a Call in time but answered later ones
	endedIdle            // the server closed a connection on which no Call was outstanding
	endedOther           // the server or the network ended it for another reason
	endReasons
)

var endReasonNames = [endReasons]string{"silent", "deadline", "dropped", "idle", "other"}

// endCounts count the ends of the connections to an upstream by their reason.
type endCounts [endReasons]*metrics.Counter

// newEndCounts registers the counters.
func newEndCounts(m *metrics.Registry, upstream string) (ends endCounts) {
	for i, reason := range endReasonNames {
		ends[i] = m.Counter(metrics.UpstreamDisconnects, upstream, reason)
	}
	return ends
}

// gone reports whether a connection ended with err because the server's host is gone.
func gone(err error) bool {
	return errors.Is(err, fabric.ErrSilent) || errors.Is(err, tcpframe.ErrSilent)
}

// ErrDeadline ends a TCP connection on which a Call was not answered in time.
var ErrDeadline = errors.New("proxy: call not answered in time")

// Count counts the end of a connection with err.
func (n *endCounts) Count(err error) {
	switch {
	case errors.Is(err, pool.ErrClosed), err == nil:
	case gone(err):
		n[endedSilent].Inc()
	case errors.Is(err, rdmaside.ErrDeadline), errors.Is(err, ErrDeadline):
		n[endedDeadline].Inc()
	case errors.Is(err, rdmaside.ErrDropped):
		n[endedDropped].Inc()
	case errors.Is(err, reach.ErrIdleClosed):
		n[endedIdle].Inc()
	default:
		n[endedOther].Inc()
	}
}
