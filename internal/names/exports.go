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
	systems  map[system][]top     // their exports that are known
	prefixes [2]map[string]system // as NFSv3 and NFSv4 tell, by listener and beginning of a handle
	changes  uint64               // of prefixes
}

// A top is what clients mount, or the directory that a file system of NFSv4 begins with.
type top struct{ key, path string } // key is as in a table

// A system is a file system.
type system struct {
	listener string
	fsid     fsid
}

func newExports() *exports {
	return &exports{systems: make(map[system][]top), prefixes: [2]map[string]system{make(map[string]system), make(map[string]system)}}
}

// add notes that the directory whose key is key is an export of s, and its path.
func (x *exports) add(s system, key, path string) {
	roots := x.systems[s]
	if i := slices.IndexFunc(roots, func(r top) bool { return r.key == key }); i >= 0 {
		roots[i].path = path
		return
	}
	if len(x.systems) >= mostSystems && roots == nil || len(roots) >= mostRoots {
		return
	}
	x.systems[s] = append(roots, top{key, path})
}

// begins notes that a handle whose key is key is in s.
func (x *exports) begins(key []byte, s system) {
	p := key[:min(len(key), len(s.listener)+1+prefixLen)]
	prefixes := x.prefixes[s.fsid.version-3]
	old, ok := prefixes[string(p)]
	switch {
	case !ok && len(prefixes) < mostSystems:
		prefixes[string(p)] = s
		x.changes++
	case ok && old != s && old.fsid.version != 0:
		prefixes[string(p)] = system{} // several file systems have it
		x.changes++
	}
}

// guess returns the file system of the handle whose key is key, by how it begins. It has no fsid if that tells nothing.
func (x *exports) guess(listener string, key []byte) system {
	p := key[:min(len(key), len(listener)+1+prefixLen)]
	return x.better(x.prefixes[0][string(p)], x.prefixes[1][string(p)])
}

// better returns of the systems that NFSv3 and NFSv4 name a handle by the one whose exports are known.
func (x *exports) better(v3, v4 system) system {
	if v3.fsid.version == 0 || v4.fsid.version != 0 && len(x.systems[v3]) == 0 {
		return v4
	}
	return v3
}

// name returns the name of what is known of s: the path of its export if that is one.
func (x *exports) name(s system, show func(string) string) string {
	roots := x.systems[s]
	if len(roots) == 1 {
		return show(roots[0].path)
	}
	text := fmt.Sprintf("%s%#x", fsidExport, s.fsid.major)
	if s.fsid.minor != 0 {
		text += fmt.Sprintf(":%#x", s.fsid.minor)
	}
	if len(roots) > 1 {
		shown := make([]string, len(roots))
		for i, r := range roots {
			shown[i] = show(r.path)
		}
		text += " (" + strings.Join(shown, ", ") + ")"
	}
	return text
}
