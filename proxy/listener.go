package proxy

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/metrics"
	"github.com/rdmabridge/rdmabridge/rdmaside"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
	"github.com/rdmabridge/rdmabridge/tcpframe"
)

// A listenerSettings is how clients of a listener are served. It is constant: Reconfigure puts
// another in its place, which holds from the next Call on, or for the next
// connection. Shares and rates, of which a client's ledger has its own, those that are
// connected are told of: listener.follow.
type listenerSettings struct {
	opts      ListenerOptions
	routes    routes
	maxOwed   int64               // octets owed to one client before it has to wait
	rates     *rates              // nil for no limit
	responder *rdmaside.Responder // for RDMA clients to come
}

// A listener is where clients come in.
type listener struct {
	p       *Proxy
	name    string // constant, as are address and isRDMA
	address string // as configured
	isRDMA  bool
	log     zerolog.Logger
	current atomic.Pointer[listenerSettings]

	maxHeld int64 // octets of Replies that one client may leave lying before it is closed

	tcp      *tcpframe.Listener // one of the two, after start
	rdma     fabric.Listener
	nextLoop int // for RDMA clients
	refusals refusals
	sweeper  *time.Timer // closes idle RDMA clients; nil without

	stopOnce sync.Once

	mu       sync.Mutex // guards tcp, rdma, nextLoop, sweeper and what follows; a leaf
	clients  map[*front]struct{}
	byAddr   map[netip.Addr]int // RDMA clients, where there is a limit
	draining bool

	calls   *metrics.Counter
	stray   *metrics.Counter
	results [results]*metrics.Counter
}

// newListener makes a listener of o, whose terms are t. Nothing listens yet.
func newListener(p *Proxy, o ListenerOptions) *listener {
	o.setDefaults()
	l := &listener{
		p: p, name: o.Name, address: o.Address, isRDMA: o.RDMA,
		log:     p.log.With().Str("listener", o.Name).Logger(),
		clients: make(map[*front]struct{}),
	}
	// One client must not have the memory of all. It is closed only when Replies
	// turn out much larger than could be expected and it takes none of them.
	l.maxHeld = max(p.replies.Limit()/4, 2*int64(p.registry.Limits().MaxReply))
	m := p.metrics
	for i, name := range resultNames {
		l.results[i] = m.Counter("client_calls_total", "Calls read from clients by what became of them.", "listener", o.Name, "result", name)
	}
	l.calls = m.Counter("client_received_calls_total", "Calls read from clients.", "listener", o.Name)
	l.stray = m.Counter("client_stray_replies_total", "RPC Replies of clients that answer no Call of the server's.", "listener", o.Name)
	m.GaugeFunc("clients", "Clients connected.", func() float64 {
		return float64(p.sum(o.Name, (*listener).clientCount))
	}, "listener", o.Name)
	if o.RDMA {
		l.refusals.init(m, o.Name)
		m.GaugeFunc("responder_outstanding_calls", "Calls of RDMA clients that are not answered.", func() float64 {
			return float64(p.sum(o.Name, (*listener).outstanding))
		}, "listener", o.Name)
	}
	return l
}

// settings are those that hold now. Any goroutine.
func (l *listener) settings() *listenerSettings { return l.current.Load() }

