package configs

import (
	"fmt"
	"slices"
	"strings"
)

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
