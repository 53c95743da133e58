package proxy

import (
	"context"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/internal/crowd"
	"github.com/rdmabridge/rdmabridge/internal/loglimit"
	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/metrics"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
	"github.com/rdmabridge/rdmabridge/tcpframe"
)

// A listener accepts clients at one address, over TCP or RDMA.
type listener struct {
	p       *Proxy
	name    string // constant, as are address and isRDMA
	address string // as configured
	isRDMA  bool
	log     zerolog.Logger
	lines   clientLines
	current atomic.Pointer[listenerSettings]

	maxHeld int64 // octets of memory that Replies waiting for one client may take before it is closed

	tcp      *tcpframe.Listener // start sets this one or rdma
	rdma     fabric.Listener
	refusals refusals
	arrivals arrivals
	sweeper  *time.Timer // closes idle RDMA clients; nil without an idle timeout

	stopOnce sync.Once
	empty    chan struct{} // closed when the listener drains and has no client

	mu        sync.Mutex // guards tcp, rdma, sweeper and all below; a leaf
	clients   crowd.Crowd[*front]
	evictions int // under way
	draining  bool
	emptied   bool // empty is closed

	counts   []listenerCounts          // by the index of the loop, which counts in its element
	results  [results]*metrics.Counter // the sums of those in counts
	accepted *metrics.Counter          // clients that have joined
	stray    *metrics.Counter
	evicted  *metrics.Counter

	tls          tlsFiles                          // of TCP alone, as are plainCalls and refusedCalls
	plainCalls   *metrics.Counter                  // Calls that were refused because they came without TLS
	refusedCalls [oncrpc.Refusals]*metrics.Counter // Calls whose header is not valid
	crowded      loglimit.Seldom                   // of lines about evictions
}

// listenerCounts count the Calls of one loop's clients.
type listenerCounts struct {
	calls   *metrics.Counter
	results [results]*metrics.Counter
	waits   *waitCounts
	tables  []*operationTable // by upstream, in the order of their first Calls; the loop's
}

func newListenerCounts(m *metrics.Registry, listener string) (c listenerCounts) {
	c.waits = new(waitCounts)
	c.calls = m.Counter(metrics.ListenerReceivedCalls, listener)
	for i, name := range resultNames {
		c.results[i] = m.Counter(metrics.ListenerCalls, listener, name)
	}
	return c
}

// newListener makes a listener that has no settings and does not listen yet.
func newListener(p *Proxy, o ListenerOptions) *listener {
	l := &listener{
		p: p, name: o.Name, address: o.Address, isRDMA: o.RDMA,
		log: p.log.With().Str("listener", o.Name).Logger(), empty: make(chan struct{}),
	}
	// One client must not take the memory of all. A client gets this far only when its
	// Replies are much larger than was expected and it reads none of them.
	l.maxHeld = max(p.replies.Limit()/4, 2*int64(p.registry.Limits().MaxReply))
	m := p.metrics
	for _, on := range p.loops {
		l.counts = append(l.counts, newListenerCounts(on.metrics, o.Name))
	}
	l.results = newListenerCounts(m, o.Name).results
	l.accepted = m.Counter(metrics.ListenerAcceptedConnections, o.Name)
	l.stray = m.Counter(metrics.ListenerStrayReplies, o.Name)
	l.evicted = m.Counter(metrics.ListenerEvictedClients, o.Name)
	l.refusals.init(m, o.Name, o.RDMA)
	if !o.RDMA {
		l.plainCalls = m.Counter(metrics.ListenerTLSRefusedCalls, o.Name)
		for why := oncrpc.RefusedNot + 1; why < oncrpc.Refusals; why++ {
			l.refusedCalls[why] = m.Counter(metrics.ListenerRefusedCalls, o.Name, oncrpc.RefusalNames[why])
		}
	}
	return l
}

