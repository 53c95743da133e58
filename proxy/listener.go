package proxy

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/metrics"
	"github.com/rdmabridge/rdmabridge/rdmaside"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
	"github.com/rdmabridge/rdmabridge/tcpframe"
)

// A session is a client as its listener sees it. Methods may be called on any
// goroutine.
type session interface {
	// drain closes the client once it is idle.
	drain()
	// close closes it now.
	close(reason error)
	// home is the loop that owns it.
	home() *loop
	// books is its ledger, which is its loop's, and its address.
	books() (*ledger, netip.AddrPort)
}

// A listener is where clients come in.
type listener struct {
	p      *Proxy
	opts   ListenerOptions
	log    zerolog.Logger
	routes routes

	maxOwed int64 // octets owed to one client before it has to wait
	maxHeld int64 // octets of Replies that one client may leave lying before it is closed

	tcp       *tcpframe.Listener // one of the two, after start
	rdma      fabric.Listener
	responder *rdmaside.Responder
	nextLoop  int // for RDMA clients; owned by mu
	refusals  refusals
	sweeper   *time.Timer // closes idle RDMA clients; nil without; owned by mu

	stopOnce sync.Once

	mu       sync.Mutex // guards what follows, nextLoop and sweeper; a leaf
	sessions map[session]struct{}
	byAddr   map[netip.Addr]int // RDMA clients, where there is a limit
	draining bool

	calls   *metrics.Counter
	stray   *metrics.Counter
	results [results]*metrics.Counter
}

func newListener(p *Proxy, o ListenerOptions) (*listener, error) {
	o.setDefaults()
	l := &listener{
		p: p, opts: o,
		log:      p.log.With().Str("listener", o.Name).Logger(),
		sessions: make(map[session]struct{}),
	}
	// One client must not have the memory of all. It is closed only when Replies
	// turn out much larger than could be expected and it takes none of them.
	l.maxOwed = min(o.MaxOutbound, p.replies.Limit()/8)
	l.maxHeld = max(p.replies.Limit()/4, 2*int64(p.registry.Limits().MaxReply))
	if o.RDMA && o.Provider == nil {
		return nil, fmt.Errorf("proxy: listener %q has no provider", o.Name)
	}
	find := func(name string) (*upstream, error) {
		if u := p.upstreams[name]; u != nil {
			return u, nil
		}
		return nil, fmt.Errorf("proxy: listener %q: no upstream %q", o.Name, name)
	}
	var err error
	if o.Upstream != "" {
		if l.routes.other, err = find(o.Upstream); err != nil {
			return nil, err
		}
	}
	l.routes.programs = make(map[uint32][]target)
	for _, r := range o.Routes {
		t := target{versions: r.Versions}
		if t.upstream, err = find(r.Upstream); err != nil {
			return nil, err
		}
		for i, v := range r.Versions {
			if i == 0 || v < t.low {
				t.low = v
			}
			t.high = max(t.high, v)
		}
		l.routes.programs[r.Program] = append(l.routes.programs[r.Program], t)
	}
	m := p.metrics
	for i, name := range resultNames {
		l.results[i] = m.Counter("client_calls_total", "Calls read from clients by what became of them.", "listener", o.Name, "result", name)
	}
	l.calls = m.Counter("client_received_calls_total", "Calls read from clients.", "listener", o.Name)
	l.stray = m.Counter("client_stray_replies_total", "RPC Replies of clients that answer no Call of the server's.", "listener", o.Name)
	m.GaugeFunc("clients", "Clients connected.", func() float64 { return float64(l.clients()) }, "listener", o.Name)
	if o.RDMA {
		l.refusals.init(m, o.Name)
		m.GaugeFunc("responder_outstanding_calls", "Calls of RDMA clients that are not answered.", func() float64 { return float64(l.outstanding()) }, "listener", o.Name)
		l.responder, err = rdmaside.NewResponder(rdmaside.ResponderOptions{
			Memory: p.calls, Receives: p.receives, Registry: p.registry,
			Credits: o.Credits, CallInline: o.CallInline, ReplyInline: o.ReplyInline, MaxCall: o.MaxRecord,
			RemoteInvalidation: true,
			Log:                l.log, Metrics: rdmaside.NewResponderMetrics(m, o.Name),
		}, (*rdmaHandler)(l))
		if err != nil {
			return nil, fmt.Errorf("proxy: listener %q: %w", o.Name, err)
		}
	}
	return l, nil
}

