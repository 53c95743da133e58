// Package listener accepts clients. A [Listener] says who may connect, which settings hold for them and who has to give
// way to a newcomer, and puts other settings in force while it runs. It knows no Call: package proxy serves the
// clients, which a listener sees as a [Client].
package listener

import (
	"crypto/x509"
	"errors"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/internal/crowd"
	"github.com/rdmabridge/rdmabridge/internal/loglimit"
	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/internal/regmem"
	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
	"github.com/rdmabridge/rdmabridge/internal/tlsconf"
	"github.com/rdmabridge/rdmabridge/metrics"
	"github.com/rdmabridge/rdmabridge/proxy/admit"
	"github.com/rdmabridge/rdmabridge/proxy/admit/gates"
	"github.com/rdmabridge/rdmabridge/proxy/certs"
	"github.com/rdmabridge/rdmabridge/proxy/observe"
	"github.com/rdmabridge/rdmabridge/proxy/settings"
	"github.com/rdmabridge/rdmabridge/proxy/upstream"
	"github.com/rdmabridge/rdmabridge/rdmaside"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
	"github.com/rdmabridge/rdmabridge/tcpframe"
)

var (
	errClosing  = errors.New("proxy: closing")
	errDraining = errors.New("proxy: draining")
	errCrowded  = errors.New("proxy: too many connections from this address")
)

// A Client is one connection of a client, as its listener sees it. Its own methods run on the client's loop.
type Client interface {
	gates.Conn
	// Drain ends the connection as soon as it is idle. Any goroutine.
	Drain()
	// Peer is the client's address and port. Any goroutine.
	Peer() netip.AddrPort
	// LoopNumber is that of the client's loop. Any goroutine.
	LoopNumber() int
	// Follow applies the settings in force to the client.
	Follow()
	// Idle reports whether no Call of the client is under way, and it has its Replies.
	Idle() bool
	// Evict closes the connection for a newcomer, and Evicted reports whether it was called. Any goroutine, but no two
	// at once.
	Evict()
	Evicted() bool
	// Outstanding is how many Calls of an RDMA client are not answered yet. Any goroutine.
	Outstanding() int
	// CloseIfUnused closes an RDMA client that has been idle for so long, and CloseIfHoarding one that is idle and has far
	// more Receives than its share.
	CloseIfUnused(idle time.Duration)
	CloseIfHoarding()
	// Certificates are those that the client has shown, and when they were checked. It reports false without TLS.
	Certificates() (certs []*x509.Certificate, at time.Time, ok bool)
	// Distrust closes the connection, because err has the client's certificates refused now.
	Distrust(err error)
}

// A Place is a client's among those of its listener.
type Place = crowd.Member[*admit.Client]

// clientAt is the client at the place m.
func clientAt(m *Place) Client { return m.Value.Conn().(Client) }

// A Loop is an event loop with what a listener uses of it.
type Loop struct {
	loop.SocketLoop                   // that of RDMA connections
	TCP             *tcpframe.Loop    // the same loop
	Metrics         *metrics.Registry // with the parts of counters for this loop
	rdmaClients     atomic.Int32      // connections of RDMA clients, with those that are being set up
}

// A Set is all listeners of a Proxy. Any goroutine.
type Set interface {
	// CurrentListeners are those that listen.
	CurrentListeners() []*Listener
	// AllListeners are the current ones, and those that a reload has removed and that still have clients.
	AllListeners() []*Listener
}

// A room finds room for RDMA clients. Any goroutine.
type room interface {
	// home returns the loop that the next client shall live on, and counts the client there.
	home() *Loop
	// makeRoom closes idle clients, because there is no memory for a new one.
	makeRoom()
}

