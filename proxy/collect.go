package proxy

import (
	"slices"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/internal/status"
	"github.com/rdmabridge/rdmabridge/proxy/admit"
	"github.com/rdmabridge/rdmabridge/proxy/admit/gates"
	"github.com/rdmabridge/rdmabridge/proxy/certs"
	"github.com/rdmabridge/rdmabridge/proxy/listener"
	"github.com/rdmabridge/rdmabridge/proxy/observe"
)

// Asking the loops
//
// Proxy.Status has each loop copy the numbers of its clients. The loop looks at collectCalls Calls or collectClients
// clients at a time. Sorting, and everything that allocates for each client that is listed, happens off the loops.

const (
	collectCalls   = 1024
	collectClients = 256
)

// A clientReport is what a loop says of a client.
type clientReport struct {
	observe.ClientReport
	front  *front
	tenant *admit.Tenant // nil for none
}

// A collector is the task that asks one loop. Its results may be read once it has called done.
type collector struct {
	p       *Proxy
	loop    *eventLoop
	done    func()
	round   uint64
	clients []*front

	at int // the Call or the client to look at next

	inFlight map[*observe.Series]int
	listened map[*listener.Listener]listener.Report
	reports  []clientReport
	now      int64
	listed   bool // the Calls have been looked at
}

// Run looks at some of the Calls or clients. loop.Task.
func (c *collector) Run() {
	if c.at == 0 && !c.listed {
		c.begin()
	}
	if !c.listed {
		c.lookAtCalls()
	} else {
		c.lookAtClients()
	}
	if c.listed && c.at >= len(c.clients) {
		c.done()
		return
	}
	c.loop.Post(c)
}

func (c *collector) begin() {
	c.now = c.loop.Now()
	c.loop.account.tally.Count()
	c.inFlight = make(map[*observe.Series]int)
	c.listened = make(map[*listener.Listener]listener.Report)
	for _, l := range c.p.AllListeners() {
		c.listened[l] = l.Report(c.loop.number(), c.now, c.inFlight)
	}
}

// lookAtCalls finds the oldest Call of each client. It reads only what belongs to the client's loop in every
// state of a call.
func (c *collector) lookAtCalls() {
	all := c.loop.all
	end := min(c.at+collectCalls, len(all))
	for ; c.at < end; c.at++ {
		v := all[c.at]
		if p, ok := v.isUnderWay(); ok {
			v.client().seen.Saw(c.round, p)
		}
	}
	if c.at >= len(all) {
		c.at, c.listed = 0, true
	}
}

func (c *collector) lookAtClients() {
	for end := min(c.at+collectClients, len(c.clients)); c.at < end; c.at++ {
		f := c.clients[c.at]
		if f.ended.get() {
			continue
		}
		f.ledger.Pauses.Tell(c.now, f.counts.Waits)
		g := &f.ledger
		r := clientReport{front: f, tenant: g.Tenant(), ClientReport: observe.ClientReport{
			Seen: f.seen.Snapshot(c.round), Peer: f.peer, Proxy: f.client.proxy(), Listener: f.listener.Name,
			RDMA:   f.listener.IsRDMA,
			Unread: g.Unread(), Waits: g.Pauses.Reasons(), Paused: g.Pauses.Paused(c.now), TLS: f.secured,
			Identity: (*certs.Identity)(f.identity),
		}}
		if r.tenant != nil {
			r.Tenant = r.tenant.Name
		}
		r.Granted, r.Used = f.client.credits()
		n := 0
		for _, q := range f.queues {
			if n < len(r.Upstreams) && !slices.Contains(r.Upstreams[:n], q.u.Name) {
				r.Upstreams[n] = q.u.Name
				n++
			}
		}
		c.reports = append(c.reports, r)
	}
}

// collect asks all loops. p.looking is held.
func (p *Proxy) collect(by *observe.Asker) (found []*collector) {
	p.round++
	clients, all := byLoop(p.loops, p.allFronts()), make([]*collector, len(p.loops))
	for _, i := range by.All(func(i int, done func()) loop.Task {
		all[i] = &collector{
			p: p, loop: p.loops[i], done: done, round: p.round, clients: clients[i],
			reports: make([]clientReport, 0, len(clients[i])),
		}
		return all[i]
	}) {
		found = append(found, all[i])
	}
	return found
}

// clients lists the clients that q asks for.
func (p *Proxy) clients(by *observe.Asker, found []*collector, q *status.Query) (d status.Clients) {
	d.Sort = q.Sort
	if !slices.Contains(status.Sorts, d.Sort) {
		d.Sort = status.SortWaiting
	}
	keeps := observe.Matches(q.Filter)
	var all []*clientReport
	now := int64(0)
	for _, c := range found {
		now = max(now, c.now)
		for i := range c.reports {
			if keeps(&c.reports[i].ClientReport) {
				all = append(all, &c.reports[i])
			}
		}
		for _, r := range c.listened {
			d.Paused += r.Waiting.Paused
		}
	}
	order := observe.Order(d.Sort)
	slices.SortFunc(all, func(a, b *clientReport) int { return order(&a.ClientReport, &b.ClientReport) })
	all = all[:min(len(all), q.Most())]
	wall := time.Now()
	d.List = make([]status.Client, len(all))
	for i, r := range all {
		d.List[i] = r.Describe(now, wall, gates.ReasonNames[:])
	}
	p.details(by, all, d.List)
	d.Shown = len(d.List)
	return d
}

// details adds to each description what only the kernel knows, for the clients that are listed.
func (p *Proxy) details(by *observe.Asker, all []*clientReport, into []status.Client) {
	byLoop := make([][]int, len(p.loops))
	for i, r := range all {
		n := r.front.loop.index
		byLoop[n] = append(byLoop[n], i)
	}
	found := make([]*status.TCP, len(all))
	by.Each(byLoop, func(i int) {
		if f := all[i].front; !f.ended.get() {
			found[i] = observe.TCPStatus(f.client.network())
		}
	}, func(i int) { into[i].TCP = found[i] })
}
