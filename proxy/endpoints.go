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
// A server keeps state for its clients: locks, opens, sessions, and the duplicate request
// cache. So without UpstreamOptions.Failover a client belongs to one endpoint. The endpoint
// follows from the client's address and the number of endpoints. It is the same for every
// connection, for every upstream with as many endpoints, and after a restart. Each endpoint
// has its own pool. While the endpoint is down, its clients wait and are closed, as with any
// upstream that is down, and the clients of the others are not disturbed.
//
// With Failover the endpoints are addresses of one server, or servers that replace each other
// with all their state. Then there is one pool. Its connections go to the endpoints that
// pool.Health chooses, and a client's Calls may take any of them. With Priority all connections
// go to the first endpoint that is well, so that all clients are at one server. A pinned
// connection stays where it is as long as that endpoint is well.
//
// Every attempt to connect to a name looks the name up and tries all its addresses, beginning
// with the one that worked last. One whose server accepted the connection and did not answer, or answered no Calls,
// comes last.

// partitioned reports whether each client belongs to one endpoint.
func (o *UpstreamOptions) partitioned() bool { return !o.Failover && len(o.Endpoints) > 1 }

// keepsEndpoints reports whether every client keeps its endpoint when o becomes next.
func (o *UpstreamOptions) keepsEndpoints(next *UpstreamOptions) bool {
	if !o.partitioned() && !next.partitioned() {
		return true
	}
	return o.partitioned() && next.partitioned() && slices.Equal(o.Endpoints, next.Endpoints)
}

// endpointFor is the number of the endpoint, of n, that the client at addr belongs to: the
// one with the highest hash. A new endpoint takes clients from all others alike, and no client
// moves between the others.
func endpointFor(addr netip.Addr, n int) (best int) {
	var b [20]byte
	a := addr.Unmap().As16()
	copy(b[:], a[:])
	var most uint64
	for i := range n {
		binary.BigEndian.PutUint32(b[16:], uint32(i))
		// FNV gives similar hashes to similar input. The end of MurmurHash3 spreads them.
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

// endpoints is what an upstream knows of its endpoints.
type endpoints struct {
	health *pool.Health   // of all
	apart  []*pool.Health // of each one, if each client belongs to one
	share  *pool.Share
	eject  *metrics.Counter
}

func (u *upstream) newEndpoints(m *metrics.Registry, o *UpstreamOptions) {
	e := &u.endpoints
	e.share = u.p.dials.Share()
	e.eject = m.Counter(metrics.UpstreamEndpointEjections, o.Name)
	e.health = &pool.Health{
		Ejected: func(endpoint string, wait time.Duration, err error) {
			e.eject.Inc()
			u.lines.ejected(endpoint, wait, err)
			u.renew() // it may have connections on which no Call is answered
		},
		Returned: u.lines.returned,
	}
	e.health.Set(o.Endpoints, o.Priority)
	if o.partitioned() {
		for i := range o.Endpoints {
			h := &pool.Health{}
			h.Set(o.Endpoints[i:i+1], false)
			e.apart = append(e.apart, h)
		}
	}
}

// describe registers the gauges that read e.
func (e *endpoints) describe(m *metrics.Registry, upstream string) {
	m.GaugeFunc(metrics.UpstreamEjectedEndpoints, func() float64 {
		out, _ := e.health.Counts()
		return float64(out)
	}, upstream)
}

// poolFor is the pool of the client at addr.
func (u *upstream) poolFor(addr netip.Addr) *pool.Pool {
	if len(u.pools) == 1 {
		return u.pools[0]
	}
	return u.pools[endpointFor(addr, len(u.pools))]
}
