package reach

import "time"

// Attempts to connect
//
// A dials.Limiter bounds the attempts of the whole process, so that a server that comes back is not
// overrun. But a Call waits for its connection no longer than Demand.Within, and the
// limiter alone must not make it wait so long. So the limits follow from how many connections the
// upstreams may have: all of them may be dialled in half of that time, if an attempt takes DialTime.

const (
	LeastDials          = 64  // LeastDials is how many attempts may always be under way.
	LeastDialsPerSecond = 200 // LeastDialsPerSecond is how many may always begin in a second.
	// DialTime is how long an attempt may take on average. A handshake takes a few round trips.
	DialTime = 150 * time.Millisecond
	// leastUnavailable bounds the rate: nobody waits for the limiter who waits less than this.
	leastUnavailable = time.Second
)

// A Demand is what an upstream needs of the limits.
type Demand struct {
	Connections int           // how many there may be
	Within      time.Duration // how long a Call waits for one
}

// DialLimits returns how many attempts to connect to upstreams with these demands may be under way,
// and how many may begin in a second.
func DialLimits(all []Demand) (most, perSecond int) {
	for _, d := range all {
		half := max(d.Within, leastUnavailable) / 2
		perSecond += int((time.Duration(d.Connections)*time.Second + half - 1) / half)
	}
	perSecond = max(perSecond, LeastDialsPerSecond)
	// One upstream has half of the attempts that may be under way: dials.Limiter.
	return max(LeastDials, int(2*time.Duration(perSecond)*DialTime/time.Second)), perSecond
}
