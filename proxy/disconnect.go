package proxy

import (
	"errors"

	"github.com/rdmabridge/rdmabridge/metrics"
	"github.com/rdmabridge/rdmabridge/pool"
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

// newEnds registers the counters.
func newEnds(m *metrics.Registry, upstream string) (ends [endReasons]*metrics.Counter) {
	for i, reason := range endReasonNames {
		ends[i] = m.Counter(metrics.UpstreamDisconnects, upstream, reason)
	}
	return ends
}

// gone reports whether a connection ended with err because the server's host is gone.
func gone(err error) bool {
	return errors.Is(err, fabric.ErrSilent) || errors.Is(err, tcpframe.ErrSilent)
}

// ended counts the end of a connection.
func (u *upstream) ended(err error) {
	switch {
	case errors.Is(err, pool.ErrClosed), err == nil:
	case gone(err):
		u.ends[endedSilent].Inc()
	case errors.Is(err, rdmaside.ErrDeadline), errors.Is(err, errDeadline):
		u.ends[endedDeadline].Inc()
	case errors.Is(err, rdmaside.ErrDropped):
		u.ends[endedDropped].Inc()
	case errors.Is(err, errIdleClosed):
		u.ends[endedIdle].Inc()
	default:
		u.ends[endedOther].Inc()
	}
}