// A Context is what the listeners of a Proxy share. It is constant.
type Context struct {
	Base         zerolog.Logger // that of the Proxy
	Metrics      *metrics.Registry
	Engine       *tcpframe.Engine
	Registry     *ulb.Registry
	Loops        []*Loop
	All          Set
	Hosts        *admit.Hosts
	Tenants      *admit.Tenants
	TenantCounts *CountsByTenant
	Operations   *observe.Operations
	Calls        *regmem.Account       // memory for Calls
	Replies      *regmem.Account       // memory for Replies
	Receives     *rdmaside.ReceivePool // nil without RDMA listeners
	Room         room
	Quit         <-chan struct{} // closed when the Proxy is

	ServeTCP  func(l *Listener, c *tcpframe.Conn) tcpframe.RecordHandler // serves the client of c
	ServeRDMA func(l *Listener) rdmaside.CallHandler                     // serves all clients
}

// A Listener accepts clients at one address, over TCP or RDMA.
type Listener struct {
	Context

	Name    string // constant, as are Address and IsRDMA
	Address string // as configured
	IsRDMA  bool

	Log     zerolog.Logger
	lines   clientLines
	current atomic.Pointer[Settings]

	MaxHeld int64 // octets of memory that Replies waiting for one client may take before it is closed

	tcp      *tcpframe.Listener // start sets this one or rdma
	rdma     fabric.Listener
	refusals refusals
	arrivals gates.Arrivals
	sweeper  *time.Timer // closes idle RDMA clients; nil without an idle timeout

	stopOnce sync.Once
	empty    chan struct{} // closed when the listener drains and has no client

	mu        sync.Mutex // guards tcp, rdma, sweeper and all below; a leaf
	clients   crowd.Crowd[*admit.Client]
	evictions int // under way
	draining  bool
	emptied   bool // empty is closed

	counts   []Counts                          // by the index of the loop, which counts in its element
	results  [observe.Results]*metrics.Counter // the sums of those in counts
	accepted *metrics.Counter                  // clients that have joined
	stray    *metrics.Counter
	evicted  *metrics.Counter

	tls certs.Files // of TCP alone, as are the rest
	// The server whose trust the clients were checked by last; guarded by Proxy.refreshing.
	checked      *tlsconf.Server
	plainCalls   *metrics.Counter                  // Calls that were refused because they came without TLS
	refusedCalls [oncrpc.Refusals]*metrics.Counter // Calls whose header is not valid
	crowded      loglimit.Seldom                   // of lines about evictions
}

