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

// A report gathers Problems and knows where each setting stands.
type report struct {
	file     string
	source   *source
	problems Problems
}

// addf notes a problem with the setting at path. Where the setting is absent,
// the line is that of the nearest setting around it.
func (r *report) addf(path, format string, args ...any) {
	r.problems = append(r.problems, problem{
		File: r.file,
		Line: r.source.line(path),
		Path: path,
		Text: fmt.Sprintf(format, args...),
	})
}

// has reports whether a problem with path, or within it, is known.
func (r *report) has(path string) bool {
	return slices.ContainsFunc(r.problems, func(p problem) bool {
		return p.Path == path || strings.HasPrefix(p.Path, path+".") || strings.HasPrefix(p.Path, path+"[")
	})
}

// spoiled reports whether path, or a setting around it, could not be read.
func (r *report) spoiled(path string) bool {
	return slices.ContainsFunc(r.problems, func(p problem) bool {
		return p.Path != "" && (p.Path == path || strings.HasPrefix(path, p.Path+".") || strings.HasPrefix(path, p.Path+"["))
	})
}

func (r *report) err() error {
	if len(r.problems) == 0 {
		return nil
	}
	r.problems.sort()
	return r.problems
}
