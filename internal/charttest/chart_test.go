// Package charttest renders deploy/helm/rdmabridge with the values of deploy/helm/examples. It is a module of its own, because
// Helm and the types of Kubernetes are large: make chart runs it.
package charttest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"flag"
	"fmt"
	"math/big"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	apps "k8s.io/api/apps/v1"
	autoscaling "k8s.io/api/autoscaling/v2"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	policy "k8s.io/api/policy/v1"
	"sigs.k8s.io/yaml"
)

const helm = "../../deploy/helm/"

var update = flag.Bool("update", false, "write the golden files")

func load(t *testing.T) *chart.Chart {
	t.Helper()
	c, err := loader.Load(helm + "rdmabridge")
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	return c
}

// render returns the objects of the chart, in the order of their files.
func render(c *chart.Chart, values []byte) (string, error) {
	files, err := renderFiles(c, values)
	if err != nil {
		return "", err
	}
	var names []string
	for name := range files {
		names = append(names, name)
	}
	slices.Sort(names)
	var b strings.Builder
	for _, name := range names {
		if strings.TrimSpace(files[name]) != "" && strings.HasSuffix(name, ".yaml") {
			fmt.Fprintf(&b, "---\n%s\n", strings.TrimSpace(files[name]))
		}
	}
	return b.String(), nil
}

// renderFiles returns what Helm makes of each template, as values.schema.json permits.
func renderFiles(c *chart.Chart, values []byte) (map[string]string, error) {
	v := map[string]any{}
	if err := yaml.UnmarshalStrict(values, &v); err != nil {
		return nil, err
	}
	all, err := chartutil.ToRenderValues(c, v, chartutil.ReleaseOptions{Name: "storage", Namespace: "default", IsInstall: true}, chartutil.DefaultCapabilities)
	if err != nil {
		return nil, err
	}
	return engine.Engine{Strict: true}.Render(c, all)
}

// objects decodes everything strictly, as the API server's types have it: an unknown or misplaced field is an error.
func objects(t *testing.T, text string) (all map[string]any) {
	t.Helper()
	all = make(map[string]any)
	for doc := range strings.SplitSeq(text, "---\n") {
		if strings.TrimSpace(doc) == "" {
			continue
		}
		var kind struct{ APIVersion, Kind string }
		if err := yaml.Unmarshal([]byte(doc), &kind); err != nil {
			t.Fatalf("%v in\n%s", err, doc)
		}
		o := map[string]any{
			"v1/ConfigMap": &core.ConfigMap{}, "v1/Service": &core.Service{}, "apps/v1/Deployment": &apps.Deployment{},
			"policy/v1/PodDisruptionBudget": &policy.PodDisruptionBudget{}, "networking.k8s.io/v1/NetworkPolicy": &networking.NetworkPolicy{},
			"monitoring.coreos.com/v1/ServiceMonitor": &monitoring.ServiceMonitor{}, "autoscaling/v2/HorizontalPodAutoscaler": &autoscaling.HorizontalPodAutoscaler{},
		}[kind.APIVersion+"/"+kind.Kind]
		if o == nil {
			t.Fatalf("an object of an unknown kind: %s/%s", kind.APIVersion, kind.Kind)
		}
		if err := yaml.UnmarshalStrict([]byte(doc), o); err != nil {
			t.Errorf("%s: %v", kind.Kind, err)
		}
		if _, again := all[kind.Kind]; !again {
			all[kind.Kind] = o
		}
	}
	return all
}

