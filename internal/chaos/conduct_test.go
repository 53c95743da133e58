package chaos

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/internal/testkit/proxytest"
	"github.com/rdmabridge/rdmabridge/proxy/admit"
	"github.com/rdmabridge/rdmabridge/proxy/admit/gates"
	"github.com/rdmabridge/rdmabridge/proxy/reach"
	"github.com/rdmabridge/rdmabridge/proxy/settings"
)

// A plan is the configuration of a bridge while it changes. It belongs to conduct.
type plan struct {
	w         *world
	listeners []settings.ListenerOptions
	upstreams []settings.UpstreamOptions
	first     plans // as they were at the start
	ways      []ways
	servers   []*server // of the upstreams
	away      int       // listener that is not there, counted from 1; 0: none
	renamed   int
}

// plans are the options that a plan goes back to.
type plans struct {
	listeners []settings.ListenerOptions
	upstreams []settings.UpstreamOptions
}

// ways are other endpoints of an upstream's server, "" where there is none.
type ways struct {
	second  string // over the same transport
	overTCP string // of one on RDMA
}

func newPlan(w *world, ls []settings.ListenerOptions, us []settings.UpstreamOptions, other ...ways) *plan {
	return &plan{w: w, listeners: ls, upstreams: us, ways: other, first: plans{slices.Clone(ls), slices.Clone(us)}}
}

// freeAddr returns an address at which no socket listens, and none will: only this process
// uses the host, and no port comes twice.
func freeAddr(w *world) string {
	pid := os.Getpid()
	return fmt.Sprintf("127.5.%d.%d:%d", byte(pid>>8), byte(pid), freePort(w))
}

// freePort returns a port from which clients can connect, at any address of this host.
func freePort(w *world) int {
	return int(netip.MustParseAddrPort(testkit.FreeAddr(w.t)).Port())
}

// options are those of the life l. Providers in memory, which reach to the servers, are
// those of every life.
func (p *plan) options(l *life) (ls []settings.ListenerOptions, us []settings.UpstreamOptions) {
	for i, o := range p.listeners {
		if i+1 == p.away {
			continue
		}
		if o.RDMA {
			o.Provider = l.front
		}
		ls = append(ls, o)
	}
	for _, o := range p.upstreams {
		if _, ok := o.Provider.(*inMemory); !ok {
			o.Provider = l.iwarp
		}
		us = append(us, o)
	}
	return ls, us
}

func oneOf[T any](r *rand.Rand, all ...T) T { return all[r.IntN(len(all))] }

// isQuiet reports whether a listener or upstream with that name keeps its settings, because its
// healthy clients must be answered.
func isQuiet(name string) bool { return strings.HasPrefix(name, "quiet") }

