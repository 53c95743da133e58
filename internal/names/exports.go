package names

import (
	"fmt"
	"slices"
	"strings"
)

const (
	// mostSystems bounds the file systems, and the beginnings of handles, that are known.
	mostSystems = 4096
	// mostRoots bounds the exports of a file system that are told apart.
	mostRoots = 16
	// prefixLen is how much of a handle tells its file system, where that is so: Linux begins handles with how they
	// are made and what names the file system.
	prefixLen = 8
)

// exports tell which export a handle is in. What clients mount is an export. File systems tell handles apart whose way
// up to what is mounted is not known, and need not be gone up where only one export of the file system is known.
type exports struct {
	systems  map[system][]string // paths of their exports that are known
	prefixes map[string]system   // by listener and beginning of a handle
}

// A system is a file system.
type system struct {
	listener string
	fsid     fsid
	mixed    bool // of a beginning of handles: several file systems have it
}

func newExports() *exports {
	return &exports{systems: make(map[system][]string), prefixes: make(map[string]system)}
}

// add notes that path is an export of s.
func (x *exports) add(s system, path string) {
	roots := x.systems[s]
	if len(x.systems) >= mostSystems && roots == nil || len(roots) >= mostRoots || slices.Contains(roots, path) {
		return
	}
	x.systems[s] = append(roots, path)
}

// begins notes that a handle whose key is key is in s.
func (x *exports) begins(key []byte, s system) {
	p := key[:min(len(key), len(s.listener)+1+prefixLen)]
	old, ok := x.prefixes[string(p)]
	switch {
	case !ok && len(x.prefixes) < mostSystems:
		x.prefixes[string(p)] = s
	case ok && !old.mixed && old != s:
		x.prefixes[string(p)] = system{mixed: true}
	}
}

// guess returns the file system of the handle whose key is key, by how it begins.
func (x *exports) guess(listener string, key []byte) (s system, ok bool) {
	s, ok = x.prefixes[string(key[:min(len(key), len(listener)+1+prefixLen)])]
	return s, ok && !s.mixed
}

// name returns the name of what is known of s: the path of its export if that is one.
func (x *exports) name(s system, show func(string) string) string {
	roots := x.systems[s]
	if len(roots) == 1 {
		return show(roots[0])
	}
	text := fmt.Sprintf("%s%#x", fsidExport, s.fsid.major)
	if s.fsid.minor != 0 {
		text += fmt.Sprintf(":%#x", s.fsid.minor)
	}
	if len(roots) > 1 {
		shown := make([]string, len(roots))
		for i, r := range roots {
			shown[i] = show(r)
		}
		text += " (" + strings.Join(shown, ", ") + ")"
	}
	return text
}