// New makes a listener that has no settings and does not listen yet.
func New(x *Context, o settings.ListenerOptions) *Listener {
	l := &Listener{
		Context: *x, Name: o.Name, Address: o.Address, IsRDMA: o.RDMA,
		Log: x.Base.With().Str("listener", o.Name).Logger(), empty: make(chan struct{}),
	}
	// One client must not take the memory of all. A client gets this far only when its
	// Replies are much larger than was expected and it reads none of them.
	l.MaxHeld = max(l.Replies.Limit()/4, 2*int64(l.Registry.Limits().MaxReply))
	m := l.Metrics
	for _, on := range l.Loops {
		l.counts = append(l.counts, newCounts(on.Metrics, o.Name))
	}
	l.results = newCounts(m, o.Name).Results
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

// CountsOf returns what counts the Calls of the clients on the loop with the number here.
func (l *Listener) CountsOf(here int) *Counts { return &l.counts[here] }

// Table returns the table of the clients on the loop with the number here for u, a new one at the first Call. On the
// loop.
func (l *Listener) Table(here int, u *upstream.Upstream) *observe.Table {
	n := &l.counts[here]
	for _, t := range n.tables {
		if t.up == u {
			return t.Table
		}
	}
	name, phases := "", (*observe.PhaseHistograms)(nil)
	if u != nil {
		name, phases = u.Name, u.Phases(here)
	}
	t := l.Operations.Table(l.Name, name, l.Loops[here].Metrics, phases)
	n.tables = append(n.tables, upstreamTable{u, t})
	return t
}

// dropTables forgets the tables of upstreams that have ended. On the loop.
func (l *Listener) dropTables(here int) {
	n := &l.counts[here]
	n.tables = slices.DeleteFunc(n.tables, func(t upstreamTable) bool { return t.up != nil && t.up.Ended() })
}

// describe registers the functions that read l. They replace those of an earlier listener of the same name.
func (l *Listener) describe() {
	m := l.Metrics
	m.GaugeFunc(metrics.ListenerClients, func() float64 {
		return float64(l.sum((*Listener).ClientCount))
	}, l.Name)
	for r, name := range gates.ReasonNames {
		r := gates.Reason(r)
		m.CounterFunc(metrics.ListenerPausedSeconds, func() float64 {
			sum := 0.0
			for i := range l.counts {
				seconds, _ := l.counts[i].Waits.Total(r)
				sum += seconds
			}
			return sum
		}, l.Name, name)
		m.CounterFunc(metrics.ListenerPauses, func() (n float64) {
			for i := range l.counts {
				_, pauses := l.counts[i].Waits.Total(r)
				n += pauses
			}
			return n
		}, l.Name, name)
	}
	l.describeTLS(l.Settings().Opts.TLS)
	if l.IsRDMA {
		m.GaugeFunc(metrics.ListenerRDMAOutstandingCalls, func() float64 {
			return float64(l.sum((*Listener).outstanding))
		}, l.Name)
	}
}

// describeTLS makes the series of a listener with TLS.
func (l *Listener) describeTLS(t *settings.ListenerTLS) {
	if t == nil || l.tls.Counted() {
		return
	}
	l.tls.Count(l.Metrics, certs.OfListener, l.Name)
	// The next listener of the name may have no TLS, and so no gauges that replace these.
	all, name := l.All, l.Name
	certs.Describe(l.Metrics, certs.OfListener, name, func() tlsconf.Condition {
		for _, l := range all.CurrentListeners() {
			if t := l.Settings().Opts.TLS; t != nil && l.Name == name {
				return t.Server.Condition()
			}
		}
		return tlsconf.Condition{}
	})
}

// weight returns the weight of clients at a, as far as their address tells.
func (l *Listener) weight(a netip.Addr) int {
	return l.Tenants.Of(a, nil).WeightOf(l.Settings().Weight(a))
}

// TenantOpen reports whether the tenant of a client at a is not known before the client has TLS, because its
// certificate may decide. Any goroutine.
func (l *Listener) TenantOpen(a netip.Addr) bool {
	t := l.Settings().Opts.TLS
	return t != nil && t.Server.AsksClients() && l.Tenants.Open(a)
}

// Settings returns the settings in force. Any goroutine.
func (l *Listener) Settings() *Settings { return l.current.Load() }

// preferredLoop returns the loop that has the connection to a TCP upstream which Calls of a client at a must keep, so
// that they need not cross to another loop. It returns nil if there is no such connection. Any goroutine.
func (l *Listener) preferredLoop(a netip.Addr) *tcpframe.Loop {
	u := l.Settings().Routes.other
	if u == nil {
		return nil
	}
	here, ok := u.StickyLoop(a)
	if !ok {
		return nil
	}
	return l.Loops[here].TCP
}

// Follow has each connected client follow the settings in force, on the client's loop. A client that joins later
// follows by itself.
func (l *Listener) Follow() {
	all := l.byLoop()
	for i, on := range l.Loops {
		on.Post(loop.TaskFunc(func() {
			for _, c := range all[i] {
				if !c.Gone() {
					c.Follow()
				}
			}
			l.dropTables(i)
		}))
	}
}

// byLoop lists the clients of each loop.
func (l *Listener) byLoop() [][]Client {
	all := make([][]Client, len(l.Loops))
	for _, c := range l.AllClients() {
		all[c.LoopNumber()] = append(all[c.LoopNumber()], c)
	}
	return all
}

// sum adds up of(x) over all listeners with the name of l, removed ones with clients included.
func (l *Listener) sum(of func(*Listener) int) (n int) {
	for _, x := range l.All.AllListeners() {
		if x.Name == l.Name {
			n += of(x)
		}
	}
	return n
}

// Socket returns the listening socket, or nil if the listener has none or its provider does not
// show it.
func (l *Listener) Socket() Socket {
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
func (l *Listener) allowed(a netip.Addr) bool {
	allow := l.Settings().Opts.Allow
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

func perAddress(o *settings.ListenerOptions) int {
	if o.MaxConnectionsPerAddress > 0 {
		return o.MaxConnectionsPerAddress
	}
	return -1
}

func (l *Listener) Addr() string {
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

func (l *Listener) Upstreams() []*upstream.Upstream { return l.Settings().Upstreams() }

func (l *Listener) ClientCount() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.clients.Len()
}

// Join adds the client g at a, whose place is m. It reports false when the listener is draining: then the caller closes
// the client as soon as it is idle.
func (l *Listener) Join(m *Place, g *admit.Client, a netip.Addr) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	m.Value = g
	l.accepted.Inc()
	l.clients.Add(m, a, g.Weight)
	return !l.draining
}

// Leave removes the client at m.
func (l *Listener) Leave(m *Place) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.clients.Remove(m)
	l.noteEmpty()
}

// noteEmpty closes empty if it is time. l.mu is held.
func (l *Listener) noteEmpty() {
	if l.draining && l.clients.Len() == 0 && !l.emptied {
		l.emptied = true
		close(l.empty)
	}
}

// Reweigh makes the weight of the client at m that of its host where clients give way to others.
func (l *Listener) Reweigh(m *Place) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.clients.Reweigh(m, m.Value.Weight)
}