// newSettings makes the terms of o, whose Calls go to some of upstreams. Nothing
// changes.
func (l *listener) newSettings(o ListenerOptions, upstreams map[string]*upstream) (*listenerSettings, error) {
	o.setDefaults()
	p := l.p
	t := &listenerSettings{opts: o, maxOwed: min(o.MaxOutbound, p.replies.Limit()/8)}
	var had *rates
	if old := l.current.Load(); old != nil {
		had = old.rates
	}
	t.rates = newRates(p.metrics, &o, had, p.engine.Now)
	if o.RDMA && o.Provider == nil {
		return nil, fmt.Errorf("proxy: listener %q has no provider", o.Name)
	}
	find := func(name string) (*upstream, error) {
		if u := upstreams[name]; u != nil {
			return u, nil
		}
		return nil, fmt.Errorf("proxy: listener %q: no upstream %q", o.Name, name)
	}
	var err error
	if o.Upstream != "" {
		if t.routes.other, err = find(o.Upstream); err != nil {
			return nil, err
		}
	}
	t.routes.programs = make(map[uint32][]target)
	for _, r := range o.Routes {
		x := target{versions: r.Versions}
		if x.upstream, err = find(r.Upstream); err != nil {
			return nil, err
		}
		for i, v := range r.Versions {
			if i == 0 || v < x.low {
				x.low = v
			}
			x.high = max(x.high, v)
		}
		t.routes.programs[r.Program] = append(t.routes.programs[r.Program], x)
	}
	if !o.RDMA {
		return t, nil
	}
	t.responder, err = rdmaside.NewResponder(rdmaside.ResponderOptions{
		Memory: p.calls, Replies: p.replies, Receives: p.receives, Registry: p.registry,
		Credits: o.Credits, CallInline: o.CallInline, ReplyInline: o.ReplyInline, MaxCall: o.MaxRecord,
		RemoteInvalidation: true,
		Log:                l.log, Metrics: rdmaside.NewResponderMetrics(p.metrics, o.Name),
	}, (*rdmaHandler)(l))
	if err != nil {
		return nil, fmt.Errorf("proxy: listener %q: %w", o.Name, err)
	}
	return t, nil
}

// start listens on socket, which is taken, or at the address if that is nil.
func (l *listener) start(ctx context.Context, socket *net.TCPListener) error {
	if l.isRDMA {
		return l.startRDMA(ctx, socket)
	}
	o := l.tcpOptions(l.settings())
	o.Socket = socket
	tcp, err := l.p.engine.Listen(o, func(*tcpframe.Conn) tcpframe.RecordHandler { return newTCPClient(l) })
	if err != nil {
		return err
	}
	l.mu.Lock()
	l.tcp = tcp
	l.mu.Unlock()
	l.log.Info().Stringer("address", tcp.Addr()).Str("transport", "tcp").Msg("listening")
	return nil
}

func (l *listener) tcpOptions(t *listenerSettings) tcpframe.ListenOptions {
	o := &t.opts
	return tcpframe.ListenOptions{
		Address: o.Address, Name: o.Name,
		MaxConns: o.MaxConnections, MaxConnsPerAddr: perAddress(o), Allow: o.Allow,
		Conn: tcpframe.ConnOptions{
			Memory: callMemory{memory{l.p.calls}, l.p}, MaxRecord: o.MaxRecord, MaxFragments: o.MaxFragments,
			MaxOutbound: t.maxOwed, OutboundLimit: l.maxHeld + 1<<20, StallTimeout: o.StallTimeout, IdleTimeout: o.IdleTimeout,
		},
	}
}

func (l *listener) startRDMA(ctx context.Context, socket *net.TCPListener) error {
	t := l.settings()
	o := fabric.ListenOptions{
		Allow: l.allowed, MaxConnections: t.opts.MaxConnections,
		MaxStarting: t.opts.MaxStarting, MaxStartingPerAddr: t.opts.MaxStartingPerAddress,
		Refused: l.refused,
	}
	incoming := func(in fabric.Incoming) { l.incoming(ctx, in) }
	var rdma fabric.Listener
	if p, ok := t.opts.Provider.(fabric.SocketProvider); ok && socket != nil {
		rdma = p.ListenOn(socket, o, incoming)
	} else {
		if socket != nil {
			_ = socket.Close()
		}
		var err error
		if rdma, err = t.opts.Provider.Listen(t.opts.Address, o, incoming); err != nil {
			return err
		}
	}
	l.mu.Lock()
	l.rdma = rdma
	l.mu.Unlock()
	l.sweepLater()
	l.log.Info().Stringer("address", rdma.Addr()).Str("transport", "rdma").Msg("listening")
	return nil
}

