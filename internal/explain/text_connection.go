package explain

import (
	"fmt"
	"strings"
)

func (p *textPrinter) connection(c *connection) {
	words := map[string]string{"rpc": "RPC over TCP", "iwarp": "RPC-over-RDMA on iWARP", "other": "not RPC"}
	p.printf("\nconnection %d  %s - %s  %s\n", c.Number, c.Streams[0].From, c.Streams[0].To, words[c.Protocol])
	for i := range c.Streams {
		s := &c.Streams[i]
		if s.Missing == 0 && s.Cut == 0 && s.Retransmitted == 0 && s.Late == 0 {
			continue
		}
		var w []string
		add := func(n int64, format string) {
			if n > 0 {
				w = append(w, fmt.Sprintf(format, n))
			}
		}
		add(s.Missing, "%d missing")
		add(s.Cut, "%d cut by the snap length")
		add(s.Retransmitted, "%d retransmitted")
		p.row("from", "%s: %s", s.From, strings.Join(append([]string{count(s.Octets, "octet")}, w...), ", ")+
			times(s.Late, ", %d segments late"))
	}
	for i := range c.MPA {
		u := &c.MPA[i]
		what := "Request"
		if u.Reply {
			what = "Reply"
		}
		var w []string
		add := func(ok bool, s string) {
			if ok {
				w = append(w, s)
			}
		}
		add(u.Markers, "wants Markers")
		add(u.CRC, "CRC")
		add(u.Rejected, "rejected")
		add(u.Revision >= 2, fmt.Sprintf("IRD %d, ORD %d", u.IRD, u.ORD))
		add(u.SendSize > 0, fmt.Sprintf("sends %d, receives %d", u.SendSize, u.RecvSize))
		add(u.RemoteInvalidation, "remote invalidation")
		p.row("MPA "+what, "%s", strings.Join(append([]string{fmt.Sprintf("revision %d", u.Revision)}, w...), ", "))
	}
	if c.Inline != nil {
		p.row("inline", "from %s %d, from %s %d (RFC 8797)", c.Streams[0].From, c.Inline[0], c.Streams[1].From, c.Inline[1])
	}
}

func (p *textPrinter) transport(t *transport) {
	if t.Error != "" {
		p.row("RDMA", "%s %s, credits %d", t.Procedure, t.Error, t.Credits)
		return
	}
	if t.Procedure == "" {
		return
	}
	s := fmt.Sprintf("%s, credits %d, %d octets after the header", t.Procedure, t.Credits, t.Payload)
	if t.Invalidate != nil {
		s += fmt.Sprintf(", invalidates %#x", *t.Invalidate)
	}
	p.row("RDMA", "%s", s)
	for i := range t.Reads {
		c := &t.Reads[i]
		if *c.Position == 0 {
			p.row("", "Position Zero Read chunk of %s", c)
		} else {
			p.row("", "Read chunk at position %d of %s", *c.Position, c)
		}
	}
	for i := range t.Writes {
		p.row("", "Write chunk of %s", &t.Writes[i])
	}
	if t.Reply != nil {
		p.row("", "Reply chunk of %s", t.Reply)
	}
}
