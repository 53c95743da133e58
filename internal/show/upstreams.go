package show

import (
	"fmt"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/status"
)

// Upstreams is the table of upstreams.
func (p Pair) Upstreams() *Table {
	t := &Table{Sort: "upstream", Columns: []Column{
		{Key: "upstream", Name: "UPSTREAM", Help: "name of the upstream", Left: true},
		{Key: "transport", Name: "KIND", Help: "transport and pool.mode", Left: true, Rank: 8},
		{Key: "state", Name: "STATE", Help: "up, degraded (some connections or endpoints are missing), down, or asleep (no Call needs it)", Left: true},
		{Key: "connections", Name: "CONN", Help: "connections that are up, of those that should be", Rank: 3},
		{Key: "ejected", Name: "EJECTED", Help: "endpoints that are not used because they failed, or an operator took them out", Rank: 7},
		{Key: "credits", Name: "CREDITS", Help: "credits in use, of those that the server grants"},
		{Key: "requested", Name: "ASKED", Help: "credits that the bridge asks for", Rank: 9},
		{Key: "waits", Name: "WAIT", Help: "Calls that wait for a credit"},
		{Key: "starved", Name: "STARVED", Help: "part of the time in which Calls waited and no credit was free", Rank: 1},
		{Key: "calls", Name: p.head("CALLS"), Help: p.help("Calls answered")},
		{Key: "out", Name: p.head("SENT"), Help: p.help("bytes of Calls"), Rank: 5},
		{Key: "in", Name: p.head("RECV"), Help: p.help("bytes of Replies"), Rank: 5},
		{Key: "credit", Name: "CREDIT", Help: "mean time that a Call waited for a credit", Rank: 2},
		{Key: "server", Name: "SERVER", Help: "mean time from sending a Call until its Reply: network and storage"},
		{Key: "flight", Name: "FLIGHT", Help: "Calls that were sent, or wait, and are not yet answered", Rank: 4},
		{Key: "oldest", Name: "OLDEST", Help: "how long the oldest Call that was sent has taken so far", Rank: 1},
		{Key: "stuck", Name: "STUCK", Help: "Calls that the server has not answered for a second or two", Rank: 4},
		{Key: "rtt", Name: "RTT", Help: helpRTT, Rank: 6},
		{Key: "lost", Name: "LOST", Help: helpLost, Rank: 2},
		{Key: "error", Name: "LAST-ERROR", Help: "why a connection is missing", Left: true, Flex: true, Rank: 10},
	}}
	for u, b := range status.Beside(p.Now.Upstreams, p.before().Upstreams, (*status.Upstream).Key) {
		t.Rows = append(t.Rows, p.upstreamRow(u, b))
	}
	return t
}

func (p Pair) upstreamRow(u, b *status.Upstream) Row {
	ph := p.phases(&u.Phases, &b.Phases)
	ejected := 0
	for _, e := range u.Endpoints {
		if e.State == status.EndpointEjected {
			ejected++
		}
	}
	calls, out, in := p.rate(u.Phases.Calls, b.Phases.Calls), p.rate(u.BytesOut, b.BytesOut), p.rate(u.BytesIn, b.BytesIn)
	credit, server := mean(ph.Credit, ph.Calls), mean(ph.Server, ph.Calls)
	return Row{
		text(u.Name), text(u.Transport + " " + u.Mode), stateCell(string(u.State)),
		number(float64(u.Usable), fmt.Sprintf("%d/%d", u.Usable, u.Wanted)).as(Warn, u.Usable < u.Wanted), countCell(ejected).as(Warn, ejected > 0),
		creditsCell(&u.Credits), countCell(u.Credits.Requested), countCell(u.Credits.Waiting).as(Warn, u.Credits.Waiting > 0), p.starvedCell(&u.Credits, &b.Credits),
		number(calls, Count(calls)), number(out, Bytes(out)), number(in, Bytes(in)), number(credit, Duration(credit)), number(server, Duration(server)),
		countCell(u.InFlight), oldestCell(u.OldestCall), countCell(u.Stuck).as(Warn, u.Stuck > 0), rttCell(u.TCP), p.lostCell(u.TCP, b.TCP), text(u.LastError),
	}
}

// stateCell is a cell of a column state.
func stateCell(state string) Cell {
	c := text(state)
	switch state {
	case string(status.Up), string(status.EndpointUsed):
		c.Style = Good
	case string(status.Degraded), string(status.ConnectionStalled), string(status.ConnectionRetired), string(status.EndpointEjected):
		c.Style = Warn
	case string(status.Down):
		c.Style = Bad
	default:
		c.Style = Dim
	}
	return c
}

func creditsCell(c *status.Credits) Cell {
	return number(float64(c.Used), fmt.Sprintf("%d/%d", c.Used, c.Granted)).as(Warn, c.Granted > 0 && c.Used >= c.Granted)
}

func (p Pair) starvedCell(c, b *status.Credits) Cell {
	share := p.share(c.Starved, b.Starved)
	if p.Before == nil {
		return number(c.Starved, Duration(c.Starved)) // so far
	}
	return number(share, Percent(share)).as(Warn, share > 0.05).as(Bad, share > 0.5)
}

