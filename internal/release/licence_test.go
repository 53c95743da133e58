package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestLicences checks every module that is linked into the programs, whatever the build tags.
func TestLicences(t *testing.T) {
	seen := map[string]bool{}
	for _, tags := range []string{"", "nodemo", "otel", "ibverbs", "ibverbs,otel"} {
		modules, err := target{dir: "../..", pkg: "./cmd/...", tags: tags, env: []string{"CGO_ENABLED=1"}}.linked()
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range modules {
			if seen[m.path] {
				continue
			}
			seen[m.path] = true
			if err := m.checkLicence(); err != nil {
				t.Error(err)
			}
		}
	}
	for _, path := range []string{standard, "github.com/panjf2000/gnet/v2", "github.com/willscott/go-nfs", "go.opentelemetry.io/otel"} {
		if !seen[path] {
			t.Errorf("%s was not checked", path)
		}
	}
}

// TestLicenceRefused checks what keeps a module out of the bridge.
func TestLicenceRefused(t *testing.T) {
	ours, err := os.ReadFile("../../LICENSE")
	if err != nil {
		t.Fatal(err)
	}
	const copyleft = "This program is free software: you can redistribute it and/or modify it under the terms of the GNU General Public License as published by the Free Software Foundation, either version 3 of the License, or (at your option) any later version.\n"
	for _, c := range []struct {
		name  string
		files map[string]string
		want  string // in the error; empty if it may be linked in
		ids   []string
	}{
		{"allowed", map[string]string{"LICENSE": string(ours)}, "", []string{"Apache-2.0"}},
		{"none", map[string]string{"main.go": "package main"}, "no licence", nil},
		{"not allowed", map[string]string{"COPYING": copyleft}, "GPL-3.0-or-later is not one of the allowed", nil},
		{"one of two not allowed", map[string]string{"LICENSE": string(ours), "LICENSE-GPL.txt": copyleft}, "not one of the allowed", nil},
		{"one of two, deeper", map[string]string{"LICENSE": string(ours), "deep/COPYING": copyleft}, "deep/COPYING", nil},
		{"with an addition", map[string]string{"LICENSE": string(ours) + strings.Repeat("Nobody may use this on a Monday. ", 400)}, "only", nil},
		{"unknown", map[string]string{"LICENSE": "Do as you like, but ask first."}, "no licence", nil},
		{"of a package that is not linked in", map[string]string{"LICENSE": string(ours), "other/COPYING": copyleft}, "", []string{"Apache-2.0"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			for name, text := range c.files {
				file := filepath.Join(dir, name)
				if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			m := &module{path: "example.com/m", version: "v1.0.0", dir: dir, packages: map[string]bool{dir: true}}
			if c.files["deep/COPYING"] != "" {
				m.packages[filepath.Join(dir, "deep")] = true
			}
			if m.files, err = m.readLicences(); err != nil {
				t.Fatal(err)
			}
			err := m.checkLicence()
			if c.want == "" {
				if err != nil || !slices.Equal(m.licences(), c.ids) {
					t.Errorf("licences %v, error %v", m.licences(), err)
				}
			} else if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want %q", err, c.want)
			}
		})
	}
}
