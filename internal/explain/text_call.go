package explain

import (
	"fmt"
	"strings"
)

func (p *textPrinter) call(c *callPart) {
	p.row("credential", "%s", &c.Credential)
	p.row("", "%s", c.Credential.Means)
	if c.Verifier.Length > 0 || c.Verifier.Flavor != 0 {
		p.row("verifier", "%s, %d octets", c.Verifier.Name, c.Verifier.Length)
	}
	if c.Compound != nil {
		p.compound(c.Compound)
	}
	if c.File != nil {
		p.row("file", "%s", c.File)
	}
	if c.Rules != nil {
		p.rules(c.Rules)
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
		p.row("direction", "reverse (RFC 8167): from the server to the client")
	}
	if c.Choice != nil {
		p.choice(c.Choice, c.Reverse)
	}
	if c.Plan != nil {
		p.plan(c.Plan)
	}
}

func (p *textPrinter) rules(r *ruled) {
	p.row("rules", "of listener %s, for client %s: %s", r.Listener, r.Client, r.Effect)
	for i := range r.Rules {
		if v := &r.Rules[i]; v.Matches {
			p.row("", "  rules[%d] %s matches: %s", v.Number, v.Name, v.Effect)
		} else {
			p.row("", "  rules[%d] %s does not match: %s", v.Number, v.Name, v.Why)
		}
	}
}

func (p *textPrinter) choice(c *choice, reverse bool) {
	key := "connection"
	if reverse {
		key = "goes to"
	}
	p.row(key, "%s", c.Takes)
	for _, why := range c.Why {
		p.row("", "  %s", why)
	}
}

func (p *textPrinter) compound(c *compound) {
	tag := ""
	if c.Tag != "" {
		tag = fmt.Sprintf(", tag %q", c.Tag)
	}
	p.row("operations", "%d%s: %s", c.Count, tag, c)
}

// callName names the program, version and procedure of c.
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

// callWords says in words how a Call travels.
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

// replyWords says in words how a Reply travels.
func replyWords(s *shape) string {
	switch s.Shape {
	case shapeWriteChunk:
		return fmt.Sprintf("inline, its data in a Write chunk of %d octets", s.Octets)
	case shapeReplyChunk:
		return fmt.Sprintf("inline if it fits, otherwise in a Reply chunk of %d octets", s.Octets)
	}
	return "inline"
}

// triesWords names the shapes that a step may try.
var triesWords = map[string]string{
	shapeInline: "inline", shapeReadChunk: "Read chunk", shapeWriteChunk: "Write chunk", shapeReplyChunk: "Reply chunk",
}

// shape prints how a message travels. It uses one line if there was one comparison.
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
		otherwise = "; otherwise " + strings.Join(s.Otherwise, ", or ")
	}
	p.row("", "  decided by %s%s", s.DecidedBy, otherwise)
}
