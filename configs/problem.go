package configs

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// A problem is one thing wrong with a file.
type problem struct {
	File string // "" when the bytes did not come from a file
	Line int    // 0 when no line is to blame
	Path string // listeners[0].address; "" for the file as a whole
	Text string
}

// String is file:line: path: text, without the parts that are not known.
func (p problem) String() string {
	var b strings.Builder
	switch {
	case p.File != "" && p.Line > 0:
		fmt.Fprintf(&b, "%s:%d: ", p.File, p.Line)
	case p.File != "":
		fmt.Fprintf(&b, "%s: ", p.File)
	case p.Line > 0:
		fmt.Fprintf(&b, "line %d: ", p.Line)
	}
	if p.Path != "" {
		b.WriteString(p.Path + ": ")
	}
	b.WriteString(p.Text)
	return b.String()
}

// Problems is everything wrong with a file, in the order of its lines. It is
// the error of Load.
type Problems []problem

// Error is one problem a line.
func (ps Problems) Error() string {
	s := make([]string, len(ps))
	for i, p := range ps {
		s[i] = p.String()
	}
	return strings.Join(s, "\n")
}

func (ps Problems) sort() {
	slices.SortStableFunc(ps, func(a, b problem) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Path, b.Path))
	})
}
