package configs

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func testKnown() Known {
	return Known{Providers: []string{"iwarp", "other"}, Program: func(name string) (uint32, bool) {
		n, ok := map[string]uint32{"nfs": 100003, "mount": 100005, "nlm": 100021}[name]
		return n, ok
	}, Procedures: func(name string) []RPCProcedure {
		return map[string][]RPCProcedure{
			"MNT": {{100005, 1, 1}, {100005, 2, 1}, {100005, 3, 1}}, "WRITE": {{100003, 3, 7}, {100003, 2, 8}}, "COMPOUND": {{100003, 4, 1}},
		}[name]
	}}
}

const minimal = `
listeners:
  - name: nfs
    address: 127.0.0.1:2049
    upstream: storage
upstreams:
  - name: storage
    transport: rdma
    endpoints: [10.1.0.5:20049]
`

// TestSpellings loads files with anchors and merges, and with keys in any case.
func TestSpellings(t *testing.T) {
	_, err := Load([]byte(`
Listeners:
  - &base
    name: a
    address: :2049
    upstream: s
    limits: {connections: 7}
  - <<: *base
    name: b
    ADDRESS: "[::1]:2050"
upstreams: [{name: s, transport: tcp, endpoints: [h:1], iwarp: null}]
admin: {address: none}
drain:
`), testKnown())
	if err == nil || !strings.Contains(err.Error(), "line 11: upstreams[0].iwarp: this setting needs transport rdma; write that, or remove this setting") || strings.Count(err.Error(), "\n") != 0 {
		t.Errorf("err = %v, want one about iwarp", err)
	}
	c, err := Load([]byte(strings.ReplaceAll(`
Listeners:
  - &base
    name: a
    address: :2049
    upstream: s
    limits: {connections: 7}
  - <<: *base
    name: b
    address: "[::1]:2050"
upstreams: [{name: s, transport: tcp, endpoints: [h:1]}]
admin: {address: none}
drain:
`, "\t", " ")), testKnown())
	if err != nil {
		t.Fatal(err)
	}
	if l := c.Listeners[1]; l.Name != "b" || l.Upstream != "s" || l.Limits.Connections != 7 || l.Limits.PerAddress != 7 {
		t.Errorf("merged listener = %+v", l)
	}
}

func TestLoadFile(t *testing.T) {
	if _, err := LoadFile(filepath.Join(t.TempDir(), "none.yaml"), testKnown()); !os.IsNotExist(unwrapAll(err)) {
		t.Errorf("err = %v, want not exist", err)
	}
	f := filepath.Join(t.TempDir(), "f.yaml")
	if err := os.WriteFile(f, []byte(minimal+"x: 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := LoadFile(f, testKnown())
	if want := f + ":10: x: unknown setting; known here: admin, busy_poll, chunks, control, drain, handover, hardening, identity, listeners, log, loops, memory, names, nlm, programs, reload, rpcbind, tenants, tls, tracing, upstreams"; err == nil || err.Error() != want {
		t.Errorf("err = %v, want %s", err, want)
	}
	if err := os.WriteFile(f, make([]byte, maxFile+1), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = LoadFile(f, testKnown())
	if want := f + ": the file is longer than 1MiB; name the configuration file"; err == nil || err.Error() != want {
		t.Errorf("err = %v, want %s", err, want)
	}
}

func unwrapAll(err error) error {
	for {
		u, ok := err.(interface{ Unwrap() error })
		if !ok {
			return err
		}
		err = u.Unwrap()
	}
}

func FuzzLoad(f *testing.F) {
	f.Add([]byte(minimal))
	f.Add([]byte("a: &a [*a]\n"))
	f.Add([]byte("a: &a {<<: *a}\n"))
	f.Add([]byte("? [a]\n: b\n"))
	f.Add([]byte("1: 2\nnull: 3\n"))
	f.Add([]byte("listeners: [[[]]]\nupstreams: [null, 1, {}]\n"))
	if data, err := os.ReadFile("rdmabridge.yaml"); err == nil {
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := Load(data, testKnown())
		if err != nil {
			problems, ok := err.(Problems)
			if !ok || len(problems) == 0 {
				t.Fatalf("err = %v, not a list of problems", err)
			}
			return
		}
		if len(c.Listeners) == 0 || len(c.Upstreams) == 0 || c.Memory.Budget <= 0 {
			t.Errorf("incomplete: %+v", c)
		}
	})
}
