package proxy

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"time"

	"github.com/rdmabridge/rdmabridge/metrics"
	"github.com/rdmabridge/rdmabridge/pool"
)

// Several endpoints
//
// What a client has at a server, locks, opens, sessions, what the duplicate request
// cache remembers, is at that server. So without UpstreamOptions.Failover a client
// belongs to one endpoint: which one follows from its address and the number of
// endpoints, and is the same on every connection, for every upstream with as many
// endpoints, and after a restart. Each endpoint has a pool. While it is away its
// clients wait and are closed, as with an upstream that is away; the others' know
// nothing of it.
//
// With Failover the endpoints are addresses of one server, or servers that take each
// other's place with all their state. Then there is one pool, whose connections are
// where pool.Health says, and a client's Calls take any. With Priority all are at the
// first endpoint that is well, so that all clients are at one server. A client's own
// connection stays where it is while that is well.
//
// A name is looked up for every attempt to connect, and all its addresses are tried,
// beginning with another one each time.

// dials bounds the attempts to connect of the whole process.
const (
	maxDials       = 64
	dialsPerSecond = 200
)

// partitioned reports whether each client belongs to one endpoint.
func (o *UpstreamOptions) partitioned() bool { return !o.Failover && len(o.Endpoints) > 1 }

// stays reports whether o can become next without clients changing their endpoint.
func (o *UpstreamOptions) stays(next *UpstreamOptions) bool {
	if !o.partitioned() && !next.partitioned() {
		return true
	}
	return o.partitioned() && next.partitioned() && slices.Equal(o.Endpoints, next.Endpoints)
}

// endpointFor is the number, of n, of the endpoint that the client at addr belongs to: the
// one of the highest hash. One that is added takes clients from all others alike, and
// none changes between those.
func endpointFor(addr netip.Addr, n int) (best int) {
	var b [20]byte
	a := addr.Unmap().As16()
	copy(b[:], a[:])
	var most uint64
	for i := range n {
		binary.BigEndian.PutUint32(b[16:], uint32(i))
		// FNV leaves neighbours near each other: what follows is the end of MurmurHash3.
		x := fnv(fnvBasis, b[:])
		x ^= x >> 33
		x *= 0xff51afd7ed558ccd
		x ^= x >> 33
		x *= 0xc4ceb9fe1a85ec53
		x ^= x >> 33
		if i == 0 || x > most {
			best, most = i, x
		}
	}
	return best
}

// endpoints are what an upstream knows of its endpoints.
type endpoints struct {
	health *pool.Health
	share  *pool.Share
	eject  *metrics.Counter
}

func (u *upstream) newEndpoints(m *metrics.Registry, o *UpstreamOptions) {
	e := &u.endpoints
	e.share = u.p.dials.Share()
	e.eject = m.Counter("upstream_endpoint_ejections_total", "Times an endpoint of several was given up for a while, because it failed or its host was gone.", "upstream", o.Name)
	e.health = &pool.Health{
		Ejected: func(endpoint string, wait time.Duration) {
			e.eject.Inc()
			u.log.Warn().Str("endpoint", endpoint).Dur("wait_ms", wait).Msg("endpoint ejected")
		},
		Returned: func(endpoint string) {
			u.log.Info().Str("endpoint", endpoint).Msg("endpoint is back")
		},
	}
	e.health.Set(o.Endpoints, o.Priority)
}

// describe makes the series that look at e.
func (e *endpoints) describe(m *metrics.Registry, upstream string) {
	m.GaugeFunc("upstream_endpoints_ejected", "Endpoints that are given up for now.", func() float64 {
		out, _ := e.health.Counts()
		return float64(out)
	}, "upstream", upstream)
}

// poolFor is the pool of the client at addr.
func (u *upstream) poolFor(addr netip.Addr) *pool.Pool {
	if len(u.pools) == 1 {
		return u.pools[0]
	}
	return u.pools[endpointFor(addr, len(u.pools))]
}

// usable is how many connections there are.
func (u *upstream) usable() (n int) {
	for _, p := range u.pools {
		n += p.Stats().Usable
	}
	return n
}

// stats are those of all pools together.
func (u *upstream) stats() pool.Stats {
	st := u.pools[0].Stats()
	for _, p := range u.pools[1:] {
		o := p.Stats()
		st.Connections = append(st.Connections, o.Connections...)
		st.Usable += o.Usable
		st.Granted += o.Granted
		st.Outstanding += o.Outstanding
		st.Queued += o.Queued
		st.Retired += o.Retired
		if o.DownSince.IsZero() || st.DownSince.IsZero() {
			st.DownSince = time.Time{} // one of them is up
		} else if o.DownSince.After(st.DownSince) {
			st.DownSince = o.DownSince
		}
	}
	return st
}