// change draws other settings that hold for connected clients. They delay clients little
// in comparison with the faults.
func (p *plan) change(r *rand.Rand) {
	for i := range p.listeners {
		o := &p.listeners[i]
		if isQuiet(o.Name) {
			continue
		}
		if r.IntN(2) == 0 {
			o.Weights = nil
			for range r.IntN(4) {
				a := netip.AddrFrom4([4]byte{127, 0, byte(1 + r.IntN(2)), byte(1 + r.IntN(8))})
				o.Weights = append(o.Weights, admit.Weight{Clients: []netip.Prefix{netip.PrefixFrom(a, 24+8*r.IntN(2)).Masked()}, Weight: 1 + r.IntN(100)})
			}
		}
		if r.IntN(2) == 0 {
			o.Rate = gates.Rate{Calls: oneOf(r, 0, 2000, 20000), Octets: oneOf[int64](r, 0, 100<<20, 1<<30)}
			o.ClientRate = gates.Rate{Calls: oneOf(r, 0, 300, 5000), Octets: oneOf[int64](r, 0, 50<<20, 1<<30)}
		}
		if r.IntN(3) == 0 {
			o.MaxCalls = oneOf(r, 64, 256)
			o.MaxOutbound = oneOf[int64](r, 4<<20, 32<<20)
			o.IdleTimeout = oneOf(r, 0, 2*time.Second)
			o.StallTimeout = oneOf(r, stallTimeout, stallTimeout/2)
		}
		if o.RDMA && r.IntN(3) == 0 {
			o.Credits = 1 + r.IntN(64)
			o.CallInline, o.ReplyInline = oneOf(r, 1024, 4096, 16384), oneOf(r, 1024, 4096, 16384)
		}
	}
	for i := range p.upstreams {
		o := &p.upstreams[i]
		if isQuiet(o.Name) {
			continue
		}
		if r.IntN(2) == 0 {
			o.Connections = 1 + r.IntN(4)
			o.Mode = oneOf(r, settings.ModeAuto, settings.ModeAuto, settings.ModeAuto, settings.ModeSessions, settings.ModeSessions, settings.ModePinned, settings.ModeShared)
			o.Idle = oneOf(r, 0, 200*time.Millisecond, time.Second, 10*time.Second)
		}
		if r.IntN(3) == 0 {
			o.Credits = 1 + r.IntN(64)
			o.CallInline, o.ReplyInline = oneOf(r, 1024, 4096, 65536), oneOf(r, 1024, 4096, 65536)
		}
		if r.IntN(3) == 0 {
			o.CallTimeout = between(r, callTimeout/2, callTimeout)
			o.UnavailableAfter = between(r, unavailable/2, unavailable)
			o.ProbeInterval = oneOf(r, -1, 50*time.Millisecond, time.Second)
			o.SilentTimeout = oneOf(r, -1, 2*time.Second, 4*time.Second)
			o.BackoffMax = between(r, 20*time.Millisecond, 500*time.Millisecond)
		}
		if second := p.ways[i].second; second != "" && o.RDMA == p.first.upstreams[i].RDMA && (o.Failover || len(o.Endpoints) == 1) && r.IntN(3) == 0 {
			one := p.first.upstreams[i].Endpoints[0]
			o.Endpoints = oneOf(r, []string{one}, []string{second}, []string{one, second}, []string{second, one})
			o.Failover, o.Priority = true, r.IntN(2) == 0
		}
	}
}

// replace makes another upstream of one of them, by the same name, in front of the same
// server: over the other transport, from another address, or with a client to each endpoint.
func (p *plan) replace(r *rand.Rand) {
	i := r.IntN(len(p.upstreams))
	if p.ways[i].second == "" {
		i = 0
	}
	o, first, ways := &p.upstreams[i], &p.first.upstreams[i], p.ways[i]
	switch {
	case r.IntN(2) == 0 && o.RDMA == first.RDMA:
		if o.Failover = !o.Failover && len(o.Endpoints) > 1; !o.Failover {
			o.Endpoints = []string{first.Endpoints[0], ways.second}
		}
	case !first.RDMA && o.Source.Address.IsValid():
		o.Source = reach.Source{}
	case !first.RDMA:
		o.Source.Address = netip.AddrFrom4([4]byte{127, 0, 0, 1})
	case o.RDMA:
		o.RDMA, o.Endpoints = false, []string{ways.overTCP}
	default:
		o.RDMA, o.Endpoints = true, first.Endpoints
	}
}

// rename gives a listener another name: it is another one, at the same address.
func (p *plan) rename(r *rand.Rand) {
	i := r.IntN(len(p.listeners))
	p.renamed++
	p.listeners[i].Name = fmt.Sprintf("%s.%d", p.first.listeners[i].Name, p.renamed)
}

// apply makes the bridge follow the plan.
func (p *plan) apply() {
	var modes []settings.Mode
	for i, o := range p.upstreams {
		p.servers[i].kept.change(o.Mode)
		modes = append(modes, o.Mode)
	}
	p.w.act("modes %v", modes)
	var err error
	if !testkit.Settles(5*time.Second, func() bool { // the address of a listener that was away may be that of a connection by now
		l := p.w.life()
		ls, us := p.options(&l)
		err = l.proxy.Reconfigure(proxytest.Listeners(ls...), proxytest.Upstreams(us...))
		return err == nil
	}) {
		p.w.book.wrong("reconfigure: %v", err)
		return
	}
	p.inForce()
}

// inForce notes that the bridge follows the plan.
func (p *plan) inForce() {
	for i, o := range p.upstreams {
		p.servers[i].kept.set(o.Mode)
	}
}

