package session

import (
	"context"
	"time"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/metrics"
	"github.com/rdmabridge/rdmabridge/pool"
)

// Options are what the lanes of one upstream need and what stays while the upstream is there.
type Options struct {
	Upstream string
	Loops    []Loop
	Now      func() int64 // the clock of the loops
	Log      *zerolog.Logger
	Metrics  *metrics.Registry
	// Owner learns of Calls that no connection has carried.
	Owner pool.Owner
	// Dial makes the connection c for seat s.
	Dial func(ctx context.Context, endpoint string, affinity int, s *pool.Seat, c *Conn) (pool.Member, error)
	// Shared returns the pools of the connections that do not belong to lanes: one, or one for each endpoint.
	Shared func() []*pool.Pool
	// Lease returns memory for a Reply of n octets, from which a connection on the loop with this number can send.
	Lease func(loop, n int) (Lease, error)
	// PinnedCalls is how many reverse Calls a pinned client may have without an answer.
	PinnedCalls int
}

// Settings are what a reload may change.
type Settings struct {
	Lanes          int      // how many there are that clients share
	Endpoints      []string // of the upstream
	Priority       bool     // the first endpoint is preferred to the others
	ConnectTimeout time.Duration
	CallTimeout    time.Duration

	// One has a pool dial the nth of its endpoints alone, if each client belongs to one endpoint. Otherwise it is nil.
	One func(o *pool.Options, n int)
	// Pool is what the pools of lanes have in common with those of the shared connections.
	Pool pool.Options

	// QuotaCalls bounds the Calls on all pinned lanes, and QuotaAlways says that it also holds for a host that is alone.
	QuotaCalls  int
	QuotaAlways bool
}

// apart reports whether each client belongs to one endpoint.
func (s *Settings) apart() bool { return s.One != nil }
