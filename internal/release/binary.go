package main

import (
	"cmp"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// A binary is a program that the Go toolchain has built from this tree.
type binary struct {
	name     string
	sha256   string            // of its octets
	version  string            // of this project
	settings map[string]string // of the toolchain, such as -tags
	modules  []*module         // the standard library is the first
}

// readBinary reads which modules are in the program in file, and their licences from the module cache. If
// version is empty, the version is what the toolchain has recorded.
func readBinary(file, version string) (*binary, error) {
	info, err := buildinfo.ReadFile(file)
	if err != nil {
		return nil, err
	}
	if info.Main.Path != own {
		return nil, fmt.Errorf("%s is built from %s, not from this tree", file, info.Main.Path)
	}
	octets, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(octets)
	b := &binary{name: filepath.Base(file), sha256: hex.EncodeToString(sum[:]), version: cmp.Or(version, info.Main.Version), settings: map[string]string{}}
	for _, s := range info.Settings {
		b.settings[s.Key] = s.Value
	}
	env := []string{"CGO_ENABLED=" + b.settings["CGO_ENABLED"], "GOOS=" + b.settings["GOOS"], "GOARCH=" + b.settings["GOARCH"]}
	t := target{dir: ".", pkg: info.Path, tags: b.settings["-tags"], env: env}
	if b.modules, err = t.linked(); err != nil {
		return nil, err
	}
	// What is linked in follows from the sources that are here now. The binary says which they were.
	b.modules[0].version = strings.TrimPrefix(info.GoVersion, "go")
	var have, want []string
	for _, m := range b.modules[1:] {
		have = append(have, m.path+"@"+m.version+" "+m.sum)
	}
	for _, d := range info.Deps {
		want = append(want, d.Path+"@"+d.Version+" "+d.Sum)
	}
	slices.Sort(have)
	slices.Sort(want)
	if !slices.Equal(have, want) {
		return nil, fmt.Errorf("%s is built from other modules than this tree has: build it again", file)
	}
	return b, nil
}