// AllClients lists the clients.
func (l *Listener) AllClients() []Client { return l.snapshot(false) }

// snapshot lists the clients. When draining is true, join reports false from now on.
func (l *Listener) snapshot(draining bool) []Client {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.draining = l.draining || draining
	l.noteEmpty()
	all := make([]Client, 0, l.clients.Len())
	for m := range l.clients.All() {
		all = append(all, clientAt(m))
	}
	return all
}

// StopAccepting stops listening. It does not refuse the clients that are just connecting,
// because another process listens on the same socket and will accept them.
func (l *Listener) StopAccepting() {
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
		l.Log.Warn().Str("event", "listener_not_closed").Err(err).Msg("cannot close the listener")
	}
}

func (l *Listener) StopListening() { l.stopOnce.Do(l.stop) }

func (l *Listener) stop() {
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
		l.Log.Warn().Str("event", "listener_not_closed").Err(err).Msg("cannot close the listener")
	}
}

func (l *Listener) Drain() {
	l.StopListening()
	for _, f := range l.snapshot(true) {
		f.Drain()
	}
}

func (l *Listener) Close() {
	l.StopListening()
	for _, f := range l.snapshot(true) {
		f.Close(errClosing)
	}
}

// Share returns another descriptor of the listening socket, or nil if there is no socket.
func (l *Listener) Share() (*net.TCPListener, error) {
	s := l.Socket()
	if s == nil {
		return nil, nil
	}
	f, err := s.File()
	if err != nil {
		return nil, err
	}
	defer f.Close()
	ln, err := net.FileListener(f)
	if err != nil {
		return nil, err
	}
	return ln.(*net.TCPListener), nil
}

// A Socket is a listening socket. File returns another descriptor of it, like the method of
// net.TCPListener.
type Socket interface {
	File() (*os.File, error)
}

// AwaitEmpty waits until the listener drains and has no client. It reports false when quit is closed first.
func (l *Listener) AwaitEmpty() bool {
	select {
	case <-l.Quit:
		return false
	case <-l.empty:
		return true
	}
}

// Open puts the first settings t of a new listener in force, before anybody can see it.
func (l *Listener) Open(t *Settings) {
	t.describePolicy(l)
	l.current.Store(t)
	l.describe()
}

// outstanding is how many Calls of RDMA clients are not answered yet.
func (l *Listener) outstanding() (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for m := range l.clients.All() {
		n += clientAt(m).Outstanding()
	}
	return n
}
