package proxy

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/rdmabridge/rdmabridge/pool"
)

// Pinned connections
//
// An NFSv4.1 server knows connections: a session is bound to those it was used on,
// calls its client back on one of them, and, when the client protects its state
// (SP4_MACH_CRED), refuses it on others until BIND_CONN_TO_SESSION was sent there.
// On connections that clients share none of this can work. So the connection of a
// client that speaks NFSv4.1 or later has a connection to the upstream of its own, and
// what the server sends on the one is for the client on the other, without a look
// inside: callback.go. Either may be TCP or RDMA.
//
// The pinned connection is a pool of one seat on the loop of the client: dialling,
// queueing, back-off and the fate of Calls are those of every pool. It is made at
// the first Call that needs it and closed when the client's connection ends.
//
// When it is lost, the client's connection stays if all its Calls can be sent again
// on the next one. NFSv4.1 Calls can: they name a session, a slot and a sequence
// number, and a server executes each of them once, whatever connection and whatever
// order they come in: RFC 8881 Section 2.10.6. What arrives late on the connection
// that was lost, after its replay was executed, or after the next Call of its slot
// was, is a retry or misordered, and not executed. If it is still being executed, the
// replay is told NFS4ERR_DELAY, as a client's own would be. CREATE_SESSION has a
// sequence number too, and BIND_CONN_TO_SESSION that comes again binds the connection
// it comes on, which is the one there is. There is no such protection for other Calls,
// here no more than on shared connections: fate.go has the rules. The next connection is
// bound to the session in the fore direction by its first SEQUENCE. The server tells
// the client in the flags of the Reply that it cannot call back (CB_PATH_DOWN), and
// the client binds the connection again: a client's own way to repair a path.

// A Mode says which clients' connections have one to the upstream of their own.
type Mode uint8

const (
	ModeAuto   Mode = iota // those on which NFSv4.1 or later is spoken
	ModeShared             // none
	ModePinned             // all
)

const (
	// pinnedReverse are the credits of the reverse direction. Linux asks for 2.
	pinnedReverse = 4
	// pinnedReceives are posted on a pinned RDMA connection that is idle.
	pinnedReceives = 8
	// pinnedShare is the part of the memory for Replies that pinned connections may
	// take when all are idle: one in so many. Half of it may be the shared
	// connections' (package configs), and something must be left for Replies.
	pinnedShare = 4
	// leastReceive is the memory of a Receive, and headerLen that of a Transport
	// header, in package rdmaside.
	leastReceive = 16 << 10
	headerLen    = 128
)

var errPinned = errors.New("proxy: as many clients as may have a connection of their own to the upstream")

// pins are the pinned connections of an upstream.
type pins struct {
	most    atomic.Int64 // connections; 0: the upstream pins none
	refused quiet

	mu     sync.Mutex // guards the rest; held while a pool is made
	all    map[*pin]struct{}
	next   int // endpoint to dial first
	closed bool
	wg     sync.WaitGroup // a count for each pin
}

// share fixes how many RDMA connections there may be when they may take so many octets.
func (ps *pins) share(octets int64, o *UpstreamOptions) {
	// A lease may be twice as long as what it is for.
	each := pinnedReceives*max(leastReceive, o.ReplyInline) + 2*headerLen*(o.Credits+2*pinnedReverse)
	ps.most.Store(max(1, min(int64(o.Pinned), octets/int64(each))))
}

// count is how many there are.
func (ps *pins) count() int {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	return len(ps.all)
}

// A pin is the connection of one client to one upstream, or the attempt to have one.
// But for the pool it is owned by the client's loop, which is the connection's.
type pin struct {
	u     *upstream  // constant, as the next three
	front *front     // the client's connection
	pool  *pool.Pool // of one seat
	first int        // the number of the endpoint to dial first
	once  sync.Once  // for release
	seat  *pool.Seat // the pool's; belongs to its goroutine, nil before the first dial

	from       reverser // that the latest reverse Call came on
	owed       int      // reverse Calls that the client's connection has not taken
	owedOctets int      // of those
}

