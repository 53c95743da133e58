package explain

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"
)

// A jsonPrinter prints an object on each line.
type jsonPrinter struct{ enc *json.Encoder }

func newJSONPrinter(w io.Writer) printer {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	return &jsonPrinter{enc}
}

func (p *jsonPrinter) begin(h *header) error    { return p.enc.Encode(h) }
func (p *jsonPrinter) message(m *message) error { return p.enc.Encode(m) }
func (p *jsonPrinter) end(s *summary) error     { return p.enc.Encode(s) }

// A textPrinter prints for humans: a block of lines for each message, each line a
// word and what it says.
type textPrinter struct {
	w     io.Writer
	err   error
	first *time.Time
}

func newTextPrinter(w io.Writer) printer { return &textPrinter{w: w} }

func (p *textPrinter) printf(format string, args ...any) {
	if p.err == nil {
		_, p.err = fmt.Fprintf(p.w, format, args...)
	}
}

// keyWidth is the width of the words.
const keyWidth = 11

// row prints a line of a block; one without a key goes on with the line before.
func (p *textPrinter) row(key, format string, args ...any) {
	p.printf("  %-*s %s\n", keyWidth, key, fmt.Sprintf(format, args...))
}

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
	p.printf("inline thresholds: Calls %d, Replies %d; one READ at most %d, a Reply of unknown length %d",
		h.InlineCall, h.InlineReply, h.MaxIO, h.MaxReply)
	if h.From != "" {
		p.printf(" (%s; a peer may lower the thresholds)", h.From)
	}
	p.printf("\n")
	return p.err
}

func count[N int | int64](n N, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

func (p *textPrinter) message(m *message) error {
	if m.conn != nil && !m.conn.printed {
		m.conn.printed = true
		p.connection(m.conn)
	}
	p.printf("\n#%d", m.Number)
	p.place(&m.Place)
	switch {
	case m.Problem != "":
		p.row(m.Kind, "%s", m.Problem)
	case m.Call != nil:
		p.row("Call", "%s, XID %#08x%s", callName(m.Call), *m.XID, times(m.Call.Retransmission, ", again: it is #%d"))
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
	for _, n := range m.Notes {
		p.row("note", "%s", n)
	}
	return p.err
}

func times(n int, format string) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf(format, n)
}

func (p *textPrinter) place(l *place) {
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
		p.printf(", found by searching")
	}
	if l.BadCRC {
		p.printf(", CRC wrong")
	}
	p.printf("\n")
}

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
		add(s.Retransmitted, "%d came again")
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
		add(u.SendSize > 0, fmt.Sprintf("sends %d, takes %d", u.SendSize, u.RecvSize))
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
	s := fmt.Sprintf("%s, credits %d, %d octets behind the header", t.Procedure, t.Credits, t.Payload)
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

func (c *chunk) String() string {
	s := fmt.Sprintf("%s in %s", count(c.Octets, "octet"), count(len(c.Segments), "segment"))
	if len(c.Segments) == 1 {
		s += fmt.Sprintf(" (handle %#x)", c.Segments[0].Handle)
	}
	if c.Seen > 0 {
		s += fmt.Sprintf(", %d seen to move", c.Seen)
	}
	return s
}

func callName(c *callPart) string {
	s := c.ProgramName
	if s == "" {
		s = fmt.Sprintf("program %d", c.Program)
	}
	s += fmt.Sprintf(" version %d", c.Version)
	if c.Compound != nil {
		s = fmt.Sprintf("%s version 4.%d COMPOUND", c.ProgramName, *c.Compound.Minor)
		if c.ProcedureName != "" && c.ProcedureName != "COMPOUND" {
			s += " for " + c.ProcedureName
		}
		return s
	}
	switch {
	case c.Protection == "control":
		return fmt.Sprintf("%s, RPCSEC_GSS %s", s, c.Credential.GSS.Procedure)
	case c.ProcedureName == "":
		return fmt.Sprintf("%s procedure %d", s, c.Procedure)
	}
	return s + " " + c.ProcedureName
}

