package configs

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"go.yaml.in/yaml/v4"
)

// compileSchema returns the schema for a validator, and as JSON.
func compileSchema(t *testing.T) (*jsonschema.Schema, []byte) {
	t.Helper()
	text, err := JSONSchema()
	if err != nil {
		t.Fatal(err)
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("rdmabridge.json", doc); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile("rdmabridge.json") // which validates it against its own schema
	if err != nil {
		t.Fatal(err)
	}
	return s, text
}

// asJSON returns what a file has as a JSON document.
func asJSON(t *testing.T, data []byte) any {
	t.Helper()
	var v any
	if err := yaml.Load(data, &v); err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return doc
}

// TestJSONSchema: every file that Load takes is valid, and what Load refuses for its kind is not.
func TestJSONSchema(t *testing.T) {
	s, text := compileSchema(t)
	files, _ := filepath.Glob("examples/*.yaml")
	good := map[string][]byte{"good": []byte(goodFile), "minimal": []byte(minimal), "expanded": []byte(expanded)}
	for _, f := range append(files, "rdmabridge.yaml") {
		data, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		good[f] = data
	}
	if len(good) < 10 {
		t.Errorf("%d files", len(good))
	}
	for name, data := range good {
		if err := s.Validate(asJSON(t, data)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, bad := range []string{
		"lgo: {}", "log: {lvel: info}", "log: {level: verbose}", "log: []", "listeners: {}", "listeners: [{name: a}]", "listeners: [null]",
		"memory: {budget: lots}", "drain: {timeout: 30}", "loops: many", "loops: 257", "loops: 0", "hardening: maybe",
		"upstreams: [{name: a, transport: quic, endpoints: ['h:1']}]", "upstreams: [{name: a, transport: tcp, endpoints: 'h:1'}]",
		"upstreams: [{name: a, transport: tcp, endpoints: ['h:1'], pool: {mode: all}}]", "admin: {address: 9090}",
		"listeners: [{name: a, address: ':1', rules: [{name: r, action: deny, flavors: [md5]}]}]",
	} {
		if s.Validate(asJSON(t, []byte(bad))) == nil {
			t.Errorf("%s is valid", bad)
		}
	}

	// Each word that a check accepts, and each comment, has its place.
	var root struct {
		Properties map[string]struct {
			Description string
			Items       struct {
				Properties map[string]struct {
					Description string
					AnyOf       []struct{ Enum []any }
				}
			}
		}
	}
	if err := json.Unmarshal(text, &root); err != nil {
		t.Fatal(err)
	}
	address := root.Properties["listeners"].Items.Properties["address"]
	if !strings.HasPrefix(address.Description, "Required. host:port") {
		t.Errorf("listeners.address is described as %q", address.Description)
	}
	if e := root.Properties["upstreams"].Items.Properties["layouts"].AnyOf[0].Enum; !slices.Equal(e, []any{"pass", "hide"}) {
		t.Errorf("upstreams.layouts may be %v", e)
	}
	b := collectBounds()
	for _, path := range []string{
		"listeners.transport", "listeners.privileged", "listeners.squash.mode", "listeners.tls.mode", "listeners.tls.client.mode", "listeners.iwarp.fpdu",
		"listeners.rules.flavors", "listeners.rules.class", "listeners.rules.action", "listeners.rules.answer", "listeners.rules.squash",
		"upstreams.transport", "upstreams.balance", "upstreams.layouts", "upstreams.pool.mode", "upstreams.proxy_protocol", "upstreams.tls.mode",
		"upstreams.iwarp.fpdu", "upstreams.ibverbs.exposure", "log.level", "log.format", "log.access.mode",
	} {
		if len(b.allowed[path]) < 2 {
			t.Errorf("%s has no words", path)
		}
	}
	for path := range b.allowed {
		if schema.find(path) == nil {
			t.Errorf("a check has words for %s, which is no setting", path)
		}
	}
}
