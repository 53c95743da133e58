package configs

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

func TestExamples(t *testing.T) {
	files, err := filepath.Glob("examples/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if len(files) < 3 {
		t.Errorf("examples: %v, want sidecar, gateway and reverse", files)
	}
	for _, f := range files {
		if _, err := LoadFile(f, testKnown()); err != nil {
			t.Errorf("%v", err)
		}
	}
}

// TestKubernetes compares the ConfigMap of the manifest with the example that it copies.
func TestKubernetes(t *testing.T) {
	data, err := os.ReadFile("../deploy/kubernetes/sidecar.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var m struct {
		Data map[string]string
	}
	if err := yaml.Unmarshal(data, &m); err != nil {
		t.Fatal(err)
	}
	got, err := Load([]byte(m.Data["rdmabridge.yaml"]), testKnown())
	if err != nil {
		t.Fatal(err)
	}
	want, err := LoadFile("examples/sidecar.yaml", testKnown())
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("ConfigMap %+v, example %+v", got, want)
	}
}

// TestREADME loads the first configuration that the README shows.
func TestREADME(t *testing.T) {
	data, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(data), "```yaml\n")
	text, _, ok := strings.Cut(rest, "```")
	if !ok {
		t.Fatal("README.md has no YAML")
	}
	if _, err := Load([]byte(text), testKnown()); err != nil {
		t.Error(err)
	}
}

// TestDesign loads the file that the project was designed around.
func TestDesign(t *testing.T) {
	c, err := Load([]byte(`
listeners:
  - name: nfs
    address: 0.0.0.0:2049
    transport: tcp
    upstream: storage
    routes:
      - {program: mount, upstream: storage-tcp}
    allow: [10.0.0.0/8]
upstreams:
  - name: storage
    transport: rdma
    provider: iwarp
    endpoints: [10.1.0.5:20049]
    pool: {connections: 4, credits: 128, mode: auto}
    inline: {call: 4KiB, reply: 4KiB}
  - name: storage-tcp
    transport: tcp
    endpoints: [10.1.0.5:20048]
memory: {budget: 1GiB}
admin: {address: 127.0.0.1:9090}
log: {level: info, format: json}
`), testKnown())
	if err != nil {
		t.Fatal(err)
	}
	if got := c.Listeners[0].Allow[0].String(); got != "10.0.0.0/8" {
		t.Errorf("allow = %s", got)
	}
	if got := c.Listeners[0].Routes[0]; got.Program != "mount" || got.Upstream != "storage-tcp" {
		t.Errorf("route = %+v", got)
	}
}