func (p *textPrinter) call(c *callPart) {
	p.row("credential", "%s", &c.Credential)
	p.row("", "%s", c.Credential.Means)
	if c.Verifier.Length > 0 || c.Verifier.Flavor != 0 {
		p.row("verifier", "%s, %d octets", c.Verifier.Name, c.Verifier.Length)
	}
	if c.Compound != nil {
		p.compound(c.Compound)
	}
	if c.Local != "" {
		p.row("answered", "by the bridge: %s", c.Local)
	}
	if a := c.Analysis; a != nil {
		p.row("repeated", "%s: %s", a.Class, a.Repeat)
		if a.Argument != nil {
			p.row("data", "argument of %d octets at position %d", a.Argument.Length, a.Argument.Position)
		}
		if a.ResultMax > 0 {
			p.row("data", "result of at most %d octets", a.ResultMax)
		}
		if a.MaxReduced != a.MaxReply {
			p.row("Reply", "at most %d octets, %d without data: %s", a.MaxReply, a.MaxReduced, a.Bound)
		} else {
			p.row("Reply", "at most %d octets: %s", a.MaxReply, a.Bound)
		}
	}
	if c.Reverse {
		p.row("direction", "reverse (RFC 8167): from the server, on a connection of the client's")
	}
	if c.Plan != nil {
		p.plan(c.Plan)
	}
}

func (c *credential) String() string {
	s := c.Name
	switch {
	case c.UID != nil:
		s += fmt.Sprintf(" uid %d gid %d", *c.UID, *c.GID)
		if len(c.GIDs) > 0 {
			s += " groups " + strings.Trim(fmt.Sprint(c.GIDs), "[]")
		}
		if c.Machine != "" {
			s += " at " + c.Machine
		}
	case c.GSS != nil:
		s += fmt.Sprintf(" version %d %s", c.GSS.Version, c.GSS.Procedure)
		if c.GSS.Service != "" {
			s += ", service " + c.GSS.Service
		}
		s += fmt.Sprintf(", sequence %d, context of %d octets", c.GSS.Sequence, c.GSS.Context)
	}
	if c.Length > 0 {
		s += fmt.Sprintf(", %d octets", c.Length)
	}
	return s
}

func (p *textPrinter) compound(c *compound) {
	tag := ""
	if c.Tag != "" {
		tag = fmt.Sprintf(", tag %q", c.Tag)
	}
	p.row("operations", "%d%s: %s", c.Count, tag, c)
}

// String lists the operations, those of a Reply with the status of the last.
func (c *compound) String() string {
	var b strings.Builder
	for i := range c.Operations {
		o := &c.Operations[i]
		if i > 0 {
			b.WriteString(", ")
		}
		if o.Name != "" {
			b.WriteString(o.Name)
		} else {
			fmt.Fprintf(&b, "operation %d", o.Number)
		}
		if o.Status != "" && o.Status != "NFS4_OK" {
			fmt.Fprintf(&b, " %s", o.Status)
		}
	}
	switch {
	case c.Rest != "":
		fmt.Fprintf(&b, ", which %s", c.Rest)
	case uint64(len(c.Operations)) < uint64(c.Count):
		b.WriteString(", and what was not captured or not listed")
	}
	return b.String()
}

func (p *textPrinter) plan(l *plan) {
	if l.Error != "" {
		p.row("carried", "not at all: %s", l.Error)
		return
	}
	p.shape("Call goes", callWords(&l.Call), &l.Call)
	if l.Reply.Shape != "" {
		p.shape("Reply comes", replyWords(&l.Reply), &l.Reply)
	}
}

func callWords(s *shape) string {
	switch s.Shape {
	case shapeNone:
		return "not at all"
	case shapeReadChunk:
		return fmt.Sprintf("with a Read chunk of %d octets at position %d", s.Octets, s.Position)
	case shapePositionZero:
		return fmt.Sprintf("whole, as a Position Zero Read chunk of %d octets (RDMA_NOMSG)", s.Octets)
	}
	return "inline"
}

