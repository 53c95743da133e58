package configs

import (
	"fmt"
	"strings"
)

// A problem is one thing that is wrong with a file.
type problem struct {
	File string // "" for data that did not come from a file
	Line int    // 0 for a problem that belongs to no line
	Path string // such as listeners[0].address; "" for the whole file
	Text string

	excerpt string // of the file, with a mark; in lines of its own
}

// String returns the summary of p, and below it an excerpt of the file if that helps.
func (p problem) String() string {
	if p.excerpt == "" {
		return p.Summary()
	}
	return p.Summary() + "\n" + p.excerpt
}

// Summary formats p in one line, as file:line: path: text, without unknown parts.
func (p problem) Summary() string {
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

// Problems is the error of Load: everything that is wrong with the files, in the order of
// their lines.
type Problems []problem

// Error has a line for each problem, and two more for the excerpt of one that has it.
func (ps Problems) Error() string {
	s := make([]string, len(ps))
	for i, p := range ps {
		s[i] = p.String()
	}
	return strings.Join(s, "\n")
}