// describe registers the functions that read l. They replace those of an earlier listener of the same name.
func (l *listener) describe() {
	p, m := l.p, l.p.metrics
	m.GaugeFunc(metrics.ListenerClients, func() float64 {
		return float64(p.sum(l.name, (*listener).clientCount))
	}, l.name)
	for r, name := range waitNames {
		m.CounterFunc(metrics.ListenerPausedSeconds, func() float64 {
			ns := int64(0)
			for i := range l.counts {
				ns += l.counts[i].waits.ns[r].Load()
			}
			return float64(ns) / 1e9
		}, l.name, name)
		m.CounterFunc(metrics.ListenerPauses, func() (n float64) {
			for i := range l.counts {
				n += float64(l.counts[i].waits.pauses[r].Load())
			}
			return n
		}, l.name, name)
	}
	if l.isRDMA {
		m.GaugeFunc(metrics.ListenerRDMAOutstandingCalls, func() float64 {
			return float64(p.sum(l.name, (*listener).outstanding))
		}, l.name)
	}
}

// weight returns the weight of clients at a, as far as their address tells.
func (l *listener) weight(a netip.Addr) int {
	return l.p.tenantOf(a, nil).weightOf(l.settings().weight(a))
}

// tenantOpen reports whether the tenant of a client at a is not known before the client has TLS, because its
// certificate may decide. Any goroutine.
func (l *listener) tenantOpen(a netip.Addr) bool {
	t := l.settings().opts.TLS
	return t != nil && t.Server.AsksClients() && l.p.tenantOpen(a)
}

// settings returns the settings in force. Any goroutine.
func (l *listener) settings() *listenerSettings { return l.current.Load() }

// start listens on socket, which it takes over, or at the listener's address if socket is nil.
func (l *listener) start(ctx context.Context, socket *net.TCPListener) error {
	if l.isRDMA {
		return l.startRDMA(ctx, socket)
	}
	l.describeTLS(l.settings().opts.TLS)
	o := l.tcpOptions(l.settings())
	o.Socket = socket
	tcp, err := l.p.engine.Listen(o, func(*tcpframe.Conn) tcpframe.RecordHandler { return newTCPClient(l) })
	if err != nil {
		return err
	}
	l.mu.Lock()
	l.tcp = tcp
	l.mu.Unlock()
	l.log.Info().Str("event", "listening").Stringer("address", tcp.Addr()).Str("transport", "tcp").Msg("listening")
	return nil
}

// preferredLoop returns the loop that has the connection to a TCP upstream which Calls of a client at a must keep, so
// that they need not cross to another loop. It returns nil if there is no such connection. Any goroutine.
func (l *listener) preferredLoop(a netip.Addr) *tcpframe.Loop {
	u := l.settings().routes.other
	if u == nil || u.isRDMA || u.settings().Mode == ModePinned {
		return nil // a pinned connection is made on the client's loop
	}
	return l.p.loops[u.poolFor(a).StickyLoop(addressHash(a))].tcp
}

// sendTimeout bounds how long a TCP client may take to read 64 KiB of its Replies.
const sendTimeout = 2 * time.Minute

func (l *listener) tcpOptions(t *listenerSettings) tcpframe.ListenOptions {
	o := &t.opts
	return tcpframe.ListenOptions{
		Address: o.Address, Name: o.Name,
		MaxConns: o.MaxConnections, MaxConnsPerAddr: perAddress(o), Allow: o.Allow, Privileged: o.Privileged, MakeRoom: l.makeRoom,
		Proxies: o.Proxies, ProxyTimeout: o.ProxyTimeout,
		Admit: l.admitTCP, Prefer: l.preferredLoop, Rate: o.ConnectionsRate,
		Conn: tcpframe.ConnOptions{
			// tcpClient.Opened sets Memory, because each client has its share.
			MaxRecord:   o.MaxRecord,
			MaxOutbound: t.maxOwed, OutboundLimit: l.maxHeld + 1<<20,
			StallTimeout: o.StallTimeout, Pace: o.Pace, RecordTimeout: o.RequestTimeout, SendTimeout: sendTimeout, IdleTimeout: o.IdleTimeout,
		},
	}
}

// update puts the settings t in force.
func (l *listener) update(t *listenerSettings) {
	t.policy.describe(l)
	l.describeTLS(t.opts.TLS)
	old := l.current.Swap(t)
	l.follow()
	t.policy.forgetRules(l.p.metrics, l.name, old.policy)
	old.rates.replaced(t.rates) // after follow: clients that waited go on under the new limits
	l.mu.Lock()
	tcp, rdma := l.tcp, l.rdma
	l.mu.Unlock()
	if tcp != nil {
		tcp.Update(l.tcpOptions(t))
	}
	if r, ok := rdma.(fabric.LimitSetter); ok {
		r.SetLimits(t.opts.MaxConnections, t.opts.MaxStarting, t.opts.MaxStartingPerAddress)
	}
	if rdma != nil {
		l.sweepLater()
	}
}