func replyWords(s *shape) string {
	switch s.Shape {
	case shapeWriteChunk:
		return fmt.Sprintf("inline, its data in a Write chunk of %d octets", s.Octets)
	case shapeReplyChunk:
		return fmt.Sprintf("inline if it fits, else in a Reply chunk of %d octets", s.Octets)
	}
	return "inline"
}

var triesWords = map[string]string{
	shapeInline: "inline", shapeReadChunk: "Read chunk", shapeWriteChunk: "Write chunk", shapeReplyChunk: "Reply chunk",
}

// shape prints how a message goes: in one line when there was one thing to look
// at.
func (p *textPrinter) shape(key, words string, s *shape) {
	if len(s.Steps) == 1 {
		p.row(key, "%s: %s", words, &s.Steps[0])
	} else {
		p.row(key, "%s", words)
		for i := range s.Steps {
			t := &s.Steps[i]
			no := ""
			if !t.Holds {
				no = "not "
			}
			p.row("", "  %s%s: %s", no, triesWords[t.Tries], t)
		}
	}
	otherwise := ""
	if len(s.Otherwise) > 0 {
		otherwise = "; else " + strings.Join(s.Otherwise, ", or ")
	}
	p.row("", "  by %s%s", s.DecidedBy, otherwise)
}

func replyName(r *replyPart) string {
	if r.Call == 0 {
		return ", to a Call that is not in the input"
	}
	s := fmt.Sprintf(", to #%d", r.Call)
	if r.title != "" {
		s += " " + r.title
	}
	if r.After != nil {
		s += fmt.Sprintf(" after %.6f s", *r.After)
	}
	if r.Duplicate {
		s += ", not the first"
	}
	return s
}

func (p *textPrinter) reply(r *replyPart) {
	s := r.Status
	if r.ProgramStatus != "" {
		s += ", " + r.ProgramStatus
	}
	p.row("status", "%s", s)
	if r.Verifier.Length > 0 || r.Verifier.Flavor != 0 {
		p.row("verifier", "%s, %d octets", r.Verifier.Name, r.Verifier.Length)
	}
	if r.Compound != nil {
		p.compound(r.Compound)
	}
	if r.Item != nil {
		p.row("data", "%d octets at position %d", r.Item.Length, r.Item.Position)
	}
	if r.Splice != nil {
		p.row("spliced", "%d octets of the Write chunk at position %d, and roundup of %d", r.Splice.Length, r.Splice.Position, r.Splice.Roundup)
	}
	if r.Bound != nil {
		what := "within"
		if !r.Bound.Holds {
			what = "MORE THAN"
		}
		p.row("length", "%d octets, %s the bound of %d", r.Length, what, r.Bound.MaxReply)
	} else if r.Length > 0 {
		p.row("length", "%d octets", r.Length)
	}
	if t := r.Travel; t != nil {
		words := map[string]string{
			shapeInline: "inline", shapeReplyChunk: "in the Reply chunk", shapeNone: "NOT AT ALL",
			shapeWriteChunk: fmt.Sprintf("inline, %d octets from position %d in the Write chunk", t.Octets, t.Position),
		}
		if len(t.Steps) == 1 {
			p.row("would come", "%s: %s", words[t.Shape], &t.Steps[0])
			return
		}
		p.row("would come", "%s", words[t.Shape])
		for i := range t.Steps {
			p.row("", "  %s", &t.Steps[i])
		}
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
	if s.Incomplete {
		p.printf("there are more; --max ended this\n")
	}
	if s.Broken != "" {
		p.printf("%s\n", s.Broken)
	}
	for _, k := range s.Skipped {
		p.printf("passed over: %s, %s\n", count(k.Packets, "packet"), k.Reason)
	}
	other := 0
	for _, c := range s.Connections {
		if c.Protocol == "other" {
			other++
		}
	}
	if other > 0 {
		p.printf("passed over: %s without RPC\n", count(other, "TCP connection"))
	}
	for _, h := range s.Hints {
		p.printf("%s\n", h)
	}
	return p.err
}

func replies(n int) string {
	if n == 1 {
		return "1 Reply"
	}
	return fmt.Sprintf("%d Replies", n)
}
