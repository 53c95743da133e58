package proxy

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/internal/crowd"
	"github.com/rdmabridge/rdmabridge/internal/loglimit"
	"github.com/rdmabridge/rdmabridge/internal/proxyheader"
	"github.com/rdmabridge/rdmabridge/metrics"
	"github.com/rdmabridge/rdmabridge/pool"
)

// Pinned connections
//
// An NFSv4.1 server knows its connections. It binds a session to the connections that the
// session was used on and calls the client back on one of them. When the client protects its
// state (SP4_MACH_CRED), the server refuses the session on any other connection until the client
// sends BIND_CONN_TO_SESSION there. None of this can work on connections that clients share. So
// each client connection that speaks NFSv4.1 or later gets a connection to the upstream of its
// own. The server's messages on the one are for the client on the other, and the proxy passes
// them on without looking inside: callback.go. Either connection may be TCP or RDMA.
//
// A pinned connection is a pool with one seat on the client's loop, so that dialling,
// queueing, back-off and the fate of Calls are the same as in every pool. The first Call that
// needs the connection makes it, and the end of the client's connection closes it.
//
// When a pinned connection is lost, the client's connection stays if the proxy can send all
// its Calls again on the next one. It can for NFSv4.1: a Call names a session, a slot and a
// sequence number, and a server executes it once, whatever connection it comes on and in
// whatever order: RFC 8881 Section 2.10.6. A Call that arrives late on the lost connection,
// after the server has executed its replay or the next Call of its slot, is a retry or
// misordered, and the server does not execute it. If the server is still executing the Call,
// it answers the replay NFS4ERR_DELAY, as it would answer the client's own.
// CREATE_SESSION has a sequence number too, and a repeated BIND_CONN_TO_SESSION binds the
// connection it comes on, which is the only one. Other Calls have no such protection, here
// or on shared connections: fate.go has the rules. The first SEQUENCE binds the next connection to
// the session in the fore direction. The server tells the client in the flags of the Reply
// that it cannot call back (CB_PATH_DOWN), and the client binds the connection again, as
// clients do to repair a path.

// A Mode says which connections to the upstream carry the Calls of a client connection.
type Mode uint8

const (
	ModeAuto     Mode = iota // as ModeSessions
	ModeShared               // any of the shared connections, for each Call
	ModePinned               // a pinned connection
	ModeSessions             // a lane if it speaks NFSv4.1 or later, and otherwise as ModeShared
)

var modeNames = [...]string{"sessions", "shared", "pinned", "sessions"}

func (m Mode) String() string { return modeNames[m] }

const (
	// pinnedReverse is how many credits the reverse direction has. Linux asks for 2.
	pinnedReverse = 4
	// pinnedReceives is how many Receives are posted on an idle pinned RDMA connection.
	pinnedReceives = 8
	// pinnedShare is the part of the memory for Replies that idle pinned connections may
	// take together: a quarter. Shared connections may take half of the memory (package
	// configs), and Replies need the rest.
	pinnedShare = 4
	// leastReceive is the memory of a Receive in package rdmaside, at least, and headerLen
	// is the memory of a Transport header there.
	leastReceive = 16 << 10
	headerLen    = 128
)

var errPinned = errors.New("proxy: the upstream has as many pinned connections as it may")

// pins are the pinned connections of an upstream.
type pins struct {
	most    atomic.Int64 // how many there may be; 0: the upstream pins no client
	refused loglimit.Seldom

	quota     *pool.Quota // divides the Calls on all of them among hosts; constant
	makesRoom *metrics.Counter
	crowded   loglimit.Seldom

	mu        sync.Mutex // guards the rest; held while a pool is made
	all       crowd.Crowd[*pin]
	hosts     map[*host]*pinHost
	evictions int // pins whose clients are being closed for others
	next      int // the number of the endpoint that the next pin dials first
	closed    bool
	wg        sync.WaitGroup // counts the pins
}

// share bounds the pinned RDMA connections so that they take no more than octets of memory.
func (ps *pins) share(octets int64, o *UpstreamOptions) {
	ps.most.Store(o.mostPins(octets))
}

// count is how many there are.
func (ps *pins) count() int {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	return ps.all.Len()
}

// pools are the pools of all pins.
func (ps *pins) pools() []*pool.Pool {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	all := make([]*pool.Pool, 0, ps.all.Len())
	for m := range ps.all.All() {
		all = append(all, m.Value.pool)
	}
	return all
}

// A pin is one client's connection to one upstream, or the attempt to make it. All but the
// pool belongs to the client's loop, on which the connection lives, too.
type pin struct {
	u       *upstream          // constant, as the next three
	front   *front             // the client's connection
	pool    *pool.Pool         // of one seat
	first   int                // the number of the endpoint to dial first
	once    sync.Once          // for release
	place   crowd.Member[*pin] // in pins.all; guarded by pins.mu, as are host and evicted
	host    *host
	evicted bool       // an eviction closes the client
	seat    *pool.Seat // the pool's; belongs to its goroutine, nil before the first dial

	from reverser // the connection that the latest reverse Call came on
	owed owed
}

