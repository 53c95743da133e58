package explain

import (
	"fmt"
)

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
		p.row("spliced", "%d octets of the Write chunk at position %d, with roundup of %d", r.Splice.Length, r.Splice.Position, r.Splice.Roundup)
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

// replyName names the Call that r answers.
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
		s += ", a duplicate"
	}
	return s
}
