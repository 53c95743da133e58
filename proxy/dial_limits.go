package proxy

import "time"

// Attempts to connect
//
// A pool.Limiter bounds the attempts of the whole process, so that a server that comes back is not
// overrun. But a Call waits for its connection no longer than UpstreamOptions.UnavailableAfter, and the
// limiter alone must not make it wait so long. So the limits follow from how many connections the
// upstreams may have: all of them may be dialled in half of that time, if an attempt takes dialTime.

const (
	leastDials          = 64  // attempts under way
	leastDialsPerSecond = 200 // attempts that begin
	// dialTime is how long an attempt may take on average. A handshake takes a few round trips.
	dialTime = 150 * time.Millisecond
	// leastUnavailable bounds the rate: nobody waits for the limiter who waits less than this.
	leastUnavailable = time.Second
)

// dialLimits returns how many attempts to connect to upstreams with these options may be under way,
// and how many may begin in a second.
func dialLimits(all []*UpstreamOptions) (most, perSecond int) {
	for _, o := range all {
		half := max(o.UnavailableAfter, leastUnavailable) / 2
		perSecond += int((time.Duration(o.mostConnections())*time.Second + half - 1) / half)
	}
	perSecond = max(perSecond, leastDialsPerSecond)
	// One upstream has half of the attempts that may be under way: pool.Limiter.
	return max(leastDials, int(2*time.Duration(perSecond)*dialTime/time.Second)), perSecond
}

// mostConnections is how many connections to an upstream there may be.
func (o *UpstreamOptions) mostConnections() int {
	n := o.Connections
	if o.partitioned() {
		n += len(o.Endpoints) - 1 // each has as many as the others
	}
	if o.Mode == ModePinned {
		n += o.Pinned
	}
	return n + o.laneCount()
}

// limitDials gives the limiter the limits for the upstreams that there are.
func (p *Proxy) limitDials() {
	var all []*UpstreamOptions
	for _, u := range p.allUpstreams() {
		all = append(all, u.settings())
	}
	p.dials.Set(dialLimits(all))
}
