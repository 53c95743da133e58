package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/CycloneDX/cyclonedx-go"
	"github.com/santhosh-tekuri/jsonschema/v6"
)

// TestDocuments writes the documents of a binary, and checks the bill of materials against the schema of
// CycloneDX, and both documents against what the linker has recorded in the binary.
func TestDocuments(t *testing.T) {
	t.Chdir("../..")
	file := filepath.Join(t.TempDir(), "rdmabridge")
	cmd := exec.Command("go", "build", "-buildvcs=false", "-trimpath", "-ldflags=-s -w -X main.version=1.2.3", "-o", file, "./cmd/rdmabridge")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", cmd, err, out)
	}
	if err := writeDocuments(file, "1.2.3"); err != nil {
		t.Fatal(err)
	}
	materials, err := os.ReadFile(file + ".cdx.json")
	if err != nil {
		t.Fatal(err)
	}
	validate(t, materials)
	notices, err := os.ReadFile(file + ".NOTICES.txt")
	if err != nil {
		t.Fatal(err)
	}
	var bom cyclonedx.BOM
	if err := cyclonedx.NewBOMDecoder(bytes.NewReader(materials), cyclonedx.BOMFileFormatJSON).Decode(&bom); err != nil {
		t.Fatal(err)
	}
	if c := bom.Metadata.Component; c.Version != "1.2.3" || c.Name != "rdmabridge" {
		t.Errorf("the binary is %s %s", c.Name, c.Version)
	}
	out, err := exec.Command("go", "version", "-m", file).Output()
	if err != nil {
		t.Fatal(err)
	}
	want := 1 // the standard library
	for line := range strings.Lines(string(out)) {
		f := strings.Fields(line)
		if len(f) != 4 || f[0] != "dep" {
			continue
		}
		want++
		if !slices.ContainsFunc(*bom.Components, func(c cyclonedx.Component) bool { return c.Name == f[1] && c.Version == f[2] && len(*c.Licenses) > 0 }) {
			t.Errorf("%s %s is not among the materials, or without a licence", f[1], f[2])
		}
		if !bytes.Contains(notices, fmt.Appendf(nil, "\n%s %s: ", f[1], f[2])) {
			t.Errorf("%s %s is not in the notices", f[1], f[2])
		}
	}
	if len(*bom.Components) != want || want < 20 {
		t.Errorf("%d materials, want %d", len(*bom.Components), want)
	}
	for _, text := range []string{"Copyright 2009 The Go Authors", "Apache License", "NOTICE"} {
		if !bytes.Contains(notices, []byte(text)) {
			t.Errorf("the notices do not have %q", text)
		}
	}
	if err := writeDocuments(file, "1.2.3"); err != nil {
		t.Fatal(err)
	}
	if again, err := os.ReadFile(file + ".cdx.json"); err != nil || !bytes.Equal(again, materials) {
		t.Errorf("two runs write different materials: %v", err)
	}
}

// TestDocumentsOfAnotherProgram holds that documents are never made of a binary that they do not describe.
func TestDocumentsOfAnotherProgram(t *testing.T) {
	t.Chdir("../..")
	for _, file := range []string{filepath.Join(goRootOf(t), "bin", "go"), "go.mod"} {
		if err := writeDocuments(file, "1.2.3"); err == nil {
			t.Errorf("%s has documents", file)
		}
	}
}

func goRootOf(t *testing.T) string {
	t.Helper()
	root, err := goRoot(".")
	if err != nil {
		t.Fatal(err)
	}
	return root
}

// validate checks a bill of materials against the schema of CycloneDX, which the library's module has.
func validate(t *testing.T, materials []byte) {
	t.Helper()
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/CycloneDX/cyclonedx-go").Output()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(strings.TrimSpace(string(out)), "schema")
	c := jsonschema.NewCompiler()
	for id, name := range map[string]string{
		"http://cyclonedx.org/schema/bom-1.6.schema.json":  "bom-1.6.schema.json",
		"http://cyclonedx.org/schema/spdx.schema.json":     "spdx.schema.json",
		"http://cyclonedx.org/schema/jsf-0.82.schema.json": "jsf-0.82.schemax.json",
	} {
		f, err := os.Open(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		schema, err := jsonschema.UnmarshalJSON(f)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.AddResource(id, schema); err != nil {
			t.Fatal(err)
		}
	}
	schema, err := c.Compile("http://cyclonedx.org/schema/bom-1.6.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	check := func(b []byte) error {
		v, err := jsonschema.UnmarshalJSON(bytes.NewReader(b))
		if err != nil {
			t.Fatal(err)
		}
		return schema.Validate(v)
	}
	if err := check(materials); err != nil {
		t.Error(err)
	}
	// The schema does refuse.
	if err := check(bytes.Replace(materials, []byte(`"library"`), []byte(`"book"`), 1)); err == nil {
		t.Error("the schema accepts a component of an unknown type")
	}
}
