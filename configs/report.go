package configs

import (
	"fmt"
	"slices"
	"strings"
)

// A report collects the problems of a file.
type report struct {
	file     string
	source   *source // nil for a configuration without a file
	problems Problems
}

// addf adds a problem with the setting at path. If the file does not have the setting,
// the problem has the line of the nearest setting around it.
func (r *report) addf(path, format string, args ...any) {
	r.add(problem{Line: r.source.line(path), Path: path, Text: fmt.Sprintf(format, args...)})
}

func (r *report) add(p problem) {
	p.File = r.file
	r.problems = append(r.problems, p)
}

// has reports whether there is a problem with path, or with a setting within it.
func (r *report) has(path string) bool {
	return slices.ContainsFunc(r.problems, func(p problem) bool { return within(p.Path, path) })
}

// spoiled reports whether there is a problem with path, or with a setting around it.
func (r *report) spoiled(path string) bool {
	return slices.ContainsFunc(r.problems, func(p problem) bool { return p.Path != "" && within(path, p.Path) })
}

// within reports whether path is outer or within outer.
func within(path, outer string) bool {
	rest, ok := strings.CutPrefix(path, outer)
	return ok && (rest == "" || rest[0] == '.' || rest[0] == '[')
}

// err returns the sorted problems, or nil if there are none.
func (r *report) err() error {
	if len(r.problems) == 0 {
		return nil
	}
	r.problems.sort()
	return r.problems
}
