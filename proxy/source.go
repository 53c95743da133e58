package proxy

import (
	"errors"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/rdmabridge/rdmabridge/metrics"
	"github.com/rdmabridge/rdmabridge/pool"
)

// Source ports
//
// A server's duplicate request cache knows a Call by its XID and by where it came
// from, the port included. A Call that comes again on another connection, because the
// first was lost, is executed again if that has another port. So each seat of a TCP
// upstream keeps the port that its first connection had for those that follow.
//
// A process that was killed leaves such Calls, too, and tells nobody which ports it had.
// So a seat's first port is made of what the next process knows as well: the upstream's
// name and the number of the seat, or for a client's own connection the client's address.
// When the port is in use, as of another bridge on this host, others follow in an order
// that is always the same. Which seat a client's Calls go by is told by its address
// (Flow.Place of package pool), and which XIDs they have as well: xid_slot.go. Without
// ports to choose from in the configuration they are those that the kernel would choose
// from.
//
// A seat that has another port than its first choice is astray: what it has, the next process
// will not try. That is so after a hand-over, when the process before had the ports until it
// ended, and when a connection was replaced by another before its time. The seat tries for its
// first choice from time to time, and when it can be had, a connection from there takes
// the place of the one there is.
//
// A port that was in use a moment ago may not be had at once: the kernel keeps what it
// knows of a connection until the peer has acknowledged its end. Connections end with RST
// for that reason, which leaves nothing, when the process is killed as well
// (DialOptions.Reset). If the port cannot be had nevertheless, it is asked for again
// for a while. When that does not help, or another process has the port meanwhile, the
// seat moves to another one, and that is counted.

// A Source says where the connections to a TCP upstream come from. Of the zero Source the
// address is the kernel's choice.
type Source struct {
	Address   netip.Addr // of this host
	Low, High uint16     // ports; 0 for any of those that the kernel chooses from
}

const (
	// samePortFor is how long a seat's port is asked for before another one is taken.
	samePortFor = 2 * time.Second
	// samePortEvery is the pause between.
	samePortEvery = 50 * time.Millisecond
	// A seat that is astray tries for its port after leastAstray, then after twice that, and
	// so on up to mostAstray. That costs no packet while the port is in use on this host.
	leastAstray = 10 * time.Second
	mostAstray  = 10 * time.Minute
	// anyTries is how many ports are tried before the kernel chooses, where it may.
	anyTries = 64
)

var (
	errPorts  = errors.New("every source port is in use")
	errAstray = errors.New("another connection has the source port")
)

// sources are the source ports of one upstream.
type sources struct {
	Source            // with the range that any is; 0 if that is not known
	any    bool       // the kernel may choose
	not    []portSpan // ports of the range that are kept for others
	base   uint64     // where in the range the seats' ports begin: a hash
	moved  *metrics.Counter
	quiet  quiet

	mu    sync.Mutex          // guards taken; a leaf
	taken map[uint16]struct{} // ports of the range that a seat has, connected or not
}

func newSources(name string, s Source, moved *metrics.Counter) *sources {
	o := &sources{Source: s, moved: moved, taken: make(map[uint16]struct{})}
	o.base = mix(fnv(fnvBasis, []byte(name))) >> 32
	if s.Low == 0 {
		o.any = true
		o.Low, o.High, o.not = kernelPorts(os.ReadFile)
	}
	return o
}

// A seatPort is the source port of a seat.
type seatPort struct {
	port  uint16 // 0 before the first connection
	first uint16 // the seat's first choice; 0 if there is none
	tries int    // for it, while it has another one
}

// order is that of seat s, which is p's unless p is nil.
func (u *upstream) order(s *pool.Seat, p *pin) portOrder {
	o, settings := u.source, u.settings()
	pools := uint64(len(u.pools))
	r := portOrder{base: o.base, size: uint64(o.High-o.Low) + 1, own: p != nil}
	each := (uint64(settings.Connections) + pools - 1) / pools
	r.shared = min(each*pools, r.size)
	if r.own {
		r.number = uint64(addressHash(p.front.ledger.addr))
	} else {
		r.number = uint64(s.Index())*pools + uint64(slices.Index(u.pools, s.Pool()))
	}
	return r
}

// take finds a port of the range that no seat has, from the n-th of r on, and is that at
// which the next call is to begin. It reports false when all have been tried.
func (o *sources) take(r *portOrder, n *uint64) (uint16, bool) {
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

// first is the port that r begins with, or 0.
func (o *sources) first(r *portOrder) uint16 {
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

// claim takes port for a seat, unless another one has it.
func (o *sources) claim(port uint16) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if _, ok := o.taken[port]; ok || port == 0 {
		return false
	}
	o.taken[port] = struct{}{}
	return true
}

// kept reports whether port is one that the kernel would not choose.
func (o *sources) kept(port uint16) bool {
	return slices.ContainsFunc(o.not, func(s portSpan) bool { return s.low <= port && port <= s.high })
}

func (o *sources) release(port uint16) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.taken, port)
}

// astray is when s is to try for its first choice of a port; 0 if it has that.
func (o *sources) astray(s *pool.Seat) time.Duration {
	at, ok := s.Data.(*seatPort)
	if !ok || at.first == 0 || at.port == at.first {
		return 0
	}
	d := min(leastAstray<<min(at.tries, 10), mostAstray)
	at.tries++
	return d
}

// leave gives the port of s back. No connection will be made for s any more.
func (o *sources) leave(s *pool.Seat) {
	if s == nil {
		return
	}
	if p, ok := s.Data.(*seatPort); ok {
		o.release(p.port)
	}
}
