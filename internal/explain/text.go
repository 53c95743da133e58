package explain

import (
	"io"
	"strings"
)

func newTextPrinter(w io.Writer) printer { return &textPrinter{w: w} }

func (p *textPrinter) begin(h *header) error {
	p.first = h.First
	if h.Format == "capture" {
		p.printf("capture of %s", count(h.Packets, "packet"))
		if h.First != nil {
			p.printf(", %.6f s from %s", h.Last.Sub(*h.First).Seconds(), h.First.Format("2006-01-02 15:04:05.000000 MST"))
		}
		p.printf("\n")
	} else {
		p.printf("%s, %d octets\n", h.Format, h.Octets)
	}
	p.printf("inline thresholds: Calls %d, Replies %d; at most %d octets of data in one READ, %d octets in a Reply of unknown length",
		h.InlineCall, h.InlineReply, h.MaxIO, h.MaxReply)
	if h.From != "" {
		p.printf(" (%s; a peer may lower the thresholds)", h.From)
	}
	p.printf("\n")
	return p.err
}

func (p *textPrinter) message(m *message) error {
	if m.conn != nil && !m.conn.printed {
		m.conn.printed = true
		p.connection(m.conn)
	}
	p.printf("\n#%d", m.Number)
	p.location(&m.Place)
	switch {
	case m.Problem != "":
		p.row(m.Kind, "%s", m.Problem)
	case m.Call != nil:
		p.row("Call", "%s, XID %#08x%s", callName(m.Call), *m.XID, times(m.Call.Retransmission, ", retransmission of #%d"))
	case m.Reply != nil:
		p.row("Reply", "XID %#08x%s", *m.XID, replyName(m.Reply))
	case m.XID != nil:
		p.row("message", "XID %#08x", *m.XID)
	}
	if m.RDMA != nil {
		p.transport(m.RDMA)
	}
	if m.Call != nil {
		p.call(m.Call)
	}
	if m.Reply != nil {
		p.reply(m.Reply)
	}
	for _, c := range m.Comments {
		p.comment(c)
	}
	for _, n := range m.Notes {
		p.row("note", "%s", n)
	}
	return p.err
}

// comment prints a comment. That of rdmabridge capture says who captured the message.
func (p *textPrinter) comment(c string) {
	key := "comment"
	if text, ok := strings.CutPrefix(c, "rdmabridge "); ok {
		key, c = "bridge", text
	}
	p.row(key, "%s", c)
}

func (p *textPrinter) location(l *location) {
	if l.Packet > 0 {
		p.printf("  packet %d", l.Packet)
		if l.LastPacket != l.Packet {
			p.printf(" to %d", l.LastPacket)
		}
		if l.Time != nil && p.first != nil {
			p.printf("  %.6f s", l.Time.Sub(*p.first).Seconds())
		}
		p.printf("  connection %d  %s > %s", l.Connection, l.From, l.To)
	}
	p.printf("  %s at %d", count(l.Octets, "octet"), l.Offset)
	if l.Fragments > 1 {
		p.printf(" in %d parts", l.Fragments)
	}
	if l.Missing > 0 {
		p.printf(", %d missing", l.Missing)
	}
	if l.Resynchronised {
		p.printf(", found by resynchronising")
	}
	if l.BadCRC {
		p.printf(", wrong CRC")
	}
	p.printf("\n")
}

// unknownFiles says that --path and --export could not judge all Calls.
func (p *textPrinter) unknownFiles(s *summary) {
	if s.Unknown > 0 {
		p.printf("left out: %s about files that may be among those wanted; the capture has not enough of their names\n", count(s.Unknown, "Call"))
	}
}

func (p *textPrinter) end(s *summary) error {
	p.printf("\n%s: %s, %s", count(s.Messages, "message"), count(s.Calls, "Call"), replies(s.Replies))
	if s.Unanswered > 0 {
		p.printf(", %s without a Reply", count(s.Unanswered, "Call"))
	}
	if s.Malformed > 0 {
		p.printf(", %d malformed", s.Malformed)
	}
	if s.Cut > 0 {
		p.printf(", %d cut", s.Cut)
	}
	p.printf("\n")
	p.unknownFiles(s)
	if s.Incomplete {
		p.printf("stopped by --max: the input has more messages\n")
	}
	if s.Broken != "" {
		p.printf("%s\n", s.Broken)
	}
	for _, k := range s.Skipped {
		p.printf("skipped: %s, %s\n", count(k.Packets, "packet"), k.Reason)
	}
	other := 0
	for _, c := range s.Connections {
		if c.Protocol == "other" {
			other++
		}
	}
	if other > 0 {
		p.printf("skipped: %s without RPC\n", count(other, "TCP connection"))
	}
	for _, h := range s.Hints {
		p.printf("%s\n", h)
	}
	return p.err
}
