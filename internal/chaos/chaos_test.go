package chaos

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/proxy/settings"
	"github.com/rdmabridge/rdmabridge/rdmaside"
	"github.com/rdmabridge/rdmabridge/rdmaside/iwarp"
)

// lasting is how long to break things: CHAOS_TIME, or some seconds.
func lasting(t testing.TB) time.Duration {
	if s := os.Getenv("CHAOS_TIME"); s != "" {
		d, err := time.ParseDuration(s)
		if err != nil {
			t.Fatalf("CHAOS_TIME: %v", err)
		}
		return d
	}
	if testing.Short() {
		return 3 * time.Second
	}
	return 12 * time.Second
}

// TestChaos is everything at once: Responders over iWARP and in memory, a TCP
// server, clients over TCP and RDMA, and rogues.
func TestChaos(t *testing.T) {
	s, d := seedOf(t), lasting(t)
	// With little memory Calls wait for it, and clients that do not read are closed.
	memory := []int64{32 << 20, 48 << 20, budget, 256 << 20}[s.dice("budget", 0).IntN(4)]
	fmt.Printf("%s CHAOS_TIME=%v, %d MiB\n", s, d, memory>>20)
	w := newWorld(t, s, memory)
	p, site := w.everything()
	l := w.life()
	w.start(p.options(&l))
	p.inForce()
	// One time in three it is one process to the end.
	lives := s.dice("lives", 0).IntN(3) > 0

	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	end, stop := context.WithTimeout(context.Background(), d+bound+20*time.Second)
	defer stop()
	people := &crowd{world: w, addrs: site.addrs, servers: site.servers, ctx: ctx, end: end, stranger: strangers()}
	people.tcpClients()
	people.processes()
	people.rdmaClients(w.wire("front", w.newSky(&wireFaults), site.addrs["rdma-to-tcp"], true))
	people.rogues()
	people.healthy()
	people.troubled(site.quiet)
	endSidecars := people.sidecars(3, site.sidecarsRDMA, site.sidecars)
	var others sync.WaitGroup
	others.Go(func() { w.health.visit(ctx, w.book) })
	others.Go(func() { w.blow(ctx) })
	others.Go(func() { w.conduct(ctx, p, lives) })
	others.Go(func() { stopWhenBroken(ctx, t, cancel) })
	watching, unwatch := context.WithCancel(context.Background())
	others.Go(func() { w.watch(watching) })
	others.Go(func() { w.tell(watching) })
	people.running.Wait()
	unwatch()
	others.Wait()
	endSidecars()
	w.health.judge(w.book)
	w.rest()
	w.close()
	w.summary(d)
	if d >= 10*time.Second && w.book.reverseDone.Load() == 0 {
		t.Errorf("%s: no Call of a server was answered", s)
	}
	if d >= 10*time.Second && w.book.onLanes.Load() == 0 {
		t.Errorf("%s: no COMPOUND was seen on a lane", s)
	}
}

// stopWhenBroken calls stop as soon as a rule is broken. Clients that saw it make no more Calls,
// so that the rest of a long run would show little.
func stopWhenBroken(ctx context.Context, t *testing.T, stop func()) {
	look := time.NewTicker(200 * time.Millisecond)
	defer look.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-look.C:
			if t.Failed() {
				stop()
			}
		}
	}
}

// A site is what clients must know of a bridge and its servers.
type site struct {
	addrs        map[string]string  // of the bridge's listeners
	servers      map[string]*server // behind them; without those of RDMA and the quiet ones
	quiet        *server            // behind the listeners "quiet" and "quiet over RDMA"
	sidecars     string             // where a server waits for sidecars
	sidecarsRDMA bool
}

// quietConnections is how many connections a quiet listener may have.
const quietConnections = 250

