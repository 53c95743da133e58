// Package proxy bridges RPC Calls from one side to the other and their Replies
// back.
//
// # The road of one Call
//
// A client's connection, a [tcpClient] or an [rdmaClient], reads a Call into memory of the
// arena and makes a [call] of it. [front.begin] walks the header, finds the [upstream.Upstream] by the
// route, has the upper-layer binding analyse the Call, and assigns an XID. The upstream's pool
// dispatches the call to a connection with a free credit, an [rdmaConn] or a [tcpConn]. When
// the Reply is there, [front.deliver] puts the client's XID back and sends the Reply in one
// gather write.
//
// # Ownership
//
// Every connection lives on one loop, which alone touches it. One loop at a time touches a
// call: its client's, then that of the connection to the upstream, then its client's again.
// When both are the same loop, nothing is posted, and the goroutine that read the Call
// finishes it.
//
// # What becomes of a Call
//
// Every Call that was read is answered, or its client's connection is closed. The file fate.go
// decides which of the two happens, and which Calls are sent to the upstream again.
package proxy

import (
	"context"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/internal/regmem"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
	"github.com/rdmabridge/rdmabridge/metrics"
	"github.com/rdmabridge/rdmabridge/pool/dials"
	"github.com/rdmabridge/rdmabridge/proxy/admit"
	"github.com/rdmabridge/rdmabridge/proxy/identity"
	"github.com/rdmabridge/rdmabridge/proxy/listener"
	"github.com/rdmabridge/rdmabridge/proxy/observe"
	"github.com/rdmabridge/rdmabridge/proxy/reach"
	"github.com/rdmabridge/rdmabridge/proxy/settings"
	"github.com/rdmabridge/rdmabridge/rdmaside"
	"github.com/rdmabridge/rdmabridge/tcpframe"
)

// Options describe a Proxy. Log, Metrics and Socket may be zero.
type Options struct {
	Log      zerolog.Logger
	Metrics  *metrics.Registry
	Engine   *tcpframe.Engine
	Arena    *regmem.Arena
	Registry *ulb.Registry

	Listeners []settings.ListenerOptions
	Upstreams []settings.UpstreamOptions
	Tenants   []admit.TenantOptions

	// Identity tells this bridge from others that have its address at a server, and is the same
	// after a restart. XIDs and the numbers of lock owners depend on it.
	Identity string

	// Observer sees the Calls that are over; nil for none.
	Observer observe.Observer

	// Socket returns a TCP socket that already listens at an address, or nil if there is
	// none. Start calls it once for each address, and the listener owns the socket. A nil
	// Socket returns nil for every address.
	Socket func(address string) *net.TCPListener

	// LookUp finds the addresses of the names among the endpoints; nil for the host's resolver.
	LookUp reach.LookUp
}

// A Proxy is a set of listeners and upstreams.
type Proxy struct {
	*inventory // of listeners and upstreams; constant

	log       zerolog.Logger
	metrics   *metrics.Registry
	engine    *tcpframe.Engine
	arena     *regmem.Arena
	registry  *ulb.Registry
	loops     eventLoops
	listening []*listener.Loop // the loops, for listeners
	socket    func(address string) *net.TCPListener
	lookUp    reach.LookUp // nil for the host's resolver

	calls    *regmem.Account // memory for Calls
	replies  *regmem.Account // memory for Replies, which Calls cannot exhaust
	rdma     *listener.RDMARoom
	receives *rdmaside.ReceivePool // memory for the Receives of RDMA clients; nil without RDMA listeners
	dials    *dials.Limiter        // bounds the attempts to connect of all upstreams
	identity identity.Bridge
	xids     *identity.XIDs
	flights  *identity.Flights
	hosts    *admit.Hosts
	memory   *admit.Memory
	slow     *admit.SlowReaders

	tenants      *admit.Tenants
	tenantCounts listener.CountsByTenant
	watching     sync.Mutex // held while who watches the loops changes; a leaf
	operations   *observe.Operations
	looking      sync.Mutex // held while the loops are asked: collect.go; taken before all others
	round        uint64     // counts the times; guarded by looking

	refreshing sync.Mutex // held by RefreshTLS; before mu

	changing sync.Mutex      // held by Start and Reconfigure; before mu
	ctx      context.Context // Start's
	numbers  map[string]int  // the upstreams' numbers, by name; guarded by changing after New, as is numbered
	numbered int             // numbers given so far
	quit     chan struct{}   // closed by Close

	drains atomic.Bool // draining, for lines of upstreams
}

