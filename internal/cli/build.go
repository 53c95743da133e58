package cli

import (
	"fmt"
	"runtime"
	"runtime/debug"
)

// The linker sets these: -ldflags "-X github.com/rdmabridge/rdmabridge/internal/cli.version=1.2.3", and revision. The
// Makefile takes both from git.
var version, revision string

// A Build describes what this binary was built from.
type Build struct {
	Name      string   `json:"-"` // of the program
	Version   string   `json:"version"`
	Revision  string   `json:"revision,omitempty"` // the git commit
	Time      string   `json:"time,omitempty"`     // when Revision was committed
	Modified  bool     `json:"modified,omitempty"` // the work tree differed from Revision
	Go        string   `json:"go"`
	Platform  string   `json:"platform"`
	Providers []string `json:"providers"` // the RDMA providers that it contains
}

// ReadBuild reads what the Go toolchain recorded in this binary, which is the program name and has these RDMA
// providers.
func ReadBuild(name string, providers []string) Build {
	b := Build{
		Name: name, Version: version, Revision: revision,
		Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH,
		Providers: providers,
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return b
	}
	if b.Version == "" {
		b.Version = info.Main.Version
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			b.Revision = s.Value
		case "vcs.time":
			b.Time = s.Value
		case "vcs.modified":
			b.Modified = s.Value == "true"
		}
	}
	return b
}

// String formats b as one line.
func (b Build) String() string {
	s := fmt.Sprintf("%s %s", b.Name, b.Version)
	if b.Revision != "" {
		s += " " + b.Revision[:min(12, len(b.Revision))]
		if b.Modified {
			s += " modified"
		}
	}
	return fmt.Sprintf("%s, %s, %s, RDMA providers %v", s, b.Go, b.Platform, b.Providers)
}