// follow has the ledger of each connected client follow the settings in force, on the client's
// loop. A client that joins later does so in front.join.
func (l *listener) follow() {
	all := l.p.byLoop(l.snapshot(false))
	for i, on := range l.p.loops {
		on.Post(loop.TaskFunc(func() {
			for _, f := range all[i] {
				if !f.gone() {
					f.ledger.follow()
				}
			}
			l.dropTables(on)
		}))
	}
}

// socket returns the listening socket, or nil if the listener has none or its provider does not
// show it.
func (l *listener) socket() Socket {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.tcp != nil {
		return l.tcp
	}
	if s, ok := l.rdma.(fabric.SocketListener); ok {
		return s
	}
	return nil
}

// allowed reports whether clients at a may connect.
func (l *listener) allowed(a netip.Addr) bool {
	allow := l.settings().opts.Allow
	if len(allow) == 0 {
		return true
	}
	a = a.Unmap()
	for _, p := range allow {
		if p.Contains(a) {
			return true
		}
	}
	return false
}

func perAddress(o *ListenerOptions) int {
	if o.MaxConnectionsPerAddress > 0 {
		return o.MaxConnectionsPerAddress
	}
	return -1
}

func (l *listener) addr() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.tcp != nil:
		return l.tcp.Addr().String()
	case l.rdma != nil:
		return l.rdma.Addr().String()
	}
	return ""
}

func (l *listener) upstreams() []*upstream { return l.settings().upstreams() }

func (l *listener) clientCount() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.clients.Len()
}

// join adds a client. It reports false when the listener is draining: then the caller closes
// the client as soon as it is idle.
func (l *listener) join(f *front) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	f.place.Value = f
	l.accepted.Inc()
	l.clients.Add(&f.place, f.ledger.addr(), f.ledger.weight)
	return !l.draining
}

func (l *listener) leave(f *front) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.clients.Remove(&f.place)
	l.noteEmpty()
}

// noteEmpty closes empty if it is time. l.mu is held.
func (l *listener) noteEmpty() {
	if l.draining && l.clients.Len() == 0 && !l.emptied {
		l.emptied = true
		close(l.empty)
	}
}

// reweigh makes the weight of f that of its host where clients give way to others.
func (l *listener) reweigh(f *front) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.clients.Reweigh(&f.place, f.ledger.weight)
}

// snapshot lists the clients. When draining is true, join reports false from now on.
func (l *listener) snapshot(draining bool) []*front {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.draining = l.draining || draining
	l.noteEmpty()
	all := make([]*front, 0, l.clients.Len())
	for m := range l.clients.All() {
		all = append(all, m.Value)
	}
	return all
}

// stopAccepting stops listening. It does not refuse the clients that are just connecting,
// because another process listens on the same socket and will accept them.
func (l *listener) stopAccepting() {
	l.mu.Lock()
	tcp, rdma := l.tcp, l.rdma
	l.mu.Unlock()
	var err error
	if s, ok := rdma.(fabric.AcceptStopper); ok {
		err = s.StopAccepting()
	} else if tcp != nil {
		err = tcp.Close()
	}
	if err != nil {
		l.log.Warn().Str("event", "listener_not_closed").Err(err).Msg("cannot close the listener")
	}
}

func (l *listener) stopListening() { l.stopOnce.Do(l.stop) }

func (l *listener) stop() {
	l.mu.Lock()
	tcp, rdma := l.tcp, l.rdma
	if l.sweeper != nil {
		l.sweeper.Stop()
	}
	l.mu.Unlock()
	var err error
	switch {
	case tcp != nil:
		err = tcp.Close()
	case rdma != nil:
		err = rdma.Close()
	}
	if err != nil {
		l.log.Warn().Str("event", "listener_not_closed").Err(err).Msg("cannot close the listener")
	}
}

func (l *listener) drain() {
	l.stopListening()
	for _, f := range l.snapshot(true) {
		f.drain()
	}
}

func (l *listener) close() {
	l.stopListening()
	for _, f := range l.snapshot(true) {
		f.close(errClosing)
	}
}
