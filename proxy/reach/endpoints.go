package reach

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"time"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/internal/fnv"
	"github.com/rdmabridge/rdmabridge/internal/status"
	"github.com/rdmabridge/rdmabridge/metrics"
	"github.com/rdmabridge/rdmabridge/pool"
	"github.com/rdmabridge/rdmabridge/pool/dials"
	"github.com/rdmabridge/rdmabridge/pool/endpoints"
)

// Several endpoints
//
// A server keeps state for its clients: locks, opens, sessions, and the duplicate request
// cache. So with EndpointsOptions.Apart a client belongs to one endpoint. The endpoint
// follows from the client's address and the number of endpoints. It is the same for every
// connection, for every upstream with as many endpoints, and after a restart. Each endpoint
// has its own pool. While the endpoint is down, its clients wait and are closed, as with any
// upstream that is down, and the clients of the others are not disturbed.
//
// Without it the endpoints are addresses of one server, or servers that replace each other
// with all their state. Then there is one pool. Its connections go to the endpoints that
// endpoints.Health chooses, and a client's Calls may take any of them. With Priority all connections
// go to the first endpoint that is well, so that all clients are at one server. A pinned
// connection stays where it is as long as that endpoint is well.
//
// Every attempt to connect to a name looks the name up and tries all its addresses, beginning
// with the one that worked last. One whose server accepted the connection and did not answer, or
// answered no Calls, comes last.

// EndpointFor is the number of the endpoint, of n, that the client at addr belongs to: the
// one with the highest hash. A new endpoint takes clients from all others alike, and no client
// moves between the others.
func EndpointFor(addr netip.Addr, n int) (best int) {
	var b [20]byte
	a := addr.Unmap().As16()
	copy(b[:], a[:])
	var most uint64
	for i := range n {
		binary.BigEndian.PutUint32(b[16:], uint32(i))
		// FNV gives similar hashes to similar input. The end of MurmurHash3 spreads them.
		x := fnv.Add(fnv.Basis, b[:])
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

// EndpointsOptions describe the endpoints of an upstream.
type EndpointsOptions struct {
	Upstream  string   // the name
	Endpoints []string // host:port
	Priority  bool     // unless Apart: an endpoint is used only while those before it fail
	Apart     bool     // each client belongs to one endpoint
	Dials     *dials.Share
	Metrics   *metrics.Registry
	Lines     *Lines
	Renew     func() // has the pools replace connections to endpoints that are ejected
}

// Endpoints are what an upstream knows of its endpoints. They are safe for concurrent use.
type Endpoints struct {
	upstream  string // constant, as are all
	log       *zerolog.Logger
	health    *endpoints.Health   // of all
	apart     []*endpoints.Health // of each one, if each client belongs to one
	dials     *dials.Share
	ejections *metrics.Counter
	renew     func()
}

// NewEndpoints makes endpoints that are all in use.
func NewEndpoints(o EndpointsOptions) *Endpoints {
	e := &Endpoints{
		upstream: o.Upstream, log: o.Lines.log, dials: o.Dials, renew: o.Renew,
		ejections: o.Metrics.Counter(metrics.UpstreamEndpointEjections, o.Upstream),
	}
	e.health = &endpoints.Health{
		Ejected: func(endpoint string, wait time.Duration, err error) {
			e.ejections.Inc()
			o.Lines.ejected(endpoint, wait, err)
			o.Renew() // there may be connections on which no Call is answered
		},
		Returned: o.Lines.returned,
	}
	e.health.Set(o.Endpoints, o.Priority)
	if o.Apart {
		for i := range o.Endpoints {
			h := &endpoints.Health{}
			h.Set(o.Endpoints[i:i+1], false)
			e.apart = append(e.apart, h)
		}
	}
	return e
}

// Describe registers the gauges that read e.
func (e *Endpoints) Describe(m *metrics.Registry) {
	m.GaugeFunc(metrics.UpstreamEjectedEndpoints, func() float64 {
		out, _ := e.health.Counts()
		return float64(out)
	}, e.upstream)
}

// Set replaces the endpoints. Those that stay keep their state. Where each client belongs to one, they are the same.
func (e *Endpoints) Set(endpoints []string, priority bool) { e.health.Set(endpoints, priority) }

// All has the pool of po dial all endpoints.
func (e *Endpoints) All(po *pool.Options) { po.Health, po.Dials = e.health, e.dials }

// One has the pool of po dial the n-th of its endpoints alone, to which its clients belong.
func (e *Endpoints) One(po *pool.Options, n int) {
	po.Endpoints, po.Health, po.Dials = po.Endpoints[n:n+1], e.apart[n], e.dials
}

// Eject takes an endpoint out of use for a time, or until Return if d is 0. It fails for the last one, and where each
// client belongs to one.
func (e *Endpoints) Eject(endpoint string, d time.Duration) error {
	if len(e.apart) > 0 {
		return fmt.Errorf("upstream %s: each client belongs to one endpoint, because failover is none", e.upstream)
	}
	var until time.Time
	if d > 0 {
		until = time.Now().Add(d)
	}
	if err := e.health.Eject(endpoint, until); err != nil {
		return fmt.Errorf("upstream %s, endpoint %s: %w", e.upstream, endpoint, err)
	}
	e.ejections.Inc()
	e.log.Warn().Str("event", "endpoint_ejected").Str("endpoint", endpoint).Str("reason", "operator").
		Dur("wait_ms", d).Msg("endpoint ejected by an operator")
	e.renew()
	return nil
}

// Return ends the ejection of an endpoint.
func (e *Endpoints) Return(endpoint string) error {
	was, err := e.health.Return(endpoint)
	for _, h := range e.apart {
		if w, e := h.Return(endpoint); e == nil {
			was = was || w
		}
	}
	switch {
	case err != nil:
		return fmt.Errorf("upstream %s, endpoint %s: %w", e.upstream, endpoint, err)
	case !was:
		return fmt.Errorf("upstream %s, endpoint %s: it is not ejected", e.upstream, endpoint)
	}
	e.log.Info().Str("event", "endpoint_returned").Str("endpoint", endpoint).Str("reason", "operator").
		Msg("endpoint returned by an operator")
	return nil
}

// Status describes the endpoints.
func (e *Endpoints) Status() (all []status.Endpoint) {
	hs := e.apart
	if len(hs) == 0 {
		hs = []*endpoints.Health{e.health}
	}
	for _, h := range hs {
		for _, s := range h.Stats() {
			d := status.Endpoint{
				Address: s.Address, State: status.EndpointUsed, Connections: s.Connections, Ejections: s.Ejections,
			}
			switch {
			case s.IsEjected:
				d.State, d.Reason = status.EndpointEjected, s.Reason
				if !s.Ejected.IsZero() {
					d.Until = &s.Ejected
				}
			case s.Standby:
				d.State = status.EndpointStandby
			}
			all = append(all, d)
		}
	}
	return all
}
