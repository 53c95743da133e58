package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
)

// database writes a vulnerability database in which a function of the standard library is vulnerable, as
// far as this Go release, and one that nothing calls. It returns its URL.
func database(t *testing.T) string {
	t.Helper()
	entry := func(id, pkg, symbol string) string {
		return fmt.Sprintf(`{"schema_version":"1.3.1","id":%q,"modified":"2026-01-02T03:04:05Z","published":"2026-01-02T03:04:05Z","summary":"made up","details":"made up",
"affected":[{"package":{"name":"stdlib","ecosystem":"Go"},"ranges":[{"type":"SEMVER","events":[{"introduced":"0"},{"fixed":"1.999.0"}]}],
"ecosystem_specific":{"imports":[{"path":%q,"symbols":[%q]}]}}],"database_specific":{"url":"https://pkg.go.dev/vuln/%[1]s"}}`, id, pkg, symbol)
	}
	dir := t.TempDir()
	for name, text := range map[string]string{
		"index/db.json":        `{"modified":"2026-01-02T03:04:05Z"}`,
		"index/modules.json":   `[{"path":"stdlib","vulns":[{"id":"GO-2026-9001","modified":"2026-01-02T03:04:05Z","fixed":"1.999.0"},{"id":"GO-2026-9002","modified":"2026-01-02T03:04:05Z","fixed":"1.999.0"}]}]`,
		"index/vulns.json":     `[{"id":"GO-2026-9001","modified":"2026-01-02T03:04:05Z"},{"id":"GO-2026-9002","modified":"2026-01-02T03:04:05Z"}]`,
		"ID/GO-2026-9001.json": entry("GO-2026-9001", "net/textproto", "TrimString"),
		"ID/GO-2026-9002.json": entry("GO-2026-9002", "net/textproto", "TrimBytes"),
	} {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return "file://" + dir
}

// TestVulnerabilities runs govulncheck on a program that calls one of two vulnerable functions of the
// standard library.
func TestVulnerabilities(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"go.mod":  "module example.com/victim\n\ngo 1.26\n",
		"main.go": "package main\n\nimport \"net/textproto\"\n\nfunc main() { println(textproto.TrimString(\" a \")) }\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	r, err := lookUp(dir, database(t), []string{"."})
	if err != nil {
		t.Fatal(err)
	}
	if r.goVersion != runtime.Version() {
		t.Errorf("it looked at %s, want %s", r.goVersion, runtime.Version())
	}
	var out bytes.Buffer
	err = r.judge(&out, nil, time.Now())
	if err == nil || !strings.Contains(err.Error(), "GO-2026-9001 in stdlib") || !strings.Contains(err.Error(), "main calls net/textproto.TrimString") || !strings.Contains(err.Error(), "fixed in v1.999.0") {
		t.Errorf("error %v", err)
	}
	if !strings.Contains(out.String(), "the database is of 2026-01-02 03:04") || !strings.Contains(out.String(), "GO-2026-9002 in stdlib") || strings.Contains(out.String(), "GO-2026-9001") {
		t.Errorf("printed %q", out.String())
	}
	if _, err := lookUp(dir, "file:///nonexistent", []string{"."}); !errors.Is(err, errNoDatabase) {
		t.Errorf("without a database: %v", err)
	}
	if _, err := lookUp(dir, database(t), []string{"./missing"}); err == nil || errors.Is(err, errNoDatabase) {
		t.Errorf("without packages: %v", err)
	}
}

// TestExceptions checks that an exception holds for one vulnerability and ends.
func TestExceptions(t *testing.T) {
	now := time.Date(2026, 11, 24, 0, 0, 0, 0, time.UTC)
	called := report{database: now, findings: []finding{{id: "GO-2026-9001", module: "m", calls: "main calls m.F"}}}
	imported := report{database: now, findings: []finding{{id: "GO-2026-9001", module: "m"}}}
	until := func(d time.Duration) []exception {
		return []exception{{"GO-2026-9001", "F gets constants", now.Add(d)}}
	}
	for _, c := range []struct {
		name       string
		report     report
		exceptions []exception
		want       string // in the error; empty if there is none
	}{
		{"called", called, nil, "GO-2026-9001"},
		{"called, accepted", called, until(time.Hour), ""},
		{"called, accepted until now", called, until(0), "its exception was until 2026-11-24"},
		{"called, another accepted", called, []exception{{"GO-2026-9002", "", now.Add(time.Hour)}}, "GO-2026-9001"},
		{"imported", imported, nil, ""},
		{"imported, accepted", imported, until(time.Hour), "has no use"},
		{"nothing", report{database: now}, nil, ""},
	} {
		var out bytes.Buffer
		err := c.report.judge(&out, c.exceptions, now)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
}
