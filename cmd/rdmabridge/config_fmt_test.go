package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/cli"
)

func TestConfigFmt(t *testing.T) {
	file := writeFile(t, "log:   {level: info}   # a comment\n")
	must(t, os.Chmod(file, 0o640))
	link := filepath.Join(t.TempDir(), "link.yaml")
	must(t, os.Symlink(file, link))
	const want = "log: {level: info} # a comment\n"
	if code, out, errOut := run("config", "fmt", file); code != cli.ExitDone || out != want || errOut != "" {
		t.Errorf("%d %q %s", code, out, errOut)
	}
	if code, out, _ := run("config", "fmt", "-w", link); code != cli.ExitDone || out != link+"\n" {
		t.Errorf("%d %q", code, out)
	}
	if code, out, _ := run("config", "fmt", "-w", link); code != cli.ExitDone || out != "" {
		t.Errorf("again: %d %q", code, out)
	}
	data, err := os.ReadFile(file)
	info, _ := os.Lstat(link)
	mode, _ := os.Stat(file)
	if err != nil || string(data) != want || info.Mode()&os.ModeSymlink == 0 || mode.Mode().Perm() != 0o640 {
		t.Errorf("%v %q %v %v", err, data, info.Mode(), mode.Mode())
	}
	bad := writeFile(t, "log:\n\tlevel: info\n")
	if code, _, errOut := run("config", "fmt", "-w", bad); code != cli.ExitFailed || !strings.Contains(errOut, bad+":2: a tab indents this line") {
		t.Errorf("%d %s", code, errOut)
	}
	if code, _, _ := run("config", "fmt", bad+".not"); code != cli.ExitUsage {
		t.Errorf("%d", code)
	}
}

func TestConfigSchema(t *testing.T) {
	code, out, errOut := run("config", "schema")
	var s struct {
		Schema     string `json:"$schema"`
		Properties map[string]any
	}
	if err := json.Unmarshal([]byte(out), &s); code != cli.ExitDone || err != nil || s.Properties["upstreams"] == nil || !strings.Contains(s.Schema, "2020-12") {
		t.Errorf("%d %v %s", code, err, errOut)
	}
}