func TestExamples(t *testing.T) {
	bridge := filepath.Join(t.TempDir(), "rdmabridge")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", bridge, "./cmd/rdmabridge")
	build.Dir = "../.."
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	examples, err := filepath.Glob(helm + "examples/*.yaml")
	if err != nil || len(examples) < 5 {
		t.Fatalf("%d examples, %v", len(examples), err)
	}
	c := load(t)
	for _, file := range examples {
		t.Run(filepath.Base(file), func(t *testing.T) {
			values, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			text, err := render(c, values)
			if err != nil {
				t.Fatal(err)
			}
			golden := "testdata/" + filepath.Base(file)
			if *update {
				if err := os.WriteFile(golden, []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if text != string(want) {
				t.Errorf("not %s any more: look at the difference, and run go test -update", golden)
			}
			all := objects(t, text)
			check(t, bridge, all)
			wantPod(t, all)
		})
	}
}

// check runs rdmabridge check on the configuration. The program is built without ibverbs, which needs a C compiler.
func check(t *testing.T, bridge string, all map[string]any) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), bridge, "check", "-")
	cmd.Env = append(os.Environ(), "IDENTITY=a text for tests")
	config := all["ConfigMap"].(*core.ConfigMap).Data["rdmabridge.yaml"]
	secrets := t.TempDir() + "/"
	for _, v := range all["Deployment"].(*apps.Deployment).Spec.Template.Spec.Volumes {
		if v.Secret != nil {
			writeSecret(t, secrets+v.Secret.SecretName, int(*v.Secret.DefaultMode))
		}
	}
	cmd.Stdin = strings.NewReader(strings.NewReplacer("provider: ibverbs", "provider: iwarp", "/etc/rdmabridge-tls/", secrets).Replace(config))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("check: %v\n%s", err, out)
	}
}

// wantPod checks what the objects must have to do with each other.
func wantPod(t *testing.T, all map[string]any) {
	t.Helper()
	d := all["Deployment"].(*apps.Deployment)
	pod := d.Spec.Template.Spec
	sidecar := len(pod.InitContainers) > 0
	containers := pod.Containers
	if sidecar {
		containers = pod.InitContainers
	}
	b := containers[0]
	if b.Name != "rdmabridge" || len(b.Args) == 0 || b.Args[0] != "serve" {
		t.Fatalf("the bridge's container is %+v", b)
	}
	if sidecar && (b.RestartPolicy == nil || *b.RestartPolicy != core.ContainerRestartPolicyAlways) {
		t.Error("the sidecar is not native: it has no restartPolicy")
	}
	for name, p := range map[string]*core.Probe{"startup": b.StartupProbe, "liveness": b.LivenessProbe} {
		switch {
		case p == nil:
			t.Errorf("no %s probe", name)
		case p.HTTPGet != nil && p.HTTPGet.Path != "/livez":
			t.Errorf("the %s probe asks %s: storage that is away would end the bridge", name, p.HTTPGet.Path)
		case p.HTTPGet == nil && p.Exec == nil:
			t.Errorf("the %s probe asks nothing", name)
		}
	}
	config := all["ConfigMap"].(*core.ConfigMap).Data["rdmabridge.yaml"]
	if loopback := strings.Contains(config, "address: 127.0.0.1:9090"); loopback != (sidecar || pod.HostNetwork) {
		t.Errorf("the admin server is at\n%s", config)
	}
	if !b.VolumeMounts[0].ReadOnly || b.SecurityContext.ReadOnlyRootFilesystem == nil || !*b.SecurityContext.ReadOnlyRootFilesystem {
		t.Error("files can be written")
	}
	if p := b.Lifecycle.PreStop; (p.Sleep == nil) == (p.Exec == nil) {
		t.Error("preStop is neither or both of sleep and exec")
	}
	labels := d.Spec.Template.Labels
	selects := func(what string, by map[string]string) {
		t.Helper()
		for k, v := range by {
			if labels[k] != v {
				t.Errorf("%s selects %s=%s, and the pods have %q", what, k, v, labels[k])
			}
		}
	}
	selects("the Deployment", d.Spec.Selector.MatchLabels)
	if s, ok := all["Service"].(*core.Service); ok {
		selects("the Service", s.Spec.Selector)
		if s.Spec.SessionAffinity != core.ServiceAffinityClientIP {
			t.Error("the Service moves clients")
		}
	} else if !sidecar {
		t.Error("a gateway without a Service")
	}
	if p, ok := all["PodDisruptionBudget"].(*policy.PodDisruptionBudget); ok {
		selects("the PodDisruptionBudget", p.Spec.Selector.MatchLabels)
	}
	if p, ok := all["NetworkPolicy"].(*networking.NetworkPolicy); ok {
		selects("the NetworkPolicy", p.Spec.PodSelector.MatchLabels)
	}
	for i, v := range pod.TopologySpreadConstraints {
		selects(fmt.Sprintf("topology spread %d", i), v.LabelSelector.MatchLabels)
	}
}

