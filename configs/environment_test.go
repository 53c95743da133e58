package configs

import (
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

// withEnvironment is testKnown with variables.
func withEnvironment(t *testing.T, variables ...string) Known {
	for _, v := range variables {
		name, value, _ := strings.Cut(v, "=")
		t.Setenv(name, value)
	}
	k := testKnown()
	k.Environment = true
	return k
}

const expanded = `
identity: ${ID}                       # ${NOT_SET} in a comment is text
x-defaults: &defaults
  limits: {connections: "${CONNECTIONS:-10}", per_address: "${PER:-3}"}
listeners:
  - <<: *defaults
    name: nfs-${SITE:-main}
    address: ${HOST:-127.0.0.1}:${PORT}
    upstream: s
    allow: ["${NETWORK}"]
upstreams:
  - {name: s, transport: tcp, endpoints: ["h:1"], tls: {mode: "${TLS:-off}"}}
loops: ${LOOPS:-3}
hardening: ${HARDENING:-}
log: {access: {path: '/var/log/$${x}/$HOME', mode: all}}
`

// TestExpansion: values from the environment have the type that their setting needs.
func TestExpansion(t *testing.T) {
	c, err := Load([]byte(expanded), withEnvironment(t, "ID=12345678", "PORT=2049", "NETWORK=10.0.0.0/8", "LOOPS=", "CONNECTIONS=20"))
	if err != nil {
		t.Fatal(err)
	}
	l := &c.Listeners[0]
	if c.Identity != "12345678" || l.Name != "nfs-main" || l.Address != "127.0.0.1:2049" || l.Allow[0].String() != "10.0.0.0/8" ||
		l.Limits.Connections != 20 || l.Limits.PerAddress != 3 || c.Loops != 3 || c.Hardening != On || c.Log.Access.Path != "/var/log/${x}/$HOME" {
		t.Errorf("%+v", c)
	}
}

func TestExpansionErrors(t *testing.T) {
	for _, tc := range []struct{ name, file, want string }{
		{"not set", head + tail + "# ${A}\nlog:\n  level: ${A}\n", "line 5: the environment has no variable A; set it, or write ${A:-default}"},
		{"no name", head + tail + "log: {level: '${'}\n", `line 3: "${" is not complete; write ${NAME} or ${NAME:-default}, or $${ for these two characters`},
		{"no end", head + tail + "log:\n  level: ${SET\n", `line 4: "${SET" is not complete; write ${NAME} or ${NAME:-default}, or $${ for these two characters`},
		{"a bad name", head + tail + "log:\n  level: ${1}\n", `line 4: "${1}" is not complete; write ${NAME} or ${NAME:-default}, or $${ for these two characters`},
		{"in braces", head + tail + "log: {level: ${SET}}\n", "line 3: write \"${SET}\", in quotes, within [ ] and { }\n     3 | log: {level: ${SET}}\n       |              ^"},
		{"a wrong value", head + tail + "loops: ${SET}\n", `line 3: loops: write a whole number, not "info"`},
		{"a key", head + tail + "${SET}: 1\n", "line 3: ${set}: unknown setting; known here: "},
		{"structure", head + tail + "log: ${SETTINGS}\n", `line 3: log: write settings (name: value), not "{level: debug}"; known here: access, audit, format, level`},
		{"entries", head + "upstreams: [{name: s, transport: tcp, endpoints: ['${LIST}']}]\n", `line 2: upstreams[0].endpoints[0]: "h:1, h:2" has several addresses; write one here, or one in each entry of a list`},
		{"an empty entry", head + "upstreams: [{name: s, transport: tcp, endpoints: ['${EMPTY}']}]\n", `line 2: upstreams[0].endpoints[0]: the entry is empty; write a value, or remove it`},
		{"lines", head + tail + "log:\n  level: ${LINES}\n", `line 4: log.level: "info\nformat: xml" is not possible here; write debug, info, warn or error`},
		{"an override", head + tail, `RDMABRIDGE_LOG_FORMAT: log.format: "xml" is not possible here; write auto, json or console`},
		{"an override of another type", head + tail, `RDMABRIDGE_LOOPS: loops: write a whole number, not "many"`},
	} {
		variables := []string{"SET=info", "SETTINGS={level: debug}", "LIST=h:1, h:2", "EMPTY=", "LINES=info\nformat: xml"}
		switch tc.name {
		case "an override":
			variables = append(variables, "RDMABRIDGE_LOG_FORMAT=xml")
		case "an override of another type":
			variables = append(variables, "RDMABRIDGE_LOOPS=many")
		}
		t.Run(tc.name, func(t *testing.T) {
			_, err := Load([]byte(tc.file), withEnvironment(t, variables...))
			if err == nil || !strings.HasPrefix(err.Error(), tc.want) || strings.Count(err.Error(), "\n") != strings.Count(tc.want, "\n") {
				t.Errorf("%v, want %s", err, tc.want)
			}
		})
	}
}

// TestLongExpansion: a small file cannot name more than Load reads.
func TestLongExpansion(t *testing.T) {
	_, err := Load([]byte(head+tail+"identity: "+strings.Repeat("${A}", 1000)+"\n"), withEnvironment(t, "A="+strings.Repeat("x", 10_000)))
	if err == nil || !strings.Contains(err.Error(), "line 3: the values from the environment are longer than 1MiB") {
		t.Error("a value of 10 MB is loaded")
	}
}

// TestOverrides: variables override files, and empty ones do not.
func TestOverrides(t *testing.T) {
	c, err := Load([]byte(head+tail+"log: {level: warn}\nidentity: from-the-file\n"),
		withEnvironment(t, "RDMABRIDGE_LOG_LEVEL=debug", "RDMABRIDGE_LOG_ACCESS_SLOWER=2s", "RDMABRIDGE_LOOPS=2", "RDMABRIDGE_IDENTITY=123456789", "RDMABRIDGE_DRAIN_TIMEOUT=",
			"RDMABRIDGE_PORT=tcp://10.0.0.1:2049", "RDMABRIDGE_LOG_LEVELS=info", "RDMABRIDGE_LAB=1"))
	if err != nil {
		t.Fatal(err)
	}
	if c.Log.Level != "debug" || c.Log.Access.Slower != 2*second || c.Loops != 2 || c.Identity != "123456789" || c.Drain.Timeout != 30*second {
		t.Errorf("%+v", c)
	}
	want := "RDMABRIDGE_LOG_LEVELS: no setting has this variable; did you mean RDMABRIDGE_LOG_LEVEL, for log.level?"
	if w := c.Warnings(); len(w) != 1 || w[0] != want {
		t.Errorf("%q, want %q", w, want)
	}
	for _, s := range c.Settings() {
		if s.Path == "log.level" && (s.Where != "RDMABRIDGE_LOG_LEVEL" || s.Line != 0) {
			t.Errorf("log.level is from %q, line %d", s.Where, s.Line)
		}
	}
}

// TestFlags: a flag overrides variables and files, and an empty one does not.
func TestFlags(t *testing.T) {
	load := func(args ...string) (*Config, error) {
		k := withEnvironment(t, "RDMABRIDGE_LOG_LEVEL=warn", "RDMABRIDGE_LOOPS=2", "RDMABRIDGE_LOG_FORMAT=json")
		k.Flags = pflag.NewFlagSet("test", pflag.ContinueOnError)
		k.Flags.String("log-level", "", "")
		k.Flags.String("log-format", "", "")
		k.Flags.String("admin-address", "", "")
		k.Flags.Duration("busy-poll", 0, "")
		k.Flags.Int("loops", 0, "")
		k.Flags.String("config", "", "")
		if err := k.Flags.Parse(args); err != nil {
			t.Fatal(err)
		}
		return Load([]byte(head+tail+"log: {level: error}\nadmin: {address: none}\n"), k)
	}
	c, err := load("--log-level=debug", "--log-format=", "--loops=3", "--busy-poll=1ms", "--config=x")
	if err != nil {
		t.Fatal(err)
	}
	if c.Log.Level != "debug" || c.Log.Format != FormatJSON || c.Loops != 3 || c.BusyPoll != millisecond || c.Admin.Address != none {
		t.Errorf("%+v", c)
	}
	for _, s := range c.Settings() {
		for path, want := range map[string]string{"log.level": "--log-level", "log.format": "RDMABRIDGE_LOG_FORMAT", "admin.address": "line 4"} {
			if s.Path == path && s.Where != want {
				t.Errorf("%s is from %q, want %s", path, s.Where, want)
			}
		}
	}
	if c, err = load(); err != nil || c.Log.Level != "warn" || c.Loops != 2 || c.BusyPoll != noDuration {
		t.Errorf("without flags: %v, %+v", err, c)
	}
	_, err = load("--log-level=loud", "--admin-address=9090")
	want := `--admin-address: admin.address: "9090" has no host; write 127.0.0.1:9090, or :9090 for every address of this host
--log-level: log.level: "loud" is not possible here; write debug, info, warn or error`
	if err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
}

// TestVariables: no two settings have one variable, and none of a list has one.
func TestVariables(t *testing.T) {
	settings := make(map[string]string)
	for path, name := range variables {
		if other, ok := settings[name]; ok {
			t.Errorf("%s is for %s and %s", name, path, other)
		}
		settings[name] = path
	}
	for _, name := range []string{"RDMABRIDGE_MEMORY_BUDGET", "RDMABRIDGE_LOG_ACCESS_MODE", "RDMABRIDGE_ADMIN_ADDRESS", "RDMABRIDGE_IDENTITY"} {
		if settings[name] == "" {
			t.Errorf("%s is for no setting", name)
		}
	}
	for _, name := range []string{"RDMABRIDGE_LISTENERS", "RDMABRIDGE_RPCBIND_ALLOW", "RDMABRIDGE_PORT"} {
		if settings[name] != "" {
			t.Errorf("%s is for %s", name, settings[name])
		}
	}
}