// Addr is the address that the named listener listens at, or "" if it does not listen.
func (p *Proxy) Addr(name string) string {
	for _, l := range p.CurrentListeners() {
		if l.Name == name {
			return l.Addr()
		}
	}
	return ""
}

// Drain stops accepting clients, closes the idle ones, and closes each other one when its last
// outstanding Call is answered. It returns when no client is left or ctx ends. Close ends the
// clients that are left.
func (p *Proxy) Drain(ctx context.Context) error {
	p.inventory.drain()
	p.drains.Store(true)
	p.changing.Lock() // a Reconfigure that runs has ended, and the next one will fail
	ls := p.AllListeners()
	p.changing.Unlock()
	for _, l := range ls {
		l.Drain()
	}
	t := time.NewTicker(20 * time.Millisecond)
	defer t.Stop()
	for {
		n := 0
		for _, l := range ls {
			n += l.ClientCount()
		}
		if n == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("proxy: drain: %d clients left: %w", n, ctx.Err())
		case <-t.C:
		}
	}
}

// Close ends every connection. Outstanding Calls are not answered, and their clients'
// connections are closed.
func (p *Proxy) Close() error {
	us, ok := p.inventory.close()
	if !ok {
		return nil
	}
	close(p.quit)
	for _, l := range p.AllListeners() {
		l.Close()
	}
	for _, u := range us {
		u.Close()
	}
	p.retiring.Wait()
	return nil
}

// weigh is the admit.Population of all clients.
func (p *Proxy) weigh(see func(g *admit.Client, sends func() admit.Sending) int64, done func(found []admit.Burden)) {
	all := byLoop(p.loops, p.allFronts())
	found := make([][]admit.Burden, len(p.loops))
	var left atomic.Int32
	left.Store(int32(len(p.loops)))
	for i, l := range p.loops {
		l.Post(loop.TaskFunc(func() {
			for _, f := range all[i] {
				if b, ok := f.burden(see); ok {
					found[i] = append(found[i], b)
				}
			}
			if left.Add(-1) == 0 {
				done(slices.Concat(found...))
			}
		}))
	}
}

// LoopsAnswer returns true once every event loop has run a task that was posted now. It returns false when stop
// is closed first: a loop that hangs does not answer. The loops must not have been stopped.
func (p *Proxy) LoopsAnswer(stop <-chan struct{}) bool {
	_, ok := loop.Gather(p.loops, stop, func(int) struct{} { return struct{}{} })
	return ok
}

// SetTap makes t the Tap from now on; nil for none. Any goroutine. A loop may use the Tap that was there
// before for a little longer.
func (p *Proxy) SetTap(t observe.Tap) {
	p.setWatch(func(w *observe.Watch, loop int) {
		if w.Tap = nil; t != nil {
			w.Tap = observe.NewLoopTap(t, loop)
		}
	})
}

// SetObserver makes o the Observer from now on; nil for none. Any goroutine.
func (p *Proxy) SetObserver(o observe.Observer) {
	p.setWatch(func(w *observe.Watch, _ int) { w.Observer = o })
}

// setWatch has each loop watched as before, but for what change changes.
func (p *Proxy) setWatch(change func(w *observe.Watch, loop int)) {
	p.watching.Lock()
	defer p.watching.Unlock()
	for i, l := range p.loops {
		w := new(observe.Watch)
		if old := l.account.watch.Load(); old != nil {
			w.Tap, w.Observer = old.Tap, old.Observer
		}
		if change(w, i); w.Tap == nil && w.Observer == nil {
			w = nil
		}
		l.account.watch.Store(w)
	}
}

// RefreshTLS looks at the files of all listeners and upstreams with TLS. A file that has changed must be the
// same at two calls before it is read, unless now is true. RefreshTLS reads files and waits for the loops.
func (p *Proxy) RefreshTLS(now bool) {
	p.refreshing.Lock()
	defer p.refreshing.Unlock()
	for _, l := range p.CurrentListeners() {
		l.RefreshTLS(now)
	}
	for _, u := range p.allUpstreams() {
		u.RefreshTLS(now, p.quit)
	}
}

// Loops is how many loops there are.
func (p *Proxy) Loops() int { return len(p.loops) }