// conduct changes the bridge and makes others follow it until ctx ends. Without lives it
// is the same process to the end.
func (w *world) conduct(ctx context.Context, p *plan, lives bool) {
	dice := w.seed.dice("bridge", 0)
	acts := []struct {
		f     fault
		often int
		do    func()
	}{
		{bridgeChanged, 8, func() { p.change(dice); p.apply() }},
		{bridgeReplaced, 2, func() { p.replace(dice); p.apply() }},
		{bridgeRenamed, 2, func() { p.rename(dice); p.apply() }},
		{bridgeAway, 1, func() {
			p.away = 1 + dice.IntN(len(p.listeners))
			p.apply()
			time.Sleep(between(dice, 0, 500*time.Millisecond))
			p.away = 0
			p.apply()
		}},
		{bridgeRestarted, 2, func() {
			w.end(w.life(), oneOf(dice, 0, 20*time.Millisecond, time.Second, 5*time.Second))
			time.Sleep(between(dice, 0, 300*time.Millisecond))
			if l := w.newLife(w.h.Arena.Budget()); w.begin(&l, p, nil) {
				w.succeed(l)
			}
		}},
		{bridgeHandedOver, 2, func() { w.handOver(p, oneOf(dice, 20*time.Millisecond, time.Second, 5*time.Second)) }},
	}
	if !lives {
		acts = acts[:4]
	}
	all := 0
	for _, a := range acts {
		all += a.often
	}
	for !w.book.broken.Load() {
		select {
		case <-ctx.Done():
			p.listeners, p.upstreams = p.first.listeners, p.first.upstreams
			p.apply()
			return
		case <-time.After(between(dice, 100*time.Millisecond, 2*time.Second)):
		}
		n := dice.IntN(all)
		for _, a := range acts {
			if n -= a.often; n < 0 {
				w.counts[a.f].Add(1)
				w.act("%v", a.f)
				if a.f == bridgeChanged {
					a.do()
				} else {
					w.health.away(a.do)
				}
				break
			}
		}
	}
}

// act logs an act of the test upon the bridge, for finding the cause of a failure.
func (w *world) act(format string, args ...any) {
	w.book.mu.Lock()
	defer w.book.mu.Unlock()
	w.book.acts = append(w.book.acts, time.Now().Format("05.000: ")+fmt.Sprintf(format, args...))
	if n := len(w.book.acts); n > 16 {
		w.book.acts = w.book.acts[n-16:]
	}
}

// visit connects again and again, until the function it returns is called. The
// kernel must not refuse a connection.
func (w *world) visit(p *plan) (stop func()) {
	var addrs []string
	for _, o := range p.listeners {
		if !isQuiet(o.Name) { // these have few connections, and may refuse one
			addrs = append(addrs, o.Address)
		}
	}
	stopc, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		d := net.Dialer{Timeout: patience, LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 4, 1)}}
		for n := 0; ; n++ {
			select {
			case <-stopc:
				return
			case <-time.After(2 * time.Millisecond):
			}
			c, err := d.Dial("tcp", addrs[n%len(addrs)])
			if err != nil {
				w.book.wrong("during a hand-over: %v", err)
				return
			}
			c.Close()
		}
	}()
	return func() { close(stopc); <-done }
}

// handOver begins another life with the sockets of the present one, which then drains:
// cmd/rdmabridge does the same with two processes.
func (w *world) handOver(p *plan, drain time.Duration) {
	stop := w.visit(p)
	defer stop()
	old := w.life()
	sockets := make(map[string]*net.TCPListener)
	for addr, s := range old.proxy.Sockets() {
		f, err := s.File()
		if err != nil {
			w.book.wrong("hand-over: %v", err)
			return
		}
		ln, err := net.FileListener(f)
		f.Close()
		if err != nil {
			w.book.wrong("hand-over: %v", err)
			return
		}
		sockets[addr] = ln.(*net.TCPListener)
	}
	next := w.newLife(old.h.Arena.Budget())
	if !w.begin(&next, p, func(addr string) *net.TCPListener {
		ln := sockets[addr]
		delete(sockets, addr)
		return ln
	}) {
		return
	}
	for addr, ln := range sockets {
		w.book.wrong("hand-over: no listener took the socket of %s", addr)
		ln.Close()
	}
	w.succeed(next)
	old.proxy.StopAccepting()
	time.Sleep(100 * time.Millisecond) // a client that is just connecting may
	w.end(old, drain)
}
