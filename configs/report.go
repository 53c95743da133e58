package configs

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// A report collects the problems of a configuration.
type report struct {
	files    []string // in their order, and variables of the environment
	source   *source  // nil for a configuration without a file
	problems Problems

	bounds *bounds // of settings, as the checks name them; nil if nobody wants to know
}

// addf adds a problem with the setting at path. If no file has the setting, the problem has the position of the
// nearest setting around it.
func (r *report) addf(path, format string, args ...any) {
	at := r.source.position(path)
	if at == (position{}) {
		at.file = r.inFiles()
	}
	r.add(problem{File: at.file, Line: at.line, Path: path, Text: fmt.Sprintf(format, args...)})
}

func (r *report) add(p problem) { r.problems = append(r.problems, p) }

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
	r.sort()
	return r.problems
}

// sort sorts the problems by file, line and setting.
func (r *report) sort() {
	slices.SortStableFunc(r.problems, func(a, b problem) int {
		return cmp.Or(cmp.Compare(slices.Index(r.files, a.File), slices.Index(r.files, b.File)), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Path, b.Path))
	})
}

// several reports whether there are several files, beside variables of the environment and flags.
func (r *report) several() bool {
	return slices.ContainsFunc(r.files[1:], func(name string) bool { return !strings.HasPrefix(name, prefix) && !strings.HasPrefix(name, "--") })
}

// where says where the setting at path stands, or returns "".
func (r *report) where(path string) string {
	at := r.source.position(path)
	switch {
	case at.line == 0:
		return at.file
	case at.file == "" || at.file == r.files[0] && !r.several():
		return fmt.Sprintf("line %d", at.line)
	}
	return fmt.Sprintf("%s:%d", at.file, at.line)
}
