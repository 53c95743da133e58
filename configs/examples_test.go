package configs

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"go.yaml.in/yaml/v4"
)

// examplesKnown is what a build with ibverbs knows. Some examples are for it alone.
func examplesKnown() Known {
	k := testKnown()
	k.Providers = append(k.Providers, ProviderIBVerbs)
	return k
}

func TestExamples(t *testing.T) {
	files, err := filepath.Glob("examples/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if len(files) < 5 {
		t.Errorf("examples: %v, want sidecar, gateway, reverse, roce and infiniband", files)
	}
	for _, f := range files {
		c, err := LoadFile(f, examplesKnown())
		if err != nil {
			t.Errorf("%v", err)
			continue
		}
		if w := c.Warnings(); len(w) > 0 {
			t.Errorf("%s: %v", f, w)
		}
	}
}

// TestExamplesOfIBVerbs loads the examples for adapters as a build without ibverbs does.
func TestExamplesOfIBVerbs(t *testing.T) {
	for _, f := range []string{"examples/roce.yaml", "examples/infiniband.yaml"} {
		_, err := LoadFile(f, testKnown())
		if err == nil || !strings.Contains(err.Error(), `no provider "ibverbs"`) {
			t.Errorf("%s: %v, want an error that names the provider", f, err)
		}
	}
}

// TestKubernetes compares the ConfigMaps of the manifests with the examples that they copy.
func TestKubernetes(t *testing.T) {
	for manifest, example := range map[string]string{"sidecar.yaml": "sidecar.yaml", "rdma.yaml": "roce.yaml"} {
		data, err := os.ReadFile("../deploy/kubernetes/" + manifest)
		if err != nil {
			t.Fatal(err)
		}
		var m struct {
			Data map[string]string
		}
		if err := yaml.Unmarshal(data, &m); err != nil {
			t.Fatal(err)
		}
		got, err := Load([]byte(m.Data["rdmabridge.yaml"]), examplesKnown())
		if err != nil {
			t.Fatal(err)
		}
		want, err := LoadFile("examples/"+example, examplesKnown())
		if err != nil {
			t.Fatal(err)
		}
		got.source, want.source, got.files, want.files = nil, nil, nil, nil
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s: ConfigMap %+v, example %+v", manifest, got, want)
		}
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
