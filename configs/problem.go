package configs

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// A problem is one thing that is wrong with a file.
type problem struct {
	File string // "" for data that did not come from a file
	Line int    // 0 for a problem that belongs to no line
	Path string // such as listeners[0].address; "" for the whole file
	Text string
}

// String formats p as file:line: path: text, without unknown parts.
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

// Problems is the error of Load: everything that is wrong with a file, in the order of
// its lines.
type Problems []problem

// Error has a line for each problem.
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