func linkKey(upstream string, c *status.Connection) string {
	return upstream + " " + c.Kind + " " + c.Endpoint + " " + c.Local + " " + c.Since.Format(time.RFC3339Nano)
}

// Links is the table of the connections to upstreams.
func (p Pair) Links() *Table {
	t := &Table{Sort: "upstream", Columns: []Column{
		{Key: "upstream", Name: "UPSTREAM", Help: "name of the upstream", Left: true},
		{Key: "kind", Name: "KIND", Help: "shared by all clients; a lane, which NFSv4.1 clients stay with; or pinned to one client", Left: true, Rank: 3},
		{Key: "endpoint", Name: "ENDPOINT", Help: "address of the server", Left: true, Flex: true},
		{Key: "local", Name: "LOCAL", Help: "the bridge's address and port", Left: true, Flex: true, Rank: 6},
		{Key: "state", Name: "STATE", Help: "up, down, asleep (no Call needs it), stalled (the server answers nothing), or retired (replaced; it ends after its last Call)", Left: true},
		{Key: "age", Name: "FOR", Help: "since when it is in this state", Rank: 4},
		{Key: "clients", Name: "CLIENTS", Help: "clients that stay with it", Rank: 5},
		{Key: "credits", Name: "CREDITS", Help: "credits in use, of those that the server grants"},
		{Key: "requested", Name: "ASKED", Help: "credits that the bridge asks for", Rank: 7},
		{Key: "waits", Name: "WAIT", Help: "Calls that wait for a credit of it", Rank: 1},
		{Key: "starved", Name: "STARVED", Help: "part of the time in which Calls waited and no credit was free", Rank: 1},
		{Key: "rtt", Name: "RTT", Help: helpRTT, Rank: 1},
		{Key: "lost", Name: "LOST", Help: helpLost, Rank: 1},
		{Key: "unacked", Name: "UNACKED", Help: "TCP segments that the server's host has not acknowledged", Rank: 7},
		{Key: "unsent", Name: "UNSENT", Help: "bytes in the send buffer that were never sent: the server does not read, or the network is slow", Rank: 7},
		{Key: "tls", Name: "TLS", Help: "the name in the server's certificate, or no", Left: true, Rank: 9},
		{Key: "error", Name: "LAST-ERROR", Help: "why it is not there", Left: true, Flex: true, Rank: 8},
	}}
	old := map[string]*status.Connection{}
	for _, u := range p.before().Upstreams {
		for j := range u.Connections {
			old[linkKey(u.Name, &u.Connections[j])] = &u.Connections[j]
		}
	}
	for i := range p.Now.Upstreams {
		u := &p.Now.Upstreams[i]
		for j := range u.Connections {
			c := &u.Connections[j]
			b := old[linkKey(u.Name, c)]
			if b == nil {
				b = c // the earlier document left it out, or it had another state
			}
			unacked, unsent := number(0, "-"), number(0, "-")
			if c.TCP != nil {
				unacked, unsent = countCell(int(c.TCP.Unacked)), number(float64(c.TCP.Unsent), Bytes(float64(c.TCP.Unsent)))
			}
			t.Rows = append(t.Rows, Row{
				text(u.Name), text(c.Kind), text(c.Endpoint), text(c.Local), stateCell(string(c.State)), sinceCell(c.Since, p.Now.Time), countCell(c.Clients),
				creditsCell(&c.Credits), countCell(c.Credits.Requested), countCell(c.Credits.Waiting).as(Warn, c.Credits.Waiting > 0), p.starvedCell(&c.Credits, &b.Credits),
				rttCell(c.TCP), p.lostCell(c.TCP, b.TCP), unacked, unsent, tlsCell(c.TLS), text(c.LastError),
			})
		}
	}
	return t
}

// Endpoints is the table of the endpoints of upstreams.
func (p Pair) Endpoints() *Table {
	t := &Table{Sort: "upstream", Columns: []Column{
		{Key: "upstream", Name: "UPSTREAM", Help: "name of the upstream", Left: true},
		{Key: "endpoint", Name: "ENDPOINT", Help: "address of the server", Left: true, Flex: true},
		{Key: "state", Name: "STATE", Help: "used, standby (failover: another endpoint is used), or ejected", Left: true},
		{Key: "connections", Name: "CONN", Help: "connections to it"},
		{Key: "until", Name: "BACK-IN", Help: "when an ejected endpoint is tried again; operator: when rdmabridge return says so"},
		{Key: "ejections", Name: "EJECTIONS", Help: "how often it was ejected so far"},
		{Key: "reason", Name: "REASON", Help: "why it is ejected", Left: true, Flex: true, Rank: 1},
	}}
	for i := range p.Now.Upstreams {
		u := &p.Now.Upstreams[i]
		for j := range u.Endpoints {
			e := &u.Endpoints[j]
			until := Cell{}
			switch {
			case e.State != status.EndpointEjected:
			case e.Until == nil:
				until.Text = "operator"
			default:
				until.Number = max(0, e.Until.Sub(p.Now.Time).Seconds())
				until.Text = Duration(until.Number)
			}
			t.Rows = append(t.Rows, Row{
				text(u.Name), text(e.Address), stateCell(string(e.State)), countCell(e.Connections), until,
				number(float64(e.Ejections), Count(float64(e.Ejections))), text(e.Reason),
			})
		}
	}
	return t
}