// pin makes a pinned connection for the client of f. It fails with errPinned at the limit,
// and with errClosing.
func (u *upstream) pin(f *front) (*pin, error) {
	ps := &u.pins
	ps.mu.Lock()
	defer ps.mu.Unlock()
	switch {
	case ps.closed:
		return nil, errClosing
	case int64(len(ps.all)) >= ps.most.Load():
		return nil, errPinned
	}
	p := &pin{u: u, front: f}
	o := u.settings()
	// Clients are spread over the addresses of the server as the seats of the
	// shared pool are.
	switch {
	case o.partitioned():
		p.first = endpointFor(f.ledger.addr, len(o.Endpoints))
	case !o.Priority:
		p.first = ps.next
		ps.next++
	}
	own, err := pool.New(p.poolOptions(o), p, u)
	if err != nil {
		return nil, fmt.Errorf("proxy: %w", err)
	}
	p.pool = own
	if ps.all == nil {
		ps.all = make(map[*pin]struct{})
	}
	ps.all[p] = struct{}{}
	ps.wg.Add(1)
	p.pool.Start()
	return p, nil
}

func (p *pin) poolOptions(o *UpstreamOptions) pool.Options {
	po := pool.Options{
		Name: o.Name, Endpoints: o.Endpoints, Connections: 1, Loops: 1, First: p.front.loop.index,
		BackoffMin: o.BackoffMin, BackoffMax: o.BackoffMax, DialTimeout: o.ConnectTimeout, QueueWait: o.UnavailableAfter, QueueLimit: queueLimit,
		Failed:    p.u.failed,
		Discarded: p.u.left,
		HostGone:  gone,
		Dials:     p.u.endpoints.share,
		Metrics:   p.u.poolMetrics,
	}
	if o.partitioned() {
		n := p.first % len(o.Endpoints)
		po.Endpoints = o.Endpoints[n : n+1]
	} else {
		po.Health, po.Prefer, po.KeepEndpoint = p.u.endpoints.health, p.first, true
	}
	return po
}

// update makes o the settings of the connections to come. Those there are stay,
// unless their server is none any more: a client whose connection is replaced has to
// bind it again.
func (ps *pins) update(o *UpstreamOptions) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	for p := range ps.all {
		p.pool.Update(p.poolOptions(o), false)
	}
}

// release ends p, any number of times, on any goroutine. It does not wait: closing
// a pool does, for the loop.
func (p *pin) release() {
	p.once.Do(func() {
		go func() {
			ps := &p.u.pins
			p.pool.Close()
			if !p.u.isRDMA {
				p.u.source.leave(p.seat)
			}
			ps.mu.Lock()
			delete(ps.all, p)
			ps.mu.Unlock()
			ps.wg.Done()
		}()
	})
}

// close ends all, and those to come, and waits.
func (ps *pins) close() {
	ps.mu.Lock()
	ps.closed = true
	for p := range ps.all {
		p.release()
	}
	ps.mu.Unlock()
	ps.wg.Wait()
}

// Dial makes the connection. pool.Dialer.
func (p *pin) Dial(ctx context.Context, endpoint string, affinity int, s *pool.Seat) (pool.Member, error) {
	p.seat = s
	return p.u.dial(ctx, endpoint, affinity, s, p)
}

// unpinnable counts a client, at peer, that cannot have a connection of its own.
func (u *upstream) unpinnable(peer netip.AddrPort, reason error) {
	u.unpinned.Inc()
	if n := u.pins.refused.line(); n > 0 {
		u.log.Warn().Stringer("peer", peer).Int("clients", n).Int64("pinned", u.pins.most.Load()).Err(reason).
			Msg("no connection of the client's own; client connection closed")
	}
}
