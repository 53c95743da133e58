package show

import (
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/status"
)

// A client is one connection of a client, or all those of a host.
type client struct {
	now         status.Client // the sum
	connections int
	before      *status.Client // the sum; nil if it is not known
}

func clientKey(c *status.Client) string {
	return c.Listener + " " + c.Address + " " + c.Since.Format(time.RFC3339Nano)
}

// Connections is the table of the connections of clients.
func (p Pair) Connections() *Table {
	old := p.oldClients()
	var list []client
	for _, c := range p.Now.Clients.List {
		list = append(list, client{now: c, connections: 1, before: p.earlier(old, &c)})
	}
	return p.clients(list, false)
}

// Clients is the table of the hosts of clients, each with all its connections.
func (p Pair) Clients() *Table {
	old := p.oldClients()
	var list []client
	places := make(map[string]int)
	for _, c := range p.Now.Clients.List {
		before := p.earlier(old, &c)
		host := Host(c.Address)
		i, ok := places[host]
		if !ok {
			places[host] = len(list)
			c.Address = host
			list = append(list, client{now: c, connections: 1, before: before})
			continue
		}
		list[i].add(&c, before)
	}
	return p.clients(list, true)
}

func (p Pair) oldClients() map[string]*status.Client {
	return status.ByKey(p.before().Clients.List, clientKey)
}

// earlier returns what the earlier document says of c; nil if c has connected since.
func (p Pair) earlier(old map[string]*status.Client, c *status.Client) *status.Client {
	b := old[clientKey(c)]
	if b == nil && p.Before != nil && c.Since.Before(p.Before.Time) {
		b = c // the earlier document left it out: nothing is known of the time between
	}
	return b
}

// Host returns the address without the port.
func Host(address string) string {
	if a, err := netip.ParseAddrPort(address); err == nil {
		return a.Addr().Unmap().String()
	}
	return address
}

// add adds another connection of the same host.
func (c *client) add(o, before *status.Client) {
	c.connections++
	addClient(&c.now, o)
	switch {
	case before == nil:
	case c.before == nil:
		b := *before
		c.before = &b
	default:
		b := *c.before // the document keeps its own
		addClient(&b, before)
		c.before = &b
	}
}

func addClient(c, o *status.Client) {
	c.Upstreams = union(c.Upstreams, o.Upstreams)
	c.Waiting = union(c.Waiting, o.Waiting)
	if o.Since.Before(c.Since) {
		c.Since = o.Since
	}
	if o.Active.After(c.Active) {
		c.Active = o.Active
	}
	if o.Listener != c.Listener {
		c.Listener = "several"
	}
	if o.Tenant != c.Tenant {
		c.Tenant = "several"
	}
	c.BytesIn += o.BytesIn
	c.BytesOut += o.BytesOut
	c.Phases.Add(&o.Phases)
	c.Failed += o.Failed
	c.Repeats += o.Repeats
	c.InFlight += o.InFlight
	c.Unread += o.Unread
	c.Paused += o.Paused
	if o.OldestCall > c.OldestCall {
		c.OldestCall, c.OldestXID, c.OldestOp = o.OldestCall, o.OldestXID, o.OldestOp
	}
	if !sameTLS(c.TLS, o.TLS) {
		c.TLS = &status.TLS{Identity: "several"}
	}
	switch {
	case o.TCP == nil:
	case c.TCP == nil:
		c.TCP = o.TCP
	default:
		sum := *c.TCP // the document keeps its own
		sum.Add(o.TCP)
		c.TCP = &sum
	}
}

func sameTLS(a, b *status.TLS) bool {
	return a == nil && b == nil || a != nil && b != nil && a.Identity == b.Identity
}

func union(a, b []string) []string {
	all := slices.Clone(a)
	for _, s := range b {
		if !slices.Contains(all, s) {
			all = append(all, s)
		}
	}
	return all
}

