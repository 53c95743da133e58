package configs

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func all(Setting) bool         { return true }
func noComment(Setting) string { return "" }

// TestPrintedFile: what AppendYAML prints is a file with the same settings.
func TestPrintedFile(t *testing.T) {
	files, err := filepath.Glob("examples/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal(err)
	}
	for _, f := range append(files, "rdmabridge.yaml") {
		data, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		k := testKnown()
		k.Providers = append(k.Providers, "ibverbs")
		c, err := Load(data, k)
		if err != nil {
			t.Fatalf("%s: %v", f, err)
		}
		out, err := c.AppendYAML(nil, all, func(s Setting) string { return "# from: " + s.Path + " " })
		if err != nil {
			t.Fatalf("%s: %v", f, err)
		}
		again, err := Load(out, k)
		if err != nil {
			t.Fatalf("%s: %v\n%s", f, err, out)
		}
		again.Identity = c.Identity // it is not printed
		if changes := Diff(c, again); len(changes) > 0 {
			t.Errorf("%s: printed and loaded again it has %+v\n%s", f, changes, out)
		}
	}
}

// TestSettings: each setting says where it comes from.
func TestSettings(t *testing.T) {
	c := mustLoad(t, `
identity: "0123456789"
listeners:
  - {name: nfs, address: ":2049", upstream: s, routes: [{program: "100005", versions: [3], upstream: s}]}
  - name: two
    address: ":2050"
    upstream: s
    limits: {calls: 8, record: 65536}
    privileged: any
upstreams:
  - {name: s, transport: tcp, endpoints: ["[2001:db8::1]:2049"], failover: off}
memory:
  budget:
log: {level: "debug"}
`)
	got := make(map[string]Setting)
	for _, s := range c.Settings() {
		if _, ok := got[s.Path]; ok || s.Value == "" {
			t.Errorf("%+v is there twice or has no value", s)
		}
		got[s.Path] = s
	}
	for _, want := range []Setting{
		{Path: "identity", Value: c.Identity.String(), Line: 2},
		{Path: "listeners[nfs].routes", Value: "[{program: 100005, versions: [3], upstream: s}]", Line: 4},
		{Path: "listeners[nfs].limits.calls", Value: "256"},
		{Path: "listeners[two].limits.calls", Value: "8", Line: 8},
		{Path: "listeners[two].limits.record", Value: "64KiB", Line: 8},
		{Path: "listeners[two].privileged", Value: "any", Line: 9},
		{Path: "upstreams[s].failover", Value: "off", Line: 11},
		{Path: "upstreams[s].pool.connections", Value: "2"},
		{Path: "log.level", Value: "debug", Line: 14},
		{Path: "log.format", Value: "auto"},
	} {
		if want.Line > 0 {
			want.Where = fmt.Sprintf("line %d", want.Line)
		}
		if got[want.Path] != want {
			t.Errorf("%+v, want %+v", got[want.Path], want)
		}
	}
	if _, ok := got["listeners[nfs].credits"]; ok {
		t.Error("a TCP listener has credits")
	}
	out, err := c.AppendYAML(nil, func(s Setting) bool { return s.Line > 0 }, noComment)
	if err != nil {
		t.Fatal(err)
	}
	if s := string(out); strings.Contains(s, "connections:") || !strings.Contains(s, "failover: off") || !strings.Contains(s, "calls: 8\n") {
		t.Errorf("the settings of the file alone:\n%s", s)
	}
	short, err := Load(out, testKnown())
	if err != nil {
		t.Fatal(err)
	}
	short.Identity = c.Identity
	if changes := Diff(c, short); len(changes) > 0 {
		t.Errorf("the settings of the file alone give another configuration: %+v", changes)
	}
}