// writeSecret writes a Secret as cert-manager makes it: a certificate, its key, and the CA that has signed it, here itself.
func writeSecret(t *testing.T, dir string, mode int) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	subject := &x509.Certificate{
		SerialNumber: big.NewInt(1), DNSNames: []string{"bridge.example"}, NotBefore: time.Now(), NotAfter: time.Now().AddDate(1, 0, 0),
		IsCA: true, BasicConstraintsValid: true,
	}
	certificate, errC := x509.CreateCertificate(rand.Reader, subject, subject, key.Public(), key)
	private, errK := x509.MarshalPKCS8PrivateKey(key)
	if err := errors.Join(errC, errK, os.MkdirAll(dir, 0o755)); err != nil {
		t.Fatal(err)
	}
	for name, block := range map[string]*pem.Block{
		"tls.crt": {Type: "CERTIFICATE", Bytes: certificate}, "ca.crt": {Type: "CERTIFICATE", Bytes: certificate}, "tls.key": {Type: "PRIVATE KEY", Bytes: private},
	} {
		write(t, filepath.Join(dir, name), string(pem.EncodeToMemory(block)))
		if err := os.Chmod(filepath.Join(dir, name), os.FileMode(mode)); err != nil {
			t.Fatal(err)
		}
	}
}

// TestNotes: Helm says how to mount, from the port and the address that are in the values.
func TestNotes(t *testing.T) {
	for values, want := range map[string]string{
		"":                               "port=2049 ADDRESS:/EXPORT",
		"service: {clusterIP: 10.9.8.7}": "port=2049 10.9.8.7:/EXPORT",
		"{mode: sidecar, application: {containers: [{name: a}]}}": "in its pod",
	} {
		files, err := renderFiles(load(t), []byte(values))
		if err != nil {
			t.Fatal(err)
		}
		if notes := files["rdmabridge/templates/NOTES.txt"]; !strings.Contains(notes, want) || !strings.Contains(notes, "exec deploy/storage -c rdmabridge") {
			t.Errorf("%s: %q is not in\n%s", values, want, notes)
		}
	}
}

// TestDescribed: the schema has each value and no other one, README.md names each, and the image is that of the last release.
func TestDescribed(t *testing.T) {
	c := load(t)
	readme, err := os.ReadFile(helm + "rdmabridge/README.md")
	if err != nil {
		t.Fatal(err)
	}
	var schema struct{ Properties map[string]any }
	if err := yaml.Unmarshal(c.Schema, &schema); err != nil {
		t.Fatal(err)
	}
	delete(schema.Properties, "global") // Helm's own
	for name := range c.Values {
		if schema.Properties[name] == nil || !strings.Contains(string(readme), "`"+name+"`") {
			t.Errorf("values.schema.json or README.md lacks %s", name)
		}
		delete(schema.Properties, name)
	}
	if len(schema.Properties) > 0 {
		t.Errorf("values.schema.json has %v, and values.yaml has not", schema.Properties)
	}
	changes, err := os.ReadFile("../../CHANGELOG.md")
	if err != nil {
		t.Fatal(err)
	}
	last := regexp.MustCompile(`(?m)^## \[(\d.*)\]`).FindSubmatch(changes)
	if last == nil || c.Metadata.AppVersion != string(last[1]) {
		t.Errorf("the chart runs %s, and the last release is %s", c.Metadata.AppVersion, last[1])
	}
}

// TestRefused: values that cannot work are refused with a message, when the chart is rendered.
func TestRefused(t *testing.T) {
	c := load(t)
	for values, want := range map[string]string{
		"mode: other":                  "'gateway', 'sidecar'",
		"mode: sidecar":                "application.containers is required",
		"preStop: wait":                "'sleep', 'drain'",
		"replica: 2":                   "additional properties 'replica'",
		"ports: [{name: nfs}]":         "missing property 'port'",
		"replicas: 2":                  "config.identity is required with 2 replicas",
		"autoscaling: {enabled: true}": "config.identity is required with 6 replicas",
		"{hostNetwork: true, serviceMonitor: {enabled: true}}": "serviceMonitor needs an admin server",
	} {
		if _, err := render(c, []byte(values)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", values, err, want)
		}
	}
}
