package proxy

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/internal/status"
	"github.com/rdmabridge/rdmabridge/internal/tlsconf"
)

// Asking the loops
//
// What a loop owns, only the loop reads. So Proxy.Status posts a task to each loop, which copies the
// numbers of its clients. The task looks at collectCalls Calls or collectClients clients at a time, and
// posts itself again, so that Calls do not wait for it. A loop that has not answered within collectWait is
// left out. Sorting, and everything that allocates for each client that is listed, happens off the loops.

const (
	collectWait    = 500 * time.Millisecond
	collectCalls   = 1024
	collectClients = 256
	collectDetails = 32
)

// A clientReport is what a loop says of a client.
type clientReport struct {
	front    *front
	tenant   *tenant // nil for none
	totals   clientTotals
	inFlight inFlight
	unread   int64
	waits    uint16
	paused   int64 // nanoseconds
	granted  int
	used     int
	upstream [2]*upstream // those that the client has used first
	secured  bool
	identity *tlsconf.Identity
}

// A collector is the task that asks one loop. Its results may be read once it was received from done.
type collector struct {
	p       *Proxy
	loop    *eventLoop
	done    chan<- *collector
	round   uint64
	clients []*front

	at int // the Call or the client to look at next

	inFlight map[*operationSeries]int
	waiting  map[*listener]waitReport
	matched  map[*listener]matchReport
	reports  []clientReport
	now      int64
	listed   bool // the Calls have been looked at
}

// A waitReport says how many clients of a listener are not read from.
type waitReport struct {
	now    [waitReasons]int
	paused int
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
		c.done <- c
		return
	}
	c.loop.Post(c)
}

func (c *collector) begin() {
	c.now = c.loop.Now()
	c.loop.tally.count()
	c.inFlight = make(map[*operationSeries]int)
	c.waiting = make(map[*listener]waitReport)
	c.matched = make(map[*listener]matchReport)
	for _, l := range c.p.allListeners() {
		n := &l.counts[c.loop.index]
		for _, t := range n.tables {
			for _, o := range slices.Concat(t.rows, t.strange) {
				if o != nil && o.inFlight > 0 {
					c.inFlight[o.operationSeries] += o.inFlight
				}
			}
		}
		c.waiting[l] = waitReport{n.waits.now, n.waits.paused}
		c.matched[l] = l.settings().policy.report(c.loop.index)
	}
}