func (l *listener) start(ctx context.Context) error {
	if l.opts.RDMA {
		return l.startRDMA(ctx)
	}
	var err error
	l.tcp, err = l.p.engine.Listen(tcpframe.ListenOptions{
		Address: l.opts.Address, Name: l.opts.Name,
		MaxConns: l.opts.MaxConnections, MaxConnsPerAddr: perAddress(l.opts), Allow: l.opts.Allow,
		Conn: tcpframe.ConnOptions{
			Memory: callMemory{memory{l.p.calls}, l.p}, MaxRecord: l.opts.MaxRecord, MaxFragments: l.opts.MaxFragments,
			MaxOutbound: l.maxOwed, OutboundLimit: l.maxHeld + 1<<20, StallTimeout: l.opts.StallTimeout, IdleTimeout: l.opts.IdleTimeout,
		},
	}, func(*tcpframe.Conn) tcpframe.RecordHandler { return &tcpClient{l: l} })
	if err == nil {
		l.log.Info().Stringer("address", l.tcp.Addr()).Str("transport", "tcp").Msg("listening")
	}
	return err
}

func (l *listener) startRDMA(ctx context.Context) error {
	var err error
	l.rdma, err = l.opts.Provider.Listen(l.opts.Address, fabric.ListenOptions{
		Allow: l.allowed, MaxConnections: l.opts.MaxConnections,
		MaxStarting: l.opts.MaxStarting, MaxStartingPerAddr: l.opts.MaxStartingPerAddress,
		Refused: l.refused,
	}, func(in fabric.Incoming) {
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
		if _, err := l.responder.Accept(ctx, in, home); err != nil {
			reason := refusedSetup
			if errors.Is(err, rdmaside.ErrNoReceives) {
				reason = refusedMemory
			}
			l.refused(in.Peer(), reason, err)
		}
	})
	if err == nil {
		l.sweepLater()
		l.log.Info().Stringer("address", l.rdma.Addr()).Str("transport", "rdma").Msg("listening")
	}
	return err
}

// allowed decides by address.
func (l *listener) allowed(a netip.Addr) bool {
	if len(l.opts.Allow) == 0 {
		return true
	}
	a = a.Unmap()
	for _, p := range l.opts.Allow {
		if p.Contains(a) {
			return true
		}
	}
	return false
}

func perAddress(o ListenerOptions) int {
	if o.MaxConnectionsPerAddress > 0 {
		return o.MaxConnectionsPerAddress
	}
	return -1
}

func (l *listener) addr() string {
	switch {
	case l.tcp != nil:
		return l.tcp.Addr().String()
	case l.rdma != nil:
		return l.rdma.Addr().String()
	}
	return ""
}

func (l *listener) upstreams() []*upstream { return l.routes.all() }

func (l *listener) clients() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.sessions)
}

// outstanding is how many Calls of RDMA clients are not answered.
func (l *listener) outstanding() (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for s := range l.sessions {
		if c, ok := s.(*rdmaClient); ok {
			n += c.conn.Outstanding()
		}
	}
	return n
}

// crowded reports whether n more RDMA clients from a are too many. l.mu is held.
func (l *listener) crowded(a netip.Addr, n int) bool {
	most := l.opts.MaxConnectionsPerAddress
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
func (l *listener) join(s session) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sessions[s] = struct{}{}
	return !l.draining
}

func (l *listener) leave(s session) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.sessions, s)
}

// snapshot lists the clients. Those to come see what draining says.
func (l *listener) snapshot(draining bool) []session {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.draining = l.draining || draining
	all := make([]session, 0, len(l.sessions))
	for s := range l.sessions {
		all = append(all, s)
	}
	return all
}

func (l *listener) stopListening() { l.stopOnce.Do(l.stop) }

func (l *listener) stop() {
	var err error
	l.mu.Lock()
	if l.sweeper != nil {
		l.sweeper.Stop()
	}
	l.mu.Unlock()
	switch {
	case l.tcp != nil:
		err = l.tcp.Close()
	case l.rdma != nil:
		err = l.rdma.Close()
	}
	if err != nil {
		l.log.Warn().Err(err).Msg("closing the listener")
	}
}

func (l *listener) drain() {
	l.stopListening()
	for _, s := range l.snapshot(true) {
		s.drain()
	}
}

func (l *listener) close() {
	l.stopListening()
	for _, s := range l.snapshot(true) {
		s.close(errClosing)
	}
}
