package reach

import (
	"errors"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/internal/fnv"
	"github.com/rdmabridge/rdmabridge/internal/loglimit"
	"github.com/rdmabridge/rdmabridge/metrics"
	"github.com/rdmabridge/rdmabridge/pool"
)

// Source ports
//
// A server's duplicate request cache identifies a Call by its XID and by the address and port
// that it came from. When a connection is lost and the Call comes again on one with another
// port, the server executes it twice. So each seat of a TCP upstream keeps the port of its
// first connection for all later ones.
//
// A process that was killed leaves such Calls, too, and cannot tell the next process which
// ports it had. So a seat's first port follows from facts that the next process knows: the
// upstream's name and the number of the seat or lane, or for a pinned connection what a server
// would know the client by. When that port is in use, by another bridge on this host for
// example, the seat tries other ports in an order that is always the same. The client's address
// decides also which seat carries the client's Calls (sticky flows of package pool), and which
// XIDs they have. If the configuration names no ports, the seats use the range that the kernel
// chooses from.
//
// A seat that has another port than its first choice is astray, because the next process would
// not try that port. A seat is astray after a hand-over, when the process before kept the ports
// until it ended, and when a connection was replaced early. The seat tries for its first choice
// from time to time. Once it can have it, a connection from there replaces the present one.
//
// A port that was in use a moment ago may not be available at once, because the kernel
// remembers a connection until the peer has acknowledged its end. Connections therefore end
// with RST, which leaves nothing behind, and do so when the process is killed as well
// (DialOptions.Reset). If the port is not available all the same, the seat tries for it again
// for a while. When that does not help, or another process has taken the port, the seat moves
// to another port, and a metric counts that.

// A Source says where the connections to a TCP upstream come from. With the zero Source the
// kernel chooses the address.
type Source struct {
	Address   netip.Addr // of this host
	Low, High uint16     // the range of ports; 0: the range that the kernel chooses from
}

const (
	// samePortFor is how long a seat tries for its port before it moves to another one.
	samePortFor = 2 * time.Second
	// samePortEvery is the pause between two of these attempts.
	samePortEvery = 50 * time.Millisecond
	// A seat that is astray tries for its port after leastAstray, then after twice that, and
	// so on up to mostAstray. That costs no packet while the port is in use on this host.
	leastAstray = 10 * time.Second
	mostAstray  = 10 * time.Minute
	// anyTries is how many ports a seat tries before it lets the kernel choose one.
	anyTries = 64
)

var (
	errPorts  = errors.New("every source port is in use")
	errAstray = errors.New("another connection has the source port")
)

// Ports are the source ports of one upstream. They are safe for concurrent use.
type Ports struct {
	Source            // as configured, or with the kernel's range; Low is 0 if that is unknown
	any    bool       // the kernel may choose a port
	not    []portSpan // ports of the range that are reserved for others
	base   uint64     // where in the range the seats' ports begin: a hash of the upstream's name
	moved  *metrics.Counter
	log    *zerolog.Logger
	quiet  loglimit.Seldom

	mu    sync.Mutex          // guards taken; a leaf
	taken map[uint16]struct{} // ports of the range that seats have, connected or not
}

// NewPorts makes the ports of the upstream that has this name. moved counts the seats that had to take another port.
func NewPorts(name string, s Source, moved *metrics.Counter, log *zerolog.Logger) *Ports {
	o := &Ports{Source: s, moved: moved, log: log, taken: make(map[uint16]struct{})}
	o.base = uint64(fnv.Spread(fnv.Add(fnv.Basis, []byte(name))))
	if s.Low == 0 {
		o.any = true
		o.Low, o.High, o.not = kernelPorts(os.ReadFile)
	}
	return o
}

// A FirstPort says which port of the range a seat tries first.
type FirstPort struct {
	Shared uint64 // how many shared seats the upstream has
	Own    bool   // the seat is not one of them, but of a lane or a pinned connection
	Number uint64 // of the shared seat; otherwise a number that the next process knows, too
}

// A seatPort is the source port of a seat.
type seatPort struct {
	port  uint16 // 0 before the first connection
	first uint16 // the seat's first choice; 0 if there is none
	tries int    // attempts to get first while the seat has another port
}

// order is the order in which a seat that begins at f tries ports.
func (o *Ports) order(f FirstPort) portOrder {
	size := uint64(o.High-o.Low) + 1
	return portOrder{base: o.base, size: size, shared: min(f.Shared, size), own: f.Own, number: f.Number}
}

// take gives out a port of the range that no seat has. It begins with the n-th of r, and sets
// n to where the next call is to begin. It reports false when all ports have been tried.
func (o *Ports) take(r *portOrder, n *uint64) (uint16, bool) {
	tries := 2 * r.size
	if o.any {
		tries = min(tries, anyTries)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	for *n < tries {
		port := o.Low + uint16(r.port(*n))
		*n++
		if _, ok := o.taken[port]; !ok && !o.kept(port) {
			o.taken[port] = struct{}{}
			return port, true
		}
	}
	return 0, false
}

// first is the first usable port of r, or 0.
func (o *Ports) first(r *portOrder) uint16 {
	if o.Low == 0 {
		return 0
	}
	for n := range min(2*r.size, anyTries) {
		if port := o.Low + uint16(r.port(n)); !o.kept(port) {
			return port
		}
	}
	return 0
}

// claim gives port to a seat, unless another seat has it.
func (o *Ports) claim(port uint16) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if _, ok := o.taken[port]; ok || port == 0 {
		return false
	}
	o.taken[port] = struct{}{}
	return true
}

// kept reports whether port is reserved, so that the kernel would not choose it.
func (o *Ports) kept(port uint16) bool {
	return slices.ContainsFunc(o.not, func(s portSpan) bool { return s.low <= port && port <= s.high })
}

func (o *Ports) release(port uint16) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.taken, port)
}

// Astray is the time until s is to try for its first choice of a port; 0 if s has it.
func (o *Ports) Astray(s *pool.Seat) time.Duration {
	at, ok := s.Data.(*seatPort)
	if !ok || at.first == 0 || at.port == at.first {
		return 0
	}
	d := min(leastAstray<<min(at.tries, 10), mostAstray)
	at.tries++
	return d
}

// GiveBack gives back the port of s, which dials no more.
func (o *Ports) GiveBack(s *pool.Seat) {
	if s == nil {
		return
	}
	if p, ok := s.Data.(*seatPort); ok {
		o.release(p.port)
	}
}