// everything adds servers of every kind to w, and returns a plan for a bridge before them.
func (w *world) everything() (p *plan, s site) {
	storage, tcp, mem := newServer(w.book, true), newServer(w.book, true), newServer(w.book, false)
	s.quiet = newServer(w.book, true)
	inMemory := w.inMemory("memory", mem, w.seed.dice("async", 0).IntN(2) == 0)
	addrs := make(map[string]string)
	for _, name := range []string{"to-rdma", "to-tcp", "to-memory", "rdma-to-tcp", "quiet", "quiet over RDMA"} {
		addrs[name] = freeAddr(w)
	}
	s.addrs = addrs
	over := w.seed.dice("over", 0)
	quietRDMA := over.IntN(2) == 0
	if s.sidecarsRDMA = over.IntN(2) == 0; s.sidecarsRDMA {
		s.sidecars = w.overRDMA("storage for sidecars", storage)
	} else {
		s.sidecars = w.overTCP("storage for sidecars", storage)
	}
	listeners := []settings.ListenerOptions{
		{Name: "to-rdma", Address: addrs["to-rdma"], Upstream: "storage", StallTimeout: stallTimeout},
		{Name: "to-tcp", Address: addrs["to-tcp"], Upstream: "tcp", StallTimeout: stallTimeout},
		{Name: "to-memory", Address: addrs["to-memory"], Upstream: "memory", StallTimeout: stallTimeout},
		{Name: "rdma-to-tcp", Address: addrs["rdma-to-tcp"], RDMA: true, Provider: w.front, Upstream: "tcp", StallTimeout: stallTimeout},
		{Name: "quiet", Address: addrs["quiet"], Upstream: "quiet", StallTimeout: stallTimeout, MaxConnections: quietConnections, MakeRoom: true},
		{Name: "quiet over RDMA", Address: addrs["quiet over RDMA"], RDMA: true, Provider: w.front, Upstream: "quiet", StallTimeout: stallTimeout, MaxConnections: quietConnections, MakeRoom: true},
	}
	for i := range listeners {
		listeners[i].Pace = 16 << 10
	}
	p = newPlan(w, listeners, w.timed([]settings.UpstreamOptions{
		{Name: "storage", RDMA: true, Provider: w.iwarp, Endpoints: []string{w.overRDMA("storage", storage)}, Connections: 3, Credits: 32, Idle: time.Second},
		{Name: "tcp", Endpoints: []string{w.overTCP("tcp", tcp)}, Connections: 2, Credits: 32, Idle: time.Second},
		{Name: "memory", RDMA: true, Provider: inMemory, Endpoints: []string{"memory"}, Connections: 2, Credits: 32},
		{
			Name: "quiet", RDMA: quietRDMA, Provider: w.iwarp, Endpoints: []string{w.calm("quiet", s.quiet, quietRDMA)}, Connections: 4, Credits: 32,
			CallTimeout: hungTimeout, UnavailableAfter: 30 * time.Second,
		},
	}), ways{w.overRDMA("storage too", storage), w.overTCP("storage over TCP", storage)}, ways{second: w.overTCP("tcp too", tcp)}, ways{}, ways{})
	p.servers = []*server{storage, tcp, mem, s.quiet}
	s.servers = map[string]*server{"to-rdma": storage, "to-tcp": tcp, "to-memory": mem}
	return p, s
}

// A crowd is the clients of a bridge.
type crowd struct {
	*world
	addrs    map[string]string  // of the bridge's listeners
	servers  map[string]*server // as site.servers
	ctx, end context.Context    // no new Call after ctx; no wait after end
	stranger *iwarp.Provider    // of the RDMA clients
	n        int                // clients, rogues aside
	running  sync.WaitGroup
}

// client starts c, with a number, a name and dice of its own.
// It keeps its port, as Linux does, unless it roams.
func (p *crowd) client(c *client, dial func(context.Context, *net.TCPAddr) (line, error)) {
	p.n++
	local := &net.TCPAddr{IP: net.IPv4(127, 0, 1, byte(p.n))}
	if !c.roams {
		local.Port = freePort(p.world)
	}
	c.name, c.book, c.dice = fmt.Sprintf("client %d", p.n), p.book, p.seed.dice("client", p.n)
	c.deep = cmp.Or(c.deep, 1+c.dice.IntN(16))
	c.xid = c.dice.Uint32N(1000) // clients have the same ones
	if c.mortal {
		local.IP = net.IPv4(127, 0, 7, 1) // processes of one host
	}
	c.dial = func(ctx context.Context) (line, error) { return dial(ctx, local) }
	if c.far {
		// These clients are at one address. When two of them choose the same XID, the
		// bridge remembers their XIDs at the server for a limited number of Calls, and
		// the next process does not know them. In half an hour a client makes more than
		// 2^18 Calls.
		c.xid += uint32(p.n) << 24
	}
	p.running.Go(func() { c.run(p.ctx, p.end) })
}

// tcpClients starts good clients over TCP.
func (p *crowd) tcpClients() {
	for i, name := range []string{
		"to-rdma", "to-rdma", "to-rdma", "to-tcp", "to-tcp", "to-memory", "to-memory",
		"to-rdma", "to-rdma", "to-rdma", "to-tcp", "to-tcp", "to-tcp",
	} {
		c := &client{gss: i < 7 && i%2 == 0, v4: i >= 7 || i%3 == 0, server: p.servers[name]}
		if i >= 7 {
			c.deep, c.pause = 2, 2*time.Millisecond
		}
		c.roams = p.seed.dice("roams", i).IntN(3) == 0
		p.client(c, func(ctx context.Context, local *net.TCPAddr) (line, error) {
			return dialTCPFrom(ctx, p.addrs[name], local)
		})
	}
}

// processes starts clients at one address that end again and again, and whose XIDs begin at 0 each time: test
// suites, and programs with their own NFS client. They remove the same names under the same XIDs.
func (p *crowd) processes() {
	for _, name := range []string{"to-rdma", "to-tcp"} {
		for range 2 {
			c := &client{server: p.servers[name], removes: true, roams: true, mortal: true, deep: 2, pause: 100 * time.Millisecond}
			p.client(c, func(ctx context.Context, local *net.TCPAddr) (line, error) {
				// A port that an earlier process had would make this one the same client, to a server as well.
				if local.Port == 0 {
					local.Port = freePort(p.world)
				}
				l, err := dialTCPFrom(ctx, p.addrs[name], local)
				if err == nil {
					local.Port = 0
				}
				return l, err
			})
		}
	}
}