// clients makes the table. Hosts have a column for the number of their connections.
func (p Pair) clients(list []client, hosts bool) *Table {
	t := &Table{Sort: "load", Columns: []Column{{Key: "address", Name: "ADDRESS", Help: "address and port of the client", Left: true, Flex: true}}}
	if hosts {
		t.Columns[0].Name, t.Columns[0].Help = "HOST", "address of the client, with all its connections"
		t.Columns = append(t.Columns, Column{Key: "connections", Name: "CONN", Help: "connections of this client", Rank: 6})
	}
	t.Columns = append(t.Columns, []Column{
		{Key: "load", Name: "LOAD", Help: "Calls that were under way on average: how much of the bridge's time this client uses", Rank: 5},
		{Key: "calls", Name: p.head("CALLS"), Help: p.help("Calls answered")},
		{Key: "in", Name: p.head("IN"), Help: p.help("bytes from the client"), Rank: 1},
		{Key: "out", Name: p.head("OUT"), Help: p.help("bytes to the client"), Rank: 1},
	}...)
	t.Columns = append(t.Columns, phaseColumns(8)...)
	t.Columns = append(t.Columns, []Column{
		{Key: "flight", Name: "FLIGHT", Help: helpFlight, Rank: 2},
		{Key: "oldest", Name: "OLDEST", Help: helpOldest, Rank: 1},
		{Key: "operation", Name: "OLDEST-OP", Help: "operation of that Call", Left: true, Rank: 9},
		{Key: "unread", Name: "UNREAD", Help: "bytes of Replies that the client has not read", Rank: 3},
		{Key: "lost", Name: "LOST", Help: helpLost, Rank: 4},
		{Key: "rtt", Name: "RTT", Help: helpRTT, Rank: 7},
		{Key: "failed", Name: p.head("FAIL"), Help: p.help("Replies that are no success"), Rank: 7},
		{Key: "paused", Name: "PAUSED", Help: "part of the time in which the bridge did not read from the client", Rank: 6},
		{Key: "waiting", Name: "WAITS-FOR", Help: "why the bridge does not read from the client now", Left: true, Rank: 1},
		{Key: "upstreams", Name: "UPSTREAMS", Help: "where its Calls go", Left: true, Rank: 9},
		{Key: "tls", Name: "TLS", Help: "the name in the client's certificate; yes: TLS without a certificate; no", Left: true, Rank: 10},
		{Key: "listener", Name: "LISTENER", Help: "where it has connected", Left: true, Rank: 10},
		{Key: "age", Name: "AGE", Help: "since when it is connected", Rank: 11},
		{Key: "idle", Name: "IDLE", Help: "time since its last Call", Rank: 11},
	}...)
	if p.hasTenants() {
		t.Columns = append(t.Columns, Column{Key: "tenant", Name: "TENANT", Help: "the tenant that it belongs to", Left: true, Rank: 10})
	}
	for i := range list {
		t.Rows = append(t.Rows, p.clientRow(&list[i], hosts))
	}
	return t
}

func (p Pair) clientRow(c *client, hosts bool) Row {
	n := &c.now
	before := c.before
	if before == nil {
		before = new(status.Client) // it has connected since
	}
	ph := p.phases(&n.Phases, &before.Phases)
	seconds := p.seconds()
	if seconds == 0 {
		seconds = max(1, p.Now.Time.Sub(n.Since).Seconds())
	}
	load := ph.Total() / seconds
	loadCell := Cell{Text: Count(load), Number: load}
	if n.OldestCall >= 1 {
		loadCell.Number += float64(n.InFlight) // they are in no phase yet
	}
	rate := func(now, before uint64, format func(float64) string) Cell {
		r := p.rate(now, before)
		return number(r, format(r))
	}
	paused := p.share(n.Paused, before.Paused)
	if p.Before == nil {
		paused = min(1, n.Paused/seconds)
	}
	r := Row{text(n.Address)}
	if hosts {
		r = append(r, countCell(c.connections))
	}
	r = append(r, loadCell, rate(n.Phases.Calls, before.Phases.Calls, Count), rate(n.BytesIn, before.BytesIn, Bytes), rate(n.BytesOut, before.BytesOut, Bytes))
	r = append(r, phaseCells(&ph)...)
	now := p.Now.Time
	r = append(r,
		countCell(n.InFlight), oldestCell(n.OldestCall), text(n.OldestOp), number(float64(n.Unread), Bytes(float64(n.Unread))).as(Warn, n.Unread > 1<<20),
		p.lostCell(n.TCP, before.TCP), rttCell(n.TCP), rate(n.Failed, before.Failed, Count), number(paused, Percent(paused)).as(Warn, paused > 0.1),
		text(strings.Join(n.Waiting, ",")).as(Warn, len(n.Waiting) > 0), text(strings.Join(n.Upstreams, ",")), tlsCell(n.TLS), text(n.Listener),
		sinceCell(n.Since, now), sinceCell(n.Active, now),
	)
	if p.hasTenants() {
		r = append(r, text(n.Tenant))
	}
	return r
}

// tlsCell is a cell of a column tls.
func tlsCell(t *status.TLS) Cell {
	switch {
	case t == nil:
		return Cell{Text: "no", Style: Dim}
	case t.Identity == "":
		return text("yes")
	}
	return text(t.Identity)
}

// hasTenants reports whether clients have a column for their tenant: the bridge has tenants, or there is no
// bridge and the legend is wanted.
func (p Pair) hasTenants() bool { return len(p.Now.Tenants) > 0 || p.Now.Time.IsZero() }

func sinceCell(t, now time.Time) Cell { return Cell{Text: Since(t, now), Number: now.Sub(t).Seconds()} }
