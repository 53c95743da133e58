package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v4"

	"github.com/rdmabridge/rdmabridge/internal/status"
	"github.com/rdmabridge/rdmabridge/metrics"
)

const prometheusDir = "../../deploy/prometheus"

// A rule is an alert or a recorded series of rules.yaml.
type rule struct {
	Alert, Record, Expr, For string
	Labels, Annotations      map[string]string
}

func prometheusRules(t *testing.T) (all []rule) {
	t.Helper()
	var file struct{ Groups []struct{ Rules []rule } }
	if err := yaml.Unmarshal(readFile(t, prometheusDir+"/rules.yaml"), &file); err != nil {
		t.Fatal(err)
	}
	for _, g := range file.Groups {
		all = append(all, g.Rules...)
	}
	return all
}

func readFile(t *testing.T, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.FromSlash(name))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestAlerts: each alert has a severity, says what happens, and leads to the section of
// docs/troubleshooting.md that the status page leads to for the same trouble. Each trouble has an alert.
func TestAlerts(t *testing.T) {
	runbook, tests := string(readFile(t, "../../docs/troubleshooting.md")), string(readFile(t, prometheusDir+"/rules_test.yaml"))
	recorded := make(map[string]bool)
	for _, r := range prometheusRules(t) {
		recorded[r.Record] = true
	}
	alerted := make(map[string]bool)
	for _, r := range prometheusRules(t) {
		unknownMetrics(t, r.Alert+r.Record, r.Expr, recorded)
		if r.Alert == "" {
			continue
		}
		code := r.Labels["code"]
		alerted[code] = true
		if !slices.Contains(status.Codes, code) {
			t.Errorf("%s: code %q", r.Alert, code)
		}
		if s := r.Labels["severity"]; s != "critical" && s != "warning" && s != "info" {
			t.Errorf("%s: severity %q", r.Alert, s)
		}
		if u := r.Annotations["runbook_url"]; !strings.HasSuffix(u, "/docs/troubleshooting.md#"+code) || !strings.Contains(runbook, "\n## "+code+"\n") {
			t.Errorf("%s: docs/troubleshooting.md has no section for %q", r.Alert, u)
		}
		for _, a := range []string{"summary", "description"} {
			if !strings.HasSuffix(r.Annotations[a], ".") {
				t.Errorf("%s: %s %q", r.Alert, a, r.Annotations[a])
			}
		}
		if !strings.Contains(tests, `"`+r.Alert+`"`) {
			t.Errorf("%s: no test in rules_test.yaml", r.Alert)
		}
	}
	for _, c := range status.Codes {
		if !alerted[c] {
			t.Errorf("no alert for %s", c)
		}
	}
}

// TestRules has promtool check the rules and run their tests.
func TestRules(t *testing.T) {
	for _, args := range [][]string{
		{"check", "rules", prometheusDir + "/rules.yaml"},
		{"test", "rules", prometheusDir + "/rules_test.yaml"},
		{"check", "config", "--syntax-only", prometheusDir + "/scrape.yaml"},
	} {
		if out, err := exec.Command(promtool(t), args...).CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
}

var metricName = regexp.MustCompile(`[a-z_:]*rdmabridge_[a-z0-9_:]+`)

// unknownMetrics fails if an expression has a metric of the bridge that is neither in the table nor recorded.
func unknownMetrics(t *testing.T, where, expr string, recorded map[string]bool) {
	t.Helper()
	for _, name := range metricName.FindAllString(expr, -1) {
		if recorded[name] || slices.ContainsFunc(metrics.All(), func(d *metrics.Definition) bool {
			base := strings.TrimPrefix(name, d.FullName())
			return base == "" || d.Kind == metrics.KindHistogram && (base == "_bucket" || base == "_sum" || base == "_count")
		}) {
			continue
		}
		t.Errorf("%s: no metric is named %s", where, name)
	}
}
