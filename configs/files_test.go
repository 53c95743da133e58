package configs

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// writeFiles writes files to a directory and returns it.
func writeFiles(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// TestFiles: later files override settings and add to lists of things with names; other lists they replace.
func TestFiles(t *testing.T) {
	dir := writeFiles(t, map[string]string{
		"10-base.yaml":  "x-a: &a {calls: 7}\nlisteners: [{name: a, address: ':1', upstream: s, limits: *a}]\nlog: {level: warn, access: {mode: all, slower: 3s}}\nrpcbind: {address: ':111', allow: [10.0.0.0/8, 11.0.0.0/8]}\ndrain: {timeout: 7s}\nloops: 2\n",
		"20-more.yml":   "Listeners:\n  - {Name: b, address: ':2', upstream: s}\nupstreams: [{name: s, transport: tcp, endpoints: ['h:1']}]\n",
		"30-site.yaml":  "LOG: {access: {slower: 5s}}\nrpcbind: {allow: [12.0.0.0/8]}\ndrain:\nloops: null\n",
		".hidden.yaml":  "no: configuration\n",
		"20-more.yaml~": "nor: this\n",
		"README.md":     "text",
	})
	c, err := LoadFiles([]string{dir}, withEnvironment("RDMABRIDGE_LOG_FORMAT=console"))
	if err != nil {
		t.Fatal(err)
	}
	if len(c.Listeners) != 2 || c.Listeners[0].Limits.Calls != 7 || c.Listeners[1].Name != "b" || c.Log.Level != "warn" || c.Log.Access.Slower != 5*second ||
		c.Log.Access.Mode != "all" || len(c.RPCBind.Allow) != 1 || c.Drain.Timeout != 30*second || c.Loops != defaultLoops || c.Log.Format != FormatConsole {
		t.Errorf("%+v", c)
	}
	for path, want := range map[string]string{
		"log.level": "10-base.yaml:3", "log.access.slower": "30-site.yaml:1", "listeners[b].address": "20-more.yml:2",
		"rpcbind.allow": "30-site.yaml:2", "upstreams[s].name": "20-more.yml:3", "log.format": "RDMABRIDGE_LOG_FORMAT", "drain.timeout": "",
	} {
		for _, s := range c.Settings() {
			if s.Path == path && filepath.Base(s.Where) != want && s.Where != want {
				t.Errorf("%s is from %q, want %s", path, s.Where, want)
			}
		}
	}
	// The order is that of the command line.
	again, err := LoadFiles([]string{filepath.Join(dir, "30-site.yaml"), filepath.Join(dir, "10-base.yaml"), filepath.Join(dir, "20-more.yml")}, testKnown())
	if err != nil || again.Log.Access.Slower != 3*second || len(again.RPCBind.Allow) != 2 || again.Loops != 2 {
		t.Errorf("%v %+v", err, again)
	}
}

func TestFilesErrors(t *testing.T) {
	dir := writeFiles(t, map[string]string{
		"a.yaml": "listeners: [{name: a, address: ':1', upstream: s}]\nlog: {lvel: warn}\n",
		"b.yaml": "\n\nlisteners:\n  - {name: a, address: ':2', upstream: s}\n  - {name: c, address: ':3', upstream: t}\nupstreams: [{name: s, transport: tcp, endpoints: ['h:1']}]\n",
		"c.yaml": "upstreams: {name: s}\n",
		"d.yaml": "log:\n\tlevel: info\n",
	})
	at := func(names ...string) (all []string) {
		for _, n := range names {
			all = append(all, filepath.Join(dir, n))
		}
		return all
	}
	for _, tc := range []struct {
		files []string
		want  string
	}{
		{at("a.yaml", "b.yaml"), `a.yaml:2: log.lvel: unknown setting; did you mean level?
b.yaml:4: listeners[1].name: listeners[0] in DIR/a.yaml:1 has the name a too; write another name
b.yaml:5: listeners[2].upstream: no upstream is named "t"; write s, or add one`},
		{at("b.yaml", "c.yaml"), `c.yaml:1: upstreams: write a list, with - before each entry, not settings`},
		{at("b.yaml", "d.yaml"), "d.yaml:2: a tab indents this line; write spaces\n     2 | \tlevel: info\n       | ^"},
	} {
		_, err := LoadFiles(tc.files, testKnown())
		got := strings.ReplaceAll(strings.ReplaceAll(err.Error(), "\n"+dir+"/", "\n"), dir, "DIR")
		if want := "DIR/" + tc.want; got != want {
			t.Errorf("got\n%s\nwant\n%s", got, want)
		}
	}
	if _, err := LoadFiles([]string{t.TempDir()}, testKnown()); err == nil || !strings.Contains(err.Error(), "no file in it ends in .yaml or .yml") {
		t.Errorf("an empty directory: %v", err)
	}
	if got := LogFormat(append(at("a.yaml"), "/not/there"), withEnvironment("RDMABRIDGE_LOG_FORMAT=console")); got != FormatConsole {
		t.Errorf("the format is %s", got)
	}
}
