package proxy

import (
	"errors"

	"github.com/rdmabridge/rdmabridge/metrics"
	"github.com/rdmabridge/rdmabridge/pool"
	"github.com/rdmabridge/rdmabridge/rdmaside"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
	"github.com/rdmabridge/rdmabridge/tcpframe"
)

// The reasons for which connections to an upstream end, as they are counted.
const (
	endedSilent   = iota // its host is gone
	endedDeadline        // a Call was not answered in time
	endedDropped         // nor was one though later ones were
	endedIdle            // the server ended one that it owed nothing on
	endedOther           // the server, or the network, ended it
	endReasons
)

var endReasonNames = [endReasons]string{"silent", "deadline", "dropped", "idle", "other"}

// newEnds makes the series.
func newEnds(m *metrics.Registry, upstream string) (ends [endReasons]*metrics.Counter) {
	for i, reason := range endReasonNames {
		ends[i] = m.Counter("upstream_disconnects_total", "Connections to the upstream that ended, by why.", "upstream", upstream, "reason", reason)
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
