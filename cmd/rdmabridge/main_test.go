package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const minimalConfig = `
listeners: [{name: nfs, address: 127.0.0.1:0, upstream: storage}]
upstreams: [{name: storage, transport: tcp, endpoints: ["127.0.0.1:1"]}]
admin: {address: 127.0.0.1:0}
`

func writeFile(t *testing.T, text string) string {
	t.Helper()
	f := filepath.Join(t.TempDir(), "rdmabridge.yaml")
	if err := os.WriteFile(f, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return f
}

func TestExitCodes(t *testing.T) {
	good := writeFile(t, minimalConfig)
	lends := writeFile(t, strings.TrimPrefix(strings.Replace(minimalConfig, `["127.0.0.1:1"]`, `["127.0.0.1:1"], source: {ports: reserved}`, 1), "\n"))
	bad := writeFile(t, "listeners: []\nfoo: 1\nbar: 2\n")
	people := writeFile(t, "listeners: []\nlog: {format: console}\n")
	for _, tc := range []struct {
		name        string
		args        []string
		code        int
		out, errOut string // a part of each
	}{
		{"nothing", []string{}, exitDone, "Look at a running bridge:", ""},
		{"help", []string{"--help"}, exitDone, "Look at a running bridge:", ""},
		{"unknown command", []string{"fly"}, exitUsage, "", `unknown command "fly"`},
		{"unknown flag", []string{"demo", "--fly"}, exitUsage, "", "unknown flag: --fly"},
		{"stray argument", []string{"version", "1"}, exitUsage, "", `unknown command "1"`},
		{"no file", []string{"check"}, exitUsage, "", "a configuration file is missing: rdmabridge check FILE"},
		{"two files", []string{"check", "-c", good, good}, exitUsage, "", "two files"},
		{"check FILE", []string{"check", good}, exitDone, "good: 1 listeners, 1 upstreams", ""},
		{"check FILE FILE", []string{"check", good, good}, exitUsage, "", "is too much"},
		{"serve standard input", []string{"serve", "-"}, exitUsage, "", "write a file"},
		{"doctor FILE FILE", []string{"doctor", good, good}, exitUsage, "", "unknown command"},
		{"a typo", []string{"stast"}, exitUsage, "", "Did you mean this?\n\tstats\n"},
		{"a typo in a flag", []string{"top", "--viwe", "x"}, exitUsage, "", "Did you mean this?\n\t--view\nRun \"rdmabridge top --help\""},
		{"--version", []string{"--version"}, exitDone, "rdmabridge ", ""},
		{"config print", []string{"config", "print", good}, exitDone, "address: 127.0.0.1:0 # line 2", ""},
		{"config print with a flag", []string{"config", "print", good, "--log-level", "debug"}, exitDone, "level: debug # --log-level", ""},
		{"check with a flag", []string{"check", good, "--admin-address=9090"}, exitFailed, "", "--admin-address: admin.address: \"9090\" has no host"},
		{"config print bad", []string{"config", "print", "-c", bad}, exitFailed, "", ":2: foo: unknown setting"},
		{"config", []string{"config"}, exitDone, "print       Print the configuration", ""},
		{"check good", []string{"check", "-c", good}, exitDone, "good: 1 listeners, 1 upstreams", ""},
		{"check warns", []string{"check", "-c", lends}, exitDone, "good: 1 listeners", "warning: " + lends + ":1: listeners[0].privileged: every user"},
		{"check bad", []string{"check", "-c", bad}, exitFailed, "", bad + ":2: foo: unknown setting"},
		{"check bad, all of it", []string{"check", "--config", bad}, exitFailed, "", bad + ":3: bar: unknown setting"},
		{"check unreadable", []string{"check", "-c", bad + ".not"}, exitUsage, "", "no such file"},
		{"serve bad", []string{"serve", "-c", bad}, exitFailed, "", `"event":"config_invalid","file":"` + bad + `","line":1,"setting":"listeners","error":"the file has no listener; write at least one"`},
		{"serve bad, for people", []string{"serve", "-c", people}, exitFailed, "", people + ":1: listeners: the file has no listener; write at least one"},
		{"serve a directory without files", []string{"serve", "-c", filepath.Dir(filepath.Dir(bad))}, exitUsage, "", "no file in it ends in .yaml or .yml"},
		{"check a directory", []string{"check", filepath.Dir(good)}, exitDone, "good: 1 listeners", ""},
		{"version", []string{"version"}, exitDone, "RDMA providers [iwarp]", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var out, errOut bytes.Buffer
			if code := execute(tc.args, &out, &errOut); code != tc.code {
				t.Errorf("exit code %d, want %d", code, tc.code)
			}
			if !strings.Contains(out.String(), tc.out) || tc.out == "" && out.Len() > 0 {
				t.Errorf("standard output %q, want %q in it", out.String(), tc.out)
			}
			if !strings.Contains(errOut.String(), tc.errOut) || tc.errOut == "" && errOut.Len() > 0 {
				t.Errorf("standard error %q, want %q in it", errOut.String(), tc.errOut)
			}
		})
	}
}

func TestVersionJSON(t *testing.T) {
	var out, errOut bytes.Buffer
	if code := execute([]string{"version", "--json"}, &out, &errOut); code != exitDone {
		t.Fatalf("exit code %d: %s", code, errOut.String())
	}
	var b build
	if err := json.Unmarshal(out.Bytes(), &b); err != nil {
		t.Fatal(err)
	}
	if b.Go == "" || b.Platform == "" || !slices.Contains(b.Providers, "iwarp") {
		t.Errorf("version = %+v", b)
	}
}