// lookAtCalls finds the oldest Call of each client. It reads only what belongs to the client's loop in every
// state of a call.
func (c *collector) lookAtCalls() {
	all := c.loop.all
	end := min(c.at+collectCalls, len(all))
	for ; c.at < end; c.at++ {
		v := all[c.at]
		if v.times.began == 0 {
			continue
		}
		s := &v.owner.front.seen
		if s.round != c.round {
			*s = inFlight{round: c.round}
		}
		s.calls++
		if s.oldest == 0 || v.times.began < s.oldest {
			s.oldest, s.xid, s.op = v.times.began, v.clientXID, nil
			if v.op != nil {
				s.op = v.op.operationSeries
			}
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
		f.tell()
		r := clientReport{
			front: f, totals: f.totals, unread: f.ledger.held, waits: f.waits.now, paused: f.waits.paused(c.now),
			secured: f.secured, identity: f.identity,
		}
		if m := f.ledger.member; m != nil {
			r.tenant = m.tenant
		}
		if f.seen.round == c.round {
			r.inFlight = f.seen
		}
		r.granted, r.used = f.client.credits()
		n := 0
		for _, q := range f.ledger.queues {
			if n < len(r.upstream) && !slices.Contains(r.upstream[:n], q.u) {
				r.upstream[n] = q.u
				n++
			}
		}
		c.reports = append(c.reports, r)
	}
}

// collect asks all loops. p.looking is held.
func (p *Proxy) collect() (found []*collector) {
	p.round++
	var fronts []*front
	for _, l := range p.allListeners() {
		fronts = append(fronts, l.snapshot(false)...)
	}
	all := p.byLoop(fronts)
	done := make(chan *collector, len(p.loops))
	for i, on := range p.loops {
		on.Post(&collector{p: p, loop: on, done: done, round: p.round, clients: all[i], reports: make([]clientReport, 0, len(all[i]))})
	}
	late := time.NewTimer(collectWait)
	defer late.Stop()
	p.deaf = make([]bool, len(p.loops))
	for i := range p.deaf {
		p.deaf[i] = true
	}
	for len(found) < len(p.loops) {
		select {
		case c := <-done:
			found = append(found, c)
			p.deaf[c.loop.index] = false
		case <-late.C:
			return found
		}
	}
	return found
}

// clients lists the clients that q asks for.
func (p *Proxy) clients(found []*collector, q *status.Query) (d status.Clients) {
	d.Sort = q.Sort
	if !slices.Contains(status.Sorts, d.Sort) {
		d.Sort = status.SortWaiting
	}
	keeps := clientFilter(q.Filter)
	var all []*clientReport
	now := int64(0)
	for _, c := range found {
		now = max(now, c.now)
		for i := range c.reports {
			if keeps(&c.reports[i]) {
				all = append(all, &c.reports[i])
			}
		}
		for _, w := range c.waiting {
			d.Paused += w.paused
		}
	}
	slices.SortFunc(all, clientOrder(d.Sort))
	all = all[:min(len(all), q.Most())]
	wall := time.Now()
	d.List = make([]status.Client, len(all))
	for i, r := range all {
		d.List[i] = r.describe(now, wall)
	}
	p.details(all, d.List)
	d.Shown = len(d.List)
	return d
}

// describe describes the client at now, on the clock of the loops, which is wall.
func (r *clientReport) describe(now int64, wall time.Time) status.Client {
	f := r.front
	d := status.Client{
		Address: f.peer.String(), Listener: f.listener.name, Transport: transport(f.listener.isRDMA),
		Since: r.totals.since, Active: wall.Add(-time.Duration(max(0, now-r.totals.active))),
		Traffic: status.Traffic{BytesIn: r.totals.in, BytesOut: r.totals.out},
		Phases:  phasesOf(r.totals.calls, &r.totals.phases),
		Failed:  r.totals.failed, Repeats: r.totals.repeats, InFlight: r.inFlight.calls,
		Unread: r.unread, Waiting: []string{}, Upstreams: []string{}, Paused: float64(r.paused) / 1e9,
	}
	if r.tenant != nil {
		d.Tenant = r.tenant.name
	}
	if a := f.client.proxy(); a.IsValid() {
		d.Proxy = a.String()
	}
	if r.secured {
		d.TLS = tlsStatus(r.identity)
	}
	if r.inFlight.calls > 0 {
		d.OldestCall, d.OldestXID = float64(max(0, now-r.inFlight.oldest))/1e9, r.inFlight.xid
		if o := r.inFlight.op; o != nil {
			d.OldestOp = o.name
		}
	}
	for i, name := range waitNames {
		if r.waits&(1<<i) != 0 {
			d.Waiting = append(d.Waiting, name)
		}
	}
	for _, u := range r.upstream {
		if u != nil {
			d.Upstreams = append(d.Upstreams, u.name)
		}
	}
	if f.listener.isRDMA {
		d.Credits = &status.ClientCredits{Granted: r.granted, Used: r.used}
	}
	return d
}

// details adds to each description what only the kernel knows, for the clients that are listed.
func (p *Proxy) details(all []*clientReport, into []status.Client) {
	byLoop := make([][]int, len(p.loops))
	for i, r := range all {
		n := r.front.loop.index
		byLoop[n] = append(byLoop[n], i)
	}
	found := make([]*status.TCP, len(all))
	p.askLoops(byLoop, func(i int) {
		if f := all[i].front; !f.ended.get() {
			found[i] = tcpStatus(f.client.network())
		}
	}, func(i int) { into[i].TCP = found[i] })
}

// askLoops calls ask(i), for each i of byLoop[n], on loop n, collectDetails of them at a time, and then
// take(i) on the calling goroutine, unless the loop has not answered in time. It does not ask a loop again
// that has not answered before: with many upstreams, a loop that hangs would keep everybody waiting who wants
// to know why. p.looking is held.
func (p *Proxy) askLoops(byLoop [][]int, ask, take func(i int)) {
	done := make(chan int, len(byLoop))
	waiting, asked := 0, make([]bool, len(byLoop))
	for n, items := range byLoop {
		if len(items) == 0 || p.deaf[n] {
			continue
		}
		waiting++
		asked[n] = true
		var next loop.TaskFunc
		rest := items
		next = func() {
			k := min(len(rest), collectDetails)
			for _, i := range rest[:k] {
				ask(i)
			}
			if rest = rest[k:]; len(rest) > 0 {
				p.loops[n].Post(next)
				return
			}
			done <- n
		}
		p.loops[n].Post(next)
	}
	late := time.NewTimer(collectWait)
	defer late.Stop()
	for ; waiting > 0; waiting-- {
		select {
		case n := <-done:
			asked[n] = false
			for _, i := range byLoop[n] {
				take(i)
			}
		case <-late.C:
			for n, a := range asked {
				p.deaf[n] = p.deaf[n] || a
			}
			return
		}
	}
}

// clientFilter returns what status.Query.Filter asks for.
func clientFilter(filter string) func(*clientReport) bool {
	filter = strings.ToLower(strings.TrimSpace(filter))
	if filter == "" {
		return func(*clientReport) bool { return true }
	}
	if net, err := netip.ParsePrefix(filter); err == nil {
		return func(r *clientReport) bool { return net.Contains(r.front.peer.Addr().Unmap()) }
	}
	return func(r *clientReport) bool {
		f := r.front
		words := []string{f.peer.String(), f.listener.name, transport(f.listener.isRDMA)}
		words = append(words, r.identity.Names()...)
		if r.tenant != nil {
			words = append(words, r.tenant.name)
		}
		for _, u := range r.upstream {
			if u != nil {
				words = append(words, u.name)
			}
		}
		return slices.ContainsFunc(words, func(w string) bool { return strings.Contains(strings.ToLower(w), filter) })
	}
}

// clientOrder returns the order that status.Query.Sort asks for.
func clientOrder(by string) func(a, b *clientReport) int {
	address := func(a, b *clientReport) int { return a.front.peer.Compare(b.front.peer) }
	oldest := func(a, b *clientReport) int {
		far := func(r *clientReport) int64 {
			if r.inFlight.calls == 0 {
				return 1<<63 - 1
			}
			return r.inFlight.oldest
		}
		return cmp.Compare(far(a), far(b))
	}
	waiting := func(a, b *clientReport) int {
		held := func(r *clientReport) int { return min(1, int(r.waits)) }
		return cmp.Or(cmp.Compare(held(b), held(a)), cmp.Compare(b.unread, a.unread), oldest(a, b), address(a, b))
	}
	var first func(a, b *clientReport) int
	switch by {
	case status.SortBytes:
		first = func(a, b *clientReport) int { return cmp.Compare(b.totals.in+b.totals.out, a.totals.in+a.totals.out) }
	case status.SortOldest:
		first = oldest
	case status.SortCalls:
		first = func(a, b *clientReport) int { return cmp.Compare(b.totals.calls, a.totals.calls) }
	case status.SortAddress:
		return address
	default:
		return waiting
	}
	return func(a, b *clientReport) int { return cmp.Or(first(a, b), waiting(a, b)) }
}

// tlsStatus describes TLS with a peer that has shown this identity.
func tlsStatus(i *tlsconf.Identity) *status.TLS {
	if i == nil {
		return new(status.TLS)
	}
	return &status.TLS{Identity: i.Name(), Subject: i.Subject, Issuer: i.Issuer, Serial: i.Serial, Names: i.Names(), Expires: &i.NotAfter}
}

// tcpStatus describes a TCP connection, or returns nil if ok is false.
func tcpStatus(t loop.TCP, ok bool) *status.TCP {
	if !ok {
		return nil
	}
	return &status.TCP{
		RTT: t.RTT.Seconds(), Retransmits: t.Retransmits, Needless: t.Needless, Segments: t.Segments, Received: t.Received, OutOfOrder: t.OutOfOrder, Unacked: t.Unacked, Unsent: t.Unsent, Unread: t.Unread,
	}
}
