package names

import (
	"fmt"
	"path"
	"slices"
	"strings"
)

// A Verdict is what a Filter says of a Call.
type Verdict uint8

// The verdicts.
const (
	Out     Verdict = iota
	Unknown         // not enough is known of the file
	In
)

// A Filter chooses Calls by where their file is. The zero Filter chooses all.
type Filter struct {
	exports []string
	paths   [][]string // patterns of segments
}

// NewFilter returns a Filter of what is in one of the exports, if there are any, and in one of the paths, if there are
// any. A path is a pattern of path.Match for each segment, or "**" for any number of segments. It means what is at the
// path, and all that is below.
func NewFilter(exports, paths []string) (f Filter, err error) {
	f.exports = exports
	for _, p := range paths {
		if !strings.HasPrefix(p, "/") && !strings.HasPrefix(p, "**") && !strings.HasPrefix(p, unknownAbove) {
			return Filter{}, fmt.Errorf("%q does not begin with a slash, %q or %q", p, "**", unknownAbove)
		}
		segments := strings.Split(strings.TrimRight(p, "/"), "/")
		for _, s := range segments {
			if _, err := path.Match(s, ""); err != nil {
				return Filter{}, fmt.Errorf("%q has a bracket or a backslash without what belongs to it", p)
			}
		}
		f.paths = append(f.paths, segments)
	}
	return f, nil
}

// Set reports whether the Filter leaves anything out.
func (f *Filter) Set() bool { return len(f.exports)+len(f.paths) > 0 }

// Judge says whether the Filter chooses a Call that is about p.
func (f *Filter) Judge(p *Place) Verdict {
	switch {
	case !f.Set():
		return In
	case p.opaque:
		return Unknown
	case p.Handle == nil:
		return Out
	}
	v := In
	if len(f.exports) > 0 && !slices.Contains(f.exports, p.Export) {
		v = Out
		if p.Export == unknownExport || strings.HasPrefix(p.Export, fsidExport) {
			v = Unknown
		}
	}
	if len(f.paths) > 0 {
		v = min(v, f.path(p.Path))
	}
	return v
}

// path says whether one of the patterns is that of p or of a directory above it.
func (f *Filter) path(p string) Verdict {
	segments := strings.Split(strings.TrimRight(p, "/"), "/")
	switch {
	case p != "" && slices.ContainsFunc(f.paths, func(pattern []string) bool { return matches(pattern, segments) }):
		return In
	case p == "" || segments[0] == unknownAbove:
		return Unknown
	}
	return Out
}

// matches reports whether pattern matches the first of the segments, or all of them.
func matches(pattern, segments []string) bool {
	next, at := 0, 0
	anys, skipped := -1, 0 // the last "**", and the segments up to where it ends
	for next < len(pattern) {
		if pattern[next] == "**" {
			anys, skipped = next, at
			next++
			continue
		}
		if at < len(segments) {
			if ok, _ := path.Match(pattern[next], segments[at]); ok {
				next, at = next+1, at+1
				continue
			}
		}
		if anys < 0 || skipped == len(segments) {
			return false
		}
		skipped++
		next, at = anys+1, skipped
	}
	return true
}