// incoming decides about an RDMA client. It is called on a goroutine of its own.
func (l *listener) incoming(ctx context.Context, in fabric.Incoming) {
	l.mu.Lock()
	draining := l.draining
	home := l.p.loops[l.nextLoop%len(l.p.loops)]
	l.nextLoop++
	crowded := l.crowded(in.Peer().Addr().Unmap(), 1)
	l.mu.Unlock()
	if crowded || draining {
		_ = in.Reject(nil) // the peer learns of it one way or the other
		if crowded {
			l.refused(in.Peer(), refusedAddress, errCrowded)
		} else {
			l.refused(in.Peer(), refusedDraining, errDraining)
		}
		return
	}
	if _, err := l.settings().responder.Accept(ctx, in, home); err != nil {
		reason := refusedSetup
		if errors.Is(err, rdmaside.ErrNoReceives) {
			reason = refusedMemory
			l.p.makeRoom()
		}
		l.refused(in.Peer(), reason, err)
	}
}

// update puts t in the place of the terms that hold.
func (l *listener) update(t *listenerSettings) {
	old := l.current.Swap(t)
	l.follow()
	old.rates.end(t.rates) // after what was posted: who goes on does so under the new ones
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

// follow makes those who are connected follow the terms that hold now, each on its
// loop. Whoever joins later does so by itself.
func (l *listener) follow() {
	all := l.p.byLoop(l.snapshot(false))
	for i, on := range l.p.loops {
		if len(all[i]) == 0 {
			continue
		}
		on.Post(loop.TaskFunc(func() {
			for _, f := range all[i] {
				if !f.gone() {
					f.ledger.follow()
				}
			}
		}))
	}
}

// socket is the listening socket, nil if there is none to be had.
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

// allowed decides by address.
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

// weight is the share of a client at a.
func (t *listenerSettings) weight(a netip.Addr) int {
	for _, w := range t.opts.Weights {
		for _, p := range w.Clients {
			if p.Contains(a) {
				return w.Weight
			}
		}
	}
	return 1
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

func (l *listener) upstreams() []*upstream { return l.settings().routes.all() }

func (l *listener) clientCount() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.clients)
}

// outstanding is how many Calls of RDMA clients are not answered.
func (l *listener) outstanding() (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for f := range l.clients {
		if c, ok := f.client.(*rdmaClient); ok {
			n += c.conn.Outstanding()
		}
	}
	return n
}

// crowded reports whether n more RDMA clients from a are too many. l.mu is held.
func (l *listener) crowded(a netip.Addr, n int) bool {
	most := l.settings().opts.MaxConnectionsPerAddress
	return most > 0 && l.byAddr[a]+n > most
}

// enter counts an RDMA client from a, and reports false when it is one too many.
func (l *listener) enter(a netip.Addr) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.byAddr == nil {
		l.byAddr = make(map[netip.Addr]int)
	}
	l.byAddr[a]++
	return !l.crowded(a, 0)
}

// exit undoes enter.
func (l *listener) exit(a netip.Addr) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.byAddr[a]--; l.byAddr[a] == 0 {
		delete(l.byAddr, a)
	}
}

// join adds a client. It reports false when the listener is draining: the
// client is to be closed once it is idle.
func (l *listener) join(f *front) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.clients[f] = struct{}{}
	return !l.draining
}

func (l *listener) leave(f *front) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.clients, f)
}

// snapshot lists the clients. Those to come see what draining says.
func (l *listener) snapshot(draining bool) []*front {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.draining = l.draining || draining
	all := make([]*front, 0, len(l.clients))
	for f := range l.clients {
		all = append(all, f)
	}
	return all
}

// stopAccepting stops listening without a word to those that are connecting.
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
		l.log.Warn().Err(err).Msg("closing the listener")
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
		l.log.Warn().Err(err).Msg("closing the listener")
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
