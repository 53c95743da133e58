package configs

import (
	"fmt"
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
	c, err := LoadFiles([]string{dir}, withEnvironment(t, "RDMABRIDGE_LOG_FORMAT=console"))
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
	if got := LogFormat(append(at("a.yaml"), "/not/there"), withEnvironment(t, "RDMABRIDGE_LOG_FORMAT=console")); got != FormatConsole {
		t.Errorf("the format is %s", got)
	}
}

// TestFilesTogether: what several files, and variables of the environment, become together.
func TestFilesTogether(t *testing.T) {
	for _, tc := range []struct {
		name      string
		files     []string // which come after a file that is complete
		variables []string
		want      string // what Load says, or the settings that are not from the first file
	}{
		{"a value", []string{"log: {level: warn}", "log: {level: error}"}, nil, "log.level=error from 3.yaml:1"},
		{"settings beside others", []string{"log: {level: warn}", "LOG: {Format: console}"}, nil, "log.level=warn from 2.yaml:1, log.format=console from 3.yaml:1"},
		{"deep settings", []string{"log: {access: {mode: all}}", "log: {access: {slower: 3s}}"}, nil, "log.access.mode=all from 2.yaml:1, log.access.slower=3s from 3.yaml:1"},
		{"null in place of a value", []string{"log: {level: warn}", "log: {level: null}"}, nil, "log.level=info from 3.yaml:1"},
		{"null in place of settings", []string{"log: {level: warn, access: {mode: all}}\nloops: 7", "log:"}, nil, "loops=7 from 2.yaml:2"},
		{"null in place of settings in settings", []string{"log: {level: warn, access: {mode: all}}", "log: {access: }"}, nil, "log.level=warn from 2.yaml:1"},
		{"settings after null", []string{"log: {level: warn}", "log:", "log: {format: console}"}, nil, "log.format=console from 4.yaml:1"},
		{"null and a variable", []string{"log: {level: warn}", "log:"}, []string{"RDMABRIDGE_LOG_LEVEL=debug"}, "log.level=debug from RDMABRIDGE_LOG_LEVEL"},
		{"empty text", []string{"log: {level: ''}"}, nil, "log.level=info from 2.yaml:1"},
		{"empty text after text", []string{"log: {level: warn}", "log: {level: ''}"}, nil, "log.level=info from 3.yaml:1"},
		{"empty settings", []string{"log: {level: warn}", "log: {}"}, nil, "log.level=warn from 2.yaml:1"},
		{"a list", []string{"rpcbind: {address: ':111', allow: [10.0.0.0/8, 11.0.0.0/8]}", "\nrpcbind: {allow: [12.0.0.0/8]}"}, nil, "rpcbind.address=:111 from 2.yaml:1, rpcbind.allow=[12.0.0.0/8] from 3.yaml:2"},
		{"null in place of a list", []string{"rpcbind: {address: ':111', allow: [10.0.0.0/8]}", "rpcbind: {allow: }"}, nil, "rpcbind.address=:111 from 2.yaml:1"},
		{"an empty list", []string{"rpcbind: {address: ':111', allow: [10.0.0.0/8]}", "rpcbind: {allow: []}"}, nil, "rpcbind.address=:111 from 2.yaml:1"},
		{"names with dots and capitals", []string{"tenants: [{name: A.b, clients: [10.0.0.1]}]", "Tenants: [{name: a.B, clients: [10.0.0.2]}]"}, nil, "tenants[A.b].name=A.b from 2.yaml:1, tenants[A.b].clients=[10.0.0.1/32] from 2.yaml:1, tenants[a.B].name=a.B from 3.yaml:1, tenants[a.B].clients=[10.0.0.2/32] from 3.yaml:1"},
		{"null after a list that adds up", []string{"tenants: [{name: a, clients: [10.0.0.1]}]", "tenants:"}, nil, "tenants[a].name=a from 2.yaml:1, tenants[a].clients=[10.0.0.1/32] from 2.yaml:1"},
		{"null before a list that adds up", []string{"tenants:", "tenants: [{name: a, clients: [10.0.0.1]}]"}, nil, "tenants[a].name=a from 3.yaml:1, tenants[a].clients=[10.0.0.1/32] from 3.yaml:1"},
		{"programs do not add up", []string{"programs: [{program: 7, versions: [1], reply: 4KiB, effect: read_only}]", "programs: []"}, nil, ""},
		{"an anchor is of one file", []string{"x-a: &a {level: warn}\nlog: *a", "log: *a"}, nil, "3.yaml:1: no line above has the anchor &a; write that, or the value in quotes if it begins with *"},
		{"a wrong value that is replaced", []string{"loops: many", "loops: 7"}, nil, "loops=7 from 3.yaml:1"},
		{"a wrong value of the last file", []string{"loops: 7", "loops: many"}, nil, `3.yaml:1: loops: write a whole number, not "many"`},
		{"a value in place of settings", []string{"log: {level: warn}", "\nlog: json"}, nil, `3.yaml:2: log: write settings (name: value), not "json"; known here: access, audit, format, level`},
		{"a list in place of settings", []string{"log: {level: warn}", "log: [json]"}, nil, `3.yaml:1: log: write settings (name: value), not a list; known here: access, audit, format, level`},
		{"settings in place of a value", []string{"log: {level: warn}", "log: {level: {info: on}}"}, nil, `3.yaml:1: log.level: write text, not settings`},
		{"settings in place of a list", []string{"rpcbind: {address: ':111', allow: [10.0.0.0/8]}", "rpcbind: {allow: {site: 12.0.0.0/8}}"}, nil, `3.yaml:1: rpcbind.allow: write a list, with - before each entry, not settings`},
		{"empty settings in place of a list", []string{"rpcbind: {allow: {}}"}, nil, `2.yaml:1: rpcbind.allow: write a list, with - before each entry, not settings`},
		{"a value in place of settings that are replaced", []string{"log: json", "log: {level: warn}"}, nil, `2.yaml:1: log: write settings (name: value), not "json"; known here: access, audit, format, level`},
		{"a value in place of a list that adds up", []string{"tenants: [{name: a, clients: [10.0.0.1]}]", "tenants: a"}, nil, `3.yaml:1: tenants: write a list, such as ["a"], not "a"`},
		{"a list that is there twice", []string{"listeners: [{name: a, address: ':2', upstream: s}]\nlisteners: {}", "listeners: [{name: b, address: ':3', upstream: s, transport: rdma, provider: iwarp}, {name: c, address: ':4', upstream: s}]"}, nil, `2.yaml:2: listeners: line 1 has this setting already; remove one of the two`},
		{"an unknown path", []string{"log: {level: warn}\nlog.format: console"}, nil, `2.yaml:2: log.format: a dot does not lead into a section; write log: {format: ...}`},
		{"a variable in a value that nothing uses", []string{"x-a: &a {level: '${NOT_SET}'}\nlog: {<<: *a, level: warn}"}, nil, "log.level=warn from 2.yaml:2"},
		{"variables", []string{"loops: 7"}, []string{"RDMABRIDGE_LOOPS=3", "RDMABRIDGE_MEMORY_BUDGET=64MiB", "RDMABRIDGE_HARDENING=off", "RDMABRIDGE_TRACING_SAMPLE=1%"}, "memory.budget=64MiB from RDMABRIDGE_MEMORY_BUDGET, tracing.sample=1% from RDMABRIDGE_TRACING_SAMPLE, hardening=off from RDMABRIDGE_HARDENING, loops=3 from RDMABRIDGE_LOOPS"},
		{"a variable over a wrong value", []string{"loops: many"}, []string{"RDMABRIDGE_LOOPS=3"}, "loops=3 from RDMABRIDGE_LOOPS"},
		{"an empty variable", []string{"loops: 7"}, []string{"RDMABRIDGE_LOOPS="}, "loops=7 from 2.yaml:1"},
		{"variables of settings and of lists", []string{"log: {level: warn}"}, []string{"RDMABRIDGE_LOG=x", "RDMABRIDGE_LISTENERS=y", "RDMABRIDGE_TENANTS=z", "RDMABRIDGE_RPCBIND_ALLOW=10.0.0.0/8"}, "log.level=warn from 2.yaml:1"},
		{"text that looks like a number", nil, []string{"RDMABRIDGE_IDENTITY=0123456789", "RDMABRIDGE_CONTROL_PATH=7"}, `RDMABRIDGE_CONTROL_PATH: control.path: "7" is not an absolute path; write one such as /run/rdmabridge/control.sock`},
		{"a number that is none", nil, []string{"RDMABRIDGE_LOOPS=0x10", "RDMABRIDGE_TLS_WAITING=1.5", "RDMABRIDGE_TLS_HANDSHAKES=-1"}, `RDMABRIDGE_LOOPS: loops: write a whole number, not "0x10"
RDMABRIDGE_TLS_HANDSHAKES: tls.handshakes: -1 is not greater than 0; write a whole number from 1
RDMABRIDGE_TLS_WAITING: tls.waiting: write a whole number, not "1.5"`},
		{"variables of other types", nil, []string{"RDMABRIDGE_HARDENING=maybe", "RDMABRIDGE_DRAIN_TIMEOUT=30", "RDMABRIDGE_MEMORY_BUDGET=lots", "RDMABRIDGE_LOG_ACCESS_SAMPLE=2"}, `RDMABRIDGE_DRAIN_TIMEOUT: drain.timeout: "30" has no unit; write one such as 30ms or 30s
RDMABRIDGE_HARDENING: hardening: "maybe" is not a switch; write on or off
RDMABRIDGE_LOG_ACCESS_SAMPLE: log.access.sample: "2" is not a share; write one above 0 and up to 1, such as 1% or 0.01
RDMABRIDGE_MEMORY_BUDGET: memory.budget: "lots" is not a size; write one such as 4096, 64KiB, 1MiB or 1GiB`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			files := map[string]string{"1.yaml": head + tail}
			for i, text := range tc.files {
				files[fmt.Sprintf("%d.yaml", i+2)] = text + "\n"
			}
			dir := writeFiles(t, files)
			c, err := LoadFiles([]string{dir}, withEnvironment(t, tc.variables...))
			var got []string
			if err != nil {
				for line := range strings.SplitSeq(err.Error(), "\n") {
					if line = strings.ReplaceAll(line, dir+"/", ""); !strings.Contains(line, " | ") { // an excerpt
						got = append(got, line)
					}
				}
			} else {
				for _, s := range c.Settings() {
					if s.Where != "" && filepath.Base(s.File) != "1.yaml" {
						got = append(got, fmt.Sprintf("%s=%s from %s", s.Path, s.Value, strings.TrimPrefix(s.Where, dir+"/")))
					}
				}
				got = []string{strings.Join(got, ", ")}
			}
			if all := strings.Join(got, "\n"); all != tc.want {
				t.Errorf("got\n%s\nwant\n%s", all, tc.want)
			}
		})
	}
}