// rdmaClients starts good clients over RDMA, of the bridge behind the wire at addr.
func (p *crowd) rdmaClients(addr string) {
	dialer := p.h
	for i := range 3 {
		p.client(&client{v4: i == 0, far: true}, func(context.Context, *net.TCPAddr) (line, error) {
			c, err := dialer.DialRDMA(p.stranger, p.clientLoop, addr, rdmaside.RequesterOptions{Credits: 16, Deadline: 8 * time.Second, Log: zerolog.Nop()})
			if err != nil {
				return nil, err
			}
			return newRDMALine(c), nil
		})
	}
}

// healthy starts clients that must be answered whatever others do: health_test.go.
func (p *crowd) healthy() {
	dialer := p.h
	for i := range 4 {
		c := &client{v4: i == 1, far: true, deep: 1, pause: 40 * time.Millisecond}
		dial := func(ctx context.Context, local *net.TCPAddr) (line, error) {
			return dialTCPFrom(ctx, p.addrs["quiet"], local)
		}
		if i == 3 {
			dial = func(context.Context, *net.TCPAddr) (line, error) {
				r, err := dialer.DialRDMA(p.stranger, p.clientLoop, p.addrs["quiet over RDMA"], rdmaside.RequesterOptions{Credits: 16, Deadline: 8 * time.Second, Log: zerolog.Nop()})
				if err != nil {
					return nil, err
				}
				return newRDMALine(r), nil
			}
		}
		c.health = p.health.admit(fmt.Sprintf("healthy client %d", i+1))
		p.client(c, dial)
	}
}

// troubled starts the clients next to the healthy ones.
func (p *crowd) troubled(quiet *server) {
	p.running.Go(func() { p.stick(p.ctx, quiet) })
	p.running.Go(func() { (&loiterer{p, p.seed.dice("loiterer", 0)}).run(p.ctx) })
	for i, slow := range []bool{false, true} {
		o := wireOptions{from: net.IPv4(127, 0, 8, byte(i+1)), slow: slow}
		g := &interrupted{
			name: fmt.Sprintf("interrupted client %d", i+1), book: p.book, counts: &p.counts, p: p.stranger, loop: p.clientLoop,
			addr: p.wireFrom(o, "quiet", newSky(&p.counts), p.addrs["quiet over RDMA"]), dice: p.seed.dice("interrupted", i),
		}
		if slow {
			p.running.Go(func() { g.slow(p.ctx) })
		} else {
			p.running.Go(func() { g.run(p.ctx) })
		}
	}
}

// rogues starts rogues over TCP and RDMA.
func (p *crowd) rogues() {
	for i, name := range []string{"to-rdma", "to-tcp", "to-memory", "to-rdma"} {
		g := &rogue{name: fmt.Sprintf("rogue %d", i), book: p.book, counts: &p.counts, addr: p.addrs[name], local: net.IPv4(127, 0, 2, byte(i+1)), dice: p.seed.dice("rogue", i)}
		p.running.Go(func() { g.run(p.ctx) })
	}
	for i := range 2 {
		g := &rdmaRogue{book: p.book, counts: &p.counts, p: p.stranger, loop: p.clientLoop, addr: p.addrs["rdma-to-tcp"], dice: p.seed.dice("RDMA rogue", i)}
		p.running.Go(func() { g.run(p.ctx) })
	}
}

// tell says how it goes, from time to time.
func (w *world) tell(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(30 * time.Second):
			fmt.Printf("%s: %d Calls answered, %d octets of memory used\n", w.seed, w.book.done.Load(), w.life().h.Arena.Used())
		}
	}
}

func (w *world) summary(d time.Duration) {
	b := w.book
	fmt.Printf("%s: %d Calls answered in %v, %d of them with SYSTEM_ERR; %d transmissions were repetitions; longest wait on a live connection %v\n",
		w.seed, b.done.Load(), d, b.failed.Load(), b.again.Load(), time.Duration(b.slowest.Load()).Round(time.Millisecond))
	fmt.Printf("%s: servers made %d Calls, of which %d were answered, %d with SYSTEM_ERR, %d with NFS4ERR_DELAY and %d with PROG_UNAVAIL\n", w.seed, b.reversed.Load(), b.reverseDone.Load(), b.reverseFailed.Load(), b.reverseDelayed.Load(), b.reverseUnavailable.Load())
	fmt.Printf("%s: %d COMPOUNDs came on the lane of their client\n", w.seed, b.onLanes.Load())
	fmt.Printf("%s: healthy clients were answered in %d of %d seconds\n", w.seed, w.health.good.Load(), w.health.total.Load())
	fmt.Printf("%s: faults: %s\n", w.seed, &w.counts)
	fmt.Printf("%s: log: %s\n", w.seed, &w.logs)
}
