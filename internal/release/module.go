package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
)

// A module is something that is linked into a binary: a module of another project, or Go's standard
// library.
type module struct {
	path, version string
	dir           string          // where its source is
	packages      map[string]bool // the directories of the packages that are linked in
	sum           string          // from go.sum: "h1:" and base64; empty for the standard library
	files         []licenceFile
}

// standard is the path of the module that stands for the standard library, as in Go's vulnerability
// database.
const standard = "stdlib"

// own is the path of the module that this program belongs to.
const own = "github.com/rdmabridge/rdmabridge"

// A target says which program is built, and how.
type target struct {
	dir  string   // where the go command runs
	pkg  string   // the main package
	tags string   // build tags, separated by commas
	env  []string // such as CGO_ENABLED=0, GOOS=linux and GOARCH=amd64
}

// linked returns the modules of other projects that are linked into the program of t, by path, with
// their licences. The standard library is the first.
func (t target) linked() ([]*module, error) {
	cmd := exec.Command("go", "list", "-deps", "-tags", t.tags, "-json=Dir,ImportPath,Standard,Module", t.pkg)
	cmd.Dir = t.dir
	cmd.Env = append(os.Environ(), t.env...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s: %w\n%s", cmd, err, stderr.String())
	}
	std := &module{path: standard, version: strings.TrimPrefix(runtime.Version(), "go"), packages: map[string]bool{}}
	if std.dir, err = goRoot(t.dir); err != nil {
		return nil, err
	}
	found := map[string]*module{}
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p struct {
			Dir, ImportPath string
			Standard        bool
			Module          *struct {
				Path, Version, Dir, Sum string
				Main                    bool
				Replace                 *struct{ Path string }
			}
		}
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, err
		}
		switch {
		case p.Standard:
			std.packages[p.Dir] = true
			continue
		case p.Module == nil:
			return nil, fmt.Errorf("package %s belongs to no module", p.ImportPath)
		case p.Module.Main:
			continue
		case p.Module.Replace != nil:
			return nil, fmt.Errorf("module %s is replaced by %s, which has no version that a reader could look up", p.Module.Path, p.Module.Replace.Path)
		}
		m := found[p.Module.Path]
		if m == nil {
			m = &module{path: p.Module.Path, version: p.Module.Version, dir: p.Module.Dir, sum: p.Module.Sum, packages: map[string]bool{}}
			found[m.path] = m
		}
		m.packages[p.Dir] = true
	}
	list := append([]*module{std}, slices.SortedFunc(maps.Values(found), func(a, b *module) int { return cmp.Compare(a.path, b.path) })...)
	for _, m := range list {
		if m.files, err = m.readLicences(); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// goRoot returns where the standard library's licence is.
func goRoot(dir string) (string, error) {
	cmd := exec.Command("go", "env", "GOROOT")
	cmd.Dir = dir
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w", cmd, err)
	}
	return strings.TrimSpace(string(out)), nil
}

// directories returns the directories in which licences of m can be: those of the packages that are
// linked in, and the ones above them.
func (m *module) directories() []string {
	all := map[string]bool{m.dir: true}
	for d := range m.packages {
		for strings.HasPrefix(d, m.dir+string(filepath.Separator)) {
			all[d] = true
			d = filepath.Dir(d)
		}
	}
	return slices.Sorted(maps.Keys(all))
}