// pin makes a pinned connection for the client of f. It fails with errPinned when the upstream
// has as many as it may and no other client has to give way, and with errClosing after pins.close.
func (u *upstream) pin(f *front) (*pin, error) {
	ps := &u.pins
	ps.mu.Lock()
	defer ps.mu.Unlock()
	switch {
	case ps.closed:
		return nil, errClosing
	case int64(ps.all.Len()) >= ps.most.Load() && !u.makeRoom(f):
		return nil, errPinned
	}
	p := &pin{u: u, front: f, host: f.ledger.host}
	o := u.settings()
	// Pins are spread over the server's addresses in the same way as the seats of the
	// shared pool.
	switch {
	case o.partitioned():
		p.first = endpointFor(f.ledger.addr(), len(o.Endpoints))
	case !o.Priority:
		p.first = ps.next
		ps.next++
	}
	h := ps.hosts[p.host]
	if h == nil {
		h = &pinHost{quota: ps.quota.Host()}
	}
	po := p.poolOptions(o)
	po.Quota = h.quota
	own, err := pool.New(po, p, u)
	if err != nil {
		return nil, fmt.Errorf("proxy: %w", err)
	}
	p.pool = own
	ps.add(p, h)
	ps.wg.Add(1)
	p.pool.Start()
	return p, nil
}

func (p *pin) poolOptions(o *UpstreamOptions) pool.Options {
	po := pool.Options{
		Name: o.Name, Endpoints: o.Endpoints, Connections: 1, Loops: 1, First: p.front.loop.index,
		BackoffMin: o.BackoffMin, BackoffMax: o.BackoffMax, DialTimeout: o.ConnectTimeout, QueueWait: o.UnavailableAfter, QueueLimit: queueLimit,
		Failed:    p.u.lines.failed,
		Discarded: p.u.discarded,
		HostGone:  gone,
		Local:     isLocal,
		Dials:     p.u.endpoints.share,
		Metrics:   p.u.poolMetrics,
	}
	if o.partitioned() {
		n := p.first % len(o.Endpoints)
		po.Endpoints, po.Health = o.Endpoints[n:n+1], p.u.endpoints.apart[n]
	} else {
		po.Health, po.Prefer, po.KeepEndpoint = p.u.endpoints.health, p.first, true
	}
	return po
}

// update makes o the settings of later connections. The connections that are up stay, unless
// their server is no longer configured, because a client has to bind its session again when
// its connection is replaced.
func (ps *pins) update(o *UpstreamOptions) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	ps.quota.Set(o.pinnedCalls())
	for m := range ps.all.All() {
		m.Value.pool.Update(m.Value.poolOptions(o), false)
	}
}

// release ends p. It may be called any number of times on any goroutine. It does not wait,
// because closing a pool waits for the loop.
func (p *pin) release() {
	p.once.Do(func() {
		go func() {
			ps := &p.u.pins
			p.pool.Close()
			if !p.u.isRDMA {
				p.u.source.leave(p.seat)
			}
			ps.mu.Lock()
			ps.remove(p)
			ps.mu.Unlock()
			ps.wg.Done()
		}()
	})
}

// close ends every pin, lets no other begin, and waits until all have ended.
func (ps *pins) close() {
	ps.mu.Lock()
	ps.closed = true
	for m := range ps.all.All() {
		m.Value.release()
	}
	ps.mu.Unlock()
	ps.wg.Wait()
}

// Dial makes the connection. pool.Dialer.
func (p *pin) Dial(ctx context.Context, endpoint string, affinity int, s *pool.Seat) (pool.Member, error) {
	p.seat = s
	return p.u.dial(ctx, endpoint, affinity, s, p)
}

// carries is part of connOwner. Only the client has the pool of the pin.
func (p *pin) carries(*call) bool { return true }

// answered is part of connOwner.
func (p *pin) answered() {}

// ended is part of connOwner. The pool makes another connection.
func (p *pin) ended(error) {}

// ports is part of connOwner.
func (p *pin) ports() uint64 { return uint64(p.front.ledger.origin().hash()) }

// names is part of connOwner.
func (p *pin) names(b []byte) []byte {
	return proxyheader.AppendClient(b, p.front.peer, p.front.client.local())
}

// receives is part of connOwner.
func (p *pin) receives() (idle, reverse int) { return pinnedReceives, pinnedReverse }

// keeps is part of connOwner: another connection replaces the client's.
func (p *pin) keeps(*call, int, int) bool { return false }

// mostCallBacks is part of connOwner.
func (p *pin) mostCallBacks() int { return maxCallbacks }

// unpinnable counts and logs the client at peer, which cannot have a pinned connection.
func (u *upstream) unpinnable(peer netip.AddrPort, reason error) {
	u.unpinned.Inc()
	u.pins.refused.Line(&u.log, zerolog.WarnLevel, "client_closed").Str("reason", "no_pin").Stringer("peer", peer).Int64("pinned", u.pins.most.Load()).Err(reason).
		Msg("the upstream has no room for another pinned connection; client connection closed")
}
