package charttest

import (
	"encoding/json"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/yannh/kubeconform/pkg/validator"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/lint"
	"helm.sh/helm/v3/pkg/lint/support"
	"sigs.k8s.io/yaml"
)

// kubernetes are the versions with whose schemas the objects must be valid: the oldest one that Chart.yaml admits, and
// the newest two. Each is a version of the module k8s.io/kubernetes, which has what its API server accepts.
var kubernetes = []string{"v1.29.15", "v1.36.3", "v1.37.2"}

// A schemaObject is a JSON Schema, or a part of one.
type schemaObject = map[string]any

// swagger returns the definitions of a version of Kubernetes. The first time it downloads the module, 20 MB.
func swagger(t *testing.T, version string) map[string]schemaObject {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "mod", "download", "-json", "k8s.io/kubernetes@"+version)
	cmd.Dir = t.TempDir() // not this module: nothing of it is compiled
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("k8s.io/kubernetes %s: %v\n%s", version, err, out)
	}
	var module struct{ Dir string }
	if err := json.Unmarshal(out, &module); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(module.Dir, "api", "openapi-spec", "swagger.json"))
	if err != nil {
		t.Fatal(err)
	}
	var api struct{ Definitions map[string]schemaObject }
	if err := json.Unmarshal(text, &api); err != nil {
		t.Fatal(err)
	}
	return api.Definitions
}

// strict changes a schema so that it says what the API server accepts: no unknown field, and a number or a string where
// OpenAPI has only a format for that. It reports each definition that the schema refers to.
func strict(schema any, refers func(name string)) {
	switch s := schema.(type) {
	case []any:
		for _, x := range s {
			strict(x, refers)
		}
	case schemaObject:
		if ref, ok := s["$ref"].(string); ok {
			refers(strings.TrimPrefix(ref, "#/definitions/"))
		}
		if properties, ok := s["properties"].(schemaObject); ok {
			if _, open := s["additionalProperties"]; !open {
				s["additionalProperties"] = false
			}
			for _, p := range properties {
				strict(p, refers)
			}
		}
		if s["format"] == "int-or-string" {
			delete(s, "format")
			s["type"] = []any{"integer", "string"}
		}
		for _, key := range []string{"items", "additionalProperties", "allOf"} {
			strict(s[key], refers)
		}
	}
}

// writeSchemas writes a file for each kind that the objects have, as kubeconform looks for them.
func writeSchemas(t *testing.T, dir string, definitions map[string]schemaObject, kinds map[string]bool) {
	t.Helper()
	const quantity = "io.k8s.apimachinery.pkg.api.resource.Quantity"
	definitions[quantity] = schemaObject{"type": []any{"string", "number"}}
	for name, d := range definitions {
		gvks, _ := d["x-kubernetes-group-version-kind"].([]any)
		for _, x := range gvks {
			gvk := x.(schemaObject)
			group, version, kind := gvk["group"].(string), gvk["version"].(string), gvk["kind"].(string)
			file := strings.ToLower(kind + "-" + version)
			if group != "" {
				file = strings.ToLower(kind + "-" + strings.Split(group, ".")[0] + "-" + version)
			}
			if !kinds[file] {
				continue
			}
			all := make(schemaObject) // of what the kind refers to
			for next := []string{name}; len(next) > 0; {
				n := next[0]
				next = next[1:]
				if all[n] == nil && definitions[n] != nil {
					all[n] = definitions[n]
					strict(definitions[n], func(name string) { next = append(next, name) })
				}
			}
			text, err := json.Marshal(schemaObject{"$ref": "#/definitions/" + name, "definitions": all})
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, file+".json"), text, 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestSchemas has kubeconform compare what the chart renders with the schemas of three versions of Kubernetes, which come
// from Kubernetes' own module. They do not have ServiceMonitor, which TestExamples decodes.
func TestSchemas(t *testing.T) {
	rendered, err := filepath.Glob("testdata/*.yaml") // TestExamples compares these with the chart
	if err != nil || len(rendered) < 5 {
		t.Fatalf("%d files, %v", len(rendered), err)
	}
	kinds := map[string]bool{
		"configmap-v1": true, "service-v1": true, "deployment-apps-v1": true, "poddisruptionbudget-policy-v1": true,
		"networkpolicy-networking-v1": true, "horizontalpodautoscaler-autoscaling-v2": true,
	}
	for _, version := range kubernetes {
		t.Run(version, func(t *testing.T) {
			dir := t.TempDir()
			writeSchemas(t, dir, swagger(t, version), kinds)
			v, err := validator.New([]string{dir + "/{{ .ResourceKind }}{{ .KindSuffix }}.json"}, validator.Opts{
				Strict: true, KubernetesVersion: strings.TrimPrefix(version, "v"), SkipKinds: map[string]struct{}{"ServiceMonitor": {}},
			})
			if err != nil {
				t.Fatal(err)
			}
			problems := func(name, text string) (problems []string, valid int) {
				for _, r := range v.Validate(name, io.NopCloser(strings.NewReader(text))) {
					switch r.Status {
					case validator.Valid:
						valid++
					case validator.Error, validator.Invalid:
						problems = append(problems, r.Err.Error())
					}
				}
				return problems, valid
			}
			for _, file := range rendered {
				text, err := os.ReadFile(file)
				if err != nil {
					t.Fatal(err)
				}
				if wrong, valid := problems(file, string(text)); len(wrong) > 0 || valid < 2 {
					t.Errorf("%s: %d objects are valid; %q", file, valid, wrong)
				}
			}
			// What the schemas must refuse.
			text, err := os.ReadFile("testdata/gateway.yaml")
			if err != nil {
				t.Fatal(err)
			}
			for _, mistake := range [][2]string{
				{"runAsNonRoot:", "runAsNonroot:"},
				{"readOnlyRootFilesystem: true", "readOnlyRootFilesystem: yes please"},
				{"maxUnavailable: 1\n", "maxUnavailable: [1]\n"},
				{"failureThreshold: 120", `failureThreshold: "120"`},
				{"timeoutSeconds: 86400", "timeOutSeconds: 86400"},
				{"containerPort: 2049", "hostPort: 2049"}, // a required field is missing
			} {
				wrong := strings.Replace(string(text), mistake[0], mistake[1], 1)
				if wrong == string(text) {
					t.Fatalf("%q is not in testdata/gateway.yaml", mistake[0])
				}
				if found, _ := problems("wrong.yaml", wrong); len(found) != 1 {
					t.Errorf("%s: %q, want one problem", mistake[1], found)
				}
			}
		})
	}
}

// TestLint runs what helm lint does, with the values of each example.
func TestLint(t *testing.T) {
	examples, err := filepath.Glob(helm + "examples/*.yaml")
	if err != nil || len(examples) < 5 {
		t.Fatalf("%d examples, %v", len(examples), err)
	}
	for _, file := range append(examples, "") {
		values := map[string]any{}
		if file != "" {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if err := yaml.UnmarshalStrict(text, &values); err != nil {
				t.Fatal(err)
			}
		}
		for _, version := range kubernetes {
			k, err := chartutil.ParseKubeVersion(version)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range lint.AllWithKubeVersion(helm+"rdmabridge", maps.Clone(values), "default", k).Messages {
				if m.Severity >= support.WarningSev {
					t.Errorf("%s, Kubernetes %s: %v", filepath.Base(file), version, m)
				}
			}
		}
	}
	if !slices.IsSorted(kubernetes) {
		t.Errorf("%v: the oldest one comes first", kubernetes)
	}
}
